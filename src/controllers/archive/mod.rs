//! Archives: each directory that is kept has its object, and the object's word is kept on the export. An object that names a
//! claim gets a copy of its data.

mod act;
mod due;
mod look;
mod on_demand;
mod plan;
mod reconcile;
mod status;

pub use reconcile::{on_error, reconcile};
