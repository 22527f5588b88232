//! Backends: probes each on change and every `probeInterval`, writes its status, wakes waiting claims and starts its
//! background tasks.

mod expected_identity;
mod probe;
mod reconcile;
mod records;
mod removal;
mod status;
mod target;
mod unblocks;

pub use reconcile::{on_error, reconcile};
pub use removal::BackendRemovalWatcher;
pub use target::{roots, target};
