//! The bases of a backup, whose unchanged files are linked: the previous backup of the same volume, and what an interrupted
//! attempt at the same backup completed.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::reader::{ManifestError, ManifestReader};
use super::{CHUNK_BITS, ChunkRef, EntryKind, FileEntry, ManifestEntry, store as files};
use crate::archives;
use crate::copy::interrupted::InterruptedCopy;
use crate::copy::source::CopyGuard;
use crate::copy::to_archive::ArchiveRequest;
use crate::copy::{SourceTree, Staging};
use crate::error::ExportError;
use crate::record::{ManifestRef, State};
use crate::records::{self, ReadRecord};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{Client, FileHandle, FileKind, FileRef, Name};

/// Number of decoded chunks in memory: enough for the directories that are copied concurrently.
const CACHED_CHUNKS: usize = 12;
/// Size of an entry of an index, in bytes.
const INDEX_ENTRY: usize = size_of::<u64>();

/// Decoded chunks of the bases of a backup, by the file of the manifest and the offset.
type ChunkCache = Arc<Mutex<VecDeque<((u64, u64), Arc<Vec<ManifestEntry>>)>>>;

/// What a base is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::copy) enum BaseKind {
    /// The previous backup of the volume.
    Backup,
    /// What an interrupted attempt at the same backup completed. It may lack names of files that have several.
    Interrupted,
}

/// A copy of the same volume. A previous backup is neither purged nor moved until this is dropped.
struct Base {
    nfs: Client,
    manifest: FileRef,
    kind: BaseKind,
    hasher: RandomState,
    cache: ChunkCache,
    /// Bytes that indexes may use, for all copies together.
    indexes: Arc<Semaphore>,
    /// The server refused hard links.
    no_links: AtomicBool,
    _guard: Option<CopyGuard>,
}

/// A directory of a base, with the part of the manifest about it.
#[derive(Clone)]
pub(in crate::copy) struct BaseDirectory {
    base: Arc<Base>,
    handle: FileHandle,
    chunks: Arc<[ChunkRef]>,
    index: Option<Arc<Index>>,
}

/// The chunks that may have a name, by its hash. Each entry has the hash in the high bits and the number of the chunk in the
/// low ones.
struct Index {
    entries: Vec<u64>,
    _memory: OwnedSemaphorePermit,
}

/// Where a base is.
struct FoundBase<'a> {
    kind: BaseKind,
    manifest: FileRef,
    reference: &'a ManifestRef,
    directory: FileRef,
    guard: Option<CopyGuard>,
}

/// What all bases of a backup use.
struct Shared {
    indexes: Arc<Semaphore>,
    cache: ChunkCache,
}

/// Returns the roots of the bases: the first of the requested backups that can be one, and what an interrupted attempt
/// completed. Without any, all files are transferred.
///
/// The previous backup is the first, so that what is unchanged since then counts as that.
pub(in crate::copy) async fn find_bases(
    store: &Arc<ExportStore>,
    request: &ArchiveRequest,
    ends: (&SourceTree, &Staging),
    interrupted: Option<&InterruptedCopy>,
    indexes: &Arc<Semaphore>,
) -> Vec<BaseDirectory> {
    let shared = Shared {
        indexes: Arc::clone(indexes),
        cache: ChunkCache::default(),
    };
    let mut bases = Vec::new();
    for name in &request.bases {
        let found = open_backup(store, (name, request), ends, &shared).await;
        bases.extend(unless_unusable(found, request, name));
        if !bases.is_empty() {
            break;
        }
    }
    if let Some(interrupted) = interrupted {
        let found = FoundBase {
            kind: BaseKind::Interrupted,
            manifest: interrupted.manifest.clone(),
            reference: &interrupted.checkpoint.manifest,
            directory: interrupted.tree.clone(),
            guard: None,
        };
        let found = open(store, found, ends, &shared).await;
        bases.extend(unless_unusable(found, request, "its interrupted attempt"));
    }
    bases
}

fn unless_unusable(
    found: Result<Option<BaseDirectory>, BaseError>,
    request: &ArchiveRequest,
    base: &str,
) -> Option<BaseDirectory> {
    let report = |error: &BaseError| {
        tracing::info!(archive = request.name, base, "not a base of the backup: {error}");
    };
    found.inspect_err(report).ok().flatten()
}

#[derive(Debug, thiserror::Error)]
enum BaseError {
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

async fn open_backup(
    store: &Arc<ExportStore>,
    (name, request): (&str, &ArchiveRequest),
    ends: (&SourceTree, &Staging),
    shared: &Shared,
) -> Result<Option<BaseDirectory>, BaseError> {
    let verified = &ends.1.verified;
    let found = {
        // Purges and moves of the archive take the same lock and check whether it is being copied.
        let _lock = store.lock_volume(name).await?;
        let found = suitable(store, verified, (name, request)).await?;
        found.map(|found| (found, CopyGuard::new(store, name)))
    };
    let Some(((reference, directory), guard)) = found else {
        return Ok(None);
    };
    let Some(manifest) = files::find(store, verified, name).await? else {
        return Err(ManifestError::Damaged("it does not exist").into());
    };
    let found = FoundBase {
        kind: BaseKind::Backup,
        manifest,
        reference: &reference,
        directory,
        guard: Some(guard),
    };
    open(store, found, ends, shared).await
}

/// Opens a base. Returns `None` if it is of another source, or on another file system.
async fn open(
    store: &ExportStore,
    found: FoundBase<'_>,
    (source, staging): (&SourceTree, &Staging),
    shared: &Shared,
) -> Result<Option<BaseDirectory>, BaseError> {
    let reader = ManifestReader {
        nfs: store.nfs(),
        file: &found.manifest.handle,
    };
    let root = reader.root(found.reference).await?;
    let is_same_source = root.source_export == source.export_id() && root.source_root == source.root.attributes.fileid;
    if !is_same_source || found.directory.attributes.fsid != staging.tree.attributes.fsid {
        return Ok(None);
    }
    let base = Arc::new(Base {
        nfs: store.nfs().clone(),
        manifest: found.manifest,
        kind: found.kind,
        hasher: RandomState::new(),
        cache: Arc::clone(&shared.cache),
        indexes: Arc::clone(&shared.indexes),
        no_links: AtomicBool::new(false),
        _guard: found.guard,
    });
    let root = BaseDirectory::open(&base, found.directory.handle, root.chunks).await?;
    Ok(Some(root))
}

/// Returns the manifest and the directory of a complete backup of the same volume and claim.
async fn suitable(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (name, request): (&str, &ArchiveRequest),
) -> Result<Option<(ManifestRef, FileRef)>, ExportError> {
    let ReadRecord::Record(record, SignatureStatus::Signed) = records::read(store, verified, name).await? else {
        return Ok(None);
    };
    let State::Archived(archive) = &record.state else {
        return Ok(None);
    };
    let copy = archive.copy.as_ref();
    let Some(manifest) = copy.and_then(|copy| copy.manifest.as_ref()) else {
        return Ok(None);
    };
    if record.backend != store.config.backend || !request.is_of_same_volume(&record) {
        return Ok(None);
    }
    let directory = archives::find_directory(store, verified, &record, archive).await?;
    Ok(directory.map(|directory| (manifest.clone(), directory)))
}

impl BaseDirectory {
    async fn open(base: &Arc<Base>, handle: FileHandle, chunks: Vec<ChunkRef>) -> Result<Self, ManifestError> {
        let index = base.index(&chunks).await?.map(Arc::new);
        Ok(Self {
            base: Arc::clone(base),
            handle,
            chunks: chunks.into(),
            index,
        })
    }

    /// Returns the directory itself.
    pub(in crate::copy) fn handle(&self) -> &FileHandle {
        &self.handle
    }

    /// Returns what it is a directory of.
    pub(in crate::copy) fn kind(&self) -> BaseKind {
        self.base.kind
    }

    /// Reports whether the server did not refuse hard links so far.
    pub(in crate::copy) fn may_link(&self) -> bool {
        !self.base.no_links.load(Ordering::Relaxed)
    }

    /// Records that the server has no hard links.
    pub(in crate::copy) fn record_no_links(&self) {
        self.base.no_links.store(true, Ordering::Relaxed);
    }

    /// Returns what the manifest knows of a file.
    pub(in crate::copy) async fn file(&self, name: &Name) -> Option<FileEntry> {
        match self.find(name).await? {
            EntryKind::File(file) => Some(file),
            EntryKind::Symlink(_) | EntryKind::Directory(_) => None,
        }
    }

    /// Opens a subdirectory.
    pub(in crate::copy) async fn directory(&self, name: &Name) -> Option<Self> {
        let EntryKind::Directory(chunks) = self.find(name).await? else {
            return None;
        };
        let node = self.base.nfs.lookup(&self.handle, name).await;
        let node = unless_failed(node.map_err(ManifestError::from))??;
        if node.attributes.kind != FileKind::Directory {
            return None;
        }
        unless_failed(Self::open(&self.base, node.handle, chunks).await)
    }

    async fn find(&self, name: &Name) -> Option<EntryKind> {
        let numbers = match (&self.index, self.chunks.len()) {
            (Some(index), _) => index.chunks_of(self.base.hash(name.as_bytes())),
            (None, 1) => vec![0],
            // There was not enough memory for an index: its files are transferred.
            (None, _) => return None,
        };
        for number in numbers {
            let entries = unless_failed(self.base.entries(self.chunks.get(number)?).await)?;
            let found = entries.iter().find(|entry| entry.name == name.as_bytes());
            if let Some(found) = found {
                return Some(found.kind.clone());
            }
        }
        None
    }
}

impl Base {
    /// Returns the index of a directory with several chunks; `None` if there is one chunk, or not enough memory.
    async fn index(&self, chunks: &[ChunkRef]) -> Result<Option<Index>, ManifestError> {
        if chunks.len() < 2 {
            return Ok(None);
        }
        let mut index: Option<Index> = None;
        for (number, chunk) in chunks.iter().enumerate() {
            let entries = self.entries(chunk).await?;
            let bytes = u32::try_from(entries.len() * INDEX_ENTRY).unwrap_or(u32::MAX);
            let Ok(memory) = Arc::clone(&self.indexes).try_acquire_many_owned(bytes) else {
                return Ok(None);
            };
            let index = match &mut index {
                Some(index) => {
                    index._memory.merge(memory);
                    index
                }
                None => index.insert(Index {
                    entries: Vec::new(),
                    _memory: memory,
                }),
            };
            index.entries.reserve_exact(entries.len());
            let hashes = entries.iter().map(|entry| self.hash(&entry.name) | number as u64);
            index.entries.extend(hashes);
        }
        if let Some(index) = &mut index {
            index.entries.sort_unstable();
        }
        Ok(index)
    }

    /// Returns the hash of a name, without the bits of a chunk's number. It has a random key, so that names cannot be chosen
    /// to collide.
    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name) & !((1 << CHUNK_BITS) - 1)
    }

    async fn entries(&self, chunk: &ChunkRef) -> Result<Arc<Vec<ManifestEntry>>, ManifestError> {
        let key = (self.manifest.attributes.fileid, chunk.offset);
        if let Some(entries) = self.cached(key) {
            return Ok(entries);
        }
        let reader = ManifestReader {
            nfs: &self.nfs,
            file: &self.manifest.handle,
        };
        let entries = Arc::new(reader.entries(chunk).await?);
        let mut cache = self.cache.lock();
        cache.push_front((key, Arc::clone(&entries)));
        cache.truncate(CACHED_CHUNKS);
        Ok(entries)
    }

    fn cached(&self, key: (u64, u64)) -> Option<Arc<Vec<ManifestEntry>>> {
        let mut cache = self.cache.lock();
        let at = cache.iter().position(|(cached, _)| *cached == key)?;
        let found = cache.remove(at)?;
        let entries = Arc::clone(&found.1);
        cache.push_front(found);
        Some(entries)
    }
}

impl Index {
    /// Returns the chunks that may have a name with this hash.
    fn chunks_of(&self, hash: u64) -> Vec<usize> {
        let from = self.entries.partition_point(|entry| *entry < hash);
        let entries = self.entries.iter().skip(from);
        let same = entries.take_while(|entry| *entry >> CHUNK_BITS == hash >> CHUNK_BITS);
        same.filter_map(|entry| usize::try_from(*entry & ((1 << CHUNK_BITS) - 1)).ok())
            .collect()
    }
}

/// Returns `None` after a failure to read a base: what is not known to be unchanged is transferred.
fn unless_failed<T>(read: Result<T, ManifestError>) -> Option<T> {
    read.inspect_err(|error| {
        tracing::debug!("files are transferred, because a base of the backup cannot be read: {error}")
    })
    .ok()
}
