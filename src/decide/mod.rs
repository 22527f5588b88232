//! Decisions as pure functions of what was observed: no I/O, no clock.

pub mod archive_object;
pub mod mount_options;
pub mod placement;
pub mod policy;
pub mod reclaim_request;
pub mod restore_source;
