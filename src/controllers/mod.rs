//! Reconcilers, one folder each: the observed state, the decision (`plan.rs`, pure), and the report. The controller of
//! storage capacity has no objects to reconcile, but a state that it publishes.

pub mod archive;
pub mod backend;
pub mod backup;
pub mod claim;
pub mod schedule;
pub mod storage_capacity;
pub mod volume;
