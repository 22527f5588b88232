//! Copies the content of a file: by the server if it can, otherwise by reading and writing several parts concurrently.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use futures::stream::FuturesOrdered;

use crate::copy::context::{Charge, CopyContext};
use crate::copy::limits::CopyShare;
use crate::copy::manifest::{BLOCK, BlockDigest, ContentDigest, Digest, digest_of};
use crate::copy::path::CopyPath;
use crate::copy::{CopyError, CopyProgress};
use nfs_client::{FileHandle, FullAttributes, NfsError, Status};

/// Maximum number of parts of one file in flight.
const PARTS: usize = 4;
/// Maximum number of bytes to copy in one COPY call: a larger number would only delay the reply. Servers copy less at a
/// time.
const MAX_COPY: u64 = 64 << 20;
/// Maximum number of bytes of the COPY call that tests whether the server supports it.
const TEST_COPY: u64 = 4096;
/// Maximum number of extents of one file. Further holes are copied as zeros, because each one costs two calls.
const MAX_EXTENTS: usize = 100_000;

/// Result of writing the content of a file.
pub(super) enum Content {
    /// The content is on stable storage. Of a backup, it has a checksum if all of it was read.
    Written(Option<Digest>),
    /// The content is on stable storage and is a point-in-time copy: the file shares the blocks of the source, which
    /// may have changed the source's change attribute (as on XFS).
    Cloned,
    /// The server restarted before the content was on stable storage.
    Lost,
}

impl Content {
    /// Returns the checksum, if there is one.
    pub(super) fn checksum(&self) -> Option<Digest> {
        match self {
            Self::Written(checksum) => *checksum,
            Self::Cloned | Self::Lost => None,
        }
    }
}

/// Detects by the write verifiers that the server restarted while a file was written.
#[derive(Default)]
struct WriteTracker {
    verifier: Option<[u8; 8]>,
    has_unstable: bool,
    is_lost: bool,
}

impl WriteTracker {
    fn record(&mut self, verifier: Option<[u8; 8]>, stable: bool) {
        self.has_unstable |= !stable;
        let Some(verifier) = verifier else { return };
        match self.verifier {
            None => self.verifier = Some(verifier),
            Some(former) => self.is_lost |= former != verifier && self.has_unstable,
        }
    }
}

/// A file whose content is copied.
struct File<'a> {
    from: &'a FileHandle,
    to: &'a FileHandle,
    path: CopyPath<'a>,
    /// The file uses less space than its size: zeros may be holes.
    is_sparse: bool,
    /// Size of the file when it was looked up.
    size: u64,
    charge: &'a Charge<'a>,
}

/// Copies the content of files. Detects once for all files what the servers support.
pub(super) struct ContentCopier {
    context: Arc<CopyContext>,
    can_copy: AtomicBool,
    no_clone: AtomicBool,
    no_copy: AtomicBool,
    no_seek: AtomicBool,
    /// The same for files of the target's server, from which files of the previous backup are copied.
    no_target_clone: AtomicBool,
    no_target_copy: AtomicBool,
}

impl ContentCopier {
    pub(super) fn new(context: &Arc<CopyContext>) -> Self {
        Self {
            context: Arc::clone(context),
            can_copy: AtomicBool::default(),
            no_clone: AtomicBool::default(),
            no_copy: AtomicBool::default(),
            no_seek: AtomicBool::default(),
            no_target_clone: AtomicBool::default(),
            no_target_copy: AtomicBool::default(),
        }
    }

    /// Copies the content of a file into an empty file.
    pub(super) async fn copy(
        &self,
        (from, to): (&FileHandle, &FileHandle),
        details: &FullAttributes,
        path: CopyPath<'_>,
        charge: &Charge<'_>,
    ) -> Result<Content, CopyError> {
        let size = details.attributes.size;
        let file = File {
            from,
            to,
            path,
            is_sparse: details.used < size,
            size,
            charge,
        };
        if size > 0 && self.clone_blocks(&file).await? {
            charge.add(details.used.min(size))?;
            CopyProgress::add(&self.context.progress.bytes, size);
            return Ok(Content::Cloned);
        }
        let mut tracker = WriteTracker::default();
        let (mut position, mut extents) = (0, 0);
        let mut checksum = (self.context.is_backup && size == 0).then(|| digest_of(b""));
        while position < size {
            let (begin, end) = match self.next_extent(&file, position, extents).await? {
                Some(extent) => extent,
                None => break,
            };
            let end = end.min(size);
            CopyProgress::add(&self.context.progress.bytes, begin.min(size).saturating_sub(position));
            if begin < end {
                checksum = self.copy_extent(&file, begin, end, &mut tracker).await?;
            }
            position = end.max(begin);
            extents += 1;
        }
        CopyProgress::add(&self.context.progress.bytes, size.saturating_sub(position));
        if tracker.has_unstable {
            let committed = self.context.target().commit(to).await;
            let verifier = committed.map_err(|error| CopyError::of_call(path, error))?;
            tracker.is_lost |= tracker.verifier.is_some_and(|former| former != verifier);
        }
        Ok(if tracker.is_lost {
            Content::Lost
        } else {
            Content::Written(checksum)
        })
    }

    /// Reports whether the target's server may be able to copy its own files.
    pub(super) fn may_copy_on_target(&self) -> bool {
        !self.no_target_clone.load(Ordering::Relaxed) || !self.no_target_copy.load(Ordering::Relaxed)
    }

    /// Lets the target's server copy the content of one of its own files into an empty file. Returns `None` if it did not: the
    /// target may then have a part of the content.
    pub(super) async fn copy_on_target(
        &self,
        (from, to): (&FileHandle, &FileHandle),
        size: u64,
        path: CopyPath<'_>,
    ) -> Result<Option<Content>, CopyError> {
        let nfs = self.context.target();
        let failed = |error| CopyError::of_call(path, error);
        let refused = |error: NfsError, feature: &AtomicBool| match error.status() {
            Some(Status::NotSupported | Status::Invalid | Status::CrossDevice) => {
                feature.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Some(_) => Ok(None),
            None => Err(failed(error)),
        };
        if size > 0 && !self.no_target_clone.load(Ordering::Relaxed) {
            match nfs.clone_file(from, to).await {
                Ok(()) => {
                    nfs.commit(to).await.map_err(failed)?;
                    return Ok(Some(Content::Cloned));
                }
                Err(error) => {
                    refused(error, &self.no_target_clone)?;
                }
            }
        }
        let (mut tracker, mut position) = (WriteTracker::default(), 0);
        while position < size {
            if self.no_target_copy.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let count = (size - position).min(MAX_COPY);
            match nfs.copy((from, position), (to, position), count).await {
                Ok(copied) if copied.count == 0 => return Ok(None),
                Ok(copied) => {
                    tracker.record(copied.verifier, copied.stable);
                    position += copied.count;
                }
                Err(error) => return refused(error, &self.no_target_copy),
            }
        }
        if tracker.has_unstable {
            let verifier = nfs.commit(to).await.map_err(failed)?;
            tracker.is_lost |= tracker.verifier.is_some_and(|former| former != verifier);
        }
        Ok(Some(if tracker.is_lost {
            Content::Lost
        } else {
            Content::Written(None)
        }))
    }

    /// Tries to clone the file. Reports whether the server made the target share the source's blocks.
    async fn clone_blocks(&self, file: &File<'_>) -> Result<bool, CopyError> {
        if !self.context.is_same_server() || self.no_clone.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let nfs = self.context.target();
        match nfs.clone_file(file.from, file.to).await {
            Ok(()) => {
                // Makes the clone durable, like all other content: until the COMMIT, it may be only in the server's
                // memory.
                nfs.commit(file.to)
                    .await
                    .map_err(|error| CopyError::of_call(file.path, error))?;
                Ok(true)
            }
            Err(error) => self.record_missing(error, &self.no_clone, file).map(|()| false),
        }
    }

    /// Records that a server lacks a feature. Returns an error that is neither about the feature nor possibly limited
    /// to this file.
    fn record_missing(&self, error: NfsError, feature: &AtomicBool, file: &File<'_>) -> Result<(), CopyError> {
        match error.status() {
            Some(Status::NotSupported | Status::Invalid | Status::CrossDevice) => {
                feature.store(true, Ordering::Relaxed);
                Ok(())
            }
            // The failure may concern only this file. Reading and writing it reports the error, if there is one.
            Some(Status::Other(_) | Status::Io | Status::Access | Status::NotPermitted) => Ok(()),
            _ => Err(CopyError::of_call(file.path, error)),
        }
    }

    /// Reports whether the server supports COPY. Tests it with the first bytes of a file that is not published yet.
    async fn supports_copy(&self, file: &File<'_>) -> Result<bool, CopyError> {
        let (yes, no) = (&self.can_copy, &self.no_copy);
        if !self.context.is_same_server() || no.load(Ordering::Relaxed) || yes.load(Ordering::Relaxed) {
            return Ok(self.context.is_same_server() && yes.load(Ordering::Relaxed));
        }
        let nfs = self.context.target();
        match nfs.copy((file.from, 0), (file.to, 0), file.size.min(TEST_COPY)).await {
            Ok(_) => yes.store(true, Ordering::Relaxed),
            Err(error) => {
                self.record_missing(error, no, file)?;
                no.store(true, Ordering::Relaxed);
            }
        }
        Ok(yes.load(Ordering::Relaxed))
    }

    /// Returns the next range to copy, or `None` if the rest is a hole. Queries holes only if the server supports COPY:
    /// streaming reads all bytes anyway, and servers without COPY (nfs-ganesha 4.3) were observed to answer SEEK
    /// incorrectly.
    async fn next_extent(&self, file: &File<'_>, from: u64, known: usize) -> Result<Option<(u64, u64)>, CopyError> {
        let rest = Ok(Some((from, file.size)));
        let may_seek = file.is_sparse && known < MAX_EXTENTS && !self.no_seek.load(Ordering::Relaxed);
        if !may_seek || !self.supports_copy(file).await? {
            return rest;
        }
        match self.context.source().seek_data(file.from, from).await {
            Ok(extent) => Ok(extent),
            // The reply contradicts itself, so the server's information about holes is not reliable.
            Err(NfsError::Protocol { .. }) => {
                self.no_seek.store(true, Ordering::Relaxed);
                rest
            }
            Err(error) => {
                self.record_missing(error, &self.no_seek, file)?;
                rest
            }
        }
    }

    async fn copy_extent(
        &self,
        file: &File<'_>,
        begin: u64,
        end: u64,
        tracker: &mut WriteTracker,
    ) -> Result<Option<Digest>, CopyError> {
        let mut position = begin;
        while self.context.is_same_server() && position < end && !self.no_copy.load(Ordering::Relaxed) {
            let count = (end - position).min(MAX_COPY);
            self.context.throttle(0).await;
            let nfs = self.context.target();
            match nfs.copy((file.from, position), (file.to, position), count).await {
                // The source now ends here. Reading the rest shows why.
                Ok(copied) if copied.count == 0 => break,
                Ok(copied) => {
                    file.charge.add(copied.count)?;
                    self.context.count_copied(copied.count);
                    tracker.record(copied.verifier, copied.stable);
                    CopyProgress::add(&self.context.progress.bytes, copied.count);
                    position += copied.count;
                }
                Err(error) => {
                    self.record_missing(error, &self.no_copy, file)?;
                    break;
                }
            }
        }
        self.stream(file, position, end, tracker).await
    }

    /// Reads and writes, several parts concurrently. Returns the checksum for a backup, if the range is the whole file.
    async fn stream(
        &self,
        file: &File<'_>,
        begin: u64,
        end: u64,
        tracker: &mut WriteTracker,
    ) -> Result<Option<Digest>, CopyError> {
        let (read, write) = (
            self.context.source().max_transfer_sizes().0,
            self.context.target().max_transfer_sizes().1,
        );
        let part = (read.min(write).max(1) as u64).min(CopyShare::MAX_PART);
        let (mut position, mut in_flight) = (begin, FuturesOrdered::new());
        let mut content = ContentDigest::new();
        loop {
            while position < end && in_flight.len() < PARTS {
                let count = BLOCK.min(end - position);
                in_flight.push_back(self.stream_block(file, (position, count), part));
                position += count;
            }
            match in_flight.next().await {
                Some(block) => {
                    let (writes, digest) = block?;
                    for (verifier, stable) in writes {
                        tracker.record(Some(verifier), stable);
                    }
                    if let Some(digest) = digest {
                        content.add(digest);
                    }
                }
                None => {
                    let is_whole = self.context.is_backup && begin == 0;
                    return Ok(is_whole.then(|| content.finish(file.size)).flatten());
                }
            }
        }
    }

    /// Reads one block and writes it, in parts of at most `part` bytes. Returns the verifiers of the writes, and for a backup
    /// the digest of the block.
    async fn stream_block(
        &self,
        file: &File<'_>,
        (begin, count): (u64, u64),
        part: u64,
    ) -> Result<(Vec<([u8; 8], bool)>, Option<(Digest, u64)>), CopyError> {
        let failed = |error| CopyError::of_call(file.path, error);
        self.context.throttle(count).await;
        let _memory = self.context.share.memory(count.min(part)).await;
        let mut digest = self.context.is_backup.then(BlockDigest::new);
        let (end, mut position, mut writes) = (begin + count, begin, Vec::new());
        while position < end {
            let most = usize::try_from((end - position).min(part)).unwrap_or(usize::MAX);
            let data = self
                .context
                .source()
                .read(file.from, position, most)
                .await
                .map_err(failed)?;
            let read = data.bytes.len();
            // The file is shorter than before. The comparison of its change attribute counts it as changed.
            if read == 0 {
                self.check_end(file, position).await?;
                break;
            }
            file.charge.add(read as u64)?;
            if let Some(digest) = &mut digest {
                digest.update(&data.bytes);
            }
            let hole = file.is_sparse && data.bytes.iter().all(|byte| *byte == 0);
            let mut rest = data.bytes;
            while !hole && !rest.is_empty() {
                let at = position + (read - rest.len()) as u64;
                let written = self.context.target().write(file.to, at, &rest).await.map_err(failed)?;
                rest = rest.split_off(written.count.min(rest.len()));
                writes.push((written.verifier, written.stable));
            }
            position += read as u64;
            CopyProgress::add(&self.context.progress.bytes, read as u64);
        }
        Ok((writes, digest.map(BlockDigest::finish)))
    }

    /// Handles a source that ends before its size: either it was truncated, or its server contradicts itself.
    async fn check_end(&self, file: &File<'_>, position: u64) -> Result<(), CopyError> {
        let now = self.context.source().full_attributes(file.from).await;
        match now {
            Ok(now) if now.attributes.size > position => Err(CopyError::Contradiction {
                path: file.path.to_string(),
                why: format!(
                    "its server reports an end at {position} and a size of {} bytes",
                    now.attributes.size
                ),
            }),
            Ok(_) => Ok(()),
            Err(error) if error.status() == Some(Status::Stale) => Ok(()),
            Err(error) => Err(CopyError::of_call(file.path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WriteTracker;

    #[test]
    fn what_was_written_is_lost_when_the_server_restarted_before_it_was_stable() {
        let lost = |writes: &[(u8, bool)]| {
            let mut tracker = WriteTracker::default();
            for (verifier, stable) in writes {
                tracker.record(Some([*verifier; 8]), *stable);
            }
            tracker.is_lost
        };
        assert!(!lost(&[(1, false), (1, false), (1, true)]));
        assert!(lost(&[(1, false), (2, false)]));
        // Everything written before the restart was stable.
        assert!(!lost(&[(1, true), (2, true)]));
        assert!(lost(&[(1, false), (2, true)]));
    }
}
