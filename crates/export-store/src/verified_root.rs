//! The directories of the operator on an export whose identity is verified on the current connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::limits::QuotaFolders;
use crate::path_reservations::FileKey;
use crate::request::Identity;
use nfs_client::{Client, FileHandle, FileKind, FileRef};
use tokio::sync::OnceCell;

/// File handles that were looked up after the identity was read on one connection. Every change of the export goes
/// through them (data-safety rule 2).
#[derive(Debug)]
pub(crate) struct VerifiedRoot {
    /// The client of changes: it sends them on that connection only.
    pub nfs: Client,
    /// Number of the connection on which the identity was read.
    pub generation: u64,
    pub identity: Identity,
    pub root: FileRef,
    pub reserved: FileRef,
    pub cluster: FileRef,
    pub records: FileRef,
    pub trash: FileRef,
    /// Distinguishes this root from any other: whatever is remembered with it is no longer valid after the next verification.
    pub token: Arc<()>,
    /// The folders of the quota agent, once they were needed.
    pub quota: OnceCell<QuotaFolders>,
    /// The handles may no longer be valid: they are looked up again before the next change.
    outdated: AtomicBool,
}

impl VerifiedRoot {
    pub(crate) fn new(
        nfs: Client,
        generation: u64,
        identity: Identity,
        root: FileRef,
        reserved: FileRef,
        folders: [FileRef; 3],
    ) -> Self {
        let [cluster, records, trash] = folders;
        Self {
            nfs,
            generation,
            identity,
            root,
            reserved,
            cluster,
            records,
            trash,
            token: Arc::default(),
            quota: OnceCell::new(),
            outdated: AtomicBool::new(false),
        }
    }

    /// Returns the key of a fileid of this export for the path reservations.
    pub(crate) fn file_key(&self, fileid: u64) -> FileKey {
        (self.identity.id.clone(), fileid)
    }

    /// Reports whether a node is a directory on the file system of the export's root.
    pub(crate) fn is_plain_directory(&self, node: &FileRef) -> bool {
        node.attributes.kind == FileKind::Directory && node.attributes.fsid == self.root.attributes.fsid
    }

    /// Reports whether the identity or a handle differs.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        self.identity.id != other.identity.id || self.handles() != other.handles()
    }

    fn handles(&self) -> [&FileHandle; 5] {
        [&self.root, &self.reserved, &self.cluster, &self.records, &self.trash].map(|node| &node.handle)
    }

    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire)
    }

    pub(crate) fn mark_outdated(&self) {
        self.outdated.store(true, Ordering::Release);
    }
}
