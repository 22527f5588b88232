//! Volumes: when a claim is gone, the archive policy is carried out on its directory.

pub mod cache;
mod hand_over;
mod inherited;
pub(super) mod note;
mod reclaim;
mod reconcile;
mod report;

pub use inherited::class_changed;
pub(super) use reclaim::request;
pub use reconcile::{on_error, reconcile, settled};
