//! Volumes: once a claim is deleted, the archive policy is applied to the volume's directory.

mod deletion;
mod plan;
mod reclaim;
mod reconcile;
mod report;
mod report_existing;
mod transfer_record;

pub use plan::is_settled;
pub use reconcile::{on_error, reconcile};
