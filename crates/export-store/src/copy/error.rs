//! Why a tree could not be copied.

use crate::ErrorKind;
use crate::error::ExportError;
use nfs_client::{NfsError, Status};

/// Why a tree could not be copied. What was copied is for the trash; nobody saw it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CopyError {
    /// Something failed that may fail for any operation on an export.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A call failed.
    #[error("copying {path}: {source}")]
    Nfs {
        /// What was being copied, below the tree's root; bytes that are not printable are escaped.
        path: String,
        /// What the client met.
        source: Box<NfsError>,
    },
    /// The export was exchanged while it was copied from or to.
    #[error("the export was replaced during the copy; restarting the copy")]
    ExportChanged,
    /// Files can't be given to their owners.
    #[error(
        "a copy keeps the owners of files, and the operator may not give files away on the target ({why}). Export with no_root_squash for \
         the operator's address, and let spec.nfs.credential be root"
    )]
    MayNotChown {
        /// What the server did when it was tried.
        why: String,
    },
    /// The server keeps another owner than the one that was asked for.
    #[error(
        "{path} belongs to {asked}, and the target keeps {got} for it: let both servers take owners as numbers, and don't squash root"
    )]
    OwnerNotKept {
        /// Which.
        path: String,
        /// Its owner in the source.
        asked: String,
        /// What the target reports.
        got: String,
    },
    /// The source's server names owners that have no number.
    #[error(
        "{path} belongs to {owner}, which is not a number: let the server take owners as numbers (numeric id mapping)"
    )]
    OwnerUnknown {
        /// Which.
        path: String,
        /// As the server spelled it.
        owner: String,
    },
    /// The tree is deeper, or broader at depth, than anything reasonable.
    #[error("{path} is not copied: {why}")]
    TooDeep {
        /// Where.
        path: String,
        /// In which way.
        why: &'static str,
    },
    /// A server contradicts itself.
    #[error("{path} cannot be copied: {why}")]
    Contradiction {
        /// Which.
        path: String,
        /// In which way.
        why: String,
    },
    /// The target's server restarted again and again while one file was written.
    #[error("{path}: the target's server repeatedly lost written data; retrying")]
    Lost {
        /// Which.
        path: String,
    },
    /// What is copied is not where it was any more.
    #[error("the source was removed or replaced during the copy ({why}); discarding the copy")]
    SourceGone {
        /// How that was seen.
        why: String,
    },
    /// Something has the name that the copy is to get.
    #[error(
        "directory {directory} exists already, and a copy never replaces anything: move it away, or choose another pattern"
    )]
    TargetTaken {
        /// The directory.
        directory: String,
    },
}

impl CopyError {
    /// Whether the target refused, so that another backend may do better once nothing is left on this one.
    pub fn is_of_the_target(&self) -> bool {
        match self {
            Self::MayNotChown { .. } | Self::TargetTaken { .. } | Self::OwnerNotKept { .. } => true,
            // These speak of the source.
            Self::Export(
                ExportError::ArchiveTaken { .. } | ExportError::ArchiveGone { .. } | ExportError::ArchiveMissing { .. },
            ) => false,
            Self::Export(error) => error.definite_refusal(),
            Self::Nfs { source, .. } => matches!(
                source.status(),
                Some(Status::NoSpace | Status::QuotaExceeded | Status::ReadOnly | Status::TooBig)
            ),
            _ => false,
        }
    }

    /// Returns what kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Export(error) => error.kind(),
            Self::MayNotChown { .. } => ErrorKind::CopyNeedsChown,
            Self::SourceGone { .. } => ErrorKind::CopySourceGone,
            Self::TargetTaken { .. } => ErrorKind::DirectoryExists,
            Self::OwnerUnknown { .. } => ErrorKind::IdMappingRequired,
            Self::OwnerNotKept { .. } => ErrorKind::OwnerRefused,
            Self::Nfs { source, .. } => crate::classify(source, &Default::default()),
            Self::ExportChanged | Self::TooDeep { .. } | Self::Contradiction { .. } | Self::Lost { .. } => {
                ErrorKind::CopyFailed
            }
        }
    }
}
