//! Backups that tenants request: creates and deletes their archives, and reports what became of them. The controller of
//! archives copies the data.
//!
//! A tenant may write anything into a backup, its status included. What is done depends on the UIDs of the backup and of its
//! namespace, on the archive, and on the settings of the backend.

mod cleanup;
mod plan;
mod reconcile;
mod request;
mod status;

pub use reconcile::{on_error, reconcile};
