//! Copying a tree from one export to another, or within one: what clones, restored copies of archives, and archives on
//! demand are made with.
//!
//! A copy is made in a folder of ours (`staging`), where nobody sees it, and given its name once it is complete. It is made
//! on the server where the server can (CLONE, else COPY of what is no hole), and streamed in bounded memory elsewhere, where zeros of a sparse file become holes again. Kept
//! are content with its holes, mode, owner, times, user attributes, symbolic links as they are, and hard links within the
//! tree. Symbolic links are never followed, other file systems inside the tree never entered; devices, sockets and FIFOs
//! are counted and left out.
//!
//! A copy that was cut off is begun anew: what is there is put into the trash. What it says of files that changed
//! meanwhile is about each file by itself: a tree in use has no one moment.

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
pub use crate::copy::progress::{Tally, TallySnapshot};
pub(crate) use crate::copy::publish::discard_staged;
pub(crate) use crate::copy::source::open;
pub use crate::copy::source::{CopySource, SourceTree};
pub use crate::copy::staging::{StagedCopy, Staging};
pub use crate::copy::to_archive::{ArchiveRequest, Asked, Discarded, copy_to_archive};
pub(crate) use crate::copy::to_archive::{complete, discard_requested, find_requested, track};
use crate::request::{DirectoryRequest, ProvisionedDirectory};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{FileHandle, FileRef, FsId};

/// Memory for file contents on their way, of all copies together, in KiB: with the requests that they are put into, and
/// what is copied of them for that, a copy stays far below the 64 MiB that a small pod has.
const MEMORY: usize = 8 << 10;
/// Files on their way, of all copies together: enough to keep a server busy over a round trip, half of a session's slots.
const FILES: usize = 32;
/// Directories gone into side by side, beside the first of each copy.
const FORKS: usize = 8;

/// What all copies together may take.
#[derive(Debug, Clone)]
pub struct Budget {
    memory: Arc<Semaphore>,
    files: Arc<Semaphore>,
    forks: Arc<Semaphore>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            memory: Arc::new(Semaphore::new(MEMORY)),
            files: Arc::new(Semaphore::new(FILES)),
            forks: Arc::new(Semaphore::new(FORKS)),
        }
    }
}

/// What a copy came to.
type Outcome = Result<(), CopyError>;

/// One end of a copy.
struct CopyEndpoint {
    store: Arc<ExportStore>,
    /// What its handles were got on.
    verified: Arc<VerifiedRoot>,
    /// The file system that is not left.
    fsid: FsId,
}

impl CopyEndpoint {
    /// Whether the handles are still those of the export that they were got on: asked before each file, so that nothing is
    /// written to what was put in its place, or by a process that does not lead any more.
    async fn still(&self) -> Result<(), CopyError> {
        let now = self.store.verified_root().await?;
        if now.differs_from(&self.verified) {
            return Err(CopyError::ExportChanged);
        }
        Ok(())
    }
}

/// What was found out about the servers, once for all files.
#[derive(Default)]
struct ServerFeatures {
    copies: AtomicBool,
    no_clone: AtomicBool,
    no_copy: AtomicBool,
    no_seek: AtomicBool,
    no_source_xattrs: AtomicBool,
    no_target_xattrs: AtomicBool,
}

/// A copy on its way.
struct Copier {
    from: CopyEndpoint,
    to: CopyEndpoint,
    /// Both sides are one connection: handles of both mean something to one server.
    same: bool,
    budget: Budget,
    tally: Arc<Tally>,
    ability: ServerFeatures,
    links: links::Links,
}

/// Makes a copy of a volume's or an archive's directory and gives it the name that `request` asks for; both may be of one
/// backend. Nobody sees it before it is complete. Killed or dropped at any point, and run again, it ends with one complete copy.
///
/// # Errors
/// The first thing that could not be copied. The record of `request` then says that something was begun, until
/// [`ExportStore::rollback`].
pub async fn copy_volume(
    (source, of): (&Arc<ExportStore>, &CopySource),
    (target, request): (&Arc<ExportStore>, &DirectoryRequest),
    budget: &Budget,
    tally: &Arc<Tally>,
) -> Result<ProvisionedDirectory, CopyError> {
    let staging = match staging::stage(target, request).await? {
        StagedCopy::Done(directory) => return Ok(directory),
        StagedCopy::Copy(staging) => staging,
    };
    let tree = source::open(source, of).await?;
    copy_tree(&tree, target, &staging, budget, tally).await?;
    publish::publish(target, request, &tree, &staging).await
}

/// Copies the tree into the staging folder of `target`, with all but the attributes of the root itself. Can be dropped
/// at any point; then what is there is for the trash.
///
/// # Errors
/// The first thing that could not be copied; what vanished meanwhile is counted instead.
async fn copy_tree(
    source: &SourceTree,
    target: &Arc<ExportStore>,
    staging: &Staging,
    budget: &Budget,
    tally: &Arc<Tally>,
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
    /// Copies, and counts what there is to copy at the same time.
    async fn run(self: Arc<Self>, from: FileRef, to: FileHandle) -> Outcome {
        let mut counting = tokio::task::JoinSet::new();
        counting.spawn(Arc::clone(&self).count(from.clone()));
        let copied = Arc::clone(&self).tree(from.handle, to).await;
        // What is left to count is of no interest any more.
        counting.abort_all();
        copied
    }
}
