//! Budget of the copies, in docs/security.md: how much they may have in memory and in progress.
//!
//! Each copy has a share of its own, and takes the rest as it comes. Whatever other copies wait for, each one makes
//! progress with its own share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, TryAcquireError};

use crate::copy::StagedLimit;
use crate::copy::checkpoint::INTERVAL;
use crate::copy::manifest::{BUFFER, MAX_PENDING};
use crate::tree_walk::MAX_DEPTH;
use nfs_client::Client;

/// Maximum number of copies at a time. The caller limits it.
pub const MAX_COPIES: usize = 5;

/// Maximum amount of file content in memory, for all copies together, in KiB. Including the requests that contain the
/// content, and the buffers for these requests, the copies stay far below the 64 MiB that a small pod has.
const MEMORY: usize = 8 << 10;
/// Part of it that belongs to each copy, in KiB.
const OWN_MEMORY: usize = 1 << 10;
/// Maximum number of files being copied at a time, for all copies together: most of a session's slots.
const FILES: usize = 48;
/// Part of it that belongs to each copy.
const OWN_FILES: usize = 4;
/// Maximum number of files of one copy that are in progress or wait for their turn: enough to keep a server busy over a
/// round trip.
const FILES_OF_A_COPY: usize = 32;
/// Maximum number of files that are linked to a base in one batch.
pub(super) const LINKS_OF_A_BATCH: usize = 32;
/// Number of files in progress as which a batch counts: over NFSv3, which has no compounds, it has as many calls in flight. It has
/// less memory than so many files, and few batches keep a server busy.
const FILES_OF_A_BATCH: u32 = 4;
const _: () =
    assert!(FILES_OF_A_BATCH as usize == Client::MAX_LINKS_IN_FLIGHT && Client::MAX_LINKS_IN_FLIGHT <= OWN_FILES);
/// Maximum number of directories copied concurrently, in addition to the first one of each copy.
const FORKS: usize = 8;

/// Maximum size of the directory names of a copy that wait for their turn, in bytes. Only a tree built for that purpose,
/// or a server that returns larger pages than requested, has this many beside the current paths.
pub(super) const QUEUED_NAMES: usize = 2 << 20;
/// Maximum memory for one of the [`MAX_DEPTH`] directories on the path of a copy, in bytes.
const LEVEL: usize = 4 << 10;

/// Maximum memory for the manifest that a copy writes, and the parts that it has read of those of its bases, in bytes. A
/// chunk takes about twice its size once it is decoded.
const MANIFESTS: usize = MAX_PENDING + BUFFER + (512 << 10);
/// Maximum memory for the indexes of large directories of bases, for all copies together, in bytes: 8 bytes for
/// each name. Files of a directory that finds no room are transferred.
const INDEXES: usize = 3 << 19;

/// Default of the time for which a file must not have changed before its copy. The kernel writes pages back within 35 s
/// (`dirty_expire_centisecs`), and gives a file that is written through a memory map no new ctime until then.
const SETTLE_MARGIN: Duration = Duration::from_secs(60);

/// Maximum memory of all copies together, in bytes. Names and paths are divided among the copies in advance: a copy that
/// waited for them while it has others could wait forever.
const BUDGET: usize = 44 << 20;
const _: () = assert!((MEMORY << 10) + INDEXES + MAX_COPIES * (QUEUED_NAMES + MAX_DEPTH * LEVEL + MANIFESTS) <= BUDGET);

/// Resources that all copies together may use.
#[derive(Debug, Clone)]
pub struct CopyLimits {
    memory: Arc<Semaphore>,
    files: Arc<Semaphore>,
    forks: Arc<Semaphore>,
    /// Bytes for indexes of bases.
    pub(super) indexes: Arc<Semaphore>,
    max_bytes: Option<u64>,
    pub(super) settle_margin: Duration,
    pub(super) checkpoint_interval: Duration,
    /// Limit that the server enforces on the copy.
    pub(super) staged_limit: Option<StagedLimit>,
}

impl Default for CopyLimits {
    fn default() -> Self {
        Self {
            memory: Arc::new(Semaphore::new(MEMORY - MAX_COPIES * OWN_MEMORY)),
            files: Arc::new(Semaphore::new(FILES - MAX_COPIES * OWN_FILES)),
            forks: Arc::new(Semaphore::new(FORKS)),
            indexes: Arc::new(Semaphore::new(INDEXES)),
            max_bytes: None,
            settle_margin: SETTLE_MARGIN,
            checkpoint_interval: INTERVAL,
            staged_limit: None,
        }
    }
}

impl CopyLimits {
    /// Limits the content that is copied. The holes of a sparse file count only if the server does not report them.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: u64) -> Self {
        Self {
            max_bytes: Some(max_bytes),
            ..self
        }
    }

    /// Has the quota agent of the target limit the copy before data flows into it.
    #[must_use]
    pub fn with_staged_limit(self, staged_limit: Option<StagedLimit>) -> Self {
        Self { staged_limit, ..self }
    }

    /// Sets the time for which a file must not have changed before its copy, so that the next backup may link to the copy.
    #[must_use]
    pub fn with_settle_margin(self, settle_margin: Duration) -> Self {
        Self { settle_margin, ..self }
    }

    /// Sets the time between two checkpoints of a backup.
    #[must_use]
    pub fn with_checkpoint_interval(self, checkpoint_interval: Duration) -> Self {
        Self {
            checkpoint_interval,
            ..self
        }
    }

    /// Returns the share of one copy.
    pub(super) fn share(&self) -> CopyShare {
        CopyShare {
            memory: Share::new(OWN_MEMORY, &self.memory),
            files: Share::new(OWN_FILES, &self.files),
            queue: Arc::new(Semaphore::new(FILES_OF_A_COPY)),
            forks: Arc::clone(&self.forks),
            max_bytes: self.max_bytes,
        }
    }
}

/// What one copy may use.
pub(super) struct CopyShare {
    memory: Share,
    files: Share,
    queue: Arc<Semaphore>,
    forks: Arc<Semaphore>,
    /// Maximum number of bytes to copy.
    pub max_bytes: Option<u64>,
}

impl CopyShare {
    /// Maximum number of bytes of content for which memory can be reserved at once.
    pub(super) const MAX_PART: u64 = (OWN_MEMORY as u64) << 10;

    /// Waits for memory for so many bytes of content.
    pub(super) async fn memory(&self, bytes: u64) -> Permit<'_> {
        let bytes = bytes.min(Self::MAX_PART);
        self.memory
            .acquire(u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX))
            .await
    }

    /// Waits until one more file may be copied.
    pub(super) async fn file(&self) -> Permit<'_> {
        self.files.acquire(1).await
    }

    /// Waits until one more batch of links may be in progress.
    pub(super) async fn links(&self) -> Permit<'_> {
        self.files.acquire(FILES_OF_A_BATCH).await
    }

    /// Waits until this copy may have one more file in progress or waiting. Uses nothing that other copies need.
    pub(super) async fn queue_file(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.queue).acquire_owned().await
    }

    /// Waits until this copy may have one more batch of links in progress or waiting.
    pub(super) async fn queue_links(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.queue).acquire_many_owned(FILES_OF_A_BATCH).await
    }

    /// Allows one more directory to be copied concurrently, if possible.
    pub(super) fn try_fork(&self) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        Arc::clone(&self.forks).try_acquire_owned()
    }
}

/// A part of a resource. The semaphores are never closed.
pub(super) type Permit<'a> = Result<SemaphorePermit<'a>, AcquireError>;

/// One copy's part of a resource, and what it has in common with other copies.
struct Share {
    own: Semaphore,
    common: Arc<Semaphore>,
}

impl Share {
    fn new(own: usize, common: &Arc<Semaphore>) -> Self {
        Self {
            own: Semaphore::new(own),
            common: Arc::clone(common),
        }
    }

    /// Takes from its own part, or else from the common one; if both are used up, from the first that has enough again.
    async fn acquire(&self, count: u32) -> Permit<'_> {
        tokio::select! {
            biased;
            own = self.own.acquire_many(count) => own,
            common = self.common.acquire_many(count) => common,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Takes files until none is left.
    fn take_files(share: &CopyShare) -> Vec<Permit<'_>> {
        std::iter::from_fn(|| share.file().now_or_never()).collect()
    }

    #[test]
    fn a_copy_that_takes_everything_leaves_each_other_copy_its_own_part() {
        let limits = CopyLimits::default();
        let shares: Vec<CopyShare> = (0..MAX_COPIES).map(|_| limits.share()).collect();
        let taken: Vec<Vec<Permit<'_>>> = shares.iter().map(take_files).collect();
        let counts: Vec<usize> = taken.iter().map(Vec::len).collect();
        assert_eq!(counts.iter().sum::<usize>(), FILES);
        assert!(counts.iter().all(|count| *count >= OWN_FILES), "{counts:?}");
        let whole: Vec<Option<Permit<'_>>> = shares
            .iter()
            .map(|share| share.memory(CopyShare::MAX_PART).now_or_never())
            .collect();
        assert!(whole.iter().all(Option::is_some), "memory for a part of a file");
    }

    #[test]
    fn batches_of_links_have_no_more_calls_in_flight_than_files() {
        let limits = CopyLimits::default();
        let shares: Vec<CopyShare> = (0..MAX_COPIES).map(|_| limits.share()).collect();
        let take_batches =
            |share: &CopyShare| std::iter::from_fn(|| share.links().now_or_never().map(std::mem::forget)).count();
        let batches: Vec<usize> = shares.iter().map(take_batches).collect();
        assert!(batches.iter().all(|count| *count >= 1), "{batches:?}");
        assert!(
            batches.iter().sum::<usize>() * Client::MAX_LINKS_IN_FLIGHT <= FILES,
            "{batches:?}"
        );
    }

    #[tokio::test]
    async fn a_copy_that_waits_takes_whatever_becomes_free_first() {
        let limits = CopyLimits::default();
        let (one, other) = (limits.share(), limits.share());
        let (mut common, mut own) = (take_files(&one), take_files(&other));
        assert!(other.file().now_or_never().is_none());
        // The first permits of a copy are its own, the last ones are common.
        drop(common.pop());
        assert!(other.file().now_or_never().is_some());
        drop(own.pop());
        assert!(other.file().now_or_never().is_some());
    }
}
