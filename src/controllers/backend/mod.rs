//! Backends: probed on change and every `probeInterval`; their status kept; waiting claims woken.

mod address;
mod cure;
mod departure;
mod expectation;
mod probe;
mod reconcile;
mod records;
mod status;

pub use address::{roots, target};
pub use departure::Follower;

pub use reconcile::{on_error, reconcile};
