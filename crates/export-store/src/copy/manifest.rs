//! The manifest of a backup: for each file, the state of the source when it was copied, the inode of the copy, and a
//! checksum.
//!
//! The next backup of the same claim links the files that have not changed since ([`base`]), as does the next attempt if
//! this one is interrupted, and [`verify`] compares the backup with the checksums. A manifest is a file of chunks beside the records. A chunk has entries of one directory; the
//! entry of a subdirectory has the references to its chunks, with their digests. The archive's record, which is signed,
//! refers to the root chunk. Whatever any client writes into the file is therefore found before it is decoded, and a
//! manifest of any size is written and read in bounded memory.

mod base;
mod digest;
mod reader;
mod settled;
mod store;
mod verify;
mod writer;

use serde::{Deserialize, Serialize};

pub use crate::record::ManifestRef;
use crate::text::hexadecimal;
use nfs_client::{FullAttributes, Time};

pub(super) use crate::copy::manifest::base::{BaseDirectory, BaseKind, find_bases};
pub(super) use crate::copy::manifest::digest::{BLOCK, BlockDigest, ContentDigest, Digest, digest_of};
pub(super) use crate::copy::manifest::settled::settled_before;
pub(crate) use crate::copy::manifest::store::remove;
pub(super) use crate::copy::manifest::store::{create, find, publish};
pub(crate) use crate::copy::manifest::verify::verify;
pub use crate::copy::manifest::verify::{VerifyProblem, VerifyReport};
pub(super) use crate::copy::manifest::writer::{BUFFER, DirectoryManifest, MAX_PENDING, ManifestWriter};

/// The version of the format that this release reads and writes.
const VERSION: u32 = 1;
/// Maximum length of a chunk, in bytes. Only a directory with nearly [`MAX_CHUNKS`] chunks has an entry near this length.
const MAX_CHUNK: usize = 4 << 20;
/// Number of bits for the number of a chunk in the index of a directory.
const CHUNK_BITS: u32 = 16;
/// Maximum number of chunks of a directory.
const MAX_CHUNKS: usize = 1 << CHUNK_BITS;

/// What it saves to copy a file of no size, in bytes: about as many are transferred in the time of its round trips.
const FILE_SAVING: u64 = 64 << 10;

/// Position and digest of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ChunkRef {
    offset: u64,
    length: u32,
    digest: Digest,
}

impl ChunkRef {
    fn to_record(self) -> ManifestRef {
        ManifestRef {
            offset: self.offset,
            length: self.length,
            sha256: hexadecimal(&self.digest),
        }
    }

    /// Returns `None` if the digest in the record is not one.
    fn of_record(reference: &ManifestRef) -> Option<Self> {
        let digest = crate::signature::bytes(reference.sha256.as_bytes())?;
        Some(Self {
            offset: reference.offset,
            length: reference.length,
            digest: digest.try_into().ok()?,
        })
    }
}

/// The root chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ManifestRoot {
    version: u32,
    /// Identity of the source's export.
    source_export: String,
    /// Fileid of the source's root.
    source_root: u64,
    /// Chunks of the root directory.
    chunks: Vec<ChunkRef>,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ManifestEntry {
    name: Vec<u8>,
    kind: EntryKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum EntryKind {
    File(FileEntry),
    /// Digest of the link's target.
    Symlink(Digest),
    /// Chunks of the directory.
    Directory(Vec<ChunkRef>),
}

/// What is known of a file and its copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileEntry {
    source: SourceState,
    /// Any later change of the source shows in its state. Not so if the file changed while it was copied, or just before:
    /// time stamps are not fine enough to tell two changes apart.
    settled: bool,
    /// Fileid of the copy.
    copy: u64,
    /// Digest of the content; unset if the server copied the content, which nobody read then.
    checksum: Option<Digest>,
}

/// State of a source file: it has not changed if all of it is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct SourceState {
    file_id: u64,
    change: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, u32),
    ctime: Option<(i64, u32)>,
}

impl SourceState {
    fn of(details: &FullAttributes) -> Self {
        let parts = |time: Time| (time.seconds, time.nanos);
        Self {
            file_id: details.attributes.fileid,
            change: details.change,
            size: details.attributes.size,
            modified: parts(details.times.modified),
            ctime: details.ctime.map(parts),
        }
    }
}

impl FileEntry {
    /// Describes a file that was copied. `change` is the change attribute after the copy, which is newer than that in
    /// `details` if reading the file changed it; `settled_before` is the time before which the last change must be.
    pub(super) fn new(
        details: &FullAttributes,
        change: u64,
        settled_before: Option<i64>,
        (copy, checksum): (u64, Option<Digest>),
    ) -> Self {
        let source = SourceState {
            change,
            ..SourceState::of(details)
        };
        let settled = is_settled(source.ctime.map(|(at, _)| at), settled_before);
        Self {
            source,
            settled,
            copy,
            checksum,
        }
    }

    /// Reports whether the content and the attributes of a source are those that the copy has.
    pub(super) fn is_unchanged(&self, now: &FullAttributes) -> bool {
        self.settled && self.source == SourceState::of(now)
    }

    /// Returns the same source with another copy of the same content.
    pub(super) fn with_copy(self, copy: u64) -> Self {
        Self { copy, ..self }
    }

    /// Returns the fileid of the copy.
    pub(super) fn copy(&self) -> u64 {
        self.copy
    }

    /// Returns the digest of the content, if it is known.
    pub(super) fn checksum(&self) -> Option<Digest> {
        self.checksum
    }

    /// Returns what a copy of the file saves an attempt that finds it unchanged, in bytes.
    fn saving(&self) -> u64 {
        match self.settled {
            true => self.source.size.saturating_add(FILE_SAVING),
            false => 0,
        }
    }
}

/// Reports whether any change after `settled_before`, and therefore after the last change at `ctime`, shows in the ctime.
pub(super) fn is_settled(ctime: Option<i64>, settled_before: Option<i64>) -> bool {
    ctime.zip(settled_before).is_some_and(|(at, before)| at < before)
}

/// Decodes the entries of a chunk whose digest was verified.
fn decode_entries(chunk: &[u8]) -> Result<Vec<ManifestEntry>, postcard::Error> {
    let (mut entries, mut rest) = (Vec::new(), chunk);
    while !rest.is_empty() {
        let (entry, after) = postcard::take_from_bytes(rest)?;
        entries.push(entry);
        rest = after;
    }
    Ok(entries)
}

/// Decodes arbitrary bytes as a chunk, as if their digest were right.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn decode_anything(bytes: &[u8]) {
    if let Ok(root) = postcard::from_bytes::<ManifestRoot>(bytes) {
        drop(root);
    }
    if let Ok(entries) = decode_entries(bytes) {
        drop(entries);
    }
}

#[cfg(test)]
mod tests;
