//! Errors of operations on an export.

use crate::error_kind::{ErrorHints, ErrorKind, classify, remedy_of};
use crate::path_reservations::{Conflict, Holder};
use crate::record::RecordError;
use crate::request::ClaimRef;
use nfs_client::{NfsError, Status};

/// Error of an operation on an export. The directory that a message names is unchanged unless the message says
/// otherwise.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExportError {
    /// A call failed.
    #[error("{doing}: {source}; {}", remedy_of(source, circumstances))]
    Nfs {
        /// What was being done, and to what.
        doing: String,
        /// What the client met.
        source: Box<NfsError>,
        /// What was found out beside it.
        circumstances: ErrorHints,
    },
    /// Identity was never read, so nothing may be changed.
    #[error("the export's identity is not confirmed; changes are refused until the backend's next probe reads it")]
    IdentityNotConfirmed,
    /// Another process works now, or may.
    #[error("not the leader; refusing to change the export")]
    NotLeading,
    /// The export has another identity than the expected one, or none.
    #[error(
        "the export has another identity: {why}. Mount or export the original file system again; or, if this one replaces it, annotate the backend with nfs-operator.io/accept-identity: {}",
        found.as_deref().unwrap_or("<the identity that is made when the backend no longer expects one>")
    )]
    IdentityMismatch {
        /// What was expected.
        expected: Option<String>,
        /// What is there.
        found: Option<String>,
        /// How they differ, in words.
        why: String,
    },
    /// The file with the identity can't be read as one.
    #[error(
        "{path} is not a valid identity file: {why}. If no other operator uses this export, restore the file from a backup, or remove it if no volume or archive is left"
    )]
    IdentityDamaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// One of our own directories is not as we made it.
    #[error(
        "{path} on the export is not safe to use: {why}. It must be a directory of the operator's user with mode 0700; \
         find out what changed it, and restore its owner and mode"
    )]
    ReservedDirectoryUnsafe {
        /// Which.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A name cannot be used on an export.
    #[error("{name:?} cannot be used on an export: {why}")]
    NameUnusable {
        /// The name.
        name: String,
        /// Why.
        why: String,
    },
    /// There is no record of the volume, and without it nothing is touched.
    #[error(
        "the export has no record of volume {volume}, so {directory} was not changed; restore .nfs-operator from a backup, or reclaim the directory manually and set the volume's reclaim policy to Retain"
    )]
    RecordMissing {
        /// The volume.
        volume: String,
        /// Its directory.
        directory: String,
    },
    /// The record says that the directory is another claim's.
    #[error("the record of volume {volume} belongs to claim {}/{} ({}); nothing was changed", holder.namespace, holder.name, holder.uid)]
    RecordForeign {
        /// The volume.
        volume: String,
        /// Whose it is.
        holder: Box<ClaimRef>,
    },
    /// The record can't be read.
    #[error(
        "the record of volume {volume} cannot be used: {why}; restore it from a backup, or remove it after checking the directory"
    )]
    RecordDamaged {
        /// The volume.
        volume: String,
        /// What is wrong with it.
        why: RecordError,
    },
    /// Nothing is gone on with, moved or removed on the word of a record alone that this cluster did not sign.
    #[error(
        "the record of volume {volume} is not signed by this cluster, so the operator does not act on it; the backend's condition RecordsTrusted shows the remedy"
    )]
    RecordUnsigned {
        /// The volume.
        volume: String,
    },
    /// A record that this cluster did not sign was not taken for its own.
    #[error("the record of volume {volume} is not adopted: {why}. Nothing was changed")]
    NotAdopted {
        /// The volume.
        volume: String,
        /// Why.
        why: String,
    },
    /// The record is in a state that forbids what was asked.
    #[error("volume {volume} is {state}: {asked} is not possible now")]
    RecordBusy {
        /// The volume.
        volume: String,
        /// State.
        state: &'static str,
        /// What was asked.
        asked: &'static str,
    },
    /// The directory would overlap something.
    #[error("directory {directory} cannot be used: {conflict}. Choose another pattern, or move what is in the way")]
    Overlaps {
        /// The directory.
        directory: String,
        /// With what.
        conflict: Box<Conflict>,
    },
    /// The thing that has the name is somebody's, under another name.
    #[error("{directory} is {holder}, by its fileid. Choose another pattern, or find out who renamed it")]
    Held {
        /// The directory or its parent.
        directory: String,
        /// Whose it is.
        holder: Holder,
    },
    /// What has the name is another cluster's.
    #[error("{directory} belongs to the cluster with id {cluster}. Choose another pattern, or another export")]
    HeldByOtherCluster {
        /// The directory.
        directory: String,
        /// The cluster's id.
        cluster: String,
    },
    /// A directory on the way is the root of a backend, perhaps another cluster's.
    #[error(
        "{path} contains .nfs-operator, so it is the path of a backend. Choose another pattern, or a backend that is not inside another"
    )]
    NestedBackend {
        /// The directory.
        path: String,
    },
    /// Something on the way to the directory, or at its end, is nothing that we go through.
    #[error("{path} on the export {why}. Move it away, or choose another pattern")]
    PathUnusable {
        /// Where.
        path: String,
        /// What it is.
        why: &'static str,
    },
    /// The directory is there, and nobody said that it may be taken over.
    #[error(
        "directory {directory} exists and does not belong to the operator{}. Move it away, choose another pattern, or set `existing: Adopt`",
        if *holds_something { " (it is not empty)" } else { "" }
    )]
    DirectoryExists {
        /// The directory.
        directory: String,
        /// It is not empty.
        holds_something: bool,
    },
    /// The directory is there, and may not be taken over although `existing` is Adopt.
    #[error("directory {directory} exists and cannot be adopted: {why}")]
    NotAdoptable {
        /// The directory.
        directory: String,
        /// Why, and the remedy.
        why: &'static str,
    },
    /// The server did not keep the mode.
    #[error(
        "the server keeps mode {got:04o} for {directory} where {asked:04o} was asked for{}. Let the server keep UNIX modes (on ZFS: \
         aclmode=passthrough; on NTFS-style volumes: change the security style), or ask for a mode that it keeps",
        said(refused)
    )]
    ModeRefused {
        /// The directory.
        directory: String,
        /// What was asked for.
        asked: u32,
        /// What the server reports.
        got: u32,
        /// What the server answered.
        refused: Option<Status>,
    },
    /// The server did not keep the owner.
    #[error(
        "the server keeps owner {got} for {directory} where {asked} was asked for{}. Let spec.nfs.credential be a user who may give \
         directories away, or ask for no owner",
        said(refused)
    )]
    OwnerRefused {
        /// The directory.
        directory: String,
        /// What was asked for.
        asked: String,
        /// What the server reports.
        got: String,
        /// What the server answered.
        refused: Option<Status>,
    },
    /// The owner that was asked for needs root, and root is squashed.
    #[error(
        "owner {asked} for {directory} needs root, and the server makes {effective} of the operator's user. Export with no_root_squash \
         for the operator's address, or ask for no owner"
    )]
    RootSquashed {
        /// The directory.
        directory: String,
        /// What was asked for.
        asked: String,
        /// Whom the server makes of us.
        effective: String,
    },
    /// The server maps owners by name.
    #[error(
        "the server reports owner {got} for {directory}, which is not a number, where {asked} was asked for. Let it take owners as numbers (numeric id mapping)"
    )]
    IdMappingRequired {
        /// The directory.
        directory: String,
        /// What was asked for.
        asked: String,
        /// What the server reports.
        got: String,
    },
    /// Volume, record and export contradict each other.
    #[error(
        "{directory} of volume {volume} was not changed: {what}. Find out what happened, then correct it or reclaim the directory manually"
    )]
    Disagrees {
        /// The volume.
        volume: String,
        /// Its directory.
        directory: String,
        /// In which way.
        what: String,
    },
    /// The directory is neither where it was nor where it should go.
    #[error(
        "directory {directory} of volume {volume} is missing on the export. Restore it, or release the volume by annotating it with \
         nfs-operator.io/acknowledge-missing: \"true\""
    )]
    DirectoryMissing {
        /// The volume.
        volume: String,
        /// Where it should be.
        directory: String,
    },
    /// The archive is held.
    #[error("the archive of volume {volume} is on legal hold: set legalHold to false first")]
    ArchiveHeld {
        /// The volume that it was.
        volume: String,
    },
    /// There is no record of the archive, and without it nothing is touched.
    #[error(
        "the export has no record of the archive of volume {volume}, so nothing was changed; restore .nfs-operator from a backup"
    )]
    ArchiveUnrecorded {
        /// The volume that it was.
        volume: String,
    },
    /// The archive is on its way to somebody else, or into the trash.
    #[error("volume {volume} is {state}: it can't be restored now")]
    ArchiveTaken {
        /// The volume that it was.
        volume: String,
        /// State.
        state: &'static str,
    },
    /// The archive is being copied.
    #[error("the archive of volume {volume} is being copied to a claim; it is kept until the copy ends")]
    ArchiveCopied {
        /// The volume that it was.
        volume: String,
    },
    /// The archive was restored or purged.
    #[error("the archive of volume {volume} no longer exists: it was restored to another claim, or purged")]
    ArchiveGone {
        /// The volume that it was.
        volume: String,
    },
    /// The archive is another namespace's.
    #[error("the archive of volume {volume} belongs to another namespace: it cannot be moved into this one")]
    ArchiveForeign {
        /// The volume that it was.
        volume: String,
    },
    /// The archive's directory is not where it should be.
    #[error("the directory of the archive of volume {volume} is missing; nothing was changed")]
    ArchiveMissing {
        /// The volume that it was.
        volume: String,
    },
    /// All the names that an archive could have are taken.
    #[error(
        "every name that the archive of {directory} could have is taken, {last} the last one. Remove or rename archives"
    )]
    NoArchiveName {
        /// The directory.
        directory: String,
        /// The last name tried.
        last: String,
    },
    /// A volume names the directory, so it is not undone.
    #[error("{directory} is not removed: {holder} is there")]
    InUse {
        /// The directory.
        directory: String,
        /// Who names it.
        holder: Holder,
    },
    /// Somebody keeps changing what we look at.
    #[error("{doing}: the directory kept changing; retrying")]
    Unsettled {
        /// What was being done.
        doing: String,
    },
    /// It failed, and what was made could not be removed again.
    #[error("{source}. Cleanup failed: {cleanup}")]
    LeftBehind {
        /// Why it failed.
        source: Box<ExportError>,
        /// Why the rest is still there.
        cleanup: Box<ExportError>,
    },
}

impl ExportError {
    /// Returns what kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Nfs {
                source, circumstances, ..
            } => classify(source, circumstances),
            Self::IdentityNotConfirmed => ErrorKind::IdentityNotConfirmed,
            Self::NotLeading => ErrorKind::Fenced,
            Self::IdentityMismatch { .. } | Self::IdentityDamaged { .. } => ErrorKind::IdentityMismatch,
            Self::ReservedDirectoryUnsafe { .. } => ErrorKind::ReservedDirectoryUnsafe,
            Self::NameUnusable { .. } => ErrorKind::InvalidDirectoryName,
            Self::RecordMissing { .. } | Self::ArchiveUnrecorded { .. } => ErrorKind::RecordMissing,
            Self::ArchiveHeld { .. } => ErrorKind::ArchiveHeld,
            Self::ArchiveTaken { .. } | Self::ArchiveCopied { .. } => ErrorKind::ArchiveBusy,
            Self::ArchiveGone { .. } => ErrorKind::ArchiveNotFound,
            Self::ArchiveForeign { .. } => ErrorKind::ArchiveNotAllowed,
            Self::ArchiveMissing { .. } => ErrorKind::ArchiveMissing,
            Self::RecordForeign { .. }
            | Self::RecordDamaged { .. }
            | Self::RecordUnsigned { .. }
            | Self::RecordBusy { .. } => ErrorKind::RecordUnusable,
            Self::NotAdopted { .. } => ErrorKind::RecordNotAdopted,
            Self::Overlaps { .. }
            | Self::Held { .. }
            | Self::HeldByOtherCluster { .. }
            | Self::NestedBackend { .. }
            | Self::InUse { .. } => ErrorKind::DirectoryOverlaps,
            Self::PathUnusable { .. } => ErrorKind::NotADirectory,
            Self::DirectoryExists { .. } | Self::NotAdoptable { .. } | Self::NoArchiveName { .. } => {
                ErrorKind::DirectoryExists
            }
            Self::ModeRefused { .. } => ErrorKind::ModeRefused,
            Self::OwnerRefused { .. } => ErrorKind::OwnerRefused,
            Self::RootSquashed { .. } => ErrorKind::RootSquashed,
            Self::IdMappingRequired { .. } => ErrorKind::IdMappingRequired,
            Self::Disagrees { .. } => ErrorKind::ReclaimUnsafe,
            Self::DirectoryMissing { .. } => ErrorKind::DirectoryMissing,
            Self::Unsettled { .. } => ErrorKind::ChangedMeanwhile,
            Self::LeftBehind { source, .. } => source.kind(),
        }
    }

    /// Reports whether the operation may have been done in part. Repeating it shows the result.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Nfs { source, .. } => source.outcome_unknown(),
            Self::LeftBehind { .. } => true,
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
            | Self::ArchiveTaken { .. }
            | Self::ArchiveCopied { .. }
            | Self::ArchiveGone { .. }
            | Self::ArchiveForeign { .. }
            | Self::ArchiveMissing { .. }
            | Self::Overlaps { .. }
            | Self::Held { .. }
            | Self::HeldByOtherCluster { .. }
            | Self::NestedBackend { .. }
            | Self::PathUnusable { .. }
            | Self::DirectoryExists { .. }
            | Self::NotAdoptable { .. }
            | Self::ModeRefused { .. }
            | Self::OwnerRefused { .. }
            | Self::RootSquashed { .. }
            | Self::IdMappingRequired { .. } => true,
            _ => false,
        }
    }

    /// The server's status, when that is what failed.
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
    fn while_(self, doing: impl FnOnce() -> String) -> Result<T, ExportError>;
}

impl<T> ErrorContext<T> for Result<T, NfsError> {
    fn while_(self, doing: impl FnOnce() -> String) -> Result<T, ExportError> {
        self.map_err(|source| ExportError::Nfs {
            doing: doing(),
            source: Box::new(source),
            circumstances: ErrorHints::default(),
        })
    }
}

fn said(refused: &Option<Status>) -> String {
    refused.map_or_else(String::new, |status| format!(" (it answered {status:?})"))
}
