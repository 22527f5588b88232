//! Names: looking up, creating, linking, renaming and removing.

use bytes::Bytes;

use super::directory::{Directory, Entry};
use super::inode::{Ino, Inode, Kind};
use super::{Access, AttributeChanges, Caller, FileSystem, MutationKind};
use crate::nfs_server::status::{NfsResult, NfsStat};

/// What a removal may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Anything: NFSv4's REMOVE.
    Any,
    /// An empty directory: RMDIR.
    Directory,
    /// Anything else: NFSv3's REMOVE.
    NonDirectory,
}

impl FileSystem {
    /// Checks a name that is to be looked up or created.
    fn check_name(&self, name: &[u8]) -> NfsResult<()> {
        match name {
            b"" => Err(NfsStat::INVAL),
            b"." | b".." => Err(NfsStat::BADNAME),
            name if name.len() > self.options.name_max => Err(NfsStat::NAMETOOLONG),
            name if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(NfsStat::BADNAME),
            name if self.options.utf8_only && std::str::from_utf8(name).is_err() => Err(NfsStat::BADCHAR),
            _ => Ok(()),
        }
    }

    /// Looks up a name.
    pub fn lookup(&self, caller: &Caller, directory: Ino, name: &[u8]) -> NfsResult<Ino> {
        let (inode, entries) = self.directory(directory)?;
        self.check(caller, Access::Execute, inode)?;
        self.check_name(name)?;
        entries
            .get(&self.key(name))
            .map(|entry| entry.ino)
            .ok_or(NfsStat::NOENT)
    }

    /// Fails unless the caller may list a directory.
    pub fn check_list(&self, caller: &Caller, directory: Ino) -> NfsResult<&Directory> {
        let (inode, entries) = self.directory(directory)?;
        self.check(caller, Access::Read, inode)?;
        Ok(entries)
    }

    /// Creates an object; fails with EXIST if the name is taken.
    pub fn create(
        &mut self,
        caller: &Caller,
        directory: Ino,
        name: &[u8],
        kind: Kind,
        set: AttributeChanges,
    ) -> NfsResult<Ino> {
        let (inode, entries) = self.directory(directory)?;
        self.check(caller, Access::Execute, inode)?;
        self.check_name(name)?;
        if entries.get(&self.key(name)).is_some() {
            return Err(NfsStat::EXIST);
        }
        self.check_change_entries(caller, inode)?;
        let inherits_group = inode.mode & 0o2000 != 0;
        let gid = if inherits_group { inode.gid } else { caller.gid };
        let kind = match kind {
            Kind::Directory(_) => Kind::Directory(Directory::new(directory)),
            kind => kind,
        };
        let is_directory = matches!(kind, Kind::Directory(_));
        let default = match &kind {
            Kind::Directory(_) => 0o755,
            Kind::Symlink(_) => 0o777,
            _ => 0o644,
        };
        let inherited = self.options.inherited_mode.filter(|_| is_directory);
        let mut mode = inherited.or(set.mode).unwrap_or(default) & 0o7777;
        if is_directory && inherits_group {
            mode |= 0o2000;
        }
        self.check_inodes()?;
        let created = self.new_inode(kind, mode, caller.uid, gid);
        self.charge(0, created.used())?;
        let used = created.used();
        let ino = self.take_number(is_directory);
        self.inodes.insert(ino, created);
        let recorded = self.mutations.len();
        let rest = AttributeChanges { mode: None, ..set };
        let placed = self.place(directory, name, ino, is_directory).and_then(|()| {
            let path = self.path_of(directory, name);
            self.record_at(MutationKind::Create, ino, path, None);
            if rest == AttributeChanges::default() {
                return Ok(());
            }
            self.set_attributes(caller, ino, rest)
        });
        if let Err(status) = placed {
            self.mutations.truncate(recorded);
            self.unplace(directory, name);
            self.inodes.remove(&ino);
            self.free.insert(ino);
            self.charge(used, 0)?;
            return Err(status);
        }
        Ok(ino)
    }

    /// The same, and with a verifier also succeeds if the name belongs to the file that was created with it: a
    /// retransmission (RFC 1813 section 3.3.8).
    pub fn create_exclusive(
        &mut self,
        caller: &Caller,
        (directory, name): (Ino, &[u8]),
        kind: Kind,
        set: AttributeChanges,
        verifier: Option<[u8; 8]>,
    ) -> NfsResult<Ino> {
        match self.create(caller, directory, name, kind, set) {
            Ok(ino) => {
                self.inode_mut(ino)?.create_verifier = verifier;
                Ok(ino)
            }
            Err(NfsStat::EXIST) if verifier.is_some() => {
                let ino = self.lookup(caller, directory, name)?;
                if self.inode(ino)?.create_verifier == verifier {
                    Ok(ino)
                } else {
                    Err(NfsStat::EXIST)
                }
            }
            Err(status) => Err(status),
        }
    }

    /// Gives an object a name in a directory; fails if the directory has to grow and there is no space.
    fn place(&mut self, directory: Ino, name: &[u8], ino: Ino, is_directory: bool) -> NfsResult<()> {
        let key = self.key(name);
        let (_, entries) = self.directory(directory)?;
        let (before, after) = (entries.used(), entries.used_with(name));
        self.charge(before, after)?;
        let name = Bytes::copy_from_slice(name);
        self.directory_mut(directory)?.insert(
            key,
            Entry {
                name: name.clone(),
                ino,
                is_directory,
            },
        );
        let inode = self.inode_mut(ino)?;
        inode.names.insert((directory, name));
        if let Kind::Directory(entries) = &mut inode.kind {
            entries.parent = directory;
        }
        self.touch(directory, true)
    }

    /// Takes a name from a directory. Returns its entry.
    fn unplace(&mut self, directory: Ino, name: &[u8]) -> Option<Entry> {
        let key = self.key(name);
        let entries = self.directory_mut(directory).ok()?;
        let before = entries.used();
        let entry = entries.remove(&key)?;
        let after = entries.used();
        // A smaller directory always fits.
        let _ = self.charge(before, after);
        if let Ok(inode) = self.inode_mut(entry.ino) {
            inode.names.remove(&(directory, entry.name.clone()));
        }
        let _ = self.touch(directory, true);
        Some(entry)
    }

    /// Frees an object that has no name and is not open. Returns it if it was freed.
    fn free_if_unused(&mut self, ino: Ino) -> Option<Inode> {
        let inode = self.inodes.get(&ino)?;
        if !inode.names.is_empty() || inode.opens > 0 || ino == self.root() {
            return None;
        }
        let inode = self.inodes.remove(&ino)?;
        let _ = self.charge(inode.used(), 0);
        self.free.insert(ino);
        Some(inode)
    }

    /// Removes a name.
    pub fn remove(&mut self, caller: &Caller, directory: Ino, name: &[u8], removal: Removal) -> NfsResult<()> {
        let ino = self.lookup(caller, directory, name)?;
        let (parent, object) = (self.inode(directory)?, self.inode(ino)?);
        match (removal, object.directory()) {
            (Removal::NonDirectory, Some(_)) => return Err(NfsStat::ISDIR),
            (Removal::Directory, None) => return Err(NfsStat::NOTDIR),
            _ => {}
        }
        self.check_remove_entry(caller, parent, object)?;
        if object.directory().is_some_and(|entries| !entries.is_empty()) {
            return Err(NfsStat::NOTEMPTY);
        }
        self.remove_entry(directory, name, ino);
        Ok(())
    }

    /// Removes an entry without checks, and the object with its last name.
    fn remove_entry(&mut self, directory: Ino, name: &[u8], ino: Ino) {
        let path = self.path_of(directory, name);
        self.record_at(MutationKind::Remove, ino, path, None);
        self.unplace(directory, name);
        let _ = self.touch(ino, false);
        let freed = self.free_if_unused(ino);
        if let Some(mutation) = self.mutations.last_mut() {
            mutation.freed = freed.map(Box::new);
        }
    }

    /// Whether a directory is another or lies below it.
    fn is_within(&self, mut directory: Ino, ancestor: Ino) -> bool {
        loop {
            if directory == ancestor {
                return true;
            }
            match self.directory(directory) {
                Ok((_, entries)) if entries.parent != directory => directory = entries.parent,
                _ => return false,
            }
        }
    }

    /// Renames; replaces a file, or an empty directory with a directory (RFC 8881 section 18.26).
    pub fn rename(
        &mut self,
        caller: &Caller,
        (from, from_name): (Ino, &[u8]),
        (to, to_name): (Ino, &[u8]),
    ) -> NfsResult<()> {
        let ino = self.lookup(caller, from, from_name)?;
        let target = match self.lookup(caller, to, to_name) {
            Ok(target) => Some(target),
            Err(NfsStat::NOENT) => None,
            Err(status) => return Err(status),
        };
        let (source, from_inode, to_inode) = (self.inode(ino)?, self.inode(from)?, self.inode(to)?);
        let is_directory = source.directory().is_some();
        self.check_remove_entry(caller, from_inode, source)?;
        self.check_change_entries(caller, to_inode)?;
        // A directory that moves is itself changed: its `..`.
        if is_directory && from != to && !caller.owns(source) {
            self.check(caller, Access::Write, source)?;
        }
        if is_directory && self.is_within(to, ino) {
            return Err(NfsStat::INVAL);
        }
        if target == Some(ino) {
            // Two names of the same object: nothing happens, unless only the case of the name changes.
            if from != to || self.key(from_name) != self.key(to_name) || from_name == to_name {
                return Ok(());
            }
        } else if let Some(target) = target {
            let replaced = self.inode(target)?;
            self.check_remove_entry(caller, to_inode, replaced)?;
            match (is_directory, replaced.directory()) {
                (true, None) | (false, Some(_)) => return Err(NfsStat::EXIST),
                (true, Some(entries)) if !entries.is_empty() => return Err(NfsStat::NOTEMPTY),
                _ => {}
            }
        }
        // The new entry must fit before the old one is taken away. A replaced entry makes room for it.
        if target.is_none() {
            let (_, entries) = self.directory(to)?;
            let growth = entries.used_with(to_name) - entries.used();
            self.charge(0, growth)?;
            self.charge(growth, 0)?;
        }
        let (path, new_path) = (self.path_of(from, from_name), self.path_of(to, to_name));
        if let Some(target) = target.filter(|target| *target != ino) {
            self.remove_entry(to, to_name, target);
        }
        self.unplace(from, from_name);
        self.place(to, to_name, ino, is_directory)?;
        self.touch(ino, false)?;
        self.record_at(MutationKind::Rename, ino, path, Some(new_path));
        Ok(())
    }

    /// Adds a name to an object that is no directory.
    pub fn link(&mut self, caller: &Caller, ino: Ino, directory: Ino, name: &[u8]) -> NfsResult<()> {
        match self.lookup(caller, directory, name) {
            Ok(_) => return Err(NfsStat::EXIST),
            Err(NfsStat::NOENT) => {}
            Err(status) => return Err(status),
        }
        let object = self.inode(ino)?;
        if object.directory().is_some() {
            return Err(NfsStat::ISDIR);
        }
        if object.names.is_empty() {
            return Err(NfsStat::NOENT);
        }
        if object.names.len() >= self.options.link_max {
            return Err(NfsStat::MLINK);
        }
        self.check_change_entries(caller, self.inode(directory)?)?;
        self.place(directory, name, ino, false)?;
        self.touch(ino, false)?;
        let path = self.path_of(directory, name);
        self.record_at(MutationKind::Link, ino, path, None);
        Ok(())
    }

    /// Keeps an object alive without a name, until [`close`](Self::close).
    pub fn open(&mut self, ino: Ino) -> NfsResult<()> {
        self.inode_mut(ino)?.opens += 1;
        Ok(())
    }

    /// Ends an [`open`](Self::open).
    pub fn close(&mut self, ino: Ino) {
        if let Ok(inode) = self.inode_mut(ino) {
            inode.opens = inode.opens.saturating_sub(1);
        }
        self.free_if_unused(ino);
    }
}
