//! What starts what: the only folder that knows all controllers.

mod caches;
mod controllers;
pub mod run;
mod wiring;
