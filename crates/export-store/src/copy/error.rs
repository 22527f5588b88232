//! Errors of copying a tree.

use std::fmt::Display;

use crate::ErrorKind;
use crate::error::ExportError;
use crate::text::format_amount;
use nfs_client::{NfsError, Status};

/// Error of copying a tree. The partial copy is moved into the trash later; it was never published.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CopyError {
    /// A failure that any operation on an export can have.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A call failed.
    #[error("copying {path}: {source}")]
    Nfs {
        /// The path of what was being copied, below the tree's root. Nonprintable bytes are escaped.
        path: String,
        /// The client's error.
        source: Box<NfsError>,
    },
    /// The export was replaced during the copy from it or to it.
    #[error("the export was replaced during the copy; restarting the copy")]
    ExportChanged,
    /// The operator cannot change the owners of files on the target.
    #[error(
        "a copy preserves the owners of files, and the operator may not change owners on the target ({why}). Export with no_root_squash for \
         the operator's address, and let spec.nfs.auth.sys be root"
    )]
    MayNotChown {
        /// Result of the test.
        why: String,
    },
    /// The server stored another owner than the requested one.
    #[error(
        "{path} belongs to {requested}, and the target stores owner {stored}: enable numeric owners on both servers (nfs-ganesha: Only_Numeric_Owners = true; Linux: nfs4_disable_idmapping=Y), and disable root squashing"
    )]
    OwnerNotKept {
        /// The path.
        path: String,
        /// The owner in the source.
        requested: String,
        /// The owner that the target reports.
        stored: String,
    },
    /// The source's server reports an owner that is not a number.
    #[error(
        "{path} belongs to {owner}, which is not a number: enable numeric owners on the server (nfs-ganesha: Only_Numeric_Owners = true; Linux: nfs4_disable_idmapping=Y)"
    )]
    OwnerUnknown {
        /// The path.
        path: String,
        /// The owner as reported by the server.
        owner: String,
    },
    /// The tree is too deep, or too broad at great depth.
    #[error("{path} is not copied: {why}")]
    TooDeep {
        /// The path.
        path: String,
        /// The exceeded limit.
        why: &'static str,
    },
    /// The source has more content than the copy may have.
    #[error(
        "the source contains more than {}, which is what the claim requests: create another claim that requests at least as much as \
         the source contains",
        format_amount((*max_bytes).into())
    )]
    TooLarge {
        /// Maximum size of the copy, in bytes.
        max_bytes: u64,
    },
    /// The target has only one name for two names of the source.
    #[error(
        "{path} and {other} have the same name on the target, whose server ignores case or normalizes Unicode: rename one of them, \
         or copy to a backend that distinguishes them"
    )]
    NamesCollide {
        /// The path that cannot be copied.
        path: String,
        /// The path with the same name on the target.
        other: String,
    },
    /// A server contradicts itself.
    #[error("{path} cannot be copied: {why}")]
    Contradiction {
        /// The path.
        path: String,
        /// The contradiction.
        why: String,
    },
    /// The target's server restarted repeatedly while one file was being written.
    #[error("{path}: the target's server repeatedly lost written data; retrying")]
    Lost {
        /// The path.
        path: String,
    },
    /// The manifest of a backup cannot be written.
    #[error("the manifest of the backup cannot be written: {why}")]
    Manifest {
        /// The reason.
        why: String,
    },
    /// The source is no longer at its path.
    #[error("the source was removed or replaced during the copy ({why}); discarding the copy")]
    SourceGone {
        /// How this was detected.
        why: String,
    },
    /// The data of a snapshot changed while they were copied.
    #[error(
        "snapshot {name} changed while it was copied, so it does not show one moment: check the server's snapshots"
    )]
    SnapshotChanged {
        /// Name of the snapshot.
        name: String,
    },
    /// The server does not limit the size of the copy, and must.
    #[error(
        "the limit of the copy is not in force ({why}), and nothing is copied before: check the quota agent; retrying"
    )]
    LimitNotInForce {
        /// What the agent reports.
        why: String,
    },
    /// The name that the copy should get is in use.
    #[error(
        "directory {directory} exists already, and a copy never replaces anything: move it away, or choose another pattern"
    )]
    TargetTaken {
        /// The directory.
        directory: String,
    },
}

impl CopyError {
    /// Returns the error of a failed call. `path` is below the tree's root.
    pub(super) fn of_call(path: impl Display, source: NfsError) -> Self {
        Self::Nfs {
            path: path.to_string(),
            source: Box::new(source),
        }
    }

    /// Reports whether the target refused the copy, so that another backend may succeed once nothing is left on this
    /// one.
    pub fn is_target_error(&self) -> bool {
        match self {
            Self::MayNotChown { .. }
            | Self::TargetTaken { .. }
            | Self::OwnerNotKept { .. }
            | Self::NamesCollide { .. } => true,
            // These errors concern the source.
            Self::Export(
                ExportError::ArchiveTaken { .. }
                | ExportError::ArchiveGone { .. }
                | ExportError::ArchiveMissing { .. }
                | ExportError::SnapshotUnavailable { .. },
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
            Self::TooLarge { .. } => ErrorKind::CopyTooLarge,
            Self::SnapshotChanged { .. } => ErrorKind::SnapshotUnavailable,
            Self::Nfs { source, .. } => crate::classify(source, &Default::default()),
            Self::ExportChanged
            | Self::TooDeep { .. }
            | Self::NamesCollide { .. }
            | Self::Contradiction { .. }
            | Self::LimitNotInForce { .. }
            | Self::Manifest { .. }
            | Self::Lost { .. } => ErrorKind::CopyFailed,
        }
    }
}
