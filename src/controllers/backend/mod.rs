//! Backends: probed on change and every `probeInterval`; their status kept; waiting claims woken.

mod address;
mod cure;
mod departure;
mod expectation;
mod probe;
mod readopt;
mod reconcile;
mod records;
mod scan;
mod status;
mod sweep;
mod trash;
mod usage;

pub use address::{roots, target};
pub use departure::Follower;
pub use readopt::asked;
pub use reconcile::{on_error, reconcile};
