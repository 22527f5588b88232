//! What all parts of a copy use: the two ends, the limits and the progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::copy::bandwidth::Bandwidth;
use crate::copy::limits::CopyShare;
use crate::copy::tree::Directory;
use crate::copy::{CopyError, CopyProgress, Outcome};
use crate::readdir::DirectoryReader;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{Client, FileHandle, FileRef, FsId, Name, NfsError};

/// One end of a copy.
pub(super) struct CopyEndpoint {
    pub store: Arc<ExportStore>,
    /// The verified root through which the handles were looked up.
    pub verified: Arc<VerifiedRoot>,
    /// The file system that the copy does not leave.
    pub fsid: FsId,
}

impl CopyEndpoint {
    async fn verify(&self) -> Result<(), CopyError> {
        let now = self.store.verified_root().await?;
        if now.differs_from(&self.verified) {
            return Err(CopyError::ExportChanged);
        }
        Ok(())
    }
}

/// A copy in progress.
pub(super) struct CopyContext {
    pub from: CopyEndpoint,
    pub to: CopyEndpoint,
    pub share: CopyShare,
    pub progress: Arc<CopyProgress>,
    /// Number of bytes copied, or being copied.
    pub charged: AtomicU64,
    /// The group of the source, and the one of the copy that replaces it.
    pub groups: Option<(u32, u32)>,
    /// The copy is a backup: it gets a manifest with checksums.
    pub is_backup: bool,
    /// Time before which a file of the source must have changed last for a later change to show, if this is known.
    pub settled_before: Option<i64>,
    /// The source is a directory in a snapshot.
    pub is_snapshot: bool,
}

/// The content of one file, counted against the maximum of the copy. Dropped if the file is copied again.
pub(super) struct Charge<'a> {
    context: &'a CopyContext,
    bytes: AtomicU64,
}

impl Charge<'_> {
    /// Counts bytes that are copied next.
    pub(super) fn add(&self, bytes: u64) -> Outcome {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = self.context.charged.fetch_add(bytes, Ordering::Relaxed);
        self.context.check_size(before.saturating_add(bytes))
    }

    /// Keeps the count once the file is complete.
    pub(super) fn keep(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.context.charged.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl CopyContext {
    /// Begins to count the content of a file.
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge {
            context: self,
            bytes: AtomicU64::new(0),
        }
    }

    /// Checks that the copy may have so many bytes.
    pub(super) fn check_size(&self, bytes: u64) -> Outcome {
        match self.share.max_bytes {
            Some(max_bytes) if bytes > max_bytes => Err(CopyError::TooLarge { max_bytes }),
            _ => Ok(()),
        }
    }

    pub(super) fn source(&self) -> &Client {
        self.from.store.nfs()
    }

    pub(super) fn target(&self) -> &Client {
        self.to.store.nfs()
    }

    /// Returns what is at a name of the target already, from an earlier attempt or a call whose reply was lost.
    pub(super) async fn find_earlier(&self, directory: &Directory, name: &Name) -> Result<Option<FileRef>, CopyError> {
        let found = self.target().lookup(directory.to(), name).await;
        let found = found.map_err(|error| CopyError::of_call(directory.path_of(name), error))?;
        if let Some(existing) = &found {
            self.check_name(directory, name, existing).await?;
        }
        Ok(found)
    }

    /// Checks that an existing entry of the target has exactly this name, so that it is not the copy of another name.
    /// Servers that ignore case or normalize Unicode find it by other names, too.
    pub(super) async fn check_name(&self, directory: &Directory, name: &Name, existing: &FileRef) -> Outcome {
        let found = self.find_collision(directory.to(), name, existing).await;
        let found = found.map_err(|error| CopyError::of_call(directory.path_of(name), error))?;
        let Some(other) = found else { return Ok(()) };
        Err(CopyError::NamesCollide {
            path: directory.path_of(name).to_string(),
            other: directory.path_of(&other).to_string(),
        })
    }

    /// Returns the name of an existing entry, unless the directory has an entry with exactly the expected name.
    async fn find_collision(
        &self,
        directory: &FileHandle,
        expected: &Name,
        existing: &FileRef,
    ) -> Result<Option<Name>, NfsError> {
        let mut found = None;
        let mut reader = DirectoryReader::new(directory.clone());
        while let Some(page) = reader.next_page(self.target()).await? {
            for entry in page.entries {
                if entry.name == *expected {
                    return Ok(None);
                }
                if entry.fileid == Some(existing.attributes.fileid) {
                    found = Some(entry.name);
                }
            }
        }
        Ok(found)
    }

    /// The bandwidths of the backends of source and target.
    fn bandwidths(&self) -> impl Iterator<Item = &Bandwidth> {
        let target = (!self.is_same_server()).then_some(&self.to.store.copy_bandwidth);
        std::iter::once(&self.from.store.copy_bandwidth).chain(target)
    }

    /// Waits until bytes of content may be copied; with 0, until those so far are.
    pub(super) async fn throttle(&self, bytes: u64) {
        for bandwidth in self.bandwidths() {
            bandwidth.spend(bytes).await;
        }
    }

    /// Counts bytes of content whose number was not known before they were copied.
    pub(super) fn count_copied(&self, bytes: u64) {
        self.bandwidths().for_each(|bandwidth| bandwidth.charge(bytes));
    }

    /// Reports whether source and target use the same connection, so that one server knows the handles of both.
    pub(super) fn is_same_server(&self) -> bool {
        Arc::ptr_eq(&self.from.store, &self.to.store)
    }

    /// Checks that the handles still belong to the exports on which they were looked up. Called after each page of a
    /// listing and before each retry of a file, to avoid writing to a replacement of the export, or as a process that
    /// is no longer the leader.
    pub(super) async fn verify_endpoints(&self) -> Result<(), CopyError> {
        self.from.verify().await?;
        self.to.verify().await
    }
}
