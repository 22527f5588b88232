//! Hard links within the tree, without keeping a list in memory: a file with several names gets an additional name in a
//! folder beside the copy. That name is the file ID of the source, and the file's other names are linked to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::copy::{Copier, CopyError, CopyProgress};
use nfs_client::{FileHandle, FileRef, Name, NfsError, Status};

/// The folder, and the files being copied: two names of the same file must not be copied at the same time.
pub(super) struct Links {
    folder: FileHandle,
    busy: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
}

impl Links {
    pub(super) fn new(folder: FileHandle) -> Self {
        Self {
            folder,
            busy: Mutex::default(),
        }
    }

    /// Returns the lock of a file. The map contains only locks in use, and the new one.
    fn turn(&self, fileid: u64) -> Arc<tokio::sync::Mutex<()>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(busy.entry(fileid).or_default())
    }
}

fn called(fileid: u64) -> Result<Name, CopyError> {
    Ok(crate::layout::name(&format!("{fileid:x}"))?)
}

impl Copier {
    /// Waits until no other name of this file is being copied.
    pub(super) async fn turn_of(&self, fileid: u64) -> tokio::sync::OwnedMutexGuard<()> {
        self.links.turn(fileid).lock_owned().await
    }

    /// Creates a hard link to the copy of this file. Returns false if there is no copy yet, or if it has too many
    /// links.
    pub(super) async fn link_again(&self, fileid: u64, to: &FileHandle, name: &Name) -> Result<bool, NfsError> {
        let Ok(called) = called(fileid) else { return Ok(false) };
        let nfs = self.to.store.nfs();
        let Some(copy) = nfs.lookup(&self.links.folder, &called).await? else {
            return Ok(false);
        };
        match nfs.link(&copy.handle, to, name).await {
            Ok(()) => Ok(true),
            // Linked already: an earlier call's reply was lost, or the listing returned the name twice.
            Err(error) if error.status() == Some(Status::Exists) => match nfs.lookup(to, name).await? {
                Some(there) if there.attributes.fileid == copy.attributes.fileid => Ok(true),
                _ => Err(error),
            },
            Err(error) if error.status() == Some(Status::TooManyLinks) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Links the copy of a file into the folder for its other names.
    pub(super) async fn keep_for_links(&self, fileid: u64, copy: &FileRef) -> Result<(), CopyError> {
        let called = called(fileid)?;
        let nfs = self.to.store.nfs();
        match nfs.link(&copy.handle, &self.links.folder, &called).await {
            Ok(()) => Ok(()),
            Err(error) => match error.status() {
                Some(Status::Exists) => Ok(()),
                // Each of its other names becomes a separate file.
                Some(Status::NotSupported | Status::TooManyLinks | Status::NotPermitted | Status::Invalid) => {
                    CopyProgress::one(&self.tally.unlinked);
                    Ok(())
                }
                _ => Err(self.failed(&called.to_string(), error)),
            },
        }
    }
}
