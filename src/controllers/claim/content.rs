//! What the directory of a new volume contains at the beginning.

use std::fmt;

use super::eligibility::ClaimRequest;
use super::restore::{ArchiveSource, RestoreMode};

/// What the directory of a new volume contains at the beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InitialContent {
    /// No data of another volume. An existing directory may be adopted or shared.
    Own,
    /// The data of an archive, whose directory becomes the volume's.
    Moved(ArchiveSource),
    /// A copy.
    Copied(DataSource),
}

impl InitialContent {
    /// Returns the content of the volume of a claim that requests no archive.
    pub(crate) fn without_archive(request: &ClaimRequest) -> Self {
        request.source.clone().map_or(Self::Own, |name| {
            Self::Copied(DataSource::Claim {
                name,
                snapshot: request.snapshot.clone(),
            })
        })
    }

    /// Returns the content of the volume of a claim that gets the data of an archive.
    pub(crate) fn of_archive((source, mode): (ArchiveSource, RestoreMode)) -> Self {
        match mode {
            RestoreMode::Move => Self::Moved(source),
            RestoreMode::Copy => Self::Copied(DataSource::Archive(source)),
        }
    }

    /// Returns the archive that is moved.
    pub(crate) fn moved(&self) -> Option<&ArchiveSource> {
        match self {
            Self::Moved(source) => Some(source),
            Self::Own | Self::Copied(_) => None,
        }
    }

    /// Returns the data that are copied.
    pub(crate) fn copied(&self) -> Option<&DataSource> {
        match self {
            Self::Copied(source) => Some(source),
            Self::Own | Self::Moved(_) => None,
        }
    }

    /// Returns the archive that is moved or copied.
    pub(crate) fn archive(&self) -> Option<&ArchiveSource> {
        self.moved().or_else(|| self.copied().and_then(DataSource::archive))
    }

    /// Returns true if it is this archive in this mode, whatever the archive's size is.
    pub(crate) fn is_archive(&self, (source, mode): &(ArchiveSource, RestoreMode)) -> bool {
        let own = match mode {
            RestoreMode::Move => self.moved(),
            RestoreMode::Copy => self.copied().and_then(DataSource::archive),
        };
        own.is_some_and(|own| own.is_same(source))
    }
}

/// The data that are copied to a claim's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DataSource {
    /// A claim of the same namespace.
    Claim {
        /// Its name.
        name: String,
        /// The snapshot of the server from which it is copied; otherwise, its data in use are.
        snapshot: Option<String>,
    },
    /// An archive that the claim is allowed to restore.
    Archive(ArchiveSource),
}

impl DataSource {
    /// Returns the archive, if the source is one.
    fn archive(&self) -> Option<&ArchiveSource> {
        match self {
            Self::Archive(source) => Some(source),
            Self::Claim { .. } => None,
        }
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { name, snapshot: None } => write!(f, "claim {name}"),
            Self::Claim {
                name,
                snapshot: Some(snapshot),
            } => write!(f, "claim {name} in snapshot {snapshot}"),
            Self::Archive(source) => source.fmt(f),
        }
    }
}
