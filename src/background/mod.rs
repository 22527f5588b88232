//! Work on a backend, concurrent with its reconciler: purge, garbage collection, orphan scan, usage scan, and what
//! administrators request.

pub mod accept_directories;
pub mod archive_objects;
pub mod backup_views;
pub mod garbage_collection;
pub mod orphan_scan;
pub mod purge;
pub mod quota;
pub mod runner;
pub mod usage;
pub mod volume_counts;
