//! Expansion: a bound claim asks for more than it has. Nothing happens on the export; what grows is what the backend's
//! limits count.
//!
//! The volume's capacity is written first, then the claim's status, as external-resizer does for volumes that need no
//! work on the node. Whoever dies in between finds a volume that has more than its claim says, and says it.

mod plan;
mod reconcile;
mod room;

pub use plan::at_rest;
pub use reconcile::reconcile;
