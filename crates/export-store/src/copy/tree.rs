//! Copies directories, some of them concurrently. The attributes of a directory are set once it is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use tokio::task::JoinSet;

use crate::copy::attributes::AttributeCopier;
use crate::copy::context::CopyContext;
use crate::copy::file::{FileCopier, LinkBatch, UnchangedFile};
use crate::copy::limits::{LINKS_OF_A_BATCH, QUEUED_NAMES};
use crate::copy::manifest::{BaseDirectory, DirectoryManifest, ManifestWriter};
use crate::copy::path::CopyPath;
use crate::copy::{CopyError, CopyProgress, Outcome};
use crate::tree_walk::{Obstacle, Step, TreeWalk, page_size};
use nfs_client::{ChangeToken, FileHandle, FileKind, FileRef, FullAttributes, Name, SetAttributes, Status};

/// Maximum number of times to list a directory that changes during each listing.
const MAX_LISTINGS: u32 = 3;
/// Mode of an incomplete directory: only the operator can enter it.
const UNFINISHED: u32 = 0o700;

/// A directory in the source, and its copy.
pub(super) struct Directory {
    from: FileHandle,
    to: FileHandle,
    /// The directory above this one, and its name there; `None` for the root.
    above: Option<(Arc<Directory>, Name)>,
    /// The directory in the bases of a backup that have it.
    bases: Vec<BaseDirectory>,
    /// The part of the backup's manifest about it.
    manifest: Option<Arc<DirectoryManifest>>,
}

impl Directory {
    pub(super) fn from(&self) -> &FileHandle {
        &self.from
    }

    pub(super) fn to(&self) -> &FileHandle {
        &self.to
    }

    pub(super) fn bases(&self) -> &[BaseDirectory] {
        &self.bases
    }

    pub(super) fn manifest(&self) -> Option<&Arc<DirectoryManifest>> {
        self.manifest.as_ref()
    }

    /// Returns the names that lead here, upwards.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        let above = std::iter::successors(self.above.as_ref(), |(directory, _)| directory.above.as_ref());
        above.map(|(_, name)| name)
    }

    pub(super) fn path(&self) -> CopyPath<'_> {
        CopyPath::new(self, None)
    }

    pub(super) fn path_of<'a>(&'a self, name: &'a Name) -> CopyPath<'a> {
        CopyPath::new(self, Some(name))
    }
}

/// A directory that is being copied.
struct OpenCopy {
    directory: Arc<Directory>,
    /// Attributes to set once the copy is complete. The root's own attributes are set when the copy is published.
    attributes: Option<FullAttributes>,
    /// Files being copied.
    files: JoinSet<Outcome>,
    /// Subdirectories being copied concurrently.
    forks: JoinSet<Outcome>,
    queued: QueuedNames,
    /// State of the source before its current listing.
    before: ChangeToken,
    /// Number of listings so far, including the current one.
    listings: u32,
}

impl OpenCopy {
    fn new(
        directory: Arc<Directory>,
        attributes: Option<FullAttributes>,
        before: ChangeToken,
        queued: QueuedNames,
    ) -> Self {
        Self {
            before,
            listings: 1,
            directory,
            attributes,
            files: JoinSet::new(),
            forks: JoinSet::new(),
            queued,
        }
    }
}

type Walk = TreeWalk<OpenCopy>;

/// Copies directories and their content.
pub(super) struct TreeCopier {
    context: Arc<CopyContext>,
    attributes: Arc<AttributeCopier>,
    files: FileCopier,
}

impl TreeCopier {
    /// Creates a copier. `links` is the folder for additional names of files with several hard links.
    pub(super) fn new(context: &Arc<CopyContext>, links: FileHandle) -> Self {
        let attributes = Arc::new(AttributeCopier::new(context));
        Self {
            context: Arc::clone(context),
            files: FileCopier::new(context, &attributes, links),
            attributes,
        }
    }

    /// Returns the root of the tree and of its copy.
    pub(super) fn root(
        &self,
        from: &FileRef,
        to: FileHandle,
        bases: Vec<BaseDirectory>,
        manifest: Option<&Arc<ManifestWriter>>,
    ) -> Arc<Directory> {
        Arc::new(Directory {
            from: from.handle.clone(),
            to,
            above: None,
            bases,
            manifest: manifest.map(DirectoryManifest::new),
        })
    }

    /// Copies the content of the tree.
    pub(super) async fn copy(self: Arc<Self>, from: &FileRef, root: &Arc<Directory>) -> Outcome {
        let before = self.context.source().full_attributes(&from.handle).await;
        let before = before.map_err(|error| CopyError::of_call("/", error))?.change_token();
        let root = OpenCopy::new(Arc::clone(root), None, before, QueuedNames::default());
        self.walk(Walk::new(from, root)).await
    }

    /// Boxed because a walk spawns others.
    fn walk(self: Arc<Self>, mut walk: Walk) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            loop {
                match walk.next_step() {
                    Step::LookUp(name) => self.enter(&mut walk, name).await?,
                    Step::ReadPage => self.read_page(&mut walk).await?,
                    Step::Leave => {
                        if self.must_list_again(&mut walk).await? {
                            continue;
                        }
                        self.finish(&mut walk.current().data).await?;
                        if !walk.leave() {
                            return Ok(());
                        }
                    }
                }
            }
        })
    }

    /// Begins another listing of the current directory if it changed during this one: a listing can miss a name that is
    /// renamed meanwhile. Only names without a copy are copied then.
    async fn must_list_again(&self, walk: &mut Walk) -> Result<bool, CopyError> {
        let current = walk.current();
        let now = match self.context.source().full_attributes(&current.handle).await {
            Ok(now) => now.change_token(),
            // Removed since it was listed: what was listed is copied.
            Err(error) if error.status() == Some(Status::Stale) => return Ok(false),
            Err(error) => return Err(CopyError::of_call(current.data.directory.path(), error)),
        };
        if !now.differs_from(&current.data.before) {
            return Ok(false);
        }
        if current.data.listings >= MAX_LISTINGS {
            CopyProgress::one(&self.context.progress.changed_directories);
            return Ok(false);
        }
        // A name without a copy is then not one that is still being copied.
        join_all(&mut current.data.files).await?;
        current.data.before = now;
        current.data.listings += 1;
        current.list_again();
        Ok(true)
    }

    /// Reports whether the directory has a copy of this name.
    async fn is_copied(&self, directory: &Directory, name: &Name) -> Result<bool, CopyError> {
        let copy = self.context.target().lookup(&directory.to, name).await;
        let copy = copy.map_err(|error| CopyError::of_call(directory.path_of(name), error))?;
        Ok(copy.is_some())
    }

    /// Copies the files of the next page of the current directory.
    async fn read_page(self: &Arc<Self>, walk: &mut Walk) -> Outcome {
        let from = walk.current().handle.clone();
        let (source, depth) = (self.context.source(), walk.depth());
        let has_base = !walk.current().data.directory.bases.is_empty();
        let list = async |next| match depth {
            // The attributes show which files have not changed since they were copied to a base.
            _ if has_base => source.list_with_attributes(&from, next, page_size(depth)).await,
            // Only one directory at a time has these pages in memory: they are as large as the server allows.
            0 => source.list(&from, next).await,
            _ => source.list_with_usage(&from, next, page_size(depth)).await,
        };
        let page = match walk.read_page(list).await {
            Ok(Some(page)) => page,
            Ok(None) => return Ok(()),
            // Removed since it was looked up, with its content.
            Err(error) if error.status() == Some(Status::Stale) && walk.depth() > 0 => {
                CopyProgress::one(&self.context.progress.vanished);
                walk.current().stop();
                return Ok(());
            }
            Err(error) => return Err(CopyError::of_call(walk.current().data.directory.path(), error)),
        };
        self.context.verify_endpoints().await?;
        CopyProgress::add(&self.context.progress.elsewhere, page.elsewhere as u64);
        let open = &mut walk.current().data;
        let (mut subdirectories, mut batch) = (0, None);
        for entry in page.entries {
            match entry.kind {
                Some(FileKind::Other) => CopyProgress::one(&self.context.progress.special),
                Some(FileKind::Regular | FileKind::Symlink) => {
                    self.copy_or_batch(open, (entry.name, entry.details), &mut batch)
                        .await?;
                }
                Some(FileKind::Directory) | None => {
                    subdirectories += size_of::<Name>() + entry.name.as_bytes().len();
                }
            }
        }
        if let Some(batch) = batch {
            self.spawn_batch(open, batch).await?;
        }
        open.queued.replace(subdirectories).map_err(|why| CopyError::TooDeep {
            path: open.directory.path().to_string(),
            why,
        })
    }

    /// Adds a file that has not changed since a base was copied to the batch, which is linked once it is full or the next file is
    /// in another base. Starts copying any other file.
    async fn copy_or_batch(
        self: &Arc<Self>,
        open: &mut OpenCopy,
        (name, listed): (Name, Option<Box<FullAttributes>>),
        batch: &mut Option<LinkBatch>,
    ) -> Outcome {
        let Some(listed) = listed else {
            return self.spawn_file(open, name, None).await;
        };
        let unchanged = match open.listings {
            1 => self.files.find_unchanged(&open.directory, &name, &listed).await,
            _ => None,
        };
        let Some((base, known)) = unchanged else {
            return self.spawn_file(open, name, Some(listed)).await;
        };
        if let Some(full) = batch.take_if(|batch| batch.base != base || batch.files.len() >= LINKS_OF_A_BATCH) {
            self.spawn_batch(open, full).await?;
        }
        let files = &mut batch
            .get_or_insert_with(|| LinkBatch {
                base,
                files: Vec::new(),
            })
            .files;
        files.push(UnchangedFile { name, listed, known });
        Ok(())
    }

    /// Starts linking files to those of a base as soon as this copy may have one more batch.
    async fn spawn_batch(self: &Arc<Self>, open: &mut OpenCopy, batch: LinkBatch) -> Outcome {
        let permit = self.context.share.queue_links().await;
        let (copier, directory) = (Arc::clone(self), Arc::clone(&open.directory));
        self.spawn(open, async move {
            let linked = copier.files.link_batch(&directory, batch).await;
            drop(permit);
            linked
        })
    }

    /// Starts a task of the current directory, and returns the first failure of those that have ended.
    fn spawn(&self, open: &mut OpenCopy, task: impl Future<Output = Outcome> + Send + 'static) -> Outcome {
        open.files.spawn(task);
        while let Some(done) = open.files.try_join_next() {
            task_result(done)?;
        }
        Ok(())
    }

    /// Starts copying a file as soon as this copy may have one more.
    async fn spawn_file(
        self: &Arc<Self>,
        open: &mut OpenCopy,
        name: Name,
        listed: Option<Box<FullAttributes>>,
    ) -> Outcome {
        let permit = self.context.share.queue_file().await;
        let (copier, directory) = (Arc::clone(self), Arc::clone(&open.directory));
        let is_repeated = open.listings > 1;
        self.spawn(open, async move {
            if is_repeated && copier.is_copied(&directory, &name).await? {
                return Ok(());
            }
            let copied = copier.files.copy(&directory, &name, listed.as_deref()).await;
            drop(permit);
            copied
        })
    }

    /// Copies a subdirectory of the current directory: concurrently if the limits allow it, otherwise before
    /// continuing.
    async fn enter(self: &Arc<Self>, walk: &mut Walk, name: Name) -> Outcome {
        let parent = Arc::clone(&walk.current().data.directory);
        if walk.current().data.listings > 1 && self.is_copied(&parent, &name).await? {
            return Ok(());
        }
        let path = parent.path_of(&name);
        let found = self.context.source().lookup_and_read(&parent.from, &name, 0).await;
        let Some(found) = found.map_err(|error| CopyError::of_call(path, error))? else {
            CopyProgress::one(&self.context.progress.vanished);
            return Ok(());
        };
        let attributes = &found.details.attributes;
        match (walk.obstacle(attributes), attributes.kind) {
            (None, _) => {}
            (Some(Obstacle::OtherFileSystem), _) => {
                CopyProgress::one(&self.context.progress.elsewhere);
                return Ok(());
            }
            (Some(Obstacle::NotDirectory), FileKind::Regular | FileKind::Symlink) => {
                let details = Some(Box::new(found.details));
                return self.spawn_file(&mut walk.current().data, name, details).await;
            }
            (Some(Obstacle::NotDirectory), _) => {
                CopyProgress::one(&self.context.progress.special);
                return Ok(());
            }
            (Some(Obstacle::Loop), _) => {
                return Err(CopyError::Contradiction {
                    path: path.to_string(),
                    why: "the directories form a loop: check the server's file system".to_owned(),
                });
            }
            (Some(Obstacle::TooDeep), _) => {
                return Err(CopyError::TooDeep {
                    path: path.to_string(),
                    why: "it is deeper than 1,024 directories",
                });
            }
        }
        let file_id = attributes.fileid;
        let made = self.make(&parent, &name).await?;
        let mut bases = Vec::new();
        for base in parent.bases() {
            bases.extend(base.directory(&name).await);
        }
        let directory = Arc::new(Directory {
            from: found.handle.clone(),
            to: made.handle,
            bases,
            manifest: parent.manifest().map(|manifest| manifest.below(&name)),
            above: Some((parent, name)),
        });
        let queued = walk.current().data.queued.beside();
        let before = found.details.change_token();
        let open = OpenCopy::new(directory, Some(found.details), before, queued);
        match self.context.share.try_fork() {
            Err(_) => walk.enter(file_id, found.handle, open),
            Ok(permit) => {
                let fork = Arc::clone(self).walk(walk.fork(file_id, found.handle, open));
                walk.current().data.forks.spawn(async move {
                    fork.await?;
                    drop(permit);
                    Ok(())
                });
            }
        }
        let forks = &mut walk.current().data.forks;
        while let Some(done) = forks.try_join_next() {
            task_result(done)?;
        }
        Ok(())
    }

    async fn make(&self, parent: &Directory, name: &Name) -> Result<FileRef, CopyError> {
        let nfs = self.context.target();
        let mode = SetAttributes {
            mode: Some(UNFINISHED),
            ..SetAttributes::default()
        };
        let error = match nfs.make_directory(&parent.to, name, mode).await {
            Ok(made) => return Ok(made.node),
            Err(error) => error,
        };
        let path = parent.path_of(name);
        // Created by a call whose reply was lost, or listed twice. Only the operator can write there.
        if error.outcome_unknown() || error.status() == Some(Status::Exists) {
            let existing = nfs.lookup(&parent.to, name).await;
            if let Some(existing) = existing.map_err(|error| CopyError::of_call(path, error))?
                && existing.attributes.kind == FileKind::Directory
            {
                self.context.check_name(parent, name, &existing).await?;
                return Ok(existing);
            }
        }
        Err(CopyError::of_call(path, error))
    }

    /// Waits for the content of a directory, and sets the attributes of the copy to those of the source.
    async fn finish(&self, open: &mut OpenCopy) -> Outcome {
        join_all(&mut open.files).await?;
        join_all(&mut open.forks).await?;
        let directory = &open.directory;
        if let (Some(manifest), Some((above, name))) = (&directory.manifest, &directory.above)
            && let Some(above) = &above.manifest
        {
            above.add_directory(name, manifest).await?;
        }
        let Some(attributes) = &open.attributes else {
            return Ok(());
        };
        let handles = (directory.from(), directory.to());
        self.attributes
            .copy(handles, attributes, None, directory.path())
            .await?;
        CopyProgress::one(&self.context.progress.files);
        Ok(())
    }
}

/// Names of the subdirectories of one page that are still to be copied, counted in the total of the copy until dropped.
#[derive(Default)]
struct QueuedNames {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl QueuedNames {
    /// Returns the same total, without names yet.
    fn beside(&self) -> Self {
        Self {
            total: Arc::clone(&self.total),
            bytes: 0,
        }
    }

    /// Counts the names of the next page instead. Returns the reason if there are too many in total.
    fn replace(&mut self, bytes: usize) -> Result<(), &'static str> {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
        let total = self.total.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match total > QUEUED_NAMES {
            true => Err("the tree is too deep and too broad at once"),
            false => Ok(()),
        }
    }
}

impl Drop for QueuedNames {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Waits for all tasks. Returns the first failure; dropping the set aborts the other tasks.
async fn join_all(tasks: &mut JoinSet<Outcome>) -> Outcome {
    while let Some(done) = tasks.join_next().await {
        task_result(done)?;
    }
    Ok(())
}

fn task_result(done: Result<Outcome, tokio::task::JoinError>) -> Outcome {
    done.unwrap_or_else(|error| {
        Err(CopyError::Contradiction {
            path: String::new(),
            why: format!("a part of the copy ended early: {error}"),
        })
    })
}
