//! What is copied: a volume's directory or an archive's, found where all that is known of it says that it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{CopyEndpoint, CopyError};
use crate::ExportStore;
use crate::archives::ArchiveRef;
use crate::error::{ErrorContext as _, ExportError};
use crate::ground::VerifiedRoot;
use crate::naming::DirectoryPath;
use crate::request::{DirectoryRequest, ReclaimRequest};
use nfs_client::{Attributes, FileRef, FullAttributes};

/// What is to be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySource {
    /// The directory of a volume in use.
    Volume(ReclaimRequest),
    /// The directory of an archive.
    Archive(ArchiveRef),
}

/// A directory that is to be copied, found where its record says that it is.
pub struct SourceTree {
    pub(super) export: Arc<ExportStore>,
    pub(super) ground: Arc<VerifiedRoot>,
    pub(super) root: FileRef,
    /// What the copy's root is to be like.
    pub(super) details: FullAttributes,
    place: Place,
}

/// Where it has to be at the end, too.
enum Place {
    Volume(DirectoryPath),
    /// Held, so that nobody purges or moves it meanwhile.
    Archive {
        which: ArchiveRef,
        _held: BeingCopied,
    },
}

/// Archives that are being copied, and how many times at once.
///
/// Only in memory: whoever takes over begins the copies anew, and finds the archive there or not.
#[derive(Default)]
pub(crate) struct ArchivesCopied(Arc<Mutex<HashMap<String, usize>>>);

/// An archive is being copied, until this is dropped.
struct BeingCopied {
    all: Arc<Mutex<HashMap<String, usize>>>,
    volume: String,
}

impl ArchivesCopied {
    fn hold(&self, volume: &str) -> BeingCopied {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(volume.to_owned()).or_default() += 1;
        BeingCopied {
            all: Arc::clone(&self.0),
            volume: volume.to_owned(),
        }
    }

    pub(crate) fn has(&self, volume: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.contains_key(volume)
    }
}

impl Drop for BeingCopied {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.volume) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.volume);
            }
        }
    }
}

impl SourceTree {
    pub(super) fn side(&self) -> CopyEndpoint {
        CopyEndpoint {
            managed: Arc::clone(&self.export),
            ground: Arc::clone(&self.ground),
            fsid: self.root.attributes.fsid,
        }
    }

    /// What is asked for the copy's root: of an archive, what the directory was before it was closed, as when it is moved.
    pub(super) fn asked(&self, request: &DirectoryRequest) -> DirectoryRequest {
        match self.place {
            Place::Volume(_) => request.clone(),
            Place::Archive { .. } => DirectoryRequest {
                mode: self.details.attributes.mode,
                mode_asked: true,
                uid: None,
                gid: None,
                ..request.clone()
            },
        }
    }

    /// Whether the source is still where it was: asked at the end, because what was copied of something that was being
    /// removed is worth nothing.
    pub(super) async fn still_there(&self) -> Result<(), CopyError> {
        let ground = self.export.ground().await?;
        let (leaf, name) = match &self.place {
            Place::Volume(directory) => {
                let nodes = self.export.walk(&ground, directory).await?;
                let leaf = self.export.leaf_of(&nodes, directory).cloned();
                (leaf, directory.to_string())
            }
            Place::Archive { which, .. } => {
                let name = format!("the archive of volume {}", which.volume);
                match self.export.kept_at(&ground, which).await {
                    Ok((node, _)) => (Some(node), name),
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
                why: format!("{name} is not there any more"),
            }),
        }
    }
}

impl ExportStore {
    /// Finds what is to be copied.
    pub async fn source(self: &Arc<Self>, original: &CopySource) -> Result<SourceTree, CopyError> {
        let ground = self.ground().await?;
        let found = match original {
            CopySource::Volume(request) => self.volume_source(&ground, request).await,
            CopySource::Archive(which) => {
                // Whoever purges or moves it has the same turn, and looks whether it is being copied.
                let _turn = self.turns.of(&which.volume).await;
                self.archive_source(&ground, which).await
            }
        };
        self.told(found).await.map_err(CopyError::from)
    }

    /// A volume's directory: record, path and fileid must agree, as for a reclaim (design 6.8).
    async fn volume_source(
        self: &Arc<Self>,
        ground: &Arc<VerifiedRoot>,
        request: &ReclaimRequest,
    ) -> Result<SourceTree, ExportError> {
        let file_id = self.agreed(ground, request).await?;
        let nodes = self.walk(ground, &request.directory).await?;
        let leaf = self.leaf_of(&nodes, &request.directory);
        let missing = || ExportError::DirectoryMissing {
            volume: request.volume.clone(),
            directory: request.directory.to_string(),
        };
        let root = leaf.ok_or_else(missing)?;
        if !ground.is_plain_directory(root) || root.attributes.fileid != file_id {
            return Err(ExportError::Disagrees {
                volume: request.volume.clone(),
                directory: request.directory.to_string(),
                what: format!("its directory had fileid {file_id}, and something else has the name now"),
            });
        }
        let details = self.nfs.details(&root.handle).await;
        Ok(SourceTree {
            export: Arc::clone(self),
            ground: Arc::clone(ground),
            root: root.clone(),
            details: details.while_(|| format!("looking at {}", request.directory))?,
            place: Place::Volume(request.directory.clone()),
        })
    }

    /// An archive's directory, closed to everybody but us: mode and owner are those that its record knows.
    async fn archive_source(
        self: &Arc<Self>,
        ground: &Arc<VerifiedRoot>,
        which: &ArchiveRef,
    ) -> Result<SourceTree, ExportError> {
        let (root, note) = self.kept_at(ground, which).await?;
        let closed = self.nfs.details(&root.handle).await;
        let closed = closed.while_(|| format!("looking at {}", note.target))?;
        let attributes = Attributes {
            mode: note.mode,
            uid: note.uid.or(closed.attributes.uid),
            gid: note.gid.or(closed.attributes.gid),
            ..closed.attributes
        };
        Ok(SourceTree {
            export: Arc::clone(self),
            ground: Arc::clone(ground),
            root,
            details: FullAttributes { attributes, ..closed },
            place: Place::Archive {
                which: which.clone(),
                _held: self.copied.hold(&which.volume),
            },
        })
    }
}
