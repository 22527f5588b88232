//! Copies a single entry that is not a directory: a file with its content, another hard link to it, or a symbolic link.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::copy::attributes::AttributeCopier;
use crate::copy::content::{Content, ContentCopier};
use crate::copy::context::CopyContext;
use crate::copy::limits::Permit;
use crate::copy::links::{LinkTable, LinkedFile};
use crate::copy::manifest::{BaseDirectory, BaseKind, Digest, FileEntry, digest_of, is_settled};
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

/// Files of a directory that have not changed since a base was copied.
pub(super) struct LinkBatch {
    /// Index of the base.
    pub base: usize,
    pub files: Vec<UnchangedFile>,
}

/// A file that has not changed since a base was copied.
pub(super) struct UnchangedFile {
    pub name: Name,
    /// Its attributes in the listing.
    pub listed: Box<FullAttributes>,
    /// What the base has of it.
    pub known: FileEntry,
}

/// Result of linking to a file of a base.
enum BaseLink {
    Linked,
    /// The file is not there any more, or is not the same as the source.
    Differs,
    /// The server refuses the link.
    Refused,
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
    ///
    /// `listed` are its attributes in the listing, if the directory has a base.
    pub(super) async fn copy(&self, directory: &Directory, name: &Name, listed: Option<&FullAttributes>) -> Outcome {
        let entry = Entry { directory, name };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let failed = match self.attempt(&entry, listed).await {
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

    async fn attempt(&self, entry: &Entry<'_>, listed: Option<&FullAttributes>) -> Result<Attempt, CopyError> {
        let progress = &self.context.progress;
        if let Some(listed) = listed
            && self.reuse(entry, listed, usable_kinds(listed)).await?.is_some()
        {
            return Ok(Attempt::Done);
        }
        self.context.throttle(0).await;
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

    /// Returns the index of the first base to which a listed file can be linked, because it has not changed since, and what that
    /// base has of it.
    pub(super) async fn find_unchanged(
        &self,
        directory: &Directory,
        name: &Name,
        listed: &FullAttributes,
    ) -> Option<(usize, FileEntry)> {
        let kinds = usable_kinds(listed);
        for (index, from) in directory.bases().iter().enumerate() {
            if from.may_link()
                && kinds.contains(&from.kind())
                && let Some(known) = self.unchanged_file(from, name, listed).await
            {
                return Some((index, known));
            }
        }
        None
    }

    /// Links unchanged files of a directory to those of a base in as few calls as possible. Copies those that cannot be linked
    /// like any other.
    pub(super) async fn link_batch(&self, directory: &Directory, batch: LinkBatch) -> Outcome {
        for unlinked in self.try_link_batch(directory, batch).await? {
            self.copy(directory, &unlinked.name, Some(&unlinked.listed)).await?;
        }
        Ok(())
    }

    /// Returns the files that were not linked. What the server refused, or what became of a call without a reply, shows when
    /// each of them is linked alone.
    async fn try_link_batch(&self, directory: &Directory, batch: LinkBatch) -> Result<Vec<UnchangedFile>, CopyError> {
        let LinkBatch { base, files } = batch;
        let Some(from) = directory.bases().get(base).filter(|from| from.may_link()) else {
            return Ok(files);
        };
        let _links = self.context.share.links().await;
        // They count like any files of the backup, which is complete without the base.
        let mut charges = Vec::with_capacity(files.len());
        for file in &files {
            let charge = self.context.charge();
            charge.add(file.listed.used.min(file.listed.attributes.size))?;
            charges.push(charge);
        }
        let names: Vec<_> = files
            .iter()
            .map(|file| (file.name.clone(), file.known.copy()))
            .collect();
        let target = self.context.target();
        let Ok(linked) = target.link_entries(from.handle(), directory.to(), &names).await else {
            self.context.verify_endpoints().await?;
            return Ok(files);
        };
        let mut unlinked = Vec::new();
        for ((file, linked), charge) in files.into_iter().zip(linked).zip(charges) {
            match linked {
                Ok(linked) if has_attributes_of(&linked, &file.listed) => {
                    charge.keep();
                    let entry = Entry {
                        directory,
                        name: &file.name,
                    };
                    self.count_reused(&entry, from.kind(), (&file.known, &file.listed))
                        .await?;
                }
                _ => unlinked.push(file),
            }
        }
        Ok(unlinked)
    }

    /// Links a file to that of the first base of these kinds that has it, if it has not changed since. Returns what the
    /// manifest has about it, or `None` if it must be copied.
    async fn reuse(
        &self,
        entry: &Entry<'_>,
        now: &FullAttributes,
        kinds: &[BaseKind],
    ) -> Result<Option<FileEntry>, CopyError> {
        for from in entry.directory.bases() {
            if kinds.contains(&from.kind())
                && let Some(file) = self.reuse_from(entry, from, now).await?
            {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// Returns what a base has of a file, if the file has not changed since.
    async fn unchanged_file(&self, from: &BaseDirectory, name: &Name, now: &FullAttributes) -> Option<FileEntry> {
        if now.attributes.kind != FileKind::Regular {
            return None;
        }
        // The base may be of a time after the snapshot: a change between the two must show.
        let is_old_enough =
            || !self.context.is_snapshot || is_settled(now.ctime.map(|at| at.seconds), self.context.settled_before);
        from.file(name)
            .await
            .filter(|file| file.is_unchanged(now) && is_old_enough())
    }

    async fn reuse_from(
        &self,
        entry: &Entry<'_>,
        from: &BaseDirectory,
        now: &FullAttributes,
    ) -> Result<Option<FileEntry>, CopyError> {
        if !(from.may_link() || self.content.may_copy_on_target()) {
            return Ok(None);
        }
        let Some(file) = self.unchanged_file(from, entry.name, now).await else {
            return Ok(None);
        };
        let _file = self.context.share.file().await;
        // It counts like any file of the backup, which is complete without the base.
        let charge = self.context.charge();
        charge.add(now.used.min(now.attributes.size))?;
        let linked = match from.may_link() {
            true => self.link_to_base(entry, (from, &file), now).await?,
            false => BaseLink::Refused,
        };
        let file = match linked {
            BaseLink::Linked => file,
            BaseLink::Differs => return Ok(None),
            BaseLink::Refused => match self.copy_from_base(entry, (from, &file), now).await? {
                Some(copy) => file.with_copy(copy),
                None => return Ok(None),
            },
        };
        charge.keep();
        self.count_reused(entry, from.kind(), (&file, now)).await?;
        Ok(Some(file))
    }

    /// Adds a file that a base had to the manifest and the progress.
    async fn count_reused(
        &self,
        entry: &Entry<'_>,
        kind: BaseKind,
        (file, now): (&FileEntry, &FullAttributes),
    ) -> Outcome {
        if let Some(manifest) = entry.directory.manifest() {
            manifest.add_file(entry.name, file.clone()).await?;
        }
        let progress = &self.context.progress;
        let (files, bytes) = match kind {
            BaseKind::Backup => (&progress.reused_files, &progress.reused_bytes),
            BaseKind::Interrupted => (&progress.resumed_files, &progress.resumed_bytes),
        };
        for (count, by) in [
            (&progress.files, 1),
            (&progress.bytes, now.attributes.size),
            (files, 1),
            (bytes, now.attributes.size),
        ] {
            CopyProgress::add(count, by);
        }
        Ok(())
    }

    /// Creates the link to a file of a base.
    async fn link_to_base(
        &self,
        entry: &Entry<'_>,
        (from, file): (&BaseDirectory, &FileEntry),
        now: &FullAttributes,
    ) -> Result<BaseLink, CopyError> {
        let nfs = self.context.target();
        let (directory, name, file_id) = (entry.directory.to(), entry.name, file.copy());
        let failed = |error| entry.failed(error);
        let linked = match nfs.link_entry((from.handle(), name), file_id, (directory, name)).await {
            Ok(linked) => linked,
            Err(error) => match error.status() {
                // Linked already: an earlier call's reply was lost, or the listing returned the name twice.
                Some(Status::Exists) => match nfs.lookup(directory, name).await.map_err(failed)? {
                    Some(existing) if existing.attributes.fileid == file_id => {
                        self.context.check_name(entry.directory, name, &existing).await?;
                        nfs.full_attributes(&existing.handle).await.map_err(failed)?
                    }
                    _ => return Ok(BaseLink::Differs),
                },
                Some(Status::NotFound | Status::NotSame | Status::Stale) => return Ok(BaseLink::Differs),
                Some(Status::NotSupported) => {
                    from.record_no_links();
                    return Ok(BaseLink::Refused);
                }
                // Whatever the reason, such as a maximum number of links, the file can be copied.
                Some(_) => return Ok(BaseLink::Refused),
                None => return Err(failed(error)),
            },
        };
        if has_attributes_of(&linked, now) {
            return Ok(BaseLink::Linked);
        }
        // The base keeps its file as it is.
        nfs.remove_file(directory, name, file_id).await.map_err(failed)?;
        Ok(BaseLink::Differs)
    }

    /// Lets the target's server copy a file of a base, and returns the fileid of the copy. Returns `None` if the
    /// file must be transferred.
    async fn copy_from_base(
        &self,
        entry: &Entry<'_>,
        (from, file): (&BaseDirectory, &FileEntry),
        now: &FullAttributes,
    ) -> Result<Option<u64>, CopyError> {
        if !self.content.may_copy_on_target() {
            return Ok(None);
        }
        let (source, target) = (self.context.source(), self.context.target());
        let failed = |error| entry.failed(error);
        let original = source.lookup_and_read(entry.directory.from(), entry.name, 0).await;
        let original = original
            .map_err(failed)?
            .filter(|original| file.is_unchanged(&original.details));
        let base = target
            .lookup_and_read(from.handle(), entry.name, 0)
            .await
            .map_err(failed)?;
        let is_same = |base: &LookupResult| {
            base.details.attributes.fileid == file.copy() && has_attributes_of(&base.details, now)
        };
        let (Some(original), Some(base)) = (original, base.filter(is_same)) else {
            return Ok(None);
        };
        let copy = self.create(entry, &Bytes::new()).await?;
        let handles = (&base.handle, &copy.handle);
        let content = self
            .content
            .copy_on_target(handles, now.attributes.size, entry.path())
            .await?;
        if !matches!(content, Some(Content::Written(_) | Content::Cloned)) {
            return Ok(None);
        }
        let handles = (&original.handle, &copy.handle);
        self.attributes
            .copy(handles, &original.details, None, entry.path())
            .await?;
        Ok(Some(copy.attributes.fileid))
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
        let file = LinkedFile::of(&found.details);
        let _lock = self.links.lock(found.details.attributes.fileid).await;
        let name = (entry.directory, entry.name);
        if let Some(copy) = self.links.link(file, name).await? {
            // What was copied before has the attributes that are read now, unless the file changed since the copy began,
            // and then the entry is not settled.
            let details = &found.details;
            let known = (copy, self.links.checksum(file));
            self.add_to_manifest(entry, (details, details.change, false), known)
                .await?;
            CopyProgress::one(&self.context.progress.files);
            return Ok(Attempt::Done);
        }
        if let Some(reused) = self.reuse(entry, &found.details, &[BaseKind::Interrupted]).await? {
            let copy = self.context.target().lookup(entry.directory.to(), entry.name).await;
            if let Some(copy) = copy.map_err(|error| entry.failed(error))? {
                self.links.add(file, &copy, reused.checksum()).await?;
            }
            return Ok(Attempt::Done);
        }
        let turn = self.turn().await;
        let (attempt, copy) = self.copy_regular(entry, found, turn).await?;
        if let (Attempt::Done, Some((copy, checksum))) = (&attempt, copy) {
            self.links.add(file, &copy, checksum).await?;
        }
        Ok(attempt)
    }

    async fn copy_regular(
        &self,
        entry: &Entry<'_>,
        found: LookupResult,
        turn: Turn<'_>,
    ) -> Result<(Attempt, Option<(FileRef, Option<Digest>)>), CopyError> {
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
        let (changed, change, checksum) = match whole {
            Some((data, after)) => {
                charge.add(data.bytes.len() as u64)?;
                self.context.count_copied(data.bytes.len() as u64);
                let checksum = self.context.is_backup.then(|| digest_of(&data.bytes));
                (after.differs_from(&before), after.change(), checksum)
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
                let checksum = content.checksum();
                match self.context.source().full_attributes(&handle).await {
                    Ok(now) if matches!(content, Content::Cloned) && is_same_content(&now, &details) => {
                        (false, now.change, checksum)
                    }
                    Ok(now) => (now.change_token().differs_from(&before), now.change, checksum),
                    // Removed meanwhile. The copied content is kept.
                    Err(error) if error.status() == Some(Status::Stale) => (true, details.change, checksum),
                    Err(error) => return Err(entry.failed(error)),
                }
            }
        };
        let trailing = (copy.attributes.size != size).then_some(size);
        let handles = (&handle, &copy.handle);
        self.attributes.copy(handles, &details, trailing, path).await?;
        let known = (copy.attributes.fileid, checksum);
        self.add_to_manifest(entry, (&details, change, changed), known).await?;
        charge.keep();
        if changed {
            CopyProgress::one(&progress.changed);
        }
        CopyProgress::one(&progress.files);
        if copy.attributes.size == size {
            CopyProgress::add(&progress.bytes, size);
        }
        Ok((Attempt::Done, Some((copy, checksum))))
    }

    /// Adds a copied file to the manifest, if the copy is a backup.
    async fn add_to_manifest(
        &self,
        entry: &Entry<'_>,
        (details, change, changed): (&FullAttributes, u64, bool),
        copy: (u64, Option<Digest>),
    ) -> Outcome {
        let Some(manifest) = entry.directory.manifest() else {
            return Ok(());
        };
        let settled_before = self.context.settled_before.filter(|_| !changed);
        let file = FileEntry::new(details, change, settled_before, copy);
        manifest.add_file(entry.name, file).await
    }

    /// Creates a file in the copy. Replaces a file of that name, which an earlier attempt left.
    async fn create(&self, entry: &Entry<'_>, content: &Bytes) -> Result<FileRef, CopyError> {
        let nfs = self.context.target();
        let (directory, name) = (entry.directory.to(), entry.name);
        let failed = |error| entry.failed(error);
        match nfs.create_file(directory, name, content, UNFINISHED).await {
            Err(error) if error.status() == Some(Status::Exists) => {
                if let Some(existing) = self.context.find_earlier(entry.directory, name).await? {
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
                let existing = self.context.find_earlier(entry.directory, name).await?;
                existing.ok_or_else(|| entry.failed(error))?
            }
            created => created.map_err(|error| entry.failed(error))?,
        };
        let attributes = &self.attributes;
        attributes
            .copy_to_symlink(&copy.handle, &found.details, entry.path())
            .await?;
        if let Some(manifest) = entry.directory.manifest() {
            manifest.add_symlink(entry.name, digest_of(&target)).await?;
        }
        CopyProgress::one(&progress.files);
        Ok(Attempt::Done)
    }
}

/// Returns the kinds of bases from which a file is linked. Of a file with several names, an interrupted attempt may have copied
/// only some: they are linked to each other.
fn usable_kinds(listed: &FullAttributes) -> &'static [BaseKind] {
    match listed.attributes.links > 1 {
        true => &[BaseKind::Backup],
        false => &[BaseKind::Backup, BaseKind::Interrupted],
    }
}

/// Reports whether a file of a base has the attributes that a copy of the source would get. Servers store
/// fractions of seconds with different precision.
fn has_attributes_of(linked: &FullAttributes, source: &FullAttributes) -> bool {
    let (linked_is, source_is) = (&linked.attributes, &source.attributes);
    linked_is.kind == FileKind::Regular
        && linked_is.size == source_is.size
        && linked_is.mode == source_is.mode
        && source_is.uid.is_some()
        && source_is.gid.is_some()
        && (linked_is.uid, linked_is.gid) == (source_is.uid, source_is.gid)
        && linked.times.modified.seconds == source.times.modified.seconds
}

/// Reports whether the content of a file is unchanged, judging by its size and modification time.
fn is_same_content(one: &FullAttributes, other: &FullAttributes) -> bool {
    one.attributes.size == other.attributes.size && one.times.modified == other.times.modified
}

/// Reports whether another attempt may succeed. Now and then, a server answers a single call with nonsense: nfs-ganesha 4.3
/// returned nothing for a part of a file over NFSv3 that it returned before and after.
pub(super) fn is_transient(error: &NfsError) -> bool {
    error.outcome_unknown()
        || matches!(
            error,
            NfsError::NotResponding { .. }
                | NfsError::ConnectionLost { .. }
                | NfsError::Unreachable { .. }
                | NfsError::Protocol { .. }
        )
        || matches!(error.status(), Some(Status::Stale | Status::Delayed | Status::InUse))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_asked_for_again_and_a_refusal_is_final() {
        let nonsense = NfsError::Protocol {
            action: "reading a file",
            cause: "empty READ before the end of the file".to_owned(),
            outcome_unknown: false,
        };
        assert!(is_transient(&nonsense));
        let refused = |status| NfsError::Status {
            action: "reading a file",
            status,
        };
        assert!(is_transient(&refused(Status::Delayed)));
        assert!(!is_transient(&refused(Status::Access)));
        assert!(!is_transient(&refused(Status::NoSpace)));
    }
}
