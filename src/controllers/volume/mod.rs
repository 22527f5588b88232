//! Volumes: when a claim is gone, the archive policy is carried out on its directory.

pub mod cache;
pub mod hand_over;
pub mod note;
pub mod reclaim;
pub mod reconcile;
pub mod report;

pub(crate) use reclaim::request;
pub use reconcile::{on_error, reconcile, settled};
