//! Archives: each directory that is kept has its object, and the object's word is kept on the export. An object that names a
//! claim gets a copy of its data.

mod act;
mod due;
mod look;
mod object;
mod on_demand;
mod plan;
mod reconcile;
mod status;

pub use due::due;
pub use object::{EnsureError, ensure, which};
pub use on_demand::clear_out;
pub use reconcile::{create_missing_objects, of_backend, on_error, reconcile};
