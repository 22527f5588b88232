//! Hard links within the tree, without keeping a list in memory: a file with several names gets an additional name in a
//! folder beside the copy. That name is the fileid of the source, and the file's other names are linked to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::copy::context::CopyContext;
use crate::copy::manifest::Digest;
use crate::copy::tree::Directory;
use crate::copy::{CopyError, CopyProgress};
use nfs_client::{FileHandle, FileRef, Name, Status};

/// Maximum number of checksums in memory. The other names of further files have none in the manifest.
const MAX_CHECKSUMS: usize = 4096;

/// Copies of files with several names, by the fileid of the source.
pub(super) struct LinkTable {
    context: Arc<CopyContext>,
    folder: FileHandle,
    /// Files being copied: two names of the same file must not be copied at the same time.
    locks: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
    /// Checksums of copied files of a backup, for their other names.
    checksums: Mutex<HashMap<u64, Digest>>,
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
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            // Keep only the locks in use.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(file_id).or_default())
        };
        lock.lock_owned().await
    }

    /// Returns the checksum of a copied file, if it is known.
    pub(super) fn checksum(&self, file_id: u64) -> Option<Digest> {
        let checksums = self.checksums.lock().unwrap_or_else(PoisonError::into_inner);
        checksums.get(&file_id).copied()
    }

    /// Creates a hard link to the copy of this file, and returns the fileid of the copy. Returns `None` if there is no copy
    /// yet, or if it has too many links.
    pub(super) async fn link(
        &self,
        file_id: u64,
        (directory, name): (&Directory, &Name),
    ) -> Result<Option<u64>, CopyError> {
        let nfs = self.context.target();
        let failed = |error| CopyError::of_call(directory.path_of(name), error);
        let copy = nfs.lookup(&self.folder, &entry_name(file_id)?).await;
        let Some(copy) = copy.map_err(failed)? else {
            return Ok(None);
        };
        let linked = Ok(Some(copy.attributes.fileid));
        match nfs.link(&copy.handle, directory.to(), name).await {
            Ok(()) => linked,
            // Linked already: an earlier call's reply was lost, or the listing returned the name twice.
            Err(error) if error.status() == Some(Status::Exists) => {
                match nfs.lookup(directory.to(), name).await.map_err(failed)? {
                    Some(existing) if existing.attributes.fileid == copy.attributes.fileid => {
                        self.context.check_name(directory, name, &existing).await?;
                        linked
                    }
                    _ => Err(failed(error)),
                }
            }
            Err(error) if error.status() == Some(Status::TooManyLinks) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Adds the copy of a file, for its other names.
    pub(super) async fn add(&self, file_id: u64, copy: &FileRef, checksum: Option<Digest>) -> Result<(), CopyError> {
        if let Some(checksum) = checksum {
            let mut checksums = self.checksums.lock().unwrap_or_else(PoisonError::into_inner);
            if checksums.len() < MAX_CHECKSUMS {
                checksums.insert(file_id, checksum);
            }
        }
        let entry = entry_name(file_id)?;
        match self.context.target().link(&copy.handle, &self.folder, &entry).await {
            Ok(()) => Ok(()),
            Err(error) => match error.status() {
                Some(Status::Exists) => Ok(()),
                // Each of its other names becomes a separate file.
                Some(Status::NotSupported | Status::TooManyLinks | Status::NotPermitted | Status::Invalid) => {
                    CopyProgress::one(&self.context.progress.unlinked);
                    Ok(())
                }
                _ => Err(CopyError::of_call(&entry, error)),
            },
        }
    }
}

fn entry_name(file_id: u64) -> Result<Name, CopyError> {
    Ok(crate::layout::name(&format!("{file_id:x}"))?)
}
