//! Source of a copy: the directory of a volume or an archive, found at its recorded path and checked against its
//! record.

use std::sync::Arc;

use crate::archives::{ArchiveRef, AvailableArchive};
use crate::copy::CopyError;
use crate::copy::context::CopyEndpoint;
use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::record::{CopiedSnapshot, Record};
use crate::request::{DirectoryRequest, VolumeDirectory};
use crate::snapshots::SnapshotSelector;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, paths, snapshots, volume_record};
use nfs_client::{Attributes, FileRef, FullAttributes, Name};

/// What to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySource {
    /// Directory of a volume in use.
    Volume(VolumeDirectory),
    /// Directory of a volume in use, as it was in a snapshot of the server.
    Snapshot(VolumeDirectory, SnapshotSelector),
    /// Directory of an archive.
    Archive(ArchiveRef),
}

/// A directory to copy, found at its recorded path.
pub struct SourceTree {
    pub(super) export: Arc<ExportStore>,
    pub(super) verified: Arc<VerifiedRoot>,
    pub(super) root: FileRef,
    /// Attributes for the root of the copy.
    pub(super) details: FullAttributes,
    /// Group that pods of the source get, as recorded.
    pub(super) group: Option<u32>,
    place: SourcePath,
}

/// Where the source must still be at the end of the copy.
enum SourcePath {
    Volume(DirectoryPath),
    Snapshot {
        name: Name,
        record: Box<Record>,
        copied: CopiedSnapshot,
    },
    /// Held, so that the archive is not purged or moved meanwhile.
    Archive {
        which: ArchiveRef,
        _guard: CopyGuard,
    },
}

/// Prevents an archive from being purged or moved while it is copied, until this is dropped.
///
/// Only in memory: the next leader restarts the copies and checks whether the archive exists.
pub(super) struct CopyGuard {
    store: Arc<ExportStore>,
    volume: String,
}

impl CopyGuard {
    /// Begins to copy an archive. The caller holds its lock.
    pub(super) fn new(store: &Arc<ExportStore>, volume: &str) -> Self {
        *store.state().copied.entry(volume.to_owned()).or_default() += 1;
        Self {
            store: Arc::clone(store),
            volume: volume.to_owned(),
        }
    }
}

impl Drop for CopyGuard {
    fn drop(&mut self) {
        let mut state = self.store.state();
        if let Some(count) = state.copied.get_mut(&self.volume) {
            *count -= 1;
            if *count == 0 {
                state.copied.remove(&self.volume);
            }
        }
    }
}

impl SourceTree {
    pub(super) fn endpoint(&self) -> CopyEndpoint {
        CopyEndpoint {
            store: Arc::clone(&self.export),
            verified: Arc::clone(&self.verified),
            fsid: self.root.attributes.fsid,
        }
    }

    /// Returns the snapshot that has the directory, if it is in one.
    pub(super) fn snapshot(&self) -> Option<&CopiedSnapshot> {
        match &self.place {
            SourcePath::Snapshot { copied, .. } => Some(copied),
            SourcePath::Volume(_) | SourcePath::Archive { .. } => None,
        }
    }

    /// Returns the identity of the export.
    pub(super) fn export_id(&self) -> &str {
        &self.verified.identity.id
    }

    /// Returns the request for the copy's root. For an archive, uses the attributes from before the directory was
    /// restricted, as a move does.
    pub(super) fn root_request(&self, request: &DirectoryRequest) -> DirectoryRequest {
        match self.place {
            SourcePath::Volume(_) | SourcePath::Snapshot { .. } => request.clone(),
            SourcePath::Archive { .. } => DirectoryRequest {
                mode: self.details.attributes.mode,
                mode_requested: true,
                uid: None,
                // A group of its own from a range is not replaced by that of the archive.
                gid: request.gid.filter(|_| request.gid_range.is_some()),
                ..request.clone()
            },
        }
    }

    /// Checks that the source is still at its path. Called at the end, because a copy of a directory that was being
    /// removed is useless.
    pub(super) async fn check_unmoved(&self) -> Result<(), CopyError> {
        let verified = self.export.verified_root().await?;
        let (leaf, name) = match &self.place {
            SourcePath::Volume(directory) => {
                let nodes = paths::walk(&self.export, &verified, directory).await?;
                let leaf = paths::leaf(&nodes, directory).cloned();
                (leaf, directory.to_string())
            }
            SourcePath::Snapshot { name, record, .. } => {
                let found = snapshots::find_again(&self.export, &verified, (name, record)).await?;
                (found, format!("{} in snapshot {name}", record.directory))
            }
            SourcePath::Archive { which, .. } => {
                let name = format!("the archive of volume {}", which.volume);
                match archives::find_available(&self.export, &verified, which).await {
                    Ok(found) => (Some(found.node), name),
                    Err(ExportError::ArchiveGone { .. } | ExportError::ArchiveMissing { .. }) => (None, name),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        match leaf {
            Some(leaf) if leaf.attributes.fileid == self.root.attributes.fileid => Ok(()),
            Some(_) => Err(CopyError::SourceGone {
                why: format!("something else has the name {name}"),
            }),
            None => Err(CopyError::SourceGone {
                why: format!("{name} no longer exists"),
            }),
        }
    }
}

/// Opens the source of a copy.
pub(crate) async fn open(store: &Arc<ExportStore>, original: &CopySource) -> Result<SourceTree, CopyError> {
    let verified = store.verified_root().await?;
    let found = match original {
        CopySource::Volume(request) => volume_source(store, &verified, request).await,
        CopySource::Snapshot(request, selector) => snapshot_source(store, &verified, (request, selector)).await,
        CopySource::Archive(which) => {
            // Purges and moves of the archive take the same lock and check whether it is being copied.
            let _lock = store.lock_volume(&which.volume).await?;
            archive_source(store, &verified, which).await
        }
    };
    store.with_hints(found).await.map_err(CopyError::from)
}

/// Returns the directory of a volume. Record, path and fileid must match, as for a reclaim (data-safety rule 8).
async fn volume_source(
    store: &Arc<ExportStore>,
    verified: &Arc<VerifiedRoot>,
    expected: &VolumeDirectory,
) -> Result<SourceTree, ExportError> {
    let (record, file_id) = volume_record::confirmed_source(store, verified, expected).await?;
    let nodes = paths::walk(store, verified, &expected.directory).await?;
    let leaf = paths::leaf(&nodes, &expected.directory);
    let missing = || ExportError::DirectoryMissing {
        volume: expected.volume.clone(),
        directory: expected.directory.to_string(),
    };
    let root = leaf.ok_or_else(missing)?;
    if !verified.is_plain_directory(root) || root.attributes.fileid != file_id {
        return Err(ExportError::RecordMismatch {
            volume: expected.volume.clone(),
            directory: expected.directory.to_string(),
            what: format!("its directory had fileid {file_id}, and something else has the name now"),
        });
    }
    let details = store.nfs.full_attributes(&root.handle).await;
    Ok(SourceTree {
        export: Arc::clone(store),
        verified: Arc::clone(verified),
        root: root.clone(),
        details: details.context(|| format!("reading the attributes of {}", expected.directory))?,
        group: record.group,
        place: SourcePath::Volume(expected.directory.clone()),
    })
}

/// Returns the directory of a volume in a snapshot. The volume's record must match outside, too.
async fn snapshot_source(
    store: &Arc<ExportStore>,
    verified: &Arc<VerifiedRoot>,
    (expected, selector): (&VolumeDirectory, &SnapshotSelector),
) -> Result<SourceTree, ExportError> {
    let (live, _) = volume_record::confirmed_source(store, verified, expected).await?;
    let found = snapshots::open(store, verified, (expected, &live), selector).await?;
    let details = store.nfs.full_attributes(&found.root.handle).await;
    Ok(SourceTree {
        export: Arc::clone(store),
        verified: Arc::clone(verified),
        details: details.context(|| format!("reading the attributes of {} in a snapshot", expected.directory))?,
        root: found.root,
        group: found.record.group,
        place: SourcePath::Snapshot {
            copied: CopiedSnapshot {
                name: found.name.to_string(),
                taken_after: found.taken_after,
            },
            name: found.name,
            record: Box::new(found.record),
        },
    })
}

/// Returns the directory of an archive, with the mode and, if recorded, the owner from before it was restricted to the
/// operator.
async fn archive_source(
    store: &Arc<ExportStore>,
    verified: &Arc<VerifiedRoot>,
    which: &ArchiveRef,
) -> Result<SourceTree, ExportError> {
    let AvailableArchive {
        node: root,
        archive,
        group,
    } = archives::find_available(store, verified, which).await?;
    let restricted = store.nfs.full_attributes(&root.handle).await;
    let restricted = restricted.context(|| format!("reading the attributes of {}", archive.target))?;
    let attributes = Attributes {
        mode: archive.mode,
        uid: archive.uid.or(restricted.attributes.uid),
        gid: archive.gid.or(restricted.attributes.gid),
        ..restricted.attributes
    };
    Ok(SourceTree {
        export: Arc::clone(store),
        verified: Arc::clone(verified),
        root,
        details: FullAttributes {
            attributes,
            ..restricted
        },
        group,
        place: SourcePath::Archive {
            which: which.clone(),
            _guard: CopyGuard::new(store, &which.volume),
        },
    })
}
