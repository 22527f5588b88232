//! Claims: guarded, placed, provisioned as a directory and a volume, and told what happened.

mod guard;
mod overrides;
mod place;
mod provision;
mod reconcile;
mod report;
mod volume;

pub use reconcile::{on_error, reconcile};
