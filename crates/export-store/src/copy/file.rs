//! Copies a single entry that is not a directory: a file with its content, another hard link to it, or a symbolic link.

use std::time::Duration;

use bytes::Bytes;

use crate::copy::content::Content;
use crate::copy::tree::Directory;
use crate::copy::{Copier, CopyError, CopyProgress, Outcome};
use nfs_client::{FileHandle, FileKind, FileRef, FullAttributes, LookupResult, Name, NfsError, SetAttributes, Status};

/// Maximum size of a file that is read with its lookup in one call, and created with its content in one call. In bytes.
const SMALL: usize = 64 << 10;
/// Maximum number of attempts to copy a file. A restart of a server interrupts all files in progress once.
const ATTEMPTS: u32 = 4;
/// Pause before the next attempt: the client has waited for the server already.
const PAUSE: Duration = Duration::from_millis(500);
/// Mode of an incomplete file.
const UNFINISHED: u32 = 0o600;
/// Maximum amount of memory for a small file, in KiB.
const SMALL_KIB: u32 = 64;

/// Result of an attempt to copy a file that did not fail permanently.
enum Attempt {
    Done,
    /// The written content was lost, or the file changed during the copy: retry.
    Again(CopyError),
}

impl Copier {
    /// Copies a single entry.
    pub(super) async fn file(&self, directory: &Directory, name: &Name) -> Outcome {
        let path = directory.path_of(name);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let failed = match self.attempt(directory, name, &path).await {
                Ok(Attempt::Done) => return Ok(()),
                Ok(Attempt::Again(error)) => error,
                Err(CopyError::Nfs { source, path }) if may_pass(&source) => CopyError::Nfs { source, path },
                Err(error) => return Err(error),
            };
            if attempt >= ATTEMPTS {
                return Err(failed);
            }
            tokio::time::sleep(PAUSE).await;
            self.from.still().await?;
            self.to.still().await?;
        }
    }

    async fn attempt(&self, directory: &Directory, name: &Name, path: &str) -> Result<Attempt, CopyError> {
        let memory = self.budget.memory.acquire_many(SMALL_KIB).await;
        let found = self
            .from
            .store
            .nfs()
            .lookup_and_read(directory.from(), name, SMALL)
            .await;
        let Some(found) = found.map_err(|error| self.failed(path, error))? else {
            CopyProgress::one(&self.tally.vanished);
            return Ok(Attempt::Done);
        };
        let attributes = &found.details.attributes;
        if attributes.fsid != self.from.fsid {
            CopyProgress::one(&self.tally.elsewhere);
            return Ok(Attempt::Done);
        }
        match attributes.kind {
            FileKind::Symlink => return self.symbolic_link(directory, name, &found, path).await,
            FileKind::Regular => {}
            // Replaced by another type of file since it was listed.
            FileKind::Directory | FileKind::Other => {
                CopyProgress::one(&self.tally.vanished);
                return Ok(Attempt::Done);
            }
        }
        if attributes.links < 2 {
            return self
                .regular(directory, name, found, path, memory)
                .await
                .map(|(done, _)| done);
        }
        let fileid = attributes.fileid;
        drop(memory);
        self.one_of_many(directory, name, fileid, found, path).await
    }

    /// Copies a file with several names: copies its content once and creates hard links for the other names.
    async fn one_of_many(
        &self,
        directory: &Directory,
        name: &Name,
        fileid: u64,
        found: LookupResult,
        path: &str,
    ) -> Result<Attempt, CopyError> {
        let _turn = self.turn_of(fileid).await;
        let linked = self.link_again(fileid, directory.to(), name).await;
        if linked.map_err(|error| self.failed(path, error))? {
            CopyProgress::one(&self.tally.files);
            return Ok(Attempt::Done);
        }
        let memory = self.budget.memory.acquire_many(SMALL_KIB).await;
        let (attempt, made) = self.regular(directory, name, found, path, memory).await?;
        if let (Attempt::Done, Some(made)) = (&attempt, made) {
            self.keep_for_links(fileid, &made).await?;
        }
        Ok(attempt)
    }

    async fn regular(
        &self,
        directory: &Directory,
        name: &Name,
        found: LookupResult,
        path: &str,
        memory: Result<tokio::sync::SemaphorePermit<'_>, tokio::sync::AcquireError>,
    ) -> Result<(Attempt, Option<FileRef>), CopyError> {
        let LookupResult { handle, details, begin } = found;
        let size = details.attributes.size;
        let whole = begin.filter(|(data, _)| data.bytes.len() as u64 == size && size <= SMALL as u64);
        let made = match &whole {
            Some((data, _)) => self.create(directory, name, &data.bytes, path).await?,
            None => self.create(directory, name, &Bytes::new(), path).await?,
        };
        let before = details.change_token();
        let changed = match whole {
            Some((_, after)) => after.differs_from(&before),
            None => {
                // Files in flight from here on use their own share of the memory.
                drop(memory);
                let content = self.content(&handle, &made.handle, &details, path).await?;
                if matches!(content, Content::Lost) {
                    let path = path.to_owned();
                    return Ok((Attempt::Again(CopyError::Lost { path }), None));
                }
                let now = self.from.store.nfs().full_attributes(&handle).await;
                match now {
                    Ok(now) if matches!(content, Content::Cloned) && same_content(&now, &details) => false,
                    Ok(now) => now.change_token().differs_from(&before),
                    // Removed meanwhile. The copied content is kept.
                    Err(error) if error.status() == Some(Status::Stale) => true,
                    Err(error) => return Err(self.failed(path, error)),
                }
            }
        };
        self.copy_xattrs(&handle, &made.handle, path).await?;
        let trailing = (made.attributes.size != size).then_some(size);
        self.dress(&made.handle, &details, trailing, path).await?;
        if changed {
            CopyProgress::one(&self.tally.changed);
        }
        CopyProgress::one(&self.tally.files);
        if made.attributes.size == size {
            CopyProgress::add(&self.tally.bytes, size);
        }
        Ok((Attempt::Done, Some(made)))
    }

    /// Creates a file in the copy. Replaces a file of that name, which an earlier attempt left.
    async fn create(
        &self,
        directory: &Directory,
        name: &Name,
        content: &Bytes,
        path: &str,
    ) -> Result<FileRef, CopyError> {
        let nfs = self.to.store.nfs();
        let failed = |error| self.failed(path, error);
        match nfs.create_file(directory.to(), name, content, UNFINISHED).await {
            Err(error) if error.status() == Some(Status::Exists) => {
                if let Some(there) = nfs.lookup(directory.to(), name).await.map_err(failed)? {
                    let file_id = there.attributes.fileid;
                    nfs.remove_file(directory.to(), name, file_id).await.map_err(failed)?;
                }
                nfs.create_file(directory.to(), name, content, UNFINISHED)
                    .await
                    .map_err(failed)
            }
            made => made.map_err(failed),
        }
    }

    async fn symbolic_link(
        &self,
        directory: &Directory,
        name: &Name,
        found: &LookupResult,
        path: &str,
    ) -> Result<Attempt, CopyError> {
        let failed = |error| self.failed(path, error);
        let target = match self.from.store.nfs().read_link(&found.handle).await {
            Err(error) if error.status() == Some(Status::Stale) => {
                CopyProgress::one(&self.tally.vanished);
                return Ok(Attempt::Done);
            }
            target => target.map_err(failed)?,
        };
        let nfs = self.to.store.nfs();
        let made = match nfs.create_symlink(directory.to(), name, &target).await {
            Err(error) if error.status() == Some(Status::Exists) => {
                let there = nfs.lookup(directory.to(), name).await.map_err(failed)?;
                there.ok_or_else(|| self.failed(path, error))?
            }
            made => made.map_err(failed)?,
        };
        let (uid, gid) = numbers(&found.details, path)?;
        let set = SetAttributes {
            uid: Some(uid),
            gid: Some(gid),
            times: Some(found.details.times),
            ..SetAttributes::default()
        };
        let now = match nfs.set_attributes(&made.handle, set).await {
            // Some servers do not store times of symbolic links. The owner is required.
            Err(error) if error.status().is_some() => {
                let owner = SetAttributes { times: None, ..set };
                nfs.set_attributes(&made.handle, owner).await
            }
            now => now,
        };
        kept((uid, gid), &now.map_err(failed)?, path)?;
        CopyProgress::one(&self.tally.files);
        Ok(Attempt::Done)
    }

    /// Sets mode, owner and times in the copy to those of the source, and the size if the written content ends before
    /// it.
    pub(super) async fn dress(
        &self,
        copy: &FileHandle,
        as_is: &FullAttributes,
        size: Option<u64>,
        path: &str,
    ) -> Outcome {
        let (uid, gid) = numbers(as_is, path)?;
        let set = SetAttributes {
            mode: Some(as_is.attributes.mode),
            uid: Some(uid),
            gid: Some(gid),
            size,
            times: Some(as_is.times),
        };
        let now = self.to.store.nfs().set_attributes(copy, set).await;
        let now = now.map_err(|error| self.failed(path, error))?;
        kept((uid, gid), &now, path)?;
        if now.mode != as_is.attributes.mode {
            CopyProgress::one(&self.tally.other_modes);
        }
        Ok(())
    }
}

/// Reports whether the content of a file is unchanged, judging by its size and modification time.
fn same_content(one: &FullAttributes, other: &FullAttributes) -> bool {
    one.attributes.size == other.attributes.size && one.times.modified == other.times.modified
}

/// Returns the numeric owner and group.
fn numbers(details: &FullAttributes, path: &str) -> Result<(u32, u32), CopyError> {
    let attributes = &details.attributes;
    attributes
        .uid
        .zip(attributes.gid)
        .ok_or_else(|| CopyError::OwnerUnknown {
            path: path.to_owned(),
            owner: format!("{}:{}", attributes.owner, attributes.group),
        })
}

fn kept((uid, gid): (u32, u32), now: &nfs_client::Attributes, path: &str) -> Outcome {
    if now.uid == Some(uid) && now.gid == Some(gid) {
        return Ok(());
    }
    Err(CopyError::OwnerNotKept {
        path: path.to_owned(),
        asked: format!("{uid}:{gid}"),
        got: format!("{}:{}", now.owner, now.group),
    })
}

/// Reports whether another attempt may succeed.
fn may_pass(error: &NfsError) -> bool {
    error.outcome_unknown()
        || matches!(
            error,
            NfsError::NotResponding { .. } | NfsError::ConnectionLost { .. } | NfsError::Unreachable { .. }
        )
        || matches!(error.status(), Some(Status::Stale | Status::Delayed | Status::InUse))
}
