//! Decisions: pure functions of the observed state, without I/O and clock.
//!
//! - [`placement`]: the backends that can serve a claim, and their order; [`topology`] restricts them by node.
//! - [`reclaim`]: what happens to a released volume, and where its directory is.
//! - [`retention`]: when an archive expires.
//! - [`backup_base`]: the earlier backups whose unchanged files a backup shares.
//! - [`self_service`]: which backups tenants may create.
//! - [`schedule`]: when backups are due; [`overdue_backups`]: which claims have none in time.
//! - [`mount_options`]: the mount options of a volume.
//! - [`quantity`]: parser of Kubernetes quantities.
//! - [`storage_capacity`]: what the scheduler is told about the nodes and sizes that late-binding classes serve.
//! - [`volume_limit`]: the limit of a volume or an archive on the server.

pub mod archive_object;
pub mod backup_base;
pub mod backup_destination;
pub mod directory_pattern;
pub mod mount_options;
pub mod object_name;
pub mod overdue_backups;
pub mod placement;
pub mod quantity;
pub mod reclaim;
pub mod restore_permission;
pub mod restore_source;
pub mod retention;
pub mod schedule;
pub mod self_service;
pub mod storage_capacity;
pub mod terms;
pub mod topology;
pub mod volume_directory;
pub mod volume_limit;
pub mod volume_location;
