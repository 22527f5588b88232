//! What an error means: its reason, whether its outcome is known, whether it is a refusal for good.

use super::ExportError;
use crate::api::Reason;
use crate::export::reason::reason_of;
use crate::nfs::Status;

impl ExportError {
    /// The reason for conditions and events.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Nfs {
                source, circumstances, ..
            } => reason_of(source, circumstances),
            Self::IdentityNotConfirmed => Reason::IdentityNotConfirmed,
            Self::NotLeading => Reason::Fenced,
            Self::IdentityMismatch { .. } | Self::IdentityDamaged { .. } => Reason::IdentityMismatch,
            Self::ReservedDirectoryUnsafe { .. } => Reason::ReservedDirectoryUnsafe,
            Self::NameUnusable { .. } => Reason::InvalidDirectoryName,
            Self::RecordMissing { .. } | Self::ArchiveUnrecorded { .. } => Reason::RecordMissing,
            Self::ArchiveHeld { .. } => Reason::ArchiveHeld,
            Self::ArchiveTaken { .. } | Self::ArchiveCopied { .. } => Reason::ArchiveBusy,
            Self::ArchiveGone { .. } => Reason::ArchiveNotFound,
            Self::ArchiveForeign { .. } => Reason::ArchiveNotAllowed,
            Self::ArchiveMissing { .. } => Reason::ArchiveMissing,
            Self::RecordForeign { .. }
            | Self::RecordDamaged { .. }
            | Self::RecordUnsigned { .. }
            | Self::RecordBusy { .. } => Reason::RecordUnusable,
            Self::NotAdopted { .. } => Reason::RecordNotAdopted,
            Self::Overlaps { .. }
            | Self::Held { .. }
            | Self::HeldByOtherCluster { .. }
            | Self::NestedBackend { .. }
            | Self::InUse { .. } => Reason::DirectoryOverlaps,
            Self::PathUnusable { .. } => Reason::NotADirectory,
            Self::DirectoryExists { .. } | Self::NotAdoptable { .. } | Self::NoArchiveName { .. } => {
                Reason::DirectoryExists
            }
            Self::ModeRefused { .. } => Reason::ModeRefused,
            Self::OwnerRefused { .. } => Reason::OwnerRefused,
            Self::RootSquashed { .. } => Reason::RootSquashed,
            Self::IdMappingRequired { .. } => Reason::IdMappingRequired,
            Self::Disagrees { .. } => Reason::ReclaimUnsafe,
            Self::DirectoryMissing { .. } => Reason::DirectoryMissing,
            Self::Unsettled { .. } => Reason::ChangedMeanwhile,
            Self::LeftBehind { source, .. } => source.reason(),
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
    pub(in crate::export) fn status(&self) -> Option<Status> {
        match self {
            Self::Nfs { source, .. } => source.status(),
            _ => None,
        }
    }
}
