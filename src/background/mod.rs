//! Work on a backend beside its reconciler: purges, orphan scans, usage scans, garbage collection.

pub mod archive_objects;
pub mod garbage_collection;
pub mod next_run;
pub mod orphan_scan;
pub mod purge;
pub mod usage;
