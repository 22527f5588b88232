//! Requests to an [`ExportStore`](super::ExportStore), and their results.

use serde::{Deserialize, Serialize};

use crate::ReservedPath;
use crate::archives::ArchiveRef;
use crate::naming::DirectoryPath;
use crate::record::{ArchiveState, Record, RetentionTerms, VolumeMetadata};
use crate::signature::RecordsKey;
use nfs_client::{Attributes, Credential, FsId};

/// Configuration of an [`ExportStore`](super::ExportStore).
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The cluster's name on exports: that of its folder.
    pub cluster_id: String,
    /// The key that its records are signed with.
    pub records_key: RecordsKey,
    /// The backend's name.
    pub backend: String,
    /// The backend's uid.
    pub backend_uid: String,
    /// Whom the operator acts as.
    pub credential: Credential,
    /// The backend's address and former addresses ([`Place::on_server`]).
    pub roots: Vec<ReservedPath>,
}

impl StoreConfig {
    /// Returns the configuration for an export that is only read: without records and folders.
    pub fn read_only(credential: Credential) -> Self {
        Self {
            cluster_id: String::new(),
            records_key: RecordsKey::random(),
            backend: String::new(),
            backend_uid: String::new(),
            credential,
            roots: Vec::new(),
        }
    }
}

/// A claim, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRef {
    /// Namespace.
    pub namespace: String,
    /// Uid of the namespace; empty when it is not known.
    #[serde(default)]
    pub namespace_uid: String,
    /// Name.
    pub name: String,
    /// Uid: what tells a claim from its successor of the same name.
    pub uid: String,
}

/// What is known of an export's identity before it is read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExpectedIdentity {
    /// The identity that the backend's spec or status, or a volume, knows.
    pub export_id: Option<String>,
    /// The root's fileid that the backend's status knows.
    pub root_file_id: Option<u64>,
    /// Nobody knows an identity, and the administrator wants one: it may be made.
    pub may_create: bool,
    /// An administrator accepted `export_id` (`nfs-operator.io/accept-identity`): a root with another fileid is
    /// taken for this export from now on.
    pub accepted: bool,
}

/// The identity of an export, read on the present connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The random id.
    pub id: String,
    /// The root's fileid.
    pub root_file_id: u64,
    /// The root's file system.
    pub fsid: FsId,
    /// It was made just now.
    pub created: bool,
    /// What an administrator should know, though it stops nothing.
    pub warnings: Vec<String>,
}

/// What the probe for writing found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProbe {
    /// The owner that the server gives to what we make; absent when it answers a name without a number.
    pub effective_uid: Option<u32>,
    /// As above, for the group.
    pub effective_gid: Option<u32>,
    /// The server makes somebody else of our credential (root_squash, all_squash).
    pub squashed: bool,
}

/// Result of a recovery.
#[derive(Debug, Default)]
pub struct RecoveryReport {
    /// Records of directories that have no volume. If the claim is still there, its reconciliation goes on with
    /// the record; if not, [`undo`](super::ExportStore::undo) is due.
    pub open: Vec<Record>,
    /// Records of reclaims that were begun and whose volume is gone, with the directory still in place: nothing
    /// touches them any more; an administrator has to look.
    pub stuck: Vec<Record>,
    /// Files among the records that are none: name and what is wrong with it. Left as they are.
    pub damaged: Vec<(String, String)>,
}

/// What to do when a directory exists and has no record of this operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Fail.
    Refuse,
    /// Use it as it is. It is archived, never deleted, when its volume goes.
    Adopt,
}

/// A directory to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryRequest {
    /// Whose it is.
    pub claim: ClaimRef,
    /// The volume's name.
    pub volume: String,
    /// Where, relative to the export's path.
    pub directory: DirectoryPath,
    /// Permission bits.
    pub mode: u32,
    /// Somebody asked for the mode: not keeping it is an error. Otherwise it is a warning.
    pub mode_asked: bool,
    /// Owner to set.
    pub uid: Option<u32>,
    /// Group to set.
    pub gid: Option<u32>,
    /// What to do when the directory exists and does not belong to the operator.
    pub existing: Existing,
    /// The pattern holds nothing that a tenant chooses freely (labels, annotations).
    pub adoptable: bool,
    /// The archive whose directory it becomes; absent: it is made, or adopted.
    pub restore: Option<ArchiveRef>,
    /// What the volume is going to be; absent when that is too long to be recorded.
    pub note: Option<VolumeMetadata>,
}

/// A directory that is there, judged and recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvisionedDirectory {
    /// Where: the recorded one, which wins over the one asked for.
    pub directory: DirectoryPath,
    /// Its fileid.
    pub file_id: u64,
    /// It was there before.
    pub adopted: bool,
    /// The mode that the server reports instead of the default one.
    pub mode_not_kept: Option<u32>,
}

/// Result of a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RollbackOutcome {
    /// Directory and record are gone, or were never there.
    Gone,
    /// The directory was adopted, or isn't the one that was made: it stays, the record is gone.
    DirectoryKept,
    /// The directory holds something: directory and record stay.
    NotEmpty,
}

/// A volume's directory to reclaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimRequest {
    /// Whose it was.
    pub claim: ClaimRef,
    /// The volume's name.
    pub volume: String,
    /// Where, relative to the export's path.
    pub directory: DirectoryPath,
    /// The fileid that the volume's annotation knows.
    pub file_id: Option<u64>,
    /// What the record of its archive is to say, if it becomes one.
    pub archive_metadata: ArchiveMetadata,
}

/// What the record of an archive says beside where it is: what its object is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveMetadata {
    /// The volume's size, as a quantity.
    pub size: Option<String>,
    /// The volume's StorageClass.
    pub class: Option<String>,
    /// How long it is kept, in seconds; absent = for ever.
    pub retention: Option<i64>,
}

impl ArchiveMetadata {
    /// The note of an archive that is made now of a directory that was like this.
    pub(super) fn note(&self, target: String, was: Option<&Attributes>) -> ArchiveState {
        let now = jiff::Timestamp::now().as_second();
        ArchiveState {
            target,
            mode: was.map_or(0, |was| was.mode),
            uid: was.and_then(|was| was.uid),
            gid: was.and_then(|was| was.gid),
            since: Some(now),
            size: self.size.clone(),
            class: self.class.clone(),
            terms: RetentionTerms {
                expires: self.retention.map(|retention| now.saturating_add(retention)),
                ..RetentionTerms::default()
            },
            copy: None,
        }
    }
}

/// Result of a reclaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reclaimed {
    /// Kept under this name at the export's root.
    Archived {
        /// The archive's name.
        name: String,
        /// What could not be done to it, though it is archived.
        warnings: Vec<String>,
    },
    /// It was empty: removed instead of archived.
    EmptyRemoved,
    /// Out of sight, and being purged.
    Deleted,
    /// It was not there any more.
    AlreadyGone,
    /// Left as it is.
    Retained,
}

/// Limits of one purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeLimits {
    /// Names to remove, about.
    pub removals: u64,
    /// Time to take, about.
    pub time: std::time::Duration,
}

impl Default for PurgeLimits {
    fn default() -> Self {
        Self {
            // A few seconds of work on a fast server: the trash of other volumes gets its turn.
            removals: 100_000,
            time: std::time::Duration::from_secs(60),
        }
    }
}

/// What is in the trash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrashContent {
    /// Deleted directories that are not purged.
    pub entries: u64,
    /// When the oldest was deleted.
    pub oldest: Option<jiff::Timestamp>,
}

/// Result of a purge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PurgeReport {
    /// What is left.
    pub left: TrashContent,
    /// Names removed.
    pub removed: u64,
    /// The limits ended it: there is more that could go.
    pub interrupted: bool,
    /// What could not be removed: the first few.
    pub failures: Vec<PurgeFailure>,
    /// How many could not be removed in all.
    pub failed: u64,
}

/// Something that could not be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeFailure {
    /// Where, below the trash; bytes that are not printable are escaped.
    pub path: String,
    /// Why, and the remedy.
    pub reason: String,
}
