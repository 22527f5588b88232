//! Hard links within the tree, without keeping a list in memory: a file with several names gets an additional name in a
//! folder beside the copy. That name says which state of which file of the source it is, and the file's other names are linked
//! to it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::copy::context::CopyContext;
use crate::copy::manifest::Digest;
use crate::copy::tree::Directory;
use crate::copy::{CopyError, CopyProgress};
use nfs_client::{FileHandle, FileRef, FullAttributes, Name, Status, Time};

/// Maximum number of checksums in memory. The other names of further files have none in the manifest.
const MAX_CHECKSUMS: usize = 4096;

/// A file of the source with one content. While a tree is copied, its files can change, and the fileid of a removed file can
/// become that of another one: their names must not become links to what was copied before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LinkedFile {
    file_id: u64,
    size: u64,
    modified: Time,
}

impl LinkedFile {
    pub(super) fn of(details: &FullAttributes) -> Self {
        Self {
            file_id: details.attributes.fileid,
            size: details.attributes.size,
            modified: details.times.modified,
        }
    }

    /// Returns the name of its copy in the folder.
    fn entry_name(&self) -> Result<Name, CopyError> {
        let Time { seconds, nanos } = self.modified;
        let (file_id, size) = (self.file_id, self.size);
        Ok(crate::layout::name(&format!(
            "{file_id:x}-{size:x}-{seconds:x}-{nanos:x}"
        ))?)
    }
}

/// Copies of files with several names.
pub(super) struct LinkTable {
    context: Arc<CopyContext>,
    folder: FileHandle,
    /// Files being copied: two names of the same file must not be copied at the same time.
    locks: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
    /// Checksums of copied files of a backup, for their other names.
    checksums: Mutex<HashMap<LinkedFile, Digest>>,
}

impl LinkTable {
    pub(super) fn new(context: &Arc<CopyContext>, folder: FileHandle) -> Self {
        Self {
            context: Arc::clone(context),
            folder,
            locks: Mutex::default(),
            checksums: Mutex::default(),
        }
    }

    /// Waits until no other name of this file is being copied.
    pub(super) async fn lock(&self, file_id: u64) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            // Keep only the locks in use.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(file_id).or_default())
        };
        lock.lock_owned().await
    }

    /// Returns the checksum of a copied file, if it is known.
    pub(super) fn checksum(&self, file: LinkedFile) -> Option<Digest> {
        let checksums = self.checksums.lock();
        checksums.get(&file).copied()
    }

    /// Creates a hard link to the copy of this file, and returns the fileid of the copy. Returns `None` if there is no copy
    /// yet, or if it has too many links.
    pub(super) async fn link(
        &self,
        file: LinkedFile,
        (directory, name): (&Directory, &Name),
    ) -> Result<Option<u64>, CopyError> {
        let nfs = self.context.target();
        let failed = |error| CopyError::of_call(directory.path_of(name), error);
        let copy = nfs.lookup(&self.folder, &file.entry_name()?).await;
        let Some(copy) = copy.map_err(failed)? else {
            return Ok(None);
        };
        let linked = match nfs.link(&copy.handle, directory.to(), name).await {
            Err(error) if error.status() == Some(Status::Exists) => {
                if let Some(existing) = self.context.find_earlier(directory, name).await? {
                    let file_id = existing.attributes.fileid;
                    // Linked already: an earlier call's reply was lost, or the listing returned the name twice.
                    if file_id == copy.attributes.fileid {
                        return Ok(Some(file_id));
                    }
                    // An earlier attempt copied the file before it changed.
                    nfs.remove_file(directory.to(), name, file_id).await.map_err(failed)?;
                }
                nfs.link(&copy.handle, directory.to(), name).await
            }
            linked => linked,
        };
        match linked {
            Ok(()) => Ok(Some(copy.attributes.fileid)),
            Err(error) if error.status() == Some(Status::TooManyLinks) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Adds the copy of a file, for its other names.
    pub(super) async fn add(
        &self,
        file: LinkedFile,
        copy: &FileRef,
        checksum: Option<Digest>,
    ) -> Result<(), CopyError> {
        let entry = file.entry_name()?;
        match self.context.target().link(&copy.handle, &self.folder, &entry).await {
            Ok(()) => {}
            Err(error) => match error.status() {
                // The copy before has too many links, or this one was added by a call whose reply was lost.
                Some(Status::Exists) => return Ok(()),
                // Each of its other names becomes a separate file.
                Some(Status::NotSupported | Status::TooManyLinks | Status::NotPermitted | Status::Invalid) => {
                    CopyProgress::one(&self.context.progress.unlinked);
                    return Ok(());
                }
                _ => return Err(CopyError::of_call(&entry, error)),
            },
        }
        if let Some(checksum) = checksum {
            let mut checksums = self.checksums.lock();
            if checksums.len() < MAX_CHECKSUMS {
                checksums.insert(file, checksum);
            }
        }
        Ok(())
    }
}
