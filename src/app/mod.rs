//! Starts everything in the right order, and stops it cleanly.

pub mod run;
mod watches;
mod wiring;
