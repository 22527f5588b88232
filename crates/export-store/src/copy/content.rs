//! What is in a file: by the server itself where it can, else read and written in parts, many at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use crate::copy::{Copier, CopyError, Tally};
use nfs_client::{FileHandle, FullAttributes, NfsError, Status};

/// Parts of one file on their way at a time.
const PARTS: usize = 4;
/// Bytes that the server is asked to copy in one call: more would only make the reply late. Servers do less at a time.
const ASKED: u64 = 64 << 20;
/// Bytes that a server is tried on.
const TRIED: u64 = 4096;
/// Extents of one file: more holes than that are copied as zeros, for each costs two calls.
const MOST_EXTENTS: usize = 100_000;

/// How the writing of a content ended.
pub(super) enum Content {
    /// It is on stable storage.
    Written,
    /// The same, and it is of one moment: the file shares the other's blocks, which may have moved that one's change
    /// attribute (as on XFS).
    Cloned,
    /// The server restarted before it was.
    Lost,
}

/// The server's life in which a file was written.
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

/// One file's content on its way.
struct Way<'a> {
    from: &'a FileHandle,
    to: &'a FileHandle,
    path: &'a str,
    /// It takes less than its size on the disk: zeros may be holes.
    sparse: bool,
    /// The size that it had when it was looked up.
    size: u64,
}

impl Copier {
    /// Copies what is in a file into an empty one.
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
            Tally::add(&self.tally.bytes, size);
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
            Tally::add(&self.tally.bytes, begin.min(size).saturating_sub(place));
            if begin < end {
                self.extent_copied(&way, begin, end, &mut life).await?;
            }
            place = end.max(begin);
            extents += 1;
        }
        Tally::add(&self.tally.bytes, size.saturating_sub(place));
        if life.unstable {
            let committed = self.to.store.nfs().commit(to).await;
            let verifier = committed.map_err(|error| self.failed(path, error))?;
            life.lost |= life.verifier.is_some_and(|former| former != verifier);
        }
        Ok(if life.lost { Content::Lost } else { Content::Written })
    }

    /// Whether the server made the file share the other's blocks.
    async fn cloned(&self, way: &Way<'_>) -> Result<bool, CopyError> {
        if !self.same || self.ability.no_clone.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let nfs = self.to.store.nfs();
        match nfs.clone_file(way.from, way.to).await {
            Ok(()) => {
                // Durable like all else: the clone is the server's memory until then.
                nfs.commit(way.to).await.map_err(|error| self.failed(way.path, error))?;
                Ok(true)
            }
            Err(error) => self.cannot(error, &self.ability.no_clone, way).map(|()| false),
        }
    }

    /// Notes that a server can't do something, or fails for what it means.
    fn cannot(&self, error: NfsError, ability: &AtomicBool, way: &Way<'_>) -> Result<(), CopyError> {
        match error.status() {
            Some(Status::NotSupported | Status::Invalid | Status::CrossDevice) => {
                ability.store(true, Ordering::Relaxed);
                Ok(())
            }
            // This file, now: reading and writing tells what is wrong with it.
            Some(Status::Other(_) | Status::Io | Status::Access | Status::NotPermitted) => Ok(()),
            _ => Err(self.failed(way.path, error)),
        }
    }

    /// Whether the server copies bytes: tried on the first few of a file that nobody saw yet.
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

    /// The next bytes that have to be copied; none when the rest is a hole. Holes are asked for only where the server copies:
    /// what is streamed is read anyway, and servers that don't copy were seen to answer SEEK wrongly (nfs-ganesha 4.3).
    async fn extent(&self, way: &Way<'_>, from: u64, known: usize) -> Result<Option<(u64, u64)>, CopyError> {
        let rest = Ok(Some((from, way.size)));
        let may_ask = way.sparse && known < MOST_EXTENTS && !self.ability.no_seek.load(Ordering::Relaxed);
        if !may_ask || !self.copies(way).await? {
            return rest;
        }
        match self.from.store.nfs().seek_data(way.from, from).await {
            Ok(extent) => Ok(extent),
            // It contradicts itself: then what it says of holes is worth nothing.
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
                // The source ends here now: what is left is read, and says so.
                Ok(copied) if copied.count == 0 => break,
                Ok(copied) => {
                    life.saw(copied.verifier, copied.stable);
                    Tally::add(&self.tally.bytes, copied.count);
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

    /// Reads and writes, some parts at a time.
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

    /// Reads one part and writes it; answers the writes' verifiers.
    async fn part(&self, way: &Way<'_>, begin: u64, count: u64) -> Result<Vec<([u8; 8], bool)>, CopyError> {
        let failed = |error| self.failed(way.path, error);
        let kib = u32::try_from(count.div_ceil(1024)).unwrap_or(u32::MAX);
        // Closed by nobody.
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
            // Shorter than it was: what changed is counted when its change attribute is compared.
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
            Tally::add(&self.tally.bytes, read as u64);
        }
        Ok(writes)
    }

    /// The source ends before its size said: it was cut, or its server lies.
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

    /// Copies user attributes, where both servers have them.
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
                // Gone meanwhile, as the look at its attributes tells.
                Some(Status::Stale) => return Ok(()),
                _ => return Err(failed(error)),
            },
        };
        for name in names {
            let Some(value) = source.get_xattr(from, &name).await.map_err(failed)? else {
                continue;
            };
            if self.ability.no_target_xattrs.load(Ordering::Relaxed) {
                Tally::one(&self.tally.without_xattrs);
                return Ok(());
            }
            match target.set_xattr(to, &name, &value).await {
                Ok(()) => {}
                Err(error) if error.status() == Some(Status::NotSupported) => {
                    self.ability.no_target_xattrs.store(true, Ordering::Relaxed);
                    Tally::one(&self.tally.without_xattrs);
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
        // All that was written before the restart was stable.
        assert!(!lost(&[(1, true), (2, true)]));
        assert!(lost(&[(1, false), (2, true)]));
    }
}
