//! Requests to an [`ExportStore`](super::ExportStore), and their results.

use std::future::ready;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::ReservedPath;
use crate::archives::{ArchiveRef, RecordedArchive};
use crate::beacon::KnownBeacon;
use crate::error::ExportError;
use crate::error_kind::ErrorKind;
use crate::group_reservations::GroupRange;
use crate::naming::DirectoryPath;
use crate::path_reservations::Sharing;
use crate::record::{ArchiveState, RetentionTerms, TermsRevision, VolumeMetadata};
use crate::signature::RecordsKey;
use nfs_client::{Attributes, Credential, FsId};

/// Configuration of an [`ExportStore`](super::ExportStore).
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// ID of the cluster, which is the name of its folder on exports.
    pub cluster_id: String,
    /// Key for signatures of records.
    pub records_key: RecordsKey,
    /// Name of the backend.
    pub backend: String,
    /// UID of the backend.
    pub backend_uid: String,
    /// Credential of the operator.
    pub credential: Credential,
    /// Paths of the backend's address and former addresses ([`ReservedPath::on_server`]).
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

/// A claim, as far as known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRef {
    /// Namespace.
    pub namespace: String,
    /// UID of the namespace; empty if unknown.
    #[serde(default)]
    pub namespace_uid: String,
    /// Name.
    pub name: String,
    /// UID, which distinguishes the claim from a later one of the same name.
    pub uid: String,
}

/// What `nfs-operator.io/accept-identity` names to accept an export without an identity, which gets one.
pub const NEW_IDENTITY: &str = "new";

/// Known facts about an export's identity before it is read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExpectedIdentity {
    /// The identity in the backend's spec or status, or in a volume.
    pub export_id: Option<String>,
    /// The root's fileid in the backend's status.
    pub root_file_id: Option<u64>,
    /// The fileids of the operator's own files in the backend's status.
    pub own_file_ids: Option<OwnFileIds>,
    /// The identity may be created: none is known, and the administrator allows it.
    pub may_create: bool,
    /// An identity has to be created: an administrator accepted an export that has none.
    pub must_create: bool,
    /// The beacons in the statuses of backends, which are not needed once this process has verified a beacon on the export. If
    /// unset, the beacon is not checked.
    pub beacons: Option<Vec<KnownBeacon>>,
    /// An administrator accepted `export_id` (`nfs-operator.io/accept-identity`). From now on, a root with another file
    /// ID counts as this export.
    pub accepted: bool,
}

/// Fileids of the operator's own files on an export. A copy has others, also where the root of every file system has
/// the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnFileIds {
    /// The identity file.
    pub identity: u64,
    /// The cluster's folder.
    pub cluster: u64,
}

/// Identity of an export, read on the current connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Random ID.
    pub id: String,
    /// Fileid of the root.
    pub root_file_id: u64,
    /// Fileids of the operator's own files.
    pub own_file_ids: OwnFileIds,
    /// File system of the root.
    pub fsid: FsId,
    /// The identity was just created.
    pub created: bool,
    /// Warnings for an administrator. They do not block anything.
    pub warnings: Vec<String>,
}

/// Result of the write test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProbe {
    /// The export has no space, no inodes or no quota left: nothing can be created, but directories can be deleted.
    pub full: Option<ErrorKind>,
    /// Owner that the server assigns to files of the operator; unset if the server reports a name without a number.
    pub effective_uid: Option<u32>,
    /// Group that the server assigns to files of the operator; unset as above.
    pub effective_gid: Option<u32>,
    /// The server maps the operator's user to another one (root_squash, all_squash).
    pub squashed: bool,
}

/// Result of a recovery.
#[derive(Debug, Default)]
pub struct RecoveryReport {
    /// Records of directories without a volume. If the claim still exists, its reconciliation resumes with the record.
    /// Otherwise, call [`rollback`](super::ExportStore::rollback).
    pub open: Vec<OpenRecord>,
    /// Records of unfinished reclaims whose volume is gone and whose directory is still at its path. Nothing changes
    /// them anymore; an administrator must check them.
    pub stuck: Vec<StuckRecord>,
    /// Signed records of volumes in use on other backends of the export, without a volume. Their own backends recover them,
    /// if they exist.
    pub elsewhere: Vec<OpenRecord>,
    /// Names of the first 1,000 invalid files among the records, and what is wrong with each. They are left unchanged.
    pub damaged: Vec<(String, String)>,
    /// Number of further invalid files.
    pub further_damaged: usize,
}

/// What a recovery finds in the record of a directory without a volume. Less than the record: after the loss of a cluster,
/// every volume has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRecord {
    /// Name of the volume.
    pub volume: String,
    /// Name of the backend.
    pub backend: String,
    /// The claim.
    pub claim: ClaimRef,
    /// UID of the cluster that created the volume, if the record has its metadata.
    pub cluster: Option<String>,
    /// The directory is not complete.
    pub is_creating: bool,
    /// The directory existed before.
    pub is_adopted: bool,
    /// The directory was or will be moved from an archive.
    pub restores: bool,
    /// A claim used the volume, and this cluster signed the record.
    pub is_lost: bool,
}

/// The record of a reclaim that nobody completes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckRecord {
    /// Name of the volume.
    pub volume: String,
    /// Path of the directory, relative to the export's path.
    pub directory: DirectoryPath,
}

/// What to do when a directory exists and has no record of this operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Fail.
    Refuse,
    /// Use the directory unchanged. It is archived, never deleted, when its volume is deleted.
    Adopt,
    /// Use the directory unchanged, together with other volumes that share it. It must exist, and stays as it is when
    /// its volumes are deleted.
    Share,
}

impl Existing {
    /// Returns whether other volumes may have the directory.
    pub(crate) fn sharing(self) -> Sharing {
        match self {
            Self::Share => Sharing::Shared,
            Self::Refuse | Self::Adopt => Sharing::Exclusive,
        }
    }
}

/// Request to create a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryRequest {
    /// The claim.
    pub claim: ClaimRef,
    /// Name of the volume.
    pub volume: String,
    /// Path of the directory, relative to the export's path.
    pub directory: DirectoryPath,
    /// Permission bits.
    pub mode: u32,
    /// The mode was requested explicitly, so a server that does not set it causes an error. Otherwise, it causes a
    /// warning.
    pub mode_requested: bool,
    /// Permission bits for a directory that is adopted. If unset, it keeps its own.
    pub adopted_mode: Option<u32>,
    /// Owner to set.
    pub uid: Option<u32>,
    /// Group to set, which pods of the volume get.
    pub gid: Option<u32>,
    /// Groups from which the volume gets one of its own instead.
    pub gid_range: Option<GroupRange>,
    /// What to do when the directory exists and does not belong to the operator.
    pub existing: Existing,
    /// No tenant can choose the directory, so an existing one may be adopted or shared.
    pub adoptable: bool,
    /// The archive to restore to the directory; if unset, the directory is created or adopted.
    pub restore: Option<ArchiveRef>,
    /// Metadata of the future volume; unset if too long for a record.
    pub metadata: Option<VolumeMetadata>,
}

/// A directory that exists, is recorded, and has checked attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvisionedDirectory {
    /// Path of the directory: the recorded one, which takes precedence over the requested one.
    pub directory: DirectoryPath,
    /// Fileid of the directory.
    pub file_id: u64,
    /// The directory existed before.
    pub adopted: bool,
    /// Other volumes may have the directory.
    pub shared: bool,
    /// The mode that the server reports instead of the default one.
    pub mode_not_kept: Option<u32>,
    /// Group that pods of the volume get: the recorded one.
    pub group: Option<u32>,
}

/// Result of a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RollbackOutcome {
    /// Directory and record do not exist, or no longer.
    Gone,
    /// The directory was adopted or is not the one that was created: it is kept, and its record is removed.
    DirectoryKept,
    /// The directory is not empty: directory and record are kept.
    NotEmpty,
}

/// The directory of a volume according to its PersistentVolume. The record has to agree (data-safety rule 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDirectory {
    /// The claim of the volume.
    pub claim: ClaimRef,
    /// Name of the volume.
    pub volume: String,
    /// Path of the directory, relative to the export's path.
    pub directory: DirectoryPath,
    /// Fileid in the volume's annotation.
    pub file_id: Option<u64>,
    /// Metadata for the record of its archive, if it becomes one.
    pub archive_metadata: ArchiveMetadata,
}

/// Decides that the directory of a volume is reclaimed, immediately before it is moved or removed, or its record is removed
/// to retain it. Implemented outside of this crate, which does not know the API server.
pub trait ReclaimDecision: Send + Sync {
    /// Makes sure that nobody gets the volume from now on. Returns false if somebody may have it, or may want to keep it. May
    /// be called several times.
    fn decide(&self) -> BoxFuture<'_, bool>;
}

/// The decision about a directory that nobody else can get.
#[derive(Debug, Clone, Copy)]
pub struct Decided;

impl ReclaimDecision for Decided {
    fn decide(&self) -> BoxFuture<'_, bool> {
        Box::pin(ready(true))
    }
}

/// Metadata in the record of an archive, used to create its object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArchiveMetadata {
    /// Size of the volume, as a quantity.
    pub size: Option<String>,
    /// StorageClass of the volume.
    pub class: Option<String>,
    /// Creation time of the volume, in seconds since 1970; unset if the age of its data is unknown.
    pub volume_created: Option<i64>,
    /// Time of archiving, in seconds since 1970. Not read from this machine's clock, which may be wrong.
    pub archived_at: Option<i64>,
    /// Retention period in seconds; forever if it or the time of archiving is unset.
    pub retention: Option<i64>,
}

impl ArchiveMetadata {
    /// Returns the metadata of an archive that is created from a directory with these attributes.
    pub(super) fn archive_state(&self, target: String, was: Option<&Attributes>) -> ArchiveState {
        let expires = self.archived_at.zip(self.retention);
        ArchiveState {
            target,
            mode: was.map_or(0, |was| was.mode),
            uid: was.and_then(|was| was.uid),
            gid: was.and_then(|was| was.gid),
            since: self.archived_at,
            volume_created: self.volume_created,
            retention: self.retention,
            size: self.size.clone(),
            class: self.class.clone(),
            terms: RetentionTerms {
                expires: expires.map(|(now, retention)| now.saturating_add(retention)),
                ..RetentionTerms::default()
            },
            revision: Some(TermsRevision::default()),
            copy: None,
            released: false,
        }
    }
}

/// Result of a reclaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reclaimed {
    /// Archived under this name at the export's root.
    Archived {
        /// Name of the archive.
        name: String,
        /// Changes to the archive that failed; the directory is archived nevertheless.
        warnings: Vec<String>,
        /// The archive as this call recorded it; unset if it was recorded before.
        recorded: Option<Box<RecordedArchive>>,
    },
    /// The directory was empty, so it was removed instead of archived.
    EmptyRemoved,
    /// The directory was moved into the trash, or to a tombstone, to be purged.
    Deleted,
    /// The directory did not exist anymore.
    AlreadyGone,
    /// The directory is unchanged.
    Retained,
}

/// Result of transferring the record of a volume to another claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordTransfer {
    /// The record is that of the claim.
    Transferred,
    /// The directory was archived or deleted for this claim, so the record remains its own.
    Reclaimed(ClaimRef),
}

/// Limits of one purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeLimits {
    /// Approximate number of names to remove.
    pub removals: u64,
    /// Approximate duration.
    pub time: std::time::Duration,
    /// Purge and count the trash, which the backends on one export share. If false, only the backend's own tombstones.
    pub shared_trash: bool,
}

impl Default for PurgeLimits {
    fn default() -> Self {
        Self {
            // A few seconds of work on a fast server, so that other volumes get their turn.
            removals: 100_000,
            time: std::time::Duration::from_secs(60),
            shared_trash: true,
        }
    }
}

/// Content of the trash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrashContent {
    /// Number of deleted directories that are not purged yet.
    pub entries: u64,
    /// Deletion time of the oldest one.
    pub oldest: Option<jiff::Timestamp>,
}

/// Result of a purge.
#[derive(Debug, Clone, Default)]
pub struct PurgeReport {
    /// Remaining content of the trash.
    pub left: TrashContent,
    /// Number of names removed.
    pub removed: u64,
    /// Number of directories that were moved to the top of their tree because they were nested too deeply.
    pub raised: u64,
    /// The purge stopped at a limit or because of an error, and more names may be removable.
    pub interrupted: bool,
    /// The error that stopped it.
    pub error: Option<ExportError>,
    /// The first few names that could not be removed.
    pub failures: Vec<PurgeFailure>,
    /// Total number of names that could not be removed.
    pub failed: u64,
}

/// A name that could not be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeFailure {
    /// Path below the trash. Nonprintable bytes are escaped.
    pub path: String,
    /// The reason and the remedy.
    pub reason: String,
}
