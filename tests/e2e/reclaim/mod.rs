//! Reclaim of released volumes.

pub mod parents;
pub mod policies;
pub mod rebound;
pub mod static_volumes;
pub mod trees;
