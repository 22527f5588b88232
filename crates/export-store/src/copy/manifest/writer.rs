//! Writes the manifest of a backup while its files are copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    ChunkRef, Digest, EntryKind, FileEntry, MAX_CHUNK, MAX_CHUNKS, ManifestEntry, ManifestRef, ManifestRoot, VERSION,
};
use crate::copy::context::CopyContext;
use crate::copy::file::is_transient;
use crate::copy::manifest::digest_of;
use crate::copy::{CopyError, Outcome, SourceTree};
use nfs_client::{FileRef, Name, NfsError};

/// Size at which the entries of a directory become a chunk, in bytes: about 150 entries, which the next backup decodes
/// together.
const CHUNK: usize = 16 << 10;
/// Maximum size of the entries of all open directories that are not in a chunk yet, in bytes. Beyond that, each entry becomes
/// a chunk.
pub(in crate::copy) const MAX_PENDING: usize = 128 << 10;
/// Size of the chunks that are written together, in bytes.
pub(in crate::copy) const BUFFER: usize = 64 << 10;
/// Maximum number of attempts to write a part. A restart of the server interrupts each once.
const ATTEMPTS: u32 = 4;
/// Pause before the next attempt: the client has waited for the server already.
const PAUSE: Duration = Duration::from_millis(500);

/// The file of a manifest that is being written.
pub(in crate::copy) struct ManifestWriter {
    context: Arc<CopyContext>,
    file: FileRef,
    buffer: tokio::sync::Mutex<Buffer>,
    /// Bytes of entries that are not in a chunk yet.
    pending: AtomicUsize,
    /// What the files so far save an attempt that finds them unchanged, in bytes.
    saving: AtomicU64,
}

/// Chunks that are not written yet.
struct Buffer {
    /// Their position in the file.
    offset: u64,
    bytes: Vec<u8>,
}

/// The part of a manifest about one directory.
pub(in crate::copy) struct DirectoryManifest {
    writer: Arc<ManifestWriter>,
    state: Mutex<DirectoryState>,
}

#[derive(Default)]
struct DirectoryState {
    pending: Vec<u8>,
    /// Chunks that are about to be written. A checkpoint that did not find them would lack their entries.
    appending: Vec<Arc<Vec<u8>>>,
    chunks: Vec<ChunkRef>,
    /// Subdirectories that are not complete.
    open: Vec<(Name, Arc<DirectoryManifest>)>,
}

/// A directory that is not complete, for a checkpoint.
struct OpenDirectory {
    manifest: Arc<DirectoryManifest>,
    name: Option<Name>,
    /// Number of the directory above.
    above: Option<usize>,
    /// Entries of its subdirectories that are not complete.
    entries: Vec<u8>,
}

fn unusable(why: impl ToString) -> CopyError {
    CopyError::Manifest { why: why.to_string() }
}

fn encode<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, CopyError> {
    postcard::to_extend(value, Vec::new()).map_err(unusable)
}

fn encode_entry(name: &Name, kind: EntryKind) -> Result<Vec<u8>, CopyError> {
    let name = name.as_bytes().to_vec();
    encode(&ManifestEntry { name, kind })
}

impl ManifestWriter {
    /// Writes into this empty file.
    pub(in crate::copy) fn new(context: &Arc<CopyContext>, file: FileRef) -> Self {
        Self {
            context: Arc::clone(context),
            file,
            buffer: tokio::sync::Mutex::new(Buffer {
                offset: 0,
                bytes: Vec::new(),
            }),
            pending: AtomicUsize::new(0),
            saving: AtomicU64::new(0),
        }
    }

    /// Returns what the files so far save an attempt that finds them unchanged, in bytes.
    pub(in crate::copy) fn saving(&self) -> u64 {
        self.saving.load(Ordering::Relaxed)
    }

    /// Writes the root chunk and everything that is left. Returns what the record refers to.
    pub(in crate::copy) async fn finish(
        &self,
        source: &SourceTree,
        root: &DirectoryManifest,
    ) -> Result<ManifestRef, CopyError> {
        self.write_root(source, root.finish().await?).await
    }

    /// Writes a root chunk for everything that is complete so far. Returns what the record refers to. The manifest continues
    /// as if there were no checkpoint: that repeats what is not in a chunk yet, and the chunks of the open directories.
    pub(in crate::copy) async fn checkpoint(
        &self,
        source: &SourceTree,
        root: &Arc<DirectoryManifest>,
    ) -> Result<ManifestRef, CopyError> {
        self.write_root(source, root.checkpoint().await?).await
    }

    async fn write_root(&self, source: &SourceTree, chunks: Vec<ChunkRef>) -> Result<ManifestRef, CopyError> {
        let root = ManifestRoot {
            version: VERSION,
            source_export: source.export_id().to_owned(),
            source_root: source.root.attributes.fileid,
            chunks,
        };
        let reference = self.append(&encode(&root)?).await?;
        self.flush(&mut *self.buffer.lock().await).await?;
        Ok(reference.to_record())
    }

    /// Appends a chunk.
    async fn append(&self, chunk: &[u8]) -> Result<ChunkRef, CopyError> {
        if chunk.len() > MAX_CHUNK {
            return Err(unusable("a directory has too many entries"));
        }
        let mut buffer = self.buffer.lock().await;
        if buffer.bytes.len() + chunk.len() > BUFFER {
            self.flush(&mut buffer).await?;
        }
        let reference = ChunkRef {
            offset: buffer.offset + buffer.bytes.len() as u64,
            length: u32::try_from(chunk.len()).map_err(unusable)?,
            digest: digest_of(chunk),
        };
        buffer.bytes.extend_from_slice(chunk);
        Ok(reference)
    }

    /// Writes the buffer to stable storage, and empties it.
    async fn flush(&self, buffer: &mut Buffer) -> Outcome {
        if buffer.bytes.is_empty() {
            return Ok(());
        }
        let content = Bytes::from(std::mem::take(&mut buffer.bytes));
        let mut attempt = 1;
        loop {
            match self.write(buffer.offset, &content).await {
                Ok(true) => break,
                Ok(false) if attempt < ATTEMPTS => {}
                Ok(false) => return Err(unusable("the server repeatedly lost what was written")),
                Err(error) if is_transient(&error) && attempt < ATTEMPTS => {}
                Err(error) => return Err(CopyError::of_call("the manifest", error)),
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
            self.context.verify_endpoints().await?;
        }
        buffer.offset += content.len() as u64;
        Ok(())
    }

    /// Writes bytes at a position. Returns false if the server restarted before they were on stable storage.
    async fn write(&self, offset: u64, content: &Bytes) -> Result<bool, NfsError> {
        let (nfs, handle) = (self.context.target(), &self.file.handle);
        let (mut rest, mut verifiers) = (content.clone(), Vec::new());
        while !rest.is_empty() {
            let at = offset + (content.len() - rest.len()) as u64;
            let written = nfs.write(handle, at, &rest).await?;
            rest = rest.split_off(written.count.min(rest.len()));
            verifiers.push(written.verifier);
        }
        let committed = nfs.commit(handle).await?;
        Ok(verifiers.iter().all(|verifier| *verifier == committed))
    }
}

impl DirectoryState {
    /// Takes the entries that are in no chunk yet.
    fn take_pending(&mut self) -> Arc<Vec<u8>> {
        let chunk = Arc::new(std::mem::take(&mut self.pending));
        if !chunk.is_empty() {
            self.appending.push(Arc::clone(&chunk));
        }
        chunk
    }
}

impl DirectoryManifest {
    pub(in crate::copy) fn new(writer: &Arc<ManifestWriter>) -> Arc<Self> {
        Arc::new(Self {
            writer: Arc::clone(writer),
            state: Mutex::default(),
        })
    }

    /// Returns the part about a subdirectory. It is open until it is added.
    pub(in crate::copy) fn below(&self, name: &Name) -> Arc<Self> {
        let below = Self::new(&self.writer);
        self.state().open.push((name.clone(), Arc::clone(&below)));
        below
    }

    /// Adds a file.
    pub(in crate::copy) async fn add_file(&self, name: &Name, file: FileEntry) -> Outcome {
        let saving = file.saving();
        self.add(name, EntryKind::File(file)).await?;
        self.writer.saving.fetch_add(saving, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a symbolic link, by the digest of its target.
    pub(in crate::copy) async fn add_symlink(&self, name: &Name, target: Digest) -> Outcome {
        self.add(name, EntryKind::Symlink(target)).await
    }

    /// Adds a subdirectory that is complete.
    pub(in crate::copy) async fn add_directory(&self, name: &Name, directory: &Self) -> Outcome {
        let chunks = directory.finish().await?;
        self.add(name, EntryKind::Directory(chunks)).await?;
        self.state().open.retain(|(open, _)| open != name);
        Ok(())
    }

    async fn add(&self, name: &Name, kind: EntryKind) -> Outcome {
        let entry = encode_entry(name, kind)?;
        let pending = &self.writer.pending;
        let total = pending.fetch_add(entry.len(), Ordering::Relaxed) + entry.len();
        let chunk = {
            let mut state = self.state();
            state.pending.extend_from_slice(&entry);
            let is_full = state.pending.len() >= CHUNK || total > MAX_PENDING;
            is_full.then(|| state.take_pending())
        };
        match chunk {
            Some(chunk) => self.append(&chunk).await,
            None => Ok(()),
        }
    }

    /// Writes a chunk that was taken.
    async fn append(&self, chunk: &Arc<Vec<u8>>) -> Outcome {
        self.writer.pending.fetch_sub(chunk.len(), Ordering::Relaxed);
        let reference = self.writer.append(chunk).await?;
        let mut state = self.state();
        state.appending.retain(|appending| !Arc::ptr_eq(appending, chunk));
        state.chunks.push(reference);
        Ok(())
    }

    /// Returns the chunks once all entries were added.
    async fn finish(&self) -> Result<Vec<ChunkRef>, CopyError> {
        let rest = self.state().take_pending();
        if !rest.is_empty() {
            self.append(&rest).await?;
        }
        // A checkpoint finds them here until the directory above has them.
        let chunks = self.state().chunks.clone();
        if chunks.len() > MAX_CHUNKS {
            // About ten million entries. The backup is complete; what the manifest lacks is transferred again next time.
            tracing::warn!("the manifest of a backup lacks a directory, because it has too many entries");
            return Ok(Vec::new());
        }
        Ok(chunks)
    }

    /// Writes chunks with everything that is complete so far below this directory, and returns those of the directory.
    async fn checkpoint(self: &Arc<Self>) -> Result<Vec<ChunkRef>, CopyError> {
        let mut open = self.open_directories();
        // Each directory is behind the one above it, which needs its chunks.
        while let Some(directory) = open.pop() {
            let chunks = directory.manifest.write_partial(directory.entries).await?;
            let above = directory.above.and_then(|above| open.get_mut(above));
            let (Some(above), Some(name)) = (above, directory.name) else {
                return Ok(chunks);
            };
            let entry = encode_entry(&name, EntryKind::Directory(chunks))?;
            // What finds no room is copied again.
            if above.entries.len() + entry.len() <= MAX_CHUNK - 2 * MAX_PENDING {
                above.entries.extend_from_slice(&entry);
            }
        }
        Ok(Vec::new())
    }

    /// Returns the directory and all open ones below it.
    fn open_directories(self: &Arc<Self>) -> Vec<OpenDirectory> {
        let mut open = vec![OpenDirectory {
            manifest: Arc::clone(self),
            name: None,
            above: None,
            entries: Vec::new(),
        }];
        let mut number = 0;
        while let Some(directory) = open.get(number) {
            let below = directory.manifest.state().open.clone();
            open.extend(below.into_iter().map(|(name, manifest)| OpenDirectory {
                manifest,
                name: Some(name),
                above: Some(number),
                entries: Vec::new(),
            }));
            number += 1;
        }
        open
    }

    /// Writes a chunk with the entries that are in none yet, and these entries. Returns it with the other chunks.
    async fn write_partial(&self, mut entries: Vec<u8>) -> Result<Vec<ChunkRef>, CopyError> {
        let (appending, mut chunks) = {
            let state = self.state();
            entries.extend_from_slice(&state.pending);
            (state.appending.clone(), state.chunks.clone())
        };
        for chunk in appending {
            chunks.push(self.writer.append(&chunk).await?);
        }
        if !entries.is_empty() {
            chunks.push(self.writer.append(&entries).await?);
        }
        // Too many to be read.
        if chunks.len() > MAX_CHUNKS {
            chunks.clear();
        }
        Ok(chunks)
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, DirectoryState> {
        self.state.lock()
    }
}
