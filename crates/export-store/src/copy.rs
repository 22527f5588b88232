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
//! A backup, which is a copy that becomes an archive, also gets a manifest, and hard links to the unchanged files of the
//! previous backup and of an interrupted attempt ([`manifest`]).
//!
//! Any other interrupted copy restarts from the beginning; the partial copy is moved into the trash. The count of files that
//! changed during the copy applies to each file individually: a copy of a tree in use is not a snapshot.

mod attributes;
mod backup_source;
mod bandwidth;
mod checkpoint;
mod content;
mod context;
mod count;
mod error;
mod file;
mod interrupted;
mod limits;
mod links;
mod manifest;
mod path;
mod progress;
mod publish;
mod source;
mod staged_limit;
mod staging;
mod to_archive;
mod tree;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::Notify;
use tokio::task::JoinSet;

pub(crate) use crate::copy::bandwidth::Bandwidth;
use crate::copy::checkpoint::Checkpoints;
use crate::copy::context::{CopyContext, CopyEndpoint};
use crate::copy::count::count_source;
pub use crate::copy::error::CopyError;
pub use crate::copy::limits::{CopyLimits, MAX_COPIES};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::copy::manifest::decode_anything as decode_manifest;
use crate::copy::manifest::{BaseDirectory, ManifestWriter};
pub use crate::copy::manifest::{ManifestRef, VerifyProblem, VerifyReport};
pub(crate) use crate::copy::manifest::{remove as remove_manifest, verify as verify_backup};
pub use crate::copy::progress::{CopyProgress, CopyProgressSnapshot};
pub(crate) use crate::copy::publish::discard_staged;
pub(crate) use crate::copy::source::open;
pub use crate::copy::source::{CopySource, SourceTree};
pub use crate::copy::staged_limit::StagedLimit;
pub(crate) use crate::copy::staging::find_finished;
pub use crate::copy::staging::{StagedCopy, Staging};
pub use crate::copy::to_archive::{ArchiveRequest, DiscardOutcome, RequestedArchive, SnapshotUse, copy_to_archive};
pub(crate) use crate::copy::to_archive::{complete, discard_requested, find_requested, track};
use crate::copy::tree::TreeCopier;
use crate::request::{DirectoryRequest, ProvisionedDirectory};
use crate::store::ExportStore;
use nfs_client::FileRef;

/// Result of a copy.
type Outcome = Result<(), CopyError>;

/// Copies the directory of a volume or an archive and gives the copy the name that `request` asks for. Source and
/// target may be of the same backend. The copy is not visible under that name before it is complete. If interrupted or
/// dropped at any point and run again, it results in one complete copy.
///
/// # Errors
/// The first failure. A record of an unfinished copy may remain until another attempt or [`ExportStore::rollback`].
pub async fn copy_volume(
    (source, of): (&Arc<ExportStore>, &CopySource),
    (target, request): (&Arc<ExportStore>, &DirectoryRequest),
    limits: &CopyLimits,
    progress: &Arc<CopyProgress>,
) -> Result<ProvisionedDirectory, CopyError> {
    let staging = match staging::stage(target, request).await? {
        StagedCopy::Done(directory) => return Ok(directory),
        StagedCopy::Copy(staging) => staging,
    };
    let tree = source::open(source, of).await?;
    staged_limit::order(target, &request.volume, &staging, limits).await?;
    copy_tree(&tree, (target, &staging, None), limits, progress).await?;
    publish::publish(target, request, &tree, &staging).await
}

/// What a backup has and other copies do not.
struct BackupParts<'a> {
    /// The empty file for the manifest.
    manifest: FileRef,
    /// The roots of its bases.
    bases: Vec<BaseDirectory>,
    /// Time before which a file must have changed last for a later change to show.
    settled_before: Option<i64>,
    checkpoints: Checkpoints<'a>,
}

/// Copies the tree into the staging folder of `target`, except for the attributes of the root itself. Returns the reference
/// to the manifest of a backup. Can be dropped at any point; the partial copy is then moved into the trash later, or by a
/// backup that has taken over its files.
///
/// # Errors
/// The first failure. Files that vanish during the copy are counted instead.
async fn copy_tree(
    source: &SourceTree,
    (target, staging, backup): (&Arc<ExportStore>, &Staging, Option<BackupParts<'_>>),
    limits: &CopyLimits,
    progress: &Arc<CopyProgress>,
) -> Result<Option<ManifestRef>, CopyError> {
    let to = CopyEndpoint {
        store: Arc::clone(target),
        verified: Arc::clone(&staging.verified),
        fsid: staging.tree.attributes.fsid,
    };
    let context = Arc::new(CopyContext {
        from: source.endpoint(),
        to,
        share: limits.share(),
        progress: Arc::clone(progress),
        charged: AtomicU64::new(0),
        groups: source.group.zip(staging.own_group),
        is_backup: backup.is_some(),
        settled_before: backup.as_ref().and_then(|backup| backup.settled_before),
        is_snapshot: source.snapshot().is_some(),
    });
    let (manifest, bases, checkpoints) = match backup {
        Some(backup) => (Some(backup.manifest), backup.bases, Some(backup.checkpoints)),
        None => (None, Vec::new(), None),
    };
    let manifest = manifest.map(|file| Arc::new(ManifestWriter::new(&context, file)));
    let copier = Arc::new(TreeCopier::new(&context, staging.links.handle.clone()));
    let root = copier.root(&source.root, staging.tree.handle.clone(), bases, manifest.as_ref());
    let mut counting = JoinSet::new();
    counting.spawn(count_source(context, source.root.clone()));
    let manifest = manifest.as_deref().zip(root.manifest());
    let ended = Notify::new();
    let copying = async {
        let copied = tokio::select! {
            copied = copier.copy(&source.root, &root) => copied,
            // Found before everything is copied.
            error = wait_for_failure(&mut counting) => Err(error),
        };
        ended.notify_one();
        Ok(copied)
    };
    let checkpointing = async {
        match checkpoints.zip(manifest) {
            Some((checkpoints, manifest)) => checkpoints.run(source, manifest, &ended).await,
            None => Ok(()),
        }
    };
    let (copied, ()) = tokio::try_join!(copying, checkpointing)?;
    copied?;
    // The rest of the count is no longer needed.
    drop(counting);
    let written = match manifest {
        Some((manifest, entries)) => Some(manifest.finish(source, entries).await?),
        None => None,
    };
    source.check_unmoved().await?;
    Ok(written)
}

/// Waits until the count finds that the source is too large.
async fn wait_for_failure(counting: &mut JoinSet<Outcome>) -> CopyError {
    match counting.join_next().await {
        Some(Ok(Err(error))) => error,
        _ => std::future::pending().await,
    }
}
