//! One folder a reconciler: what it observes, what it decides (`plan.rs`, pure), what it reports.

pub mod archive;
pub mod backend;
pub mod claim;
pub mod volume;
