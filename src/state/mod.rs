//! In-memory state between reconciliations. It is rebuilt at each start.

pub mod archives;
pub mod backends;
pub mod backup_admissions;
pub mod backups;
pub mod cached_claim;
pub mod candidates;
pub mod capacity;
pub mod claim_condition;
pub mod confirmed_export;
pub mod context;
pub mod copy_jobs;
pub mod last_reported;
pub mod last_written;
pub mod live_backend;
pub mod missing_directories;
pub mod quota;
pub mod recorded_ids;
pub mod recovery;
pub mod relist_diff;
pub mod requests;
pub mod reschedules;
pub mod schedules;
pub mod server_addresses;
pub mod usage;
pub mod volume_indexer;
pub mod volume_metadata;
