//! Counts the content of a directory's tree: names, bytes, and bytes on the disk. Changes nothing, and reads only
//! listings and attributes.
//!
//! Works with file handles, one call at a time, at the rate of a [`RateLimiter`]. Never follows a symbolic link and
//! never enters another file system. Only the path to the current directory is in memory, with the subdirectories of
//! one page at each step. Pages are small at great depth. Therefore, a tree of any size and shape takes at most a few
//! MiB.

mod rate_limiter;
mod totals;

use std::time::Duration;

pub use crate::count::rate_limiter::RateLimiter;
pub use crate::count::totals::TreeUsage;
use crate::count::totals::UsageTotals;
use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::store::ExportStore;
use crate::tree_walk::{Obstacle, Step, TreeWalk, page_size};
use crate::verified_root::VerifiedRoot;
use crate::{layout, paths};
use nfs_client::{Client, Entry, FileKind, FileRef, Name, NfsError, Status};

/// Maximum number of names counted in one tree, so that an endless listing ends. At the default rate, this many take
/// three days.
const MAX_NAMES: u64 = 500_000_000;
/// Interval and maximum number of attempts of a call that the server does not answer: a restart of the server, or of
/// the network between, must not end the count of a large tree. Ten minutes in total, because file handles may not stay
/// valid much longer.
const AGAIN_AFTER: Duration = Duration::from_secs(15);
const MAX_TRIES: u32 = 40;

/// Location of a tree.
#[derive(Debug, Clone, Copy)]
pub enum CountTarget<'a> {
    /// Directory of a volume.
    Directory(&'a DirectoryPath),
    /// Archive, by its name at the export's root.
    Archive(&'a str),
}

/// Totals before each directory on the path, to restart it.
type Walk = TreeWalk<UsageTotals>;

/// A count in progress.
pub(super) struct Count<'a, G> {
    nfs: &'a Client,
    rate: &'a mut RateLimiter,
    go_on: G,
    totals: UsageTotals,
}

impl<'a, G: FnMut(&TreeUsage) -> bool + Send> Count<'a, G> {
    pub(super) fn new(nfs: &'a Client, rate: &'a mut RateLimiter, go_on: G) -> Self {
        Self {
            nfs,
            rate,
            go_on,
            totals: UsageTotals::default(),
        }
    }

    /// Counts the content of a directory to the end. Returns `None` if the callback stopped it.
    pub(super) async fn run(mut self, root: &FileRef) -> Result<Option<TreeUsage>, NfsError> {
        let nfs = self.nfs;
        match retry(|| nfs.full_attributes(&root.handle)).await {
            Ok(root) => self.totals.root(root.used),
            // The server cannot report it: assume one block.
            Err(error) if error.is_server_reply() => {}
            Err(error) => return Err(error),
        }
        let mut walk = Walk::new(root, self.totals.clone());
        loop {
            match walk.next_step() {
                Step::LookUp(name) => self.enter(&mut walk, &name).await?,
                Step::ReadPage => {
                    self.read_page(&mut walk).await?;
                    if !(self.go_on)(&self.totals.content()) {
                        return Ok(None);
                    }
                    if self.totals.content().names > MAX_NAMES {
                        self.totals.unread();
                        break;
                    }
                }
                Step::Leave if walk.leave() => {}
                Step::Leave => break,
            }
        }
        Ok(Some(self.totals.content()))
    }

    /// Counts the next page of the current directory.
    async fn read_page(&mut self, walk: &mut Walk) -> Result<(), NfsError> {
        let (nfs, size) = (self.nfs, page_size(walk.depth()));
        let directory = &walk.current().handle.clone();
        let list = |from| retry(move || nfs.list_with_usage(directory, from, size));
        let page = match walk.read_page(list).await {
            Ok(Some(page)) => page,
            Ok(None) => return Ok(()),
            Err(error) => return self.skip(walk, error),
        };
        self.rate.spend(page.entries.len() + page.elsewhere).await;
        if page.is_first {
            // A listing that begins again counts everything in the directory again.
            self.totals = walk.current().data.clone();
        }
        self.totals.elsewhere(page.elsewhere);
        for entry in &page.entries {
            self.count_one(entry);
        }
        Ok(())
    }

    fn count_one(&mut self, entry: &Entry) {
        let Some(kind) = entry.kind else {
            return self.totals.unknown();
        };
        let size = entry.size.unwrap_or(0);
        let used = entry.used.unwrap_or(size);
        // The link count of a directory includes its subdirectories.
        let links = match kind {
            FileKind::Directory => 1,
            _ => entry.links.unwrap_or(1),
        };
        self.totals.one(kind, size, used, links);
    }

    /// Skips the rest of a directory that cannot be listed. The count continues with the others.
    fn skip(&mut self, walk: &mut Walk, error: NfsError) -> Result<(), NfsError> {
        match error.status() {
            // Removed since it was looked up.
            Some(Status::Stale | Status::NotFound) if walk.depth() > 0 => {}
            Some(Status::Stale | Status::NotFound) => return Err(error),
            _ if !error.is_server_reply() => return Err(error),
            _ => self.totals.unread(),
        }
        walk.current().stop();
        Ok(())
    }

    /// Enters a directory, unless it is on another file system or already on the path.
    async fn enter(&mut self, walk: &mut Walk, name: &Name) -> Result<(), NfsError> {
        let (nfs, parent) = (self.nfs, &walk.current().handle);
        let found = retry(|| nfs.lookup(parent, name)).await;
        self.rate.spend(1).await;
        let node = match found {
            Ok(Some(node)) => node,
            // Removed since it was listed.
            Ok(None) => return Ok(()),
            Err(error) if matches!(error.status(), Some(Status::Stale | Status::NotFound)) => return Ok(()),
            Err(error) if error.is_server_reply() => {
                self.totals.unread();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let FileRef { handle, attributes } = node;
        match walk.obstacle(&attributes) {
            None => walk.enter(attributes.fileid, handle, self.totals.clone()),
            Some(Obstacle::NotDirectory) => self.totals.late(attributes.kind, attributes.size, attributes.links),
            Some(Obstacle::OtherFileSystem) => self.totals.elsewhere(1),
            Some(Obstacle::Loop | Obstacle::TooDeep) => self.totals.unread(),
        }
        Ok(())
    }
}

/// Calls the server, and retries after transport errors only. Does not retry after a reply of the server or after a
/// loss of leadership.
async fn retry<T, A: Future<Output = Result<T, NfsError>>>(call: impl Fn() -> A) -> Result<T, NfsError> {
    let mut tries = 1;
    loop {
        match call().await {
            Err(error) if error.is_transport() && tries < MAX_TRIES => {
                tries += 1;
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            answered => return answered,
        }
    }
}

/// Counts the tree of a directory; see [`ExportStore::count`].
pub(crate) async fn count(
    store: &ExportStore,
    (place, file_id): (CountTarget<'_>, Option<u64>),
    pace: &mut RateLimiter,
    go_on: impl FnMut(&TreeUsage) -> bool + Send,
) -> Result<Option<TreeUsage>, ExportError> {
    let doing = || match place {
        CountTarget::Directory(directory) => format!("counting {directory}"),
        CountTarget::Archive(name) => format!("counting {name}"),
    };
    let Some(root) = verified_tree(store, place, file_id).await? else {
        return Ok(None);
    };
    let counted = Count::new(&store.nfs, pace, go_on).run(&root).await.context(doing);
    let counted = store.with_hints(counted).await?;
    // If the directory was renamed, removed or replaced meanwhile, the result is meaningless.
    let still = verified_tree(store, place, file_id).await?;
    Ok(counted.filter(|_| still.is_some_and(|still| still.handle == root.handle)))
}

async fn verified_tree(
    store: &ExportStore,
    place: CountTarget<'_>,
    file_id: Option<u64>,
) -> Result<Option<FileRef>, ExportError> {
    store
        .with_verified(move |verified| async move { find_tree(store, &verified, place, file_id).await })
        .await
}

async fn find_tree(
    store: &ExportStore,
    verified: &VerifiedRoot,
    place: CountTarget<'_>,
    file_id: Option<u64>,
) -> Result<Option<FileRef>, ExportError> {
    let found = match place {
        CountTarget::Directory(directory) => {
            let nodes = paths::walk(store, verified, directory).await?;
            paths::leaf(&nodes, directory).cloned()
        }
        // The name comes from an object and may be anything.
        CountTarget::Archive(name) if !layout::is_archive_name(name) => None,
        CountTarget::Archive(name) => {
            let found = store.nfs.lookup(&verified.root.handle, &layout::name(name)?).await;
            found.context(|| format!("looking up {name}"))?
        }
    };
    let is_it = |node: &FileRef| file_id.is_none_or(|file_id| file_id == node.attributes.fileid);
    Ok(found.filter(|node| verified.is_plain_directory(node) && is_it(node)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn lost() -> NfsError {
        NfsError::ConnectionLost {
            action: "listing",
            cause: "cut".into(),
            outcome_unknown: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreachable_server_is_retried_for_ten_minutes_and_a_refusal_is_not() {
        let calls = &Cell::new(0);
        let after = |times: u32, error: fn() -> NfsError| {
            calls.set(0);
            retry(move || {
                calls.set(calls.get() + 1);
                std::future::ready(if calls.get() > times { Ok(()) } else { Err(error()) })
            })
        };
        after(5, lost).await.unwrap();
        assert_eq!(calls.get(), 6);
        let began = tokio::time::Instant::now();
        assert!(after(u32::MAX, lost).await.is_err());
        assert_eq!(began.elapsed().as_secs() / 60, 9);
        let fenced = || NfsError::Fenced { action: "listing" };
        assert!(after(5, fenced).await.is_err());
        assert_eq!(calls.get(), 1);
    }
}
