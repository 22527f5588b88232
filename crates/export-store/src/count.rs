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
use crate::verified_root::VerifiedRoot;
use crate::{layout, paths};
use nfs_client::{Client, Entry, FileHandle, FileKind, FileRef, FsId, Name, NfsError, PageCookie, Status};

/// Maximum depth of directories to count. The purge has the same limit; a path has at most 4,096 bytes on Linux, so at
/// most 2,048 components.
const DEEPEST: usize = 1024;
/// Maximum number of names counted in one tree, so that an endless listing ends. At the default rate, this many take
/// three days.
const MAX_NAMES: u64 = 500_000_000;
/// Maximum number of restarts of a listing that the server cannot continue because the directory is changing.
const MAX_RESTARTS: u32 = 3;
/// Interval and maximum number of attempts of a call that the server does not answer: a restart of the server, or of
/// the network between, must not end the count of a large tree. Ten minutes in total, because file handles may not stay
/// valid much longer.
const AGAIN_AFTER: Duration = Duration::from_secs(15);
const MAX_TRIES: u32 = 40;

/// Location of a tree.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// Directory of a volume.
    Directory(&'a DirectoryPath),
    /// Archive, by its name at the export's root.
    Archive(&'a str),
}

/// Returns the size of a page in bytes. The server looks up the attributes of each entry, which takes one seek per
/// entry on a disk with nothing cached. A page has about 250 entries near the root and a few at great depth, because
/// each directory on the path keeps the names of one page in memory.
fn page_of(depth: usize) -> u32 {
    match depth {
        0..8 => 32 << 10,
        8..64 => 8 << 10,
        _ => 1 << 10,
    }
}

/// A directory on the path to the current one.
struct Step {
    handle: FileHandle,
    fileid: u64,
    /// Where the listing continues.
    next: Next,
    /// Subdirectories of the last page that are not counted yet.
    inside: Vec<Name>,
    /// The totals before this directory, to restart it.
    before: UsageTotals,
    restarts: u32,
}

#[derive(Clone, Copy)]
enum Next {
    Page(Option<PageCookie>),
    End,
}

/// A count in progress.
pub(super) struct Count<'a, G> {
    nfs: &'a Client,
    /// The file system that the count does not leave.
    fsid: FsId,
    pace: &'a mut RateLimiter,
    go_on: G,
    sums: UsageTotals,
    way: Vec<Step>,
}

impl<'a, G: FnMut(&TreeUsage) -> bool + Send> Count<'a, G> {
    pub(super) fn new(nfs: &'a Client, root: &FileRef, pace: &'a mut RateLimiter, go_on: G) -> Self {
        let sums = UsageTotals::default();
        Self {
            nfs,
            fsid: root.attributes.fsid,
            pace,
            go_on,
            way: vec![Step::into(root, &sums)],
            sums,
        }
    }

    /// Counts to the end. Returns `None` if the callback stopped it.
    pub(super) async fn run(mut self) -> Result<Option<TreeUsage>, NfsError> {
        let handle = self.way.first().map(|root| root.handle.clone());
        if let Some(handle) = handle {
            let nfs = self.nfs;
            match ask(|| nfs.full_attributes(&handle)).await {
                Ok(root) => self.sums.root(root.used),
                // The server cannot report it: assume one block.
                Err(error) if error.is_server_reply() => {}
                Err(error) => return Err(error),
            }
        }
        while let Some(step) = self.way.last_mut() {
            match (step.inside.pop(), step.next) {
                (Some(name), _) => self.enter(&name).await?,
                (None, Next::Page(from)) => {
                    self.list(from).await?;
                    if !(self.go_on)(&self.sums.content()) {
                        return Ok(None);
                    }
                }
                (None, Next::End) => {
                    self.way.pop();
                }
            }
        }
        Ok(Some(self.sums.content()))
    }

    /// Counts the next page of the current directory.
    async fn list(&mut self, from: Option<PageCookie>) -> Result<(), NfsError> {
        let depth = self.way.len();
        let Some(handle) = self.way.last().map(|step| step.handle.clone()) else {
            return Ok(());
        };
        let nfs = self.nfs;
        let listed = ask(|| nfs.list_with_usage(&handle, from, page_of(depth))).await;
        let page = match listed {
            Ok(page) => page,
            Err(error) => return self.unlisted(error),
        };
        self.pace.spend(page.entries.len()).await;
        let mut inside = Vec::new();
        for entry in page.entries {
            if entry.fsid.is_some_and(|fsid| fsid != self.fsid) {
                self.sums.elsewhere();
                continue;
            }
            self.count_one(&entry);
            // An entry without a kind may be a directory.
            if matches!(entry.kind, Some(FileKind::Directory) | None) {
                inside.push(entry.name);
            }
        }
        let endless = self.sums.content().names > MAX_NAMES;
        if let Some(step) = self.way.last_mut() {
            step.inside = inside;
            step.next = page.next.map_or(Next::End, |next| Next::Page(Some(next)));
        }
        if endless {
            self.sums.unread();
            self.way.clear();
        }
        Ok(())
    }

    fn count_one(&mut self, entry: &Entry) {
        let Some(kind) = entry.kind else {
            return self.sums.unknown();
        };
        let size = entry.size.unwrap_or(0);
        let used = entry.used.unwrap_or(size);
        // The link count of a directory includes its subdirectories.
        let links = match kind {
            FileKind::Directory => 1,
            _ => entry.links.unwrap_or(1),
        };
        self.sums.one(kind, size, used, links);
    }

    /// Handles a directory that cannot be listed. The count continues with the others.
    fn unlisted(&mut self, error: NfsError) -> Result<(), NfsError> {
        let is_root = self.way.len() <= 1;
        let Some(step) = self.way.last_mut() else {
            return Err(error);
        };
        match error.status() {
            Some(Status::NotSame) if step.restarts < MAX_RESTARTS => {
                // The totals since the directory was entered are those of its content, so discard them.
                self.sums = step.before.clone();
                step.next = Next::Page(None);
                step.restarts += 1;
                return Ok(());
            }
            // Removed since it was looked up.
            Some(Status::Stale | Status::NotFound) if !is_root => {}
            Some(Status::Stale | Status::NotFound) => return Err(error),
            _ if !error.is_server_reply() => return Err(error),
            _ => self.sums.unread(),
        }
        step.next = Next::End;
        Ok(())
    }

    /// Enters a directory, unless it is on another file system or already on the path.
    async fn enter(&mut self, name: &Name) -> Result<(), NfsError> {
        let Some(handle) = self.way.last().map(|step| step.handle.clone()) else {
            return Ok(());
        };
        let nfs = self.nfs;
        let found = ask(|| nfs.lookup(&handle, name)).await;
        self.pace.spend(1).await;
        let node = match found {
            Ok(Some(node)) => node,
            // Removed since it was listed.
            Ok(None) => return Ok(()),
            Err(error) if matches!(error.status(), Some(Status::Stale | Status::NotFound)) => return Ok(()),
            Err(error) if error.is_server_reply() => {
                self.sums.unread();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let found = &node.attributes;
        let is_loop = self.way.iter().any(|step| step.fileid == found.fileid);
        if found.kind != FileKind::Directory {
            self.sums.late(found.kind, found.size, found.links);
        } else if found.fsid != self.fsid {
            self.sums.elsewhere();
        } else if is_loop || self.way.len() >= DEEPEST {
            self.sums.unread();
        } else {
            self.way.push(Step::into(&node, &self.sums));
        }
        Ok(())
    }
}

/// Calls the server, and retries after transport errors only. Does not retry after a reply of the server or after a
/// loss of leadership.
async fn ask<T, A: Future<Output = Result<T, NfsError>>>(call: impl Fn() -> A) -> Result<T, NfsError> {
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

impl Step {
    fn into(node: &FileRef, before: &UsageTotals) -> Self {
        Self {
            handle: node.handle.clone(),
            fileid: node.attributes.fileid,
            next: Next::Page(None),
            inside: Vec::new(),
            before: before.clone(),
            restarts: 0,
        }
    }
}

/// Counts the tree of a directory; see [`ExportStore::count`].
pub(crate) async fn count(
    store: &ExportStore,
    (place, file_id): (Place<'_>, Option<u64>),
    pace: &mut RateLimiter,
    go_on: impl FnMut(&TreeUsage) -> bool + Send,
) -> Result<Option<TreeUsage>, ExportError> {
    let doing = || match place {
        Place::Directory(directory) => format!("counting {directory}"),
        Place::Archive(name) => format!("counting {name}"),
    };
    let Some(root) = verified_tree(store, place, file_id).await? else {
        return Ok(None);
    };
    let counted = Count::new(&store.nfs, &root, pace, go_on).run().await.context(doing);
    let counted = store.with_hints(counted).await?;
    // If the directory was renamed, removed or replaced meanwhile, the result is meaningless.
    let still = verified_tree(store, place, file_id).await?;
    Ok(counted.filter(|_| still.is_some_and(|still| still.handle == root.handle)))
}

async fn verified_tree(
    store: &ExportStore,
    place: Place<'_>,
    file_id: Option<u64>,
) -> Result<Option<FileRef>, ExportError> {
    store
        .with_verified(move |verified| async move { find_tree(store, &verified, place, file_id).await })
        .await
}

async fn find_tree(
    store: &ExportStore,
    verified: &VerifiedRoot,
    place: Place<'_>,
    file_id: Option<u64>,
) -> Result<Option<FileRef>, ExportError> {
    let found = match place {
        Place::Directory(directory) => {
            let nodes = paths::walk(store, verified, directory).await?;
            paths::leaf(&nodes, directory).cloned()
        }
        // The name comes from an object and may be anything.
        Place::Archive(name) if !layout::is_archive_name(name) => None,
        Place::Archive(name) => {
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
    async fn a_server_that_is_away_is_asked_for_ten_minutes_and_one_that_refuses_us_once() {
        let asked = &Cell::new(0);
        let after = |times: u32, error: fn() -> NfsError| {
            asked.set(0);
            ask(move || {
                asked.set(asked.get() + 1);
                std::future::ready(if asked.get() > times { Ok(()) } else { Err(error()) })
            })
        };
        after(5, lost).await.unwrap();
        assert_eq!(asked.get(), 6);
        let began = tokio::time::Instant::now();
        assert!(after(u32::MAX, lost).await.is_err());
        assert_eq!(began.elapsed().as_secs() / 60, 9);
        let fenced = || NfsError::Fenced { action: "listing" };
        assert!(after(5, fenced).await.is_err());
        assert_eq!(asked.get(), 1);
    }
}
