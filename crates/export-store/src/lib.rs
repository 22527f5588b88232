//! What the operator keeps on an export: its identity, records, directories, archives and trash.
//!
//! Everything here can be cut off between any two calls, and every reply can be lost: a record is written before the
//! step that it announces, and what is found afterwards, told by fileid, says how far it came. Running the same
//! operation again is the repair, always.
//!
//! The rules are those of section 6 of the design; the modules say which of them they keep.

mod adopt;
mod archives;
mod copy;
mod count;
mod error;
mod error_kind;
mod folders;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile_names;
mod identity;
mod inspection;
mod keyed_mutex;
pub mod layout;
mod listing;
pub mod naming;
mod other_clusters;
pub mod path_reservations;
mod paths;
mod provision;
mod purge;
mod reclaim;
mod record;
mod records;
mod recoverability;
mod recovery;
mod register;
mod request;
mod rollback;
mod signature;
mod store;
pub mod text;
mod trash;
mod unsigned_records;
mod verified_root;
mod volume_record;
mod write_probe;

pub use adopt::{Adopted, RecordName};
pub use archives::{ArchiveRef, RecordedArchive, Stage};
pub use copy::{
    ArchiveRequest, Asked, Budget, CopyError, CopySource, Discarded, SourceTree, Tally, TallySnapshot, copy_to_archive,
    copy_volume,
};
pub use count::{Content, Place as TreePlace, RateLimiter};
pub use error::ExportError;
pub use error_kind::{ErrorHints, ErrorKind, classify, remedy_of};
pub use inspection::{Inspection, PathState};
pub use listing::{ExportListing, ListedDirectory, Presence, Signature};
pub use other_clusters::ForeignDirectory;
pub use path_reservations::{Conflict, Holder, PathReservations, Relation, ReservedPath};
pub use record::{ArchiveState, CopyState, Record, RecordError, RestoreTarget, RetentionTerms, State, VolumeMetadata};
pub use records::Found;
pub use recoverability::{RecordedVolume, Recoverability};
pub use request::{
    ArchiveMetadata, ClaimRef, DirectoryRequest, Existing, ExpectedIdentity, Identity, ProvisionedDirectory,
    PurgeFailure, PurgeLimits, PurgeReport, ReclaimRequest, Reclaimed, RecoveryReport, RollbackOutcome, StoreConfig,
    TrashContent, WriteProbe,
};
pub use signature::{KEY_LENGTH, RecordsKey, Trust};
pub use store::ExportStore;
pub use unsigned_records::{OtherCluster, UnsignedRecord, UnsignedRecords};
