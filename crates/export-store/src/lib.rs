//! What nfs-operator keeps on an NFS export: identity, records, directories, archives, trash and copies of volumes.
//!
//! The crate knows no Kubernetes API. Records refer to claims and volumes by name and UID, which the caller supplies.
//!
//! # Layout of an export
//!
//! ```text
//! .nfs-operator/identity                            identity of the export
//! .nfs-operator/<cluster ID>/records/<volume>       one record per volume
//! .nfs-operator/<cluster ID>/staging/<volume>/tree  unfinished copy
//! .nfs-operator/<cluster ID>/manifests/<volume>     manifest of a backup: states of its files and checksums
//! .nfs-operator/<cluster ID>/quota/                 sizes to enforce, and what is in force; see [`quota`]
//! .nfs-operator/<cluster ID>/trash/<namespace>_<volume>.<time>
//!                                                   deleted directory, to be purged
//! archived-<directory>                              archive of a volume
//! .nfs-operator-deleted-<volume>                    tombstone: a deleted directory that cannot be moved to the trash
//! <directory>                                       directory of a volume
//! ```
//!
//! # Protocol
//!
//! A process can die between any two calls, and any reply can be lost. Each operation on a volume therefore works as
//! follows:
//!
//! 1. Lock the volume in this process, and verify the export's identity on the current connection.
//! 2. Read the volume's record and check its signature.
//! 3. Look up the directory, and compare fileid and file handle with the record.
//! 4. Decide the next step from the record's state and from what was found. These decisions are pure functions.
//! 5. Write the record with the state that announces the step.
//! 6. Take the step: MKDIR, RENAME, RMDIR or SETATTR, each on verified handles.
//! 7. Write the record with the state that confirms it, or remove the record.
//!
//! To recover from an interruption, run the same operation again. The rules are in `docs/data-safety.md`; comments
//! refer to them by number.
//!
//! # Example
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use export_store::{ExpectedIdentity, ExportError, ExportStore, PathReservations, PurgeLimits, StoreConfig};
//!
//! async fn purge(client: nfs_client::Client, config: StoreConfig) -> Result<u64, ExportError> {
//!     let store = ExportStore::new(client, config, Arc::new(PathReservations::new()));
//!     store.confirm_identity(ExpectedIdentity::default()).await?;
//!     store.recover(&|_volume| true).await?;
//!     let report = store.purge_trash(PurgeLimits::default()).await?;
//!     Ok(report.removed)
//! }
//! ```

mod accept;
mod adopt;
mod archives;
mod beacon;
mod clock;
mod compact_index;
mod copy;
mod count;
mod create_missing_record;
mod error;
mod error_kind;
pub mod fair_queue;
mod file_holders;
mod folders;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod group_reservations;
#[cfg(any(test, feature = "testing"))]
pub mod hostile_names;
mod identity;
mod inspection;
pub mod interner;
mod keyed_mutex;
pub mod layout;
mod limits;
mod listing;
pub mod naming;
mod occasional_check;
mod other_clusters;
mod own_files;
mod parents;
pub mod path_reservations;
mod paths;
mod provision;
mod purge;
pub mod quota;
mod readdir;
mod recent_archives;
mod reclaim;
mod record;
mod record_index;
mod recorded_place;
mod records;
mod recoverability;
mod recovery;
mod request;
mod reserve;
mod rollback;
mod server_comparison;
mod signature;
mod snapshots;
mod sorted_chunks;
mod store;
pub mod text;
mod text_arena;
mod trash;
mod tree_walk;
pub mod uid_map;
mod unanswered_changes;
mod unsigned_records;
mod verified_root;
mod volume_record;
mod write_probe;

pub use accept::{Acceptance, AcceptanceScope, AcceptedDirectory};
pub use adopt::{Adopted, RecordName};
pub use archives::{ArchivePhase, ArchiveRef, RecordedArchive, ReleasedArchive};
pub use beacon::{Beacon, Beacons, KnownBeacon};
pub use clock::WallClock;
pub use copy::{
    ArchiveRequest, CopyError, CopyLimits, CopyProgress, CopyProgressSnapshot, CopySource, DiscardOutcome, MAX_COPIES,
    ManifestRef, RequestedArchive, SnapshotUse, SourceTree, StagedLimit, VerifyProblem, VerifyReport, copy_to_archive,
    copy_volume,
};
pub use count::{CountTarget, RateLimiter, TreeUsage};
pub use error::ExportError;
pub use error_kind::{ErrorHints, ErrorKind, RootPermissions, classify, remedy_of};
pub use group_reservations::{GroupRange, GroupReservations};
pub use identity::parse_export_id;
pub use inspection::{Inspection, PathState};
pub use interner::Interner;
pub use limits::{AgentState, LimitOrder, LimitReport, NoLimit, NoOrder, Ordered, VolumeLimit};
pub use listing::{ExportListing, ListedDirectory, Presence, Signature};
pub use occasional_check::OccasionalCheck;
pub use other_clusters::ForeignDirectory;
pub use path_reservations::{Conflict, Holder, PathReservations, Relation, ReservedPath, Sharing};
pub use record::{
    ArchiveState, CopiedAmount, CopiedSnapshot, CopyState, Record, RecordError, RecordedHandle, RestoreTarget,
    RetentionTerms, State, TermsRevision, VolumeMetadata,
};
pub use records::ReadRecord;
pub use recoverability::{RecordedVolume, Recoverability};
pub use request::{
    ArchiveMetadata, ClaimRef, Decided, DirectoryRequest, Existing, ExpectedIdentity, Identity, NEW_IDENTITY,
    OpenRecord, OwnFileIds, ProvisionedDirectory, PurgeFailure, PurgeLimits, PurgeReport, ReclaimDecision, Reclaimed,
    RecordTransfer, RecoveryReport, RollbackOutcome, StoreConfig, StuckRecord, TrashContent, VolumeDirectory,
    WriteProbe,
};
pub use server_comparison::ServerComparison;
pub use signature::{KEY_LENGTH, RecordsKey, SignatureStatus};
pub use snapshots::SnapshotSelector;
pub use store::ExportStore;
pub use uid_map::UidMap;
pub use unsigned_records::{OtherCluster, UnsignedRecord, UnsignedRecords};
