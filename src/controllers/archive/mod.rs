//! Archives: purges, completes restores and reports what is on the export. An object that names a claim instead of an
//! archive requests a backup.

mod backup;
mod expiry;
mod import;
mod observe;
mod ops;
mod plan;
mod reconcile;
mod status;

pub use reconcile::{on_error, reconcile};
