//! Reading and writing files.

use bytes::Bytes;

use super::content::PAGE;
use super::inode::{Ino, Inode, Kind};
use super::{Access, Caller, Content, FileSystem, MutationKind};
use crate::nfs_server::status::{NfsResult, NfsStat};

impl FileSystem {
    /// Returns a regular file; fails with the status of READ and WRITE for anything else.
    fn regular(&self, ino: Ino) -> NfsResult<(&Inode, &Content)> {
        let inode = self.inode(ino)?;
        match &inode.kind {
            Kind::Regular(content) => Ok((inode, content)),
            Kind::Directory(_) => Err(NfsStat::ISDIR),
            Kind::Symlink(_) => Err(NfsStat::SYMLINK),
            Kind::Special(_) => Err(NfsStat::INVAL),
        }
    }

    /// Fails unless the caller may read or write this file. Its owner always may: a client checks the mode when it opens the
    /// file, and a server that checked it again would break files whose mode changed since (RFC 8881 section 18.22).
    fn check_io(&self, caller: &Caller, access: Access, inode: &Inode) -> NfsResult<()> {
        if caller.owns(inode) {
            return Ok(());
        }
        self.check(caller, access, inode)
    }

    /// Reads a range. Returns the bytes, and whether the file ends after them.
    pub fn read(&mut self, caller: &Caller, ino: Ino, offset: u64, count: u64) -> NfsResult<(Vec<u8>, bool)> {
        let now = self.now;
        let (inode, content) = self.regular(ino)?;
        self.check_io(caller, Access::Read, inode)?;
        let bytes = content.read(offset, count);
        let eof = offset.saturating_add(bytes.len() as u64) >= content.size();
        self.inode_mut(ino)?.accessed = now;
        Ok((bytes, eof))
    }

    /// Writes at an offset, as much as there is space for. Returns the number of bytes.
    pub fn write(&mut self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> NfsResult<usize> {
        let (inode, content) = self.regular(ino)?;
        self.check_io(caller, Access::Write, inode)?;
        let (mut data, before) = (data, content.used());
        let mut missing = content.missing_pages(offset, data.len() as u64);
        if missing * PAGE > self.space_left() {
            // The part that fits, by whole pages; if there is none, the error.
            let mut fits = 0;
            for end in (1..=data.len()).filter(|end| (offset + *end as u64).is_multiple_of(PAGE)) {
                if content.missing_pages(offset, end as u64) * PAGE <= self.space_left() {
                    fits = end;
                }
            }
            if fits > 0 {
                data = data.get(..fits).unwrap_or_default();
                missing = content.missing_pages(offset, fits as u64);
            }
        }
        self.charge(before, before + missing * PAGE)?;
        let drop_privileges = caller.uid != 0;
        let inode = self.inode_mut(ino)?;
        if let Kind::Regular(content) = &mut inode.kind {
            content.write(offset, data);
        }
        if drop_privileges {
            inode.mode &= !0o6000;
        }
        self.touch(ino, true)?;
        self.record(MutationKind::Write, ino);
        Ok(data.len())
    }

    /// Copies a range between files of this file system; 0 as the count means up to the end of the source. Returns the number
    /// of bytes.
    pub fn copy(
        &mut self,
        caller: &Caller,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        count: u64,
    ) -> NfsResult<u64> {
        let (inode, content) = self.regular(from)?;
        self.check_io(caller, Access::Read, inode)?;
        if from_offset > content.size() {
            return Err(NfsStat::INVAL);
        }
        let count = if count == 0 { u64::MAX } else { count };
        let bytes = content.read(from_offset, count);
        if bytes.is_empty() {
            return Ok(0);
        }
        self.write(caller, to, to_offset, &bytes).map(|count| count as u64)
    }

    /// Makes a file share all blocks of another, holes included (CLONE of the whole file).
    pub fn clone_file(&mut self, caller: &Caller, from: Ino, to: Ino) -> NfsResult<()> {
        let (inode, content) = self.regular(from)?;
        self.check_io(caller, Access::Read, inode)?;
        let content = content.clone();
        let (inode, before) = self.regular(to)?;
        self.check_io(caller, Access::Write, inode)?;
        let before = before.used();
        self.charge(before, content.used())?;
        self.inode_mut(to)?.kind = Kind::Regular(content);
        self.touch(to, true)?;
        self.record(MutationKind::Write, to);
        Ok(())
    }

    /// Replaces a file's content, without a check: a crash lost what was not on stable storage.
    pub fn set_content(&mut self, ino: Ino, content: Content) -> NfsResult<()> {
        let (_, before) = self.regular(ino)?;
        let (before, after) = (before.used(), content.used());
        // Nothing is charged against the limit: it was stored before.
        self.used = self.used.saturating_sub(before).saturating_add(after);
        self.inode_mut(ino)?.kind = Kind::Regular(content);
        self.touch(ino, true)?;
        self.record(MutationKind::Write, ino);
        Ok(())
    }

    /// Finds data or a hole; NXIO if there is none (RFC 7862 section 15.11).
    pub fn seek(&self, caller: &Caller, ino: Ino, offset: u64, data: bool) -> NfsResult<u64> {
        let (inode, content) = self.regular(ino)?;
        self.check_io(caller, Access::Read, inode)?;
        if offset >= content.size() {
            return Err(NfsStat::NXIO);
        }
        content.seek(offset, data).ok_or(NfsStat::NXIO)
    }

    /// Reads the target of a symbolic link.
    pub fn read_link(&self, ino: Ino) -> NfsResult<Bytes> {
        match &self.inode(ino)?.kind {
            Kind::Symlink(target) => Ok(target.clone()),
            _ => Err(NfsStat::INVAL),
        }
    }
}
