//! Work on a backend beside its reconciler: purge, garbage collection, orphan scan, usage scan.

pub mod archive_objects;
pub mod garbage_collection;
pub mod orphan_scan;
pub mod purge;
pub mod runner;
pub mod usage;
