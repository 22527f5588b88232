//! What an error means: its reason, whether its outcome is known, whether it is a refusal for good.

use super::ExportError;
use crate::ErrorKind;
use crate::error_kind::classify;
use nfs_client::Status;

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

    /// Whether what was asked may have been done in part: only asking again tells.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Nfs { source, .. } => source.outcome_unknown(),
            Self::LeftBehind { .. } => true,
            _ => false,
        }
    }

    /// Whether it was refused for good and nothing is left of the attempt: another backend may be tried at once.
    ///
    /// False where we could not look whether an earlier attempt left something: the claim has to stay.
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
