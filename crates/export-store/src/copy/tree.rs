//! Copies directories, some of them concurrently. The attributes of a directory are set once it is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use tokio::task::JoinSet;

use crate::copy::{Copier, CopyError, CopyProgress, Outcome};
use nfs_client::{FileHandle, FileKind, FileRef, FullAttributes, Name, NfsError, SetAttributes, Status};

/// Maximum depth of directories to copy. The purge has the same limit, and a path has at most 4,096 bytes on Linux.
const DEEPEST: usize = 1024;
/// Maximum number of directory names waiting to be copied, in total: 100,000 take about 10 MiB. Only a tree built for
/// that purpose has this many beside the current path.
const MAX_WAITING: usize = 100_000;
/// Maximum number of restarts of a listing that the server cannot continue because the directory is changing.
const MAX_RESTARTS: u32 = 3;
/// Mode of an incomplete directory: only the operator can enter it.
const UNFINISHED: u32 = 0o700;

/// A directory to copy.
pub(super) struct Directory {
    from: FileHandle,
    to: FileHandle,
    /// Path below the tree's root, for messages.
    pub(super) path: Arc<str>,
    depth: usize,
    waiting: Arc<AtomicUsize>,
}

impl Directory {
    pub(super) fn from(&self) -> &FileHandle {
        &self.from
    }

    pub(super) fn to(&self) -> &FileHandle {
        &self.to
    }

    pub(super) fn path_of(&self, name: &Name) -> String {
        format!("{}/{name}", self.path)
    }
}

impl Copier {
    /// Copies the content of the tree. The root's own attributes are set when the copy is published.
    pub(super) async fn tree(self: Arc<Self>, from: FileHandle, to: FileHandle) -> Outcome {
        let root = Directory {
            from,
            to,
            path: Arc::from(""),
            depth: 0,
            waiting: Arc::default(),
        };
        self.directory(Arc::new(root)).await
    }

    pub(super) fn failed(&self, path: &str, source: NfsError) -> CopyError {
        CopyError::Nfs {
            path: path.to_owned(),
            source: Box::new(source),
        }
    }

    /// Boxed because it is recursive. Each directory is a separate task, so that depth takes no stack.
    fn directory(self: Arc<Self>, directory: Arc<Directory>) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            let (mut files, mut below) = (JoinSet::new(), JoinSet::new());
            let (mut next, mut restarts) = (None, 0);
            loop {
                let page = match self.from.store.nfs().list(&directory.from, next).await {
                    Ok(page) => page,
                    Err(error) if error.status() == Some(Status::NotSame) && restarts < MAX_RESTARTS => {
                        (next, restarts) = (None, restarts + 1);
                        continue;
                    }
                    // Removed since it was listed, with its content.
                    Err(error) if error.status() == Some(Status::Stale) && directory.depth > 0 => {
                        CopyProgress::one(&self.tally.vanished);
                        break;
                    }
                    Err(error) => return Err(self.failed(&directory.path, error)),
                };
                self.from.still().await?;
                self.to.still().await?;
                let mut inside = Vec::new();
                for entry in page.entries {
                    let elsewhere = entry.fsid.is_some_and(|fsid| fsid != self.from.fsid);
                    match entry.kind {
                        _ if elsewhere => CopyProgress::one(&self.tally.elsewhere),
                        Some(FileKind::Other) => CopyProgress::one(&self.tally.special),
                        Some(FileKind::Regular | FileKind::Symlink) => {
                            self.spawn_file(&directory, entry.name, &mut files).await?;
                        }
                        Some(FileKind::Directory) | None => inside.push(entry.name),
                    }
                }
                let waiting = Waiting::new(&directory, inside.len())?;
                for name in inside {
                    self.enter(&directory, name, &mut files, &mut below).await?;
                }
                drop(waiting);
                match page.next {
                    Some(page) => next = Some(page),
                    None => break,
                }
            }
            all(&mut files).await?;
            all(&mut below).await
        })
    }

    /// Starts copying a file as soon as the budget allows one more.
    async fn spawn_file(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        name: Name,
        files: &mut JoinSet<Outcome>,
    ) -> Outcome {
        let permit = Arc::clone(&self.budget.files).acquire_owned().await;
        let (copier, directory) = (Arc::clone(self), Arc::clone(directory));
        files.spawn(async move {
            let copied = copier.file(&directory, &name).await;
            drop(permit);
            copied
        });
        while let Some(done) = files.try_join_next() {
            joined(done)?;
        }
        Ok(())
    }

    /// Copies a directory: concurrently if the budget allows it, otherwise before continuing.
    async fn enter(
        self: &Arc<Self>,
        above: &Arc<Directory>,
        name: Name,
        files: &mut JoinSet<Outcome>,
        below: &mut JoinSet<Outcome>,
    ) -> Outcome {
        let path = above.path_of(&name);
        let found = self.from.store.nfs().lookup_and_read(&above.from, &name, 0).await;
        let Some(found) = found.map_err(|error| self.failed(&path, error))? else {
            CopyProgress::one(&self.tally.vanished);
            return Ok(());
        };
        match found.details.attributes.kind {
            _ if found.details.attributes.fsid != self.from.fsid => {
                CopyProgress::one(&self.tally.elsewhere);
                return Ok(());
            }
            FileKind::Directory => {}
            FileKind::Other => {
                CopyProgress::one(&self.tally.special);
                return Ok(());
            }
            FileKind::Regular | FileKind::Symlink => return self.spawn_file(above, name, files).await,
        }
        if above.depth >= DEEPEST {
            return Err(CopyError::TooDeep {
                path,
                why: "it is deeper than 1,024 directories",
            });
        }
        let made = self.make(above, &name, &path).await?;
        let details = found.details;
        let directory = Arc::new(Directory {
            from: found.handle,
            to: made.handle,
            path: Arc::from(path),
            depth: above.depth + 1,
            waiting: Arc::clone(&above.waiting),
        });
        let fork = Arc::clone(&self.budget.forks).try_acquire_owned();
        let at_once = fork.is_ok();
        let copier = Arc::clone(self);
        below.spawn(async move {
            Arc::clone(&copier).directory(Arc::clone(&directory)).await?;
            copier.finish(&directory, &details).await?;
            drop(fork);
            Ok(())
        });
        if !at_once {
            return all(below).await;
        }
        while let Some(done) = below.try_join_next() {
            joined(done)?;
        }
        Ok(())
    }

    async fn make(&self, above: &Directory, name: &Name, path: &str) -> Result<FileRef, CopyError> {
        let nfs = self.to.store.nfs();
        let mode = SetAttributes {
            mode: Some(UNFINISHED),
            ..SetAttributes::default()
        };
        let error = match nfs.make_directory(&above.to, name, mode).await {
            Ok(made) => return Ok(made.node),
            Err(error) => error,
        };
        // Created by a call whose reply was lost, or listed twice. Only the operator can write there.
        if error.outcome_unknown() || error.status() == Some(Status::Exists) {
            let there = nfs.lookup(&above.to, name).await;
            if let Some(there) = there.map_err(|error| self.failed(path, error))?
                && there.attributes.kind == FileKind::Directory
            {
                return Ok(there);
            }
        }
        Err(self.failed(path, error))
    }

    /// Sets the attributes of a complete directory to those of the source.
    async fn finish(&self, directory: &Directory, as_is: &FullAttributes) -> Outcome {
        self.copy_xattrs(&directory.from, &directory.to, &directory.path)
            .await?;
        self.dress(&directory.to, as_is, None, &directory.path).await?;
        CopyProgress::one(&self.tally.files);
        Ok(())
    }
}

/// Names waiting to be copied, counted until dropped.
struct Waiting(Arc<AtomicUsize>, usize);

impl Waiting {
    fn new(directory: &Directory, count: usize) -> Result<Self, CopyError> {
        let waiting = Self(Arc::clone(&directory.waiting), count);
        if waiting.0.fetch_add(count, Ordering::Relaxed) + count > MAX_WAITING {
            return Err(CopyError::TooDeep {
                path: directory.path.to_string(),
                why: "the tree is too deep and too broad at once",
            });
        }
        Ok(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Waits for all tasks. Returns the first failure; dropping the set aborts the other tasks.
async fn all(tasks: &mut JoinSet<Outcome>) -> Outcome {
    while let Some(done) = tasks.join_next().await {
        joined(done)?;
    }
    Ok(())
}

fn joined(done: Result<Outcome, tokio::task::JoinError>) -> Outcome {
    done.unwrap_or_else(|error| {
        Err(CopyError::Contradiction {
            path: String::new(),
            why: format!("a part of the copy ended early: {error}"),
        })
    })
}
