//! Hard links within the tree, without keeping a list in memory: a file with several names gets an additional name in a
//! folder beside the copy. That name is the fileid of the source, and the file's other names are linked to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::copy::context::CopyContext;
use crate::copy::tree::Directory;
use crate::copy::{CopyError, CopyProgress};
use nfs_client::{FileHandle, FileRef, Name, Status};

/// Copies of files with several names, by the fileid of the source.
pub(super) struct LinkTable {
    context: Arc<CopyContext>,
    folder: FileHandle,
    /// Files being copied: two names of the same file must not be copied at the same time.
    locks: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
}

impl LinkTable {
    pub(super) fn new(context: &Arc<CopyContext>, folder: FileHandle) -> Self {
        Self {
            context: Arc::clone(context),
            folder,
            locks: Mutex::default(),
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

    /// Creates a hard link to the copy of this file. Returns false if there is no copy yet, or if it has too many
    /// links.
    pub(super) async fn link(&self, file_id: u64, (directory, name): (&Directory, &Name)) -> Result<bool, CopyError> {
        let nfs = self.context.target();
        let failed = |error| CopyError::of_call(directory.path_of(name), error);
        let copy = nfs.lookup(&self.folder, &entry_name(file_id)?).await;
        let Some(copy) = copy.map_err(failed)? else {
            return Ok(false);
        };
        match nfs.link(&copy.handle, directory.to(), name).await {
            Ok(()) => Ok(true),
            // Linked already: an earlier call's reply was lost, or the listing returned the name twice.
            Err(error) if error.status() == Some(Status::Exists) => {
                match nfs.lookup(directory.to(), name).await.map_err(failed)? {
                    Some(existing) if existing.attributes.fileid == copy.attributes.fileid => {
                        self.context.check_name(directory, name, &existing).await?;
                        Ok(true)
                    }
                    _ => Err(failed(error)),
                }
            }
            Err(error) if error.status() == Some(Status::TooManyLinks) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Adds the copy of a file, for its other names.
    pub(super) async fn add(&self, file_id: u64, copy: &FileRef) -> Result<(), CopyError> {
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
