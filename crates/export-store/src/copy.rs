//! Copies a tree from one export to another, or within one export. Clones, restores of archives by copy, and archives
//! on demand use it.
//!
//! A copy is made in a staging folder that is restricted to the operator (`staging`), and is renamed to its final name
//! once it is complete. The server copies the content if it can (CLONE, or COPY of the parts that are not holes).
//! Otherwise the content is streamed in bounded memory, and zeros of a sparse file become holes again. The copy
//! preserves content and holes, mode, owner, times, user attributes, symbolic links, and hard links within the tree.
//! The copy never follows symbolic links and never enters other file systems inside the tree. It counts devices,
//! sockets and FIFOs and leaves them out.
//!
//! An interrupted copy restarts from the beginning; the partial copy is moved into the trash. The count of files that
//! changed during the copy applies to each file individually: a copy of a tree in use is not a snapshot.

mod content;
mod count;
mod error;
mod file;
mod links;
mod progress;
mod publish;
mod source;
mod staging;
mod to_archive;
mod tree;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Semaphore;

pub use crate::copy::error::CopyError;
pub use crate::copy::progress::{CopyProgress, CopyProgressSnapshot};
pub(crate) use crate::copy::publish::discard_staged;
pub(crate) use crate::copy::source::open;
pub use crate::copy::source::{CopySource, SourceTree};
pub use crate::copy::staging::{StagedCopy, Staging};
pub use crate::copy::to_archive::{ArchiveRequest, DiscardOutcome, RequestedArchive, copy_to_archive};
pub(crate) use crate::copy::to_archive::{complete, discard_requested, find_requested, track};
use crate::request::{DirectoryRequest, ProvisionedDirectory};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{FileHandle, FileRef, FsId};

/// Maximum amount of file content in memory, for all copies together, in KiB. Including the requests that contain the
/// content, and the buffers for these requests, a copy stays far below the 64 MiB that a small pod has.
const MEMORY: usize = 8 << 10;
/// Maximum number of files being copied at a time, for all copies together: enough to keep a server busy over a round
/// trip, and half of a session's slots.
const FILES: usize = 32;
/// Maximum number of directories copied concurrently, in addition to the first one of each copy.
const FORKS: usize = 8;

/// Resources that all copies together may use.
#[derive(Debug, Clone)]
pub struct CopyLimits {
    memory: Arc<Semaphore>,
    files: Arc<Semaphore>,
    forks: Arc<Semaphore>,
}

impl Default for CopyLimits {
    fn default() -> Self {
        Self {
            memory: Arc::new(Semaphore::new(MEMORY)),
            files: Arc::new(Semaphore::new(FILES)),
            forks: Arc::new(Semaphore::new(FORKS)),
        }
    }
}

/// Result of a copy.
type Outcome = Result<(), CopyError>;

/// One end of a copy.
struct CopyEndpoint {
    store: Arc<ExportStore>,
    /// The verified root through which the handles were looked up.
    verified: Arc<VerifiedRoot>,
    /// The file system that the copy does not leave.
    fsid: FsId,
}

impl CopyEndpoint {
    /// Checks that the handles still belong to the export on which they were looked up. Called after each page of a
    /// listing and before each retry of a file, to avoid writing to a replacement of the export, or as a process that
    /// is no longer the leader.
    async fn still(&self) -> Result<(), CopyError> {
        let now = self.store.verified_root().await?;
        if now.differs_from(&self.verified) {
            return Err(CopyError::ExportChanged);
        }
        Ok(())
    }
}

/// Features of the servers, detected once for all files.
#[derive(Default)]
struct ServerFeatures {
    copies: AtomicBool,
    no_clone: AtomicBool,
    no_copy: AtomicBool,
    no_seek: AtomicBool,
    no_source_xattrs: AtomicBool,
    no_target_xattrs: AtomicBool,
}

/// A copy in progress.
struct Copier {
    from: CopyEndpoint,
    to: CopyEndpoint,
    /// Source and target use the same connection, so that one server knows the handles of both.
    same: bool,
    budget: CopyLimits,
    tally: Arc<CopyProgress>,
    ability: ServerFeatures,
    links: links::Links,
}

/// Copies the directory of a volume or an archive and gives the copy the name that `request` asks for. Source and
/// target may be of the same backend. The copy is not visible under that name before it is complete. If interrupted or
/// dropped at any point and run again, it results in one complete copy.
///
/// # Errors
/// The first failure. A record of an unfinished copy may remain until another attempt or [`ExportStore::rollback`].
pub async fn copy_volume(
    (source, of): (&Arc<ExportStore>, &CopySource),
    (target, request): (&Arc<ExportStore>, &DirectoryRequest),
    budget: &CopyLimits,
    tally: &Arc<CopyProgress>,
) -> Result<ProvisionedDirectory, CopyError> {
    let staging = match staging::stage(target, request).await? {
        StagedCopy::Done(directory) => return Ok(directory),
        StagedCopy::Copy(staging) => staging,
    };
    let tree = source::open(source, of).await?;
    copy_tree(&tree, target, &staging, budget, tally).await?;
    publish::publish(target, request, &tree, &staging).await
}

/// Copies the tree into the staging folder of `target`, except for the attributes of the root itself. Can be dropped at
/// any point; the partial copy is then moved into the trash later.
///
/// # Errors
/// The first failure. Files that vanish during the copy are counted instead.
async fn copy_tree(
    source: &SourceTree,
    target: &Arc<ExportStore>,
    staging: &Staging,
    budget: &CopyLimits,
    tally: &Arc<CopyProgress>,
) -> Outcome {
    let to = CopyEndpoint {
        store: Arc::clone(target),
        verified: Arc::clone(&staging.verified),
        fsid: staging.tree.attributes.fsid,
    };
    let copier = Arc::new(Copier {
        from: source.side(),
        same: Arc::ptr_eq(&source.export, target),
        to,
        budget: budget.clone(),
        tally: Arc::clone(tally),
        ability: ServerFeatures::default(),
        links: links::Links::new(staging.links.handle.clone()),
    });
    copier.run(source.root.clone(), staging.tree.handle.clone()).await?;
    source.check_unmoved().await
}

impl Copier {
    /// Copies the tree, and counts its content at the same time.
    async fn run(self: Arc<Self>, from: FileRef, to: FileHandle) -> Outcome {
        let mut counting = tokio::task::JoinSet::new();
        counting.spawn(Arc::clone(&self).count(from.clone()));
        let copied = Arc::clone(&self).tree(&from, to).await;
        // The rest of the count is no longer needed.
        counting.abort_all();
        copied
    }
}
