//! Expansion of a bound claim that requests more than it has. Nothing changes on the export, except for the order of its
//! limit, if sizes are enforced; the volume's capacity is what the backend's limits count.
//!
//! The volume's capacity is written first, then the claim's status, as external-resizer does for volumes without work on
//! the node. If the process ends in between, the next one finds a volume that is larger than its claim reports, and
//! reports it.

mod limit;
mod plan;
mod reconcile;
mod reserve;

pub use plan::{is_resize_error, is_settled};
pub use reconcile::reconcile;
