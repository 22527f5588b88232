//! Errors of operations on an export.

use crate::error_kind::{ErrorHints, ErrorKind, classify, remedy_of};
use crate::group_reservations::GroupRange;
use crate::path_reservations::{Conflict, Holder};
use crate::record::RecordError;
use crate::request::{ClaimRef, NEW_IDENTITY};
use nfs_client::{NfsError, Status};

/// Error of an operation on an export. The directory that a message names is unchanged unless the message says
/// otherwise.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExportError {
    /// A call failed.
    #[error("{doing}: {source}; {}", remedy_of(source, hints))]
    Nfs {
        /// The operation and its object.
        doing: String,
        /// The client's error.
        source: Box<NfsError>,
        /// Additional information about the cause.
        hints: ErrorHints,
    },
    /// The identity was never read, so nothing may be changed.
    #[error("the export's identity is not confirmed; changes are refused until the backend's next probe reads it")]
    IdentityNotConfirmed,
    /// This process is not, or may no longer be, the leader.
    #[error("not the leader; refusing to change the export")]
    NotLeader,
    /// The export has another identity than the expected one, or none.
    #[error(
        "the export has another identity: {why}. Mount or export the original file system again; or, if this one replaces it, annotate the backend with nfs-operator.io/accept-identity: {}",
        found.as_deref().unwrap_or(NEW_IDENTITY)
    )]
    IdentityMismatch {
        /// The expected identity.
        expected: Option<String>,
        /// The identity that was found.
        found: Option<String>,
        /// How they differ, in words.
        why: String,
    },
    /// The identity file is missing, and the folder of this cluster is the one of the expected identity.
    #[error(
        "the file .nfs-operator/identity on the export is missing, and everything else is as on export {export_id}. Restore the file; \
         or, to create it again, annotate the backend with nfs-operator.io/accept-identity: {export_id}"
    )]
    IdentityMissing {
        /// The expected identity.
        export_id: String,
    },
    /// The beacon is not the one that this cluster wrote.
    #[error(
        "the beacon of this cluster on the export is not as expected: {why}. Nothing is changed. Find out which it is, and stop \
         a second operator with this cluster's Secret; then annotate the backend with nfs-operator.io/accept-identity: {export_id}"
    )]
    BeaconMismatch {
        /// Identity of the export.
        export_id: String,
        /// How it differs, in words.
        why: String,
    },
    /// The beacon is unknown, and its writer may still run.
    #[error(
        "another installation with this cluster's Secret has worked on the export: if it does not renew the beacon within {seconds} s, \
         this one takes over. To take over at once, annotate the backend with nfs-operator.io/accept-identity: {export_id}"
    )]
    BeaconObserved {
        /// Identity of the export.
        export_id: String,
        /// Time without a renewal after which the writer of the beacon counts as stopped, in seconds.
        seconds: u64,
    },
    /// The identity file is invalid.
    #[error(
        "{path} is not a valid identity file: {why}. If no other operator uses this export, restore the file from a backup, or remove it if no volume or archive is left"
    )]
    IdentityDamaged {
        /// Path of the file.
        path: String,
        /// What is wrong with the file.
        why: String,
    },
    /// A folder of the operator is not as the operator created it.
    #[error(
        "{path} on the export is not safe to use: {why}. It must be a directory of the operator's user with mode 0700; \
         find out what changed it, and restore its owner and mode"
    )]
    ReservedDirectoryUnsafe {
        /// Path of the folder.
        path: String,
        /// What is wrong with the folder.
        why: String,
    },
    /// A folder of the operator was removed.
    #[error(
        "{path} on the export was removed, and with it the records of this cluster's volumes and archives. Restore it from a backup; or, to continue without them, annotate the backend with nfs-operator.io/accept-identity: {}",
        export_id.as_deref().unwrap_or(NEW_IDENTITY)
    )]
    FolderMissing {
        /// Path of the folder.
        path: String,
        /// Identity of the export, if it has one.
        export_id: Option<String>,
    },
    /// A name cannot be used on an export.
    #[error("{name:?} cannot be used on an export: {why}")]
    NameUnusable {
        /// The name.
        name: String,
        /// Why.
        why: String,
    },
    /// The volume has no record. Without a record, nothing is changed.
    #[error(
        "the export has no record of volume {volume}, so {directory} was not changed; restore the record from a backup, or reclaim the directory manually and set the volume's reclaim policy to Retain"
    )]
    RecordMissing {
        /// The volume.
        volume: String,
        /// Its directory.
        directory: String,
    },
    /// The record belongs to another claim.
    #[error("the record of volume {volume} belongs to claim {}/{} ({}); nothing was changed", holder.namespace, holder.name, holder.uid)]
    RecordForeign {
        /// The volume.
        volume: String,
        /// The claim in the record.
        holder: Box<ClaimRef>,
    },
    /// The record is unreadable.
    #[error(
        "the record of volume {volume} cannot be used: {why}; restore it from a backup, or remove it after checking the directory"
    )]
    RecordDamaged {
        /// The volume.
        volume: String,
        /// What is wrong with the record.
        why: RecordError,
    },
    /// The record is not signed by this cluster, and nothing is continued, moved or removed based on such a record
    /// alone.
    #[error(
        "the record of volume {volume} is not signed by this cluster, so the operator does not act on it; the backend's condition RecordsTrusted shows the remedy"
    )]
    RecordUnsigned {
        /// The volume.
        volume: String,
    },
    /// A record that this cluster did not sign was not adopted.
    #[error("the record of volume {volume} is not adopted: {why}. Nothing was changed")]
    NotAdopted {
        /// The volume.
        volume: String,
        /// The reason.
        why: String,
    },
    /// The state of the record does not allow the operation.
    #[error("volume {volume} is {state}: {operation} is not possible now")]
    RecordBusy {
        /// The volume.
        volume: String,
        /// State.
        state: &'static str,
        /// The requested operation.
        operation: &'static str,
    },
    /// The directory would overlap a reserved path.
    #[error("directory {directory} cannot be used: {conflict}. Choose another pattern, or move what is in the way")]
    Overlaps {
        /// The directory.
        directory: String,
        /// The conflict.
        conflict: Box<Conflict>,
    },
    /// The directory of that name belongs to a holder under another name.
    #[error("{directory} has the fileid of {holder}. Choose another pattern, or find out who renamed it")]
    FileidInUse {
        /// The directory or its parent.
        directory: String,
        /// The holder.
        holder: Holder,
    },
    /// The directory belongs to another cluster.
    #[error("{directory} belongs to the cluster with id {cluster}. Choose another pattern, or another export")]
    OwnedByOtherCluster {
        /// The directory.
        directory: String,
        /// ID of the cluster.
        cluster: String,
    },
    /// The record of another cluster cannot be read, so any directory may belong to that cluster.
    #[error(
        "{path} is a record of another cluster that cannot be read: {why}. Any directory may belong to that cluster, so nothing was changed. Upgrade this operator if that cluster runs a newer release; or restore the file from a backup; or, if no volume of that cluster has this name, remove it"
    )]
    OtherClusterUnreadable {
        /// Path of the record.
        path: String,
        /// What is wrong with the record.
        why: String,
    },
    /// A directory on the path is the root of a backend, possibly of another cluster.
    #[error(
        "{path} contains .nfs-operator, so it is the path of a backend. Choose another pattern, or a backend that is not inside another"
    )]
    NestedBackend {
        /// The directory.
        path: String,
    },
    /// A node on the path, or at its end, cannot be used.
    #[error("{path} on the export {why}. Move it away, or choose another pattern")]
    PathUnusable {
        /// The path.
        path: String,
        /// What the node is.
        why: &'static str,
    },
    /// The directory exists, and the request does not allow adoption.
    #[error(
        "directory {directory} exists and does not belong to the operator{}. Move it away, choose another pattern, or set `existing: Adopt`",
        if *holds_something { " (it is not empty)" } else { "" }
    )]
    DirectoryExists {
        /// The directory.
        directory: String,
        /// The directory is not empty.
        holds_something: bool,
    },
    /// The directory exists and cannot be adopted although `existing` is Adopt.
    #[error("directory {directory} exists and cannot be adopted: {why}")]
    NotAdoptable {
        /// The directory.
        directory: String,
        /// The reason and the remedy.
        why: &'static str,
    },
    /// The server has no snapshot that can be read.
    #[error("no snapshot of the server can be read: {why}")]
    SnapshotUnavailable {
        /// The reason.
        why: String,
    },
    /// The directory is to be shared, and does not exist.
    #[error(
        "directory {directory} does not exist on the export, and `existing: Share` never creates one. Create it with the content, mode and owner that its volumes are to have, or correct the pattern"
    )]
    SharedMissing {
        /// The directory.
        directory: String,
    },
    /// The directory exists and cannot be shared although `existing` is Share.
    #[error("directory {directory} cannot be shared: {why}")]
    NotShareable {
        /// The directory.
        directory: String,
        /// The reason and the remedy.
        why: &'static str,
    },
    /// The server did not set the requested mode.
    #[error(
        "the server stores mode {stored:04o} for {directory} instead of {requested:04o}{}. Let the server store UNIX modes (on ZFS: aclmode=passthrough; on NTFS-style volumes: change the security style), or request a mode that it supports",
        reply(refused)
    )]
    ModeRefused {
        /// The directory.
        directory: String,
        /// The requested mode.
        requested: u32,
        /// The mode that the server reports.
        stored: u32,
        /// The server's error status.
        refused: Option<Status>,
    },
    /// The server did not set the requested owner.
    #[error(
        "the server stores owner {stored} for {directory} instead of {requested}{}. Set spec.nfs.auth.sys to a user that may change owners, or request no owner",
        reply(refused)
    )]
    OwnerRefused {
        /// The directory.
        directory: String,
        /// The requested owner.
        requested: String,
        /// The owner that the server reports.
        stored: String,
        /// The server's error status.
        refused: Option<Status>,
    },
    /// Each group of the backend's range is in use.
    #[error(
        "each group of directory.gidRange {range} is in use on the export{}. Extend the range, or delete volumes and archives (with deletionPolicy: Delete) that are no longer needed",
        if *elsewhere == 0 { String::new() } else { format!(" ({elsewhere} by other clusters)") }
    )]
    GroupsExhausted {
        /// The range.
        range: GroupRange,
        /// Number of its groups that other clusters use.
        elsewhere: usize,
    },
    /// The requested owner needs root, and the server squashes root.
    #[error(
        "owner {requested} for {directory} needs root, and the server maps the operator's user to {effective}. Export with no_root_squash for the operator's address, or request no owner"
    )]
    RootSquashed {
        /// The directory.
        directory: String,
        /// The requested owner.
        requested: String,
        /// The user that the server maps the operator's user to.
        effective: String,
    },
    /// The server maps owners by name.
    #[error(
        "the server reports owner {stored} for {directory}, which is not a number, instead of {requested}. Enable numeric owners on the server (nfs-ganesha: Only_Numeric_Owners = true; Linux: nfs4_disable_idmapping=Y)"
    )]
    IdMappingRequired {
        /// The directory.
        directory: String,
        /// The requested owner.
        requested: String,
        /// The owner that the server reports.
        stored: String,
    },
    /// Volume, record and export do not match.
    #[error(
        "{directory} of volume {volume} was not changed: {what}. Find out what happened, then correct it or reclaim the directory manually"
    )]
    RecordMismatch {
        /// The volume.
        volume: String,
        /// Its directory.
        directory: String,
        /// The mismatch.
        what: String,
    },
    /// The directory is neither at its path nor at its target.
    #[error(
        "directory {directory} of volume {volume} is missing on the export. Restore it, or release the volume by annotating it with \
         nfs-operator.io/acknowledge-missing: \"true\""
    )]
    DirectoryMissing {
        /// The volume.
        volume: String,
        /// The expected path.
        directory: String,
    },
    /// The archive is on legal hold.
    #[error("the archive of volume {volume} is on legal hold: set legalHold to false first")]
    ArchiveHeld {
        /// The archived volume.
        volume: String,
    },
    /// The archive's files may be hard links to those of other archives, so a pod must not write to them.
    #[error(
        "files of the archive of volume {volume} may be in other backups too: it can only be restored by copying it"
    )]
    ArchiveSharesFiles {
        /// The archived volume.
        volume: String,
    },
    /// The manifest of a backup is not what was written.
    #[error("the manifest of backup {archive} cannot be used: {why}. The backup is there, but cannot be verified")]
    ManifestDamaged {
        /// The backup.
        archive: String,
        /// What is wrong.
        why: String,
    },
    /// The archive has no record. Without a record, nothing is changed.
    #[error(
        "the export has no record of the archive of volume {volume}, so nothing was changed: it was restored or purged since, or the record was removed; in that case, restore the record from a backup"
    )]
    ArchiveUnrecorded {
        /// The archived volume.
        volume: String,
    },
    /// The archive is being restored to another claim, or purged, or kept without an object.
    #[error("volume {volume} is {state}: it can't be restored now")]
    ArchiveTaken {
        /// The archived volume.
        volume: String,
        /// State.
        state: &'static str,
    },
    /// The archive is being copied.
    #[error("the archive of volume {volume} is being copied to a claim; it is kept until the copy ends")]
    ArchiveCopied {
        /// The archived volume.
        volume: String,
    },
    /// The volume that was archived still exists.
    #[error("volume {volume} still exists: its archive stays as it is until the PersistentVolume is deleted")]
    ArchivedVolumeExists {
        /// The archived volume.
        volume: String,
    },
    /// The record of an archive cannot be used to restore it, and nothing was begun.
    #[error("{source}")]
    ArchiveUnusable {
        /// What is wrong with the record.
        source: Box<ExportError>,
    },
    /// The archive was restored or purged.
    #[error("the archive of volume {volume} no longer exists: it was restored to another claim, or purged")]
    ArchiveGone {
        /// The archived volume.
        volume: String,
    },
    /// The archive belongs to another namespace.
    #[error("the archive of volume {volume} belongs to another namespace: it cannot be moved into this one")]
    ArchiveForeign {
        /// The archived volume.
        volume: String,
    },
    /// The archive's directory does not exist under its name.
    #[error("the directory of the archive of volume {volume} is missing; nothing was changed")]
    ArchiveMissing {
        /// The archived volume.
        volume: String,
    },
    /// All possible names for the archive are in use.
    #[error("all names for the archive of {directory} are taken (last tried: {last}). Remove or rename archives")]
    NoArchiveName {
        /// The directory.
        directory: String,
        /// The last name tried.
        last: String,
    },
    /// Another holder has the directory, so it is not removed.
    #[error("refusing to remove {directory}: it is in use as {holder}")]
    InUse {
        /// The directory.
        directory: String,
        /// The holder.
        holder: Holder,
    },
    /// The volume changed meanwhile, or may have.
    #[error("reclaiming {directory}: the volume may have changed meanwhile; it is decided again")]
    Undecided {
        /// The directory.
        directory: String,
    },
    /// The directory or its record kept changing during the operation.
    #[error("{doing}: the directory kept changing; retrying")]
    ConcurrentlyModified {
        /// The operation.
        doing: String,
    },
    /// The operation failed, and the cleanup failed, too.
    #[error("{source}. Cleanup failed: {cleanup}")]
    CleanupFailed {
        /// The error of the operation.
        source: Box<ExportError>,
        /// The error of the cleanup.
        cleanup: Box<ExportError>,
    },
}

impl ExportError {
    /// Returns what the annotation `nfs-operator.io/accept-identity` must name to accept the export as it is, if that
    /// resolves the failure: an identity, or [`NEW_IDENTITY`].
    pub fn acceptable_identity(&self) -> Option<&str> {
        match self {
            Self::IdentityMismatch { found: id, .. } | Self::FolderMissing { export_id: id, .. } => {
                Some(id.as_deref().unwrap_or(NEW_IDENTITY))
            }
            Self::IdentityMissing { export_id }
            | Self::BeaconMismatch { export_id, .. }
            | Self::BeaconObserved { export_id, .. } => Some(export_id),
            _ => None,
        }
    }

    /// Returns what kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Nfs { source, hints, .. } => classify(source, hints),
            Self::IdentityNotConfirmed => ErrorKind::IdentityNotConfirmed,
            Self::NotLeader => ErrorKind::Fenced,
            Self::IdentityMismatch { .. } | Self::IdentityMissing { .. } | Self::IdentityDamaged { .. } => {
                ErrorKind::IdentityMismatch
            }
            Self::BeaconMismatch { .. } => ErrorKind::BeaconMismatch,
            Self::BeaconObserved { .. } => ErrorKind::BeaconObserved,
            Self::ReservedDirectoryUnsafe { .. } | Self::FolderMissing { .. } => ErrorKind::ReservedDirectoryUnsafe,
            Self::NameUnusable { .. } => ErrorKind::InvalidDirectoryName,
            Self::RecordMissing { .. } | Self::ArchiveUnrecorded { .. } => ErrorKind::RecordMissing,
            Self::ArchiveHeld { .. } => ErrorKind::ArchiveHeld,
            Self::ArchiveTaken { .. }
            | Self::ArchiveCopied { .. }
            | Self::ArchiveSharesFiles { .. }
            | Self::ArchivedVolumeExists { .. } => ErrorKind::ArchiveBusy,
            Self::ArchiveGone { .. } | Self::ArchiveForeign { .. } => ErrorKind::ArchiveNotFound,
            Self::ArchiveMissing { .. } => ErrorKind::ArchiveMissing,
            Self::RecordForeign { .. }
            | Self::RecordDamaged { .. }
            | Self::ManifestDamaged { .. }
            | Self::RecordUnsigned { .. }
            | Self::RecordBusy { .. }
            | Self::OtherClusterUnreadable { .. } => ErrorKind::RecordUnusable,
            Self::NotAdopted { .. } => ErrorKind::RecordNotAdopted,
            Self::Overlaps { .. }
            | Self::FileidInUse { .. }
            | Self::OwnedByOtherCluster { .. }
            | Self::NestedBackend { .. }
            | Self::InUse { .. } => ErrorKind::DirectoryOverlaps,
            Self::PathUnusable { .. } => ErrorKind::NotADirectory,
            Self::DirectoryExists { .. } | Self::NoArchiveName { .. } => ErrorKind::DirectoryExists,
            Self::NotAdoptable { .. } => ErrorKind::DirectoryNotAdoptable,
            Self::SnapshotUnavailable { .. } => ErrorKind::SnapshotUnavailable,
            Self::SharedMissing { .. } => ErrorKind::SharedDirectoryMissing,
            Self::NotShareable { .. } => ErrorKind::DirectoryNotShareable,
            Self::ModeRefused { .. } => ErrorKind::ModeRefused,
            Self::GroupsExhausted { .. } => ErrorKind::GroupsExhausted,
            Self::OwnerRefused { .. } => ErrorKind::OwnerRefused,
            Self::RootSquashed { .. } => ErrorKind::RootSquashed,
            Self::IdMappingRequired { .. } => ErrorKind::IdMappingRequired,
            Self::RecordMismatch { .. } => ErrorKind::ReclaimUnsafe,
            Self::DirectoryMissing { .. } => ErrorKind::DirectoryMissing,
            Self::ConcurrentlyModified { .. } | Self::Undecided { .. } => ErrorKind::ChangedMeanwhile,
            Self::CleanupFailed { source, .. } | Self::ArchiveUnusable { source } => source.kind(),
        }
    }

    /// Reports whether the operation may have been done in part. Repeating it shows the result.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Nfs { source, .. } => source.outcome_unknown(),
            Self::CleanupFailed { .. } => true,
            _ => false,
        }
    }

    /// Reports whether the operation was definitely refused and left nothing behind, so that another backend may be
    /// tried at once.
    pub fn definite_refusal(&self) -> bool {
        match self {
            Self::Nfs { source, .. } => matches!(
                source.status(),
                Some(
                    Status::NotPermitted
                        | Status::Access
                        | Status::NoSpace
                        | Status::ReadOnly
                        | Status::TooManyLinks
                        | Status::NameTooLong
                        | Status::QuotaExceeded
                        | Status::NotSupported
                        | Status::BadOwner
                        | Status::BadName
                        | Status::Invalid
                )
            ),
            Self::NameUnusable { .. }
            | Self::ArchiveHeld { .. }
            | Self::ArchiveSharesFiles { .. }
            | Self::ArchiveTaken { .. }
            | Self::ArchiveCopied { .. }
            | Self::ArchivedVolumeExists { .. }
            | Self::ArchiveUnusable { .. }
            | Self::ArchiveGone { .. }
            | Self::ArchiveForeign { .. }
            | Self::ArchiveMissing { .. }
            | Self::Overlaps { .. }
            | Self::FileidInUse { .. }
            | Self::OwnedByOtherCluster { .. }
            | Self::OtherClusterUnreadable { .. }
            | Self::NestedBackend { .. }
            | Self::PathUnusable { .. }
            | Self::DirectoryExists { .. }
            | Self::NotAdoptable { .. }
            | Self::SharedMissing { .. }
            | Self::NotShareable { .. }
            | Self::ModeRefused { .. }
            | Self::GroupsExhausted { .. }
            | Self::OwnerRefused { .. }
            | Self::RootSquashed { .. }
            | Self::IdMappingRequired { .. } => true,
            _ => false,
        }
    }

    /// Reports whether the export has no space, no inodes or no quota left.
    pub fn is_full(&self) -> bool {
        matches!(self.status(), Some(Status::NoSpace | Status::QuotaExceeded))
    }

    /// Reports whether the server did not answer.
    pub(crate) fn is_transport(&self) -> bool {
        matches!(self, Self::Nfs { source, .. } if source.is_transport())
    }

    /// Returns the server's status, if the error is one.
    pub(crate) fn status(&self) -> Option<Status> {
        match self {
            Self::Nfs { source, .. } => source.status(),
            _ => None,
        }
    }
}

/// Adds context to an NFS error.
pub(crate) trait ErrorContext<T> {
    /// Adds a description of the operation.
    fn context(self, doing: impl FnOnce() -> String) -> Result<T, ExportError>;
}

impl<T> ErrorContext<T> for Result<T, NfsError> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T, ExportError> {
        self.map_err(|source| match source {
            // As if there had been the new connection before the call already.
            NfsError::Reconnected { .. } => ExportError::IdentityNotConfirmed,
            source => ExportError::Nfs {
                doing: doing(),
                source: Box::new(source),
                hints: ErrorHints::default(),
            },
        })
    }
}

fn reply(refused: &Option<Status>) -> String {
    refused.map_or_else(String::new, |status| format!(" (it answered {status:?})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_to_accept_is_the_one_in_the_message() {
        let id = || "one".to_owned();
        let mismatch = |found: Option<String>| ExportError::IdentityMismatch {
            expected: Some("other".to_owned()),
            found,
            why: "it differs".to_owned(),
        };
        let missing = |export_id: Option<String>| ExportError::FolderMissing {
            path: "records".to_owned(),
            export_id,
        };
        let beacon = ExportError::BeaconMismatch {
            export_id: id(),
            why: "it differs".to_owned(),
        };
        let observed = ExportError::BeaconObserved {
            export_id: id(),
            seconds: 9,
        };
        for (error, acceptable) in [
            (mismatch(Some(id())), "one"),
            (mismatch(None), NEW_IDENTITY),
            (missing(Some(id())), "one"),
            (missing(None), NEW_IDENTITY),
            (ExportError::IdentityMissing { export_id: id() }, "one"),
            (beacon, "one"),
            (observed, "one"),
        ] {
            assert_eq!(error.acceptable_identity(), Some(acceptable), "{error}");
            let annotation = format!("nfs-operator.io/accept-identity: {acceptable}");
            assert!(error.to_string().contains(&annotation), "{error}");
        }
        assert_eq!(ExportError::NotLeader.acceptable_identity(), None);
    }
}
