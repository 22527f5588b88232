//! Work on a backend, concurrent with its reconciler: purge, garbage collection, orphan scan, and usage scan.

pub mod archive_objects;
pub mod backup_views;
pub mod garbage_collection;
pub mod orphan_scan;
pub mod purge;
pub mod quota;
pub mod runner;
pub mod usage;
pub mod volume_counts;
