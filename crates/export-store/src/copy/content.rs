//! Copies the content of a file: by the server if it can, otherwise by reading and writing several parts concurrently.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use crate::copy::{Copier, CopyError, CopyProgress};
use nfs_client::{FileHandle, FullAttributes, NfsError, Status};

/// Maximum number of parts of one file in flight.
const PARTS: usize = 4;
/// Maximum number of bytes to copy in one COPY call: a larger number would only delay the reply. Servers copy less at a
/// time.
const ASKED: u64 = 64 << 20;
/// Maximum number of bytes of the COPY call that tests whether the server supports it.
const TRIED: u64 = 4096;
/// Maximum number of extents of one file. Further holes are copied as zeros, because each one costs two calls.
const MAX_EXTENTS: usize = 100_000;

/// Result of writing the content of a file.
pub(super) enum Content {
    /// The content is on stable storage.
    Written,
    /// The content is on stable storage and is a point-in-time copy: the file shares the blocks of the source, which
    /// may have changed the source's change attribute (as on XFS).
    Cloned,
    /// The server restarted before the content was on stable storage.
    Lost,
}

/// The server instance to which a file was written, by its write verifier.
#[derive(Default)]
struct Life {
    verifier: Option<[u8; 8]>,
    unstable: bool,
    lost: bool,
}

impl Life {
    fn saw(&mut self, verifier: Option<[u8; 8]>, stable: bool) {
        self.unstable |= !stable;
        let Some(verifier) = verifier else { return };
        match self.verifier {
            None => self.verifier = Some(verifier),
            Some(former) => self.lost |= former != verifier && self.unstable,
        }
    }
}

/// The copy of one file's content.
struct Way<'a> {
    from: &'a FileHandle,
    to: &'a FileHandle,
    path: &'a str,
    /// The file uses less space than its size: zeros may be holes.
    sparse: bool,
    /// Size of the file when it was looked up.
    size: u64,
}

impl Copier {
    /// Copies the content of a file into an empty file.
    pub(super) async fn content(
        &self,
        from: &FileHandle,
        to: &FileHandle,
        details: &FullAttributes,
        path: &str,
    ) -> Result<Content, CopyError> {
        let size = details.attributes.size;
        let way = Way {
            from,
            to,
            path,
            sparse: details.used < size,
            size,
        };
        if size > 0 && self.cloned(&way).await? {
            CopyProgress::add(&self.tally.bytes, size);
            return Ok(Content::Cloned);
        }
        let mut life = Life::default();
        let (mut place, mut extents) = (0, 0);
        while place < size {
            let (begin, end) = match self.extent(&way, place, extents).await? {
                Some(extent) => extent,
                None => break,
            };
            let end = end.min(size);
            CopyProgress::add(&self.tally.bytes, begin.min(size).saturating_sub(place));
            if begin < end {
                self.extent_copied(&way, begin, end, &mut life).await?;
            }
            place = end.max(begin);
            extents += 1;
        }
        CopyProgress::add(&self.tally.bytes, size.saturating_sub(place));
        if life.unstable {
            let committed = self.to.store.nfs().commit(to).await;
            let verifier = committed.map_err(|error| self.failed(path, error))?;
            life.lost |= life.verifier.is_some_and(|former| former != verifier);
        }
        Ok(if life.lost { Content::Lost } else { Content::Written })
    }

    /// Tries to clone the file. Reports whether the server made the target share the source's blocks.
    async fn cloned(&self, way: &Way<'_>) -> Result<bool, CopyError> {
        if !self.same || self.ability.no_clone.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let nfs = self.to.store.nfs();
        match nfs.clone_file(way.from, way.to).await {
            Ok(()) => {
                // Makes the clone durable, like all other content: until the COMMIT, it may be only in the server's
                // memory.
                nfs.commit(way.to).await.map_err(|error| self.failed(way.path, error))?;
                Ok(true)
            }
            Err(error) => self.cannot(error, &self.ability.no_clone, way).map(|()| false),
        }
    }

    /// Records that a server lacks a feature. Returns an error that is neither about the feature nor possibly limited
    /// to this file.
    fn cannot(&self, error: NfsError, ability: &AtomicBool, way: &Way<'_>) -> Result<(), CopyError> {
        match error.status() {
            Some(Status::NotSupported | Status::Invalid | Status::CrossDevice) => {
                ability.store(true, Ordering::Relaxed);
                Ok(())
            }
            // The failure may concern only this file. Reading and writing it reports the error, if there is one.
            Some(Status::Other(_) | Status::Io | Status::Access | Status::NotPermitted) => Ok(()),
            _ => Err(self.failed(way.path, error)),
        }
    }

    /// Reports whether the server supports COPY. Tests it with the first bytes of a file that is not published yet.
    async fn copies(&self, way: &Way<'_>) -> Result<bool, CopyError> {
        let (yes, no) = (&self.ability.copies, &self.ability.no_copy);
        if !self.same || no.load(Ordering::Relaxed) || yes.load(Ordering::Relaxed) {
            return Ok(self.same && yes.load(Ordering::Relaxed));
        }
        let nfs = self.to.store.nfs();
        match nfs.copy((way.from, 0), (way.to, 0), way.size.min(TRIED)).await {
            Ok(_) => yes.store(true, Ordering::Relaxed),
            Err(error) => {
                self.cannot(error, no, way)?;
                no.store(true, Ordering::Relaxed);
            }
        }
        Ok(yes.load(Ordering::Relaxed))
    }

    /// Returns the next range to copy, or `None` if the rest is a hole. Queries holes only if the server supports COPY:
    /// streaming reads all bytes anyway, and servers without COPY (nfs-ganesha 4.3) were observed to answer SEEK
    /// incorrectly.
    async fn extent(&self, way: &Way<'_>, from: u64, known: usize) -> Result<Option<(u64, u64)>, CopyError> {
        let rest = Ok(Some((from, way.size)));
        let may_ask = way.sparse && known < MAX_EXTENTS && !self.ability.no_seek.load(Ordering::Relaxed);
        if !may_ask || !self.copies(way).await? {
            return rest;
        }
        match self.from.store.nfs().seek_data(way.from, from).await {
            Ok(extent) => Ok(extent),
            // The reply contradicts itself, so the server's information about holes is not reliable.
            Err(NfsError::Protocol { .. }) => {
                self.ability.no_seek.store(true, Ordering::Relaxed);
                rest
            }
            Err(error) => {
                self.cannot(error, &self.ability.no_seek, way)?;
                rest
            }
        }
    }

    async fn extent_copied(&self, way: &Way<'_>, begin: u64, end: u64, life: &mut Life) -> Result<(), CopyError> {
        let mut place = begin;
        while self.same && place < end && !self.ability.no_copy.load(Ordering::Relaxed) {
            let asked = (end - place).min(ASKED);
            let nfs = self.to.store.nfs();
            match nfs.copy((way.from, place), (way.to, place), asked).await {
                // The source now ends here. Reading the rest shows why.
                Ok(copied) if copied.count == 0 => break,
                Ok(copied) => {
                    life.saw(copied.verifier, copied.stable);
                    CopyProgress::add(&self.tally.bytes, copied.count);
                    place += copied.count;
                }
                Err(error) => {
                    self.cannot(error, &self.ability.no_copy, way)?;
                    break;
                }
            }
        }
        self.streamed(way, place, end, life).await
    }

    /// Reads and writes, several parts concurrently.
    async fn streamed(&self, way: &Way<'_>, begin: u64, end: u64, life: &mut Life) -> Result<(), CopyError> {
        let (read, write) = (
            self.from.store.nfs().max_transfer_sizes().0,
            self.to.store.nfs().max_transfer_sizes().1,
        );
        let part = read.min(write).max(1) as u64;
        let (mut place, mut flying) = (begin, FuturesUnordered::new());
        loop {
            while place < end && flying.len() < PARTS {
                let count = part.min(end - place);
                flying.push(self.part(way, place, count));
                place += count;
            }
            match flying.next().await {
                Some(writes) => {
                    for (verifier, stable) in writes? {
                        life.saw(Some(verifier), stable);
                    }
                }
                None => return Ok(()),
            }
        }
    }

    /// Reads one part and writes it. Returns the verifiers of the writes.
    async fn part(&self, way: &Way<'_>, begin: u64, count: u64) -> Result<Vec<([u8; 8], bool)>, CopyError> {
        let failed = |error| self.failed(way.path, error);
        let kib = u32::try_from(count.div_ceil(1024)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _memory = self.budget.memory.acquire_many(kib).await;
        let (end, mut place, mut writes) = (begin + count, begin, Vec::new());
        while place < end {
            let most = usize::try_from(end - place).unwrap_or(usize::MAX);
            let data = self
                .from
                .store
                .nfs()
                .read(way.from, place, most)
                .await
                .map_err(failed)?;
            let read = data.bytes.len();
            // The file is shorter than before. The comparison of its change attribute counts it as changed.
            if read == 0 {
                self.judge_end(way, place).await?;
                break;
            }
            let hole = way.sparse && data.bytes.iter().all(|byte| *byte == 0);
            let mut rest = data.bytes;
            while !hole && !rest.is_empty() {
                let at = place + (read - rest.len()) as u64;
                let written = self.to.store.nfs().write(way.to, at, &rest).await.map_err(failed)?;
                rest = rest.split_off(written.count.min(rest.len()));
                writes.push((written.verifier, written.stable));
            }
            place += read as u64;
            CopyProgress::add(&self.tally.bytes, read as u64);
        }
        Ok(writes)
    }

    /// Handles a source that ends before its size: either it was truncated, or its server contradicts itself.
    async fn judge_end(&self, way: &Way<'_>, place: u64) -> Result<(), CopyError> {
        let now = self.from.store.nfs().full_attributes(way.from).await;
        match now {
            Ok(now) if now.attributes.size > place => Err(CopyError::Contradiction {
                path: way.path.to_owned(),
                why: format!(
                    "its server says that it ends at {place}, and that it has {} bytes",
                    now.attributes.size
                ),
            }),
            Ok(_) => Ok(()),
            Err(error) if error.status() == Some(Status::Stale) => Ok(()),
            Err(error) => Err(self.failed(way.path, error)),
        }
    }

    /// Copies user attributes, if both servers support them.
    pub(super) async fn copy_xattrs(&self, from: &FileHandle, to: &FileHandle, path: &str) -> Result<(), CopyError> {
        if self.ability.no_source_xattrs.load(Ordering::Relaxed) {
            return Ok(());
        }
        let failed = |error| self.failed(path, error);
        let (source, target) = (self.from.store.nfs(), self.to.store.nfs());
        let names = match source.list_xattrs(from).await {
            Ok(names) => names,
            Err(error) => match error.status() {
                Some(Status::NotSupported) => {
                    self.ability.no_source_xattrs.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                // Removed meanwhile. The later check of its attributes detects that.
                Some(Status::Stale) => return Ok(()),
                _ => return Err(failed(error)),
            },
        };
        for name in names {
            let Some(value) = source.get_xattr(from, &name).await.map_err(failed)? else {
                continue;
            };
            if self.ability.no_target_xattrs.load(Ordering::Relaxed) {
                CopyProgress::one(&self.tally.without_xattrs);
                return Ok(());
            }
            match target.set_xattr(to, &name, &value).await {
                Ok(()) => {}
                Err(error) if error.status() == Some(Status::NotSupported) => {
                    self.ability.no_target_xattrs.store(true, Ordering::Relaxed);
                    CopyProgress::one(&self.tally.without_xattrs);
                    return Ok(());
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Life;

    #[test]
    fn what_was_written_is_lost_when_the_server_restarted_before_it_was_stable() {
        let lost = |seen: &[(u8, bool)]| {
            let mut life = Life::default();
            for (verifier, stable) in seen {
                life.saw(Some([*verifier; 8]), *stable);
            }
            life.lost
        };
        assert!(!lost(&[(1, false), (1, false), (1, true)]));
        assert!(lost(&[(1, false), (2, false)]));
        // Everything written before the restart was stable.
        assert!(!lost(&[(1, true), (2, true)]));
        assert!(lost(&[(1, false), (2, true)]));
    }
}
