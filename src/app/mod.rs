//! Startup and wiring of the operator: the only folder that depends on all controllers.

mod caches;
mod controllers;
pub mod run;
mod wiring;
