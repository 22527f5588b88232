//! The base of a backup: the previous backup of the same volume, whose unchanged files are linked.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::reader::{ManifestError, ManifestReader};
use super::{CHUNK_BITS, ChunkRef, EntryKind, FileEntry, ManifestEntry, store as files};
use crate::archives;
use crate::copy::source::CopyGuard;
use crate::copy::to_archive::ArchiveRequest;
use crate::copy::{SourceTree, Staging};
use crate::error::ExportError;
use crate::record::{Record, State};
use crate::records::{self, ReadRecord};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{Client, FileHandle, FileRef, Name};

/// Number of decoded chunks in memory: enough for the directories that are copied concurrently.
const CACHED_CHUNKS: usize = 12;
/// Size of an entry of an index, in bytes.
const INDEX_ENTRY: usize = size_of::<u64>();

/// The previous backup of a volume. It is neither purged nor moved until this is dropped.
pub(in crate::copy) struct Base {
    nfs: Client,
    manifest: FileHandle,
    root: BaseDirectory,
    hasher: RandomState,
    cache: Mutex<VecDeque<(u64, Arc<Vec<ManifestEntry>>)>>,
    /// Bytes that indexes may use, for all copies together.
    indexes: Arc<Semaphore>,
    /// The server refused hard links.
    no_links: AtomicBool,
    _guard: CopyGuard,
}

/// A directory of the previous backup, with the part of the manifest about it.
#[derive(Clone)]
pub(in crate::copy) struct BaseDirectory {
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

impl BaseDirectory {
    /// Returns the directory itself.
    pub(in crate::copy) fn handle(&self) -> &FileHandle {
        &self.handle
    }
}

/// Returns the first of the requested backups that can be the base of this one. Without one, all files are transferred.
pub(in crate::copy) async fn find_base(
    store: &Arc<ExportStore>,
    request: &ArchiveRequest,
    (source, staging): (&SourceTree, &Staging),
    indexes: &Arc<Semaphore>,
) -> Option<Arc<Base>> {
    for name in &request.bases {
        match open(store, (name, request), (source, staging), indexes).await {
            Ok(Some(base)) => return Some(Arc::new(base)),
            Ok(None) => {}
            Err(error) => tracing::info!(
                archive = request.name,
                base = name,
                "not the base of the next backup: {error}"
            ),
        }
    }
    None
}

#[derive(Debug, thiserror::Error)]
enum BaseError {
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

async fn open(
    store: &Arc<ExportStore>,
    (name, request): (&str, &ArchiveRequest),
    (source, staging): (&SourceTree, &Staging),
    indexes: &Arc<Semaphore>,
) -> Result<Option<Base>, BaseError> {
    let verified = &staging.verified;
    let found = {
        // Purges and moves of the archive take the same lock and check whether it is being copied.
        let _lock = store.lock_volume(name).await?;
        let found = suitable(store, verified, (name, request)).await?;
        found.map(|found| (found, CopyGuard::new(store, name)))
    };
    let Some(((record, directory), guard)) = found else {
        return Ok(None);
    };
    let copy = record.state.archive().and_then(|archive| archive.copy.as_ref());
    let Some(reference) = copy.and_then(|copy| copy.manifest.as_ref()) else {
        return Ok(None);
    };
    let Some(manifest) = files::find(store, verified, name).await? else {
        return Err(ManifestError::Damaged("it does not exist").into());
    };
    let nfs = store.nfs();
    let reader = ManifestReader {
        nfs,
        file: &manifest.handle,
    };
    let root = reader.root(reference).await?;
    let is_same_source = root.source_export == source.export_id() && root.source_root == source.root.attributes.fileid;
    if !is_same_source || directory.attributes.fsid != staging.tree.attributes.fsid {
        return Ok(None);
    }
    let mut base = Base {
        nfs: nfs.clone(),
        manifest: manifest.handle.clone(),
        root: BaseDirectory {
            handle: directory.handle.clone(),
            chunks: root.chunks.into(),
            index: None,
        },
        hasher: RandomState::new(),
        cache: Mutex::default(),
        indexes: Arc::clone(indexes),
        no_links: AtomicBool::new(false),
        _guard: guard,
    };
    base.root.index = base.index(&base.root.chunks).await?.map(Arc::new);
    Ok(Some(base))
}

/// Returns the record and the directory of a complete backup of the same volume and claim, with a manifest.
async fn suitable(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (name, request): (&str, &ArchiveRequest),
) -> Result<Option<(Box<Record>, FileRef)>, ExportError> {
    let ReadRecord::Record(record, SignatureStatus::Signed) = records::read(store, verified, name).await? else {
        return Ok(None);
    };
    let State::Archived(archive) = &record.state else {
        return Ok(None);
    };
    let Some(copy) = archive.copy.as_ref().filter(|copy| copy.manifest.is_some()) else {
        return Ok(None);
    };
    let (claim, wanted) = (&record.claim, &request.claim);
    let is_same = record.backend == store.config.backend
        && copy.volume == request.of.volume
        && (&claim.uid, &claim.namespace_uid) == (&wanted.uid, &wanted.namespace_uid);
    if !is_same {
        return Ok(None);
    }
    let directory = archives::find_directory(store, verified, &record, archive).await?;
    Ok(directory.map(|directory| (record, directory)))
}

impl Base {
    /// Returns the root directory.
    pub(in crate::copy) fn root(&self) -> BaseDirectory {
        self.root.clone()
    }

    /// Reports whether the server did not refuse hard links so far.
    pub(in crate::copy) fn may_link(&self) -> bool {
        !self.no_links.load(Ordering::Relaxed)
    }

    /// Records that the server has no hard links.
    pub(in crate::copy) fn record_no_links(&self) {
        self.no_links.store(true, Ordering::Relaxed);
    }

    /// Returns what the manifest knows of a file.
    pub(in crate::copy) async fn file(&self, directory: &BaseDirectory, name: &Name) -> Option<FileEntry> {
        match self.find(directory, name).await? {
            EntryKind::File(file) => Some(file),
            EntryKind::Symlink(_) | EntryKind::Directory(_) => None,
        }
    }

    /// Opens a subdirectory.
    pub(in crate::copy) async fn directory(&self, parent: &BaseDirectory, name: &Name) -> Option<BaseDirectory> {
        let EntryKind::Directory(chunks) = self.find(parent, name).await? else {
            return None;
        };
        let node = self.nfs.lookup(&parent.handle, name).await;
        let node = unless_failed(node.map_err(ManifestError::from))??;
        let index = unless_failed(self.index(&chunks).await)?.map(Arc::new);
        Some(BaseDirectory {
            handle: node.handle,
            chunks: chunks.into(),
            index,
        })
    }

    async fn find(&self, directory: &BaseDirectory, name: &Name) -> Option<EntryKind> {
        let numbers = match (&directory.index, directory.chunks.len()) {
            (Some(index), _) => index.chunks_of(self.hash(name.as_bytes())),
            (None, 1) => vec![0],
            // There was not enough memory for an index: its files are transferred.
            (None, _) => return None,
        };
        for number in numbers {
            let entries = unless_failed(self.entries(directory.chunks.get(number)?).await)?;
            let found = entries.iter().find(|entry| entry.name == name.as_bytes());
            if let Some(found) = found {
                return Some(found.kind.clone());
            }
        }
        None
    }

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
        if let Some(entries) = self.cached(chunk.offset) {
            return Ok(entries);
        }
        let reader = ManifestReader {
            nfs: &self.nfs,
            file: &self.manifest,
        };
        let entries = Arc::new(reader.entries(chunk).await?);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.push_front((chunk.offset, Arc::clone(&entries)));
        cache.truncate(CACHED_CHUNKS);
        Ok(entries)
    }

    fn cached(&self, offset: u64) -> Option<Arc<Vec<ManifestEntry>>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|(cached, _)| *cached == offset)?;
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

/// Returns `None` after a failure to read the base: what is not known to be unchanged is transferred.
fn unless_failed<T>(read: Result<T, ManifestError>) -> Option<T> {
    read.inspect_err(|error| {
        tracing::debug!("files are transferred, because the previous backup cannot be read: {error}")
    })
    .ok()
}
