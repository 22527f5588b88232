//! Archives: objects, restores, retention, copies on demand.

pub mod copy;
pub mod disruptions;
pub mod objects;
pub mod on_demand;
pub mod on_demand_crash;
pub mod restore;
pub mod retention;
