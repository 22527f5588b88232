//! Reconcilers, one folder each: the observed state, the decision (`plan.rs`, pure), and the report.

pub mod archive;
pub mod backend;
pub mod claim;
pub mod volume;
