//! Copies a single entry that is not a directory: a file with its content, another hard link to it, or a symbolic link.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::copy::attributes::AttributeCopier;
use crate::copy::content::{Content, ContentCopier};
use crate::copy::context::CopyContext;
use crate::copy::limits::Permit;
use crate::copy::links::LinkTable;
use crate::copy::path::CopyPath;
use crate::copy::tree::Directory;
use crate::copy::{CopyError, CopyProgress, Outcome};
use nfs_client::{FileHandle, FileKind, FileRef, FullAttributes, LookupResult, Name, NfsError, Status};

/// Maximum size of a file that is read with its lookup in one call, and created with its content in one call. In bytes.
const SMALL: usize = 64 << 10;
/// Maximum number of attempts to copy a file. A restart of a server interrupts all files in progress once.
const ATTEMPTS: u32 = 4;
/// Pause before the next attempt: the client has waited for the server already.
const PAUSE: Duration = Duration::from_millis(500);
/// Mode of an incomplete file.
const UNFINISHED: u32 = 0o600;

/// Result of an attempt to copy a file that did not fail permanently.
enum Attempt {
    Done,
    /// The written content was lost, or the file changed during the copy: retry.
    Retry(CopyError),
}

/// An entry to copy.
struct Entry<'a> {
    directory: &'a Directory,
    name: &'a Name,
}

impl Entry<'_> {
    fn path(&self) -> CopyPath<'_> {
        self.directory.path_of(self.name)
    }

    fn failed(&self, error: NfsError) -> CopyError {
        CopyError::of_call(self.path(), error)
    }
}

/// What a file in progress takes of the share of its copy.
struct Turn<'a> {
    _file: Permit<'a>,
    /// Memory for the content of a small file.
    memory: Permit<'a>,
}

/// Copies entries that are not directories.
pub(super) struct FileCopier {
    context: Arc<CopyContext>,
    content: ContentCopier,
    attributes: Arc<AttributeCopier>,
    links: LinkTable,
}

impl FileCopier {
    /// Creates a copier. `links` is the folder for additional names of files with several hard links.
    pub(super) fn new(context: &Arc<CopyContext>, attributes: &Arc<AttributeCopier>, links: FileHandle) -> Self {
        Self {
            context: Arc::clone(context),
            content: ContentCopier::new(context),
            attributes: Arc::clone(attributes),
            links: LinkTable::new(context, links),
        }
    }

    /// Copies a single entry.
    pub(super) async fn copy(&self, directory: &Directory, name: &Name) -> Outcome {
        let entry = Entry { directory, name };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let failed = match self.attempt(&entry).await {
                Ok(Attempt::Done) => return Ok(()),
                Ok(Attempt::Retry(error)) => error,
                Err(CopyError::Nfs { source, path }) if is_transient(&source) => CopyError::Nfs { source, path },
                Err(error) => return Err(error),
            };
            if attempt >= ATTEMPTS {
                return Err(failed);
            }
            tokio::time::sleep(PAUSE).await;
            self.context.verify_endpoints().await?;
        }
    }

    async fn attempt(&self, entry: &Entry<'_>) -> Result<Attempt, CopyError> {
        let progress = &self.context.progress;
        let turn = self.turn().await;
        let nfs = self.context.source();
        let found = nfs.lookup_and_read(entry.directory.from(), entry.name, SMALL).await;
        let Some(found) = found.map_err(|error| entry.failed(error))? else {
            CopyProgress::one(&progress.vanished);
            return Ok(Attempt::Done);
        };
        let attributes = &found.details.attributes;
        if attributes.fsid != self.context.from.fsid {
            CopyProgress::one(&progress.elsewhere);
            return Ok(Attempt::Done);
        }
        match attributes.kind {
            FileKind::Symlink => return self.copy_symlink(entry, &found).await,
            FileKind::Regular => {}
            // Replaced by another type of file since it was listed.
            FileKind::Directory | FileKind::Other => {
                CopyProgress::one(&progress.vanished);
                return Ok(Attempt::Done);
            }
        }
        if attributes.links > 1 {
            // Another name of the file may be in progress for as long as its content takes. The wait for it uses nothing
            // that other copies need.
            drop(turn);
            let found = LookupResult { begin: None, ..found };
            return self.copy_hard_link(entry, found).await;
        }
        let copied = self.copy_regular(entry, found, turn).await;
        copied.map(|(attempt, _)| attempt)
    }

    /// Waits until the share of the copy allows one more file.
    async fn turn(&self) -> Turn<'_> {
        let share = &self.context.share;
        Turn {
            _file: share.file().await,
            memory: share.memory(SMALL as u64).await,
        }
    }

    /// Copies a file with several names: copies its content once and creates hard links for the other names.
    async fn copy_hard_link(&self, entry: &Entry<'_>, found: LookupResult) -> Result<Attempt, CopyError> {
        let file_id = found.details.attributes.fileid;
        let _lock = self.links.lock(file_id).await;
        let name = (entry.directory, entry.name);
        if self.links.link(file_id, name).await? {
            CopyProgress::one(&self.context.progress.files);
            return Ok(Attempt::Done);
        }
        let turn = self.turn().await;
        let (attempt, copy) = self.copy_regular(entry, found, turn).await?;
        if let (Attempt::Done, Some(copy)) = (&attempt, copy) {
            self.links.add(file_id, &copy).await?;
        }
        Ok(attempt)
    }

    async fn copy_regular(
        &self,
        entry: &Entry<'_>,
        found: LookupResult,
        turn: Turn<'_>,
    ) -> Result<(Attempt, Option<FileRef>), CopyError> {
        let (progress, path) = (&self.context.progress, entry.path());
        let LookupResult { handle, details, begin } = found;
        let size = details.attributes.size;
        let whole = begin.filter(|(data, _)| data.bytes.len() as u64 == size && size <= SMALL as u64);
        let copy = match &whole {
            Some((data, _)) => self.create(entry, &data.bytes).await?,
            None => self.create(entry, &Bytes::new()).await?,
        };
        let charge = self.context.charge();
        let before = details.change_token();
        let changed = match whole {
            Some((data, after)) => {
                charge.add(data.bytes.len() as u64)?;
                after.differs_from(&before)
            }
            None => {
                // Parts of the file use their own share of the memory.
                drop(turn.memory);
                let content = self.content.copy((&handle, &copy.handle), &details, path, &charge);
                let content = content.await?;
                if matches!(content, Content::Lost) {
                    let path = path.to_string();
                    return Ok((Attempt::Retry(CopyError::Lost { path }), None));
                }
                match self.context.source().full_attributes(&handle).await {
                    Ok(now) if matches!(content, Content::Cloned) && is_same_content(&now, &details) => false,
                    Ok(now) => now.change_token().differs_from(&before),
                    // Removed meanwhile. The copied content is kept.
                    Err(error) if error.status() == Some(Status::Stale) => true,
                    Err(error) => return Err(entry.failed(error)),
                }
            }
        };
        let trailing = (copy.attributes.size != size).then_some(size);
        let handles = (&handle, &copy.handle);
        self.attributes.copy(handles, &details, trailing, path).await?;
        charge.keep();
        if changed {
            CopyProgress::one(&progress.changed);
        }
        CopyProgress::one(&progress.files);
        if copy.attributes.size == size {
            CopyProgress::add(&progress.bytes, size);
        }
        Ok((Attempt::Done, Some(copy)))
    }

    /// Creates a file in the copy. Replaces a file of that name, which an earlier attempt left.
    async fn create(&self, entry: &Entry<'_>, content: &Bytes) -> Result<FileRef, CopyError> {
        let nfs = self.context.target();
        let (directory, name) = (entry.directory.to(), entry.name);
        let failed = |error| entry.failed(error);
        match nfs.create_file(directory, name, content, UNFINISHED).await {
            Err(error) if error.status() == Some(Status::Exists) => {
                if let Some(existing) = nfs.lookup(directory, name).await.map_err(failed)? {
                    self.context.check_name(entry.directory, name, &existing).await?;
                    let file_id = existing.attributes.fileid;
                    nfs.remove_file(directory, name, file_id).await.map_err(failed)?;
                }
                nfs.create_file(directory, name, content, UNFINISHED)
                    .await
                    .map_err(failed)
            }
            created => created.map_err(failed),
        }
    }

    async fn copy_symlink(&self, entry: &Entry<'_>, found: &LookupResult) -> Result<Attempt, CopyError> {
        let progress = &self.context.progress;
        let target = match self.context.source().read_link(&found.handle).await {
            Err(error) if error.status() == Some(Status::Stale) => {
                CopyProgress::one(&progress.vanished);
                return Ok(Attempt::Done);
            }
            target => target.map_err(|error| entry.failed(error))?,
        };
        let nfs = self.context.target();
        let (directory, name) = (entry.directory.to(), entry.name);
        let copy = match nfs.create_symlink(directory, name, &target).await {
            Err(error) if error.status() == Some(Status::Exists) => {
                let existing = nfs.lookup(directory, name).await;
                let existing = existing.map_err(|error| entry.failed(error))?;
                let existing = existing.ok_or_else(|| entry.failed(error))?;
                self.context.check_name(entry.directory, name, &existing).await?;
                existing
            }
            created => created.map_err(|error| entry.failed(error))?,
        };
        let attributes = &self.attributes;
        attributes
            .copy_to_symlink(&copy.handle, &found.details, entry.path())
            .await?;
        CopyProgress::one(&progress.files);
        Ok(Attempt::Done)
    }
}

/// Reports whether the content of a file is unchanged, judging by its size and modification time.
fn is_same_content(one: &FullAttributes, other: &FullAttributes) -> bool {
    one.attributes.size == other.attributes.size && one.times.modified == other.times.modified
}

/// Reports whether another attempt may succeed.
fn is_transient(error: &NfsError) -> bool {
    error.outcome_unknown()
        || matches!(
            error,
            NfsError::NotResponding { .. } | NfsError::ConnectionLost { .. } | NfsError::Unreachable { .. }
        )
        || matches!(error.status(), Some(Status::Stale | Status::Delayed | Status::InUse))
}
