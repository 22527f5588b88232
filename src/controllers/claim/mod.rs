//! Claims: guarded, placed, provisioned as a directory and a volume, and told what happened.

mod concern;
mod copy;
mod directory;
mod expansion;
mod guard;
mod overrides;
pub(crate) mod place;
mod plan;
mod provision;
mod readoption;
mod reconcile;
mod report;
mod reschedule;
mod restore;
mod save;
mod volume;

pub use concern::concern;
pub use reconcile::{gone, on_error, reconcile, settled};
pub use report::waiting;
