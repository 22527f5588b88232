//! Archives: each directory that is kept has its object, and the object's word is kept on the export.

mod act;
mod due;
mod look;
mod object;
mod plan;
mod reconcile;
mod status;

pub use due::due;
pub use object::{EnsureError, ensure, which};
pub use reconcile::{of_backend, on_error, reconcile, restock};
