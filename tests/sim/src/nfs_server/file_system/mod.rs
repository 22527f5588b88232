//! The model of a file system: what a server stores, without any protocol.
//!
//! Numbers are reused at once: a new object gets the lowest number that is free, as on ext4. Everything is ordered, so that
//! a run depends on nothing but its calls. A clone is a snapshot: file contents are shared until they change.

mod attributes;
mod capacity;
mod content;
mod directory;
mod inode;
mod inspect;
mod io;
mod mutation;
mod namespace;
mod permissions;
mod xattrs;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nfs_client::{FsId, Time};

use super::status::{NfsResult, NfsStat};

pub use attributes::{AttributeChanges, TimeChange};
pub use capacity::Statistics;
pub use content::{Content, PAGE};
pub use directory::{Directory, Entry};
pub use inode::{Ino, Inode, Kind};
pub use inspect::Found;
pub use mutation::{Mutation, MutationKind};
pub use namespace::Removal;
pub use permissions::{Access, Caller};

/// An object as a handle identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// Inode number.
    pub ino: Ino,
    /// Generation; 0 on a file system without generations.
    pub generation: u32,
}

/// Properties of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystemOptions {
    /// Its number on the server.
    pub fsid: FsId,
    /// Inode number of the root directory. Every ext4 has 2: a copy of a file system has the same.
    pub root: Ino,
    /// The lowest inode number of other objects.
    pub first_ino: Ino,
    /// Size in bytes.
    pub capacity: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Bytes after which writes fail with DQUOT.
    pub quota: Option<u64>,
    /// Maximum length of a name, in bytes.
    pub name_max: usize,
    /// Whether names that differ only in the case of ASCII letters are the same.
    pub case_insensitive: bool,
    /// Whether names must be UTF-8.
    pub utf8_only: bool,
    /// Whether a handle distinguishes objects that had the same number one after the other. Without generations, the handle
    /// of a removed object is that of the next one with its number.
    pub generations: bool,
    /// Whether a change of a directory invalidates the cookies of its listings.
    pub strict_cookies: bool,
    /// Resolution of times, in nanoseconds: changes within it have the same time, as on file systems whose times have the
    /// resolution of the kernel's timer.
    pub time_resolution: u32,
    /// Whether objects have user attributes (RFC 8276).
    pub xattrs: bool,
    /// Maximum number of hard links.
    pub link_max: usize,
    /// Mode of each directory that is created, whatever is requested then and later, as where access control lists are
    /// inherited.
    pub inherited_mode: Option<u32>,
}

impl Default for FileSystemOptions {
    /// A file system of 1 GiB with ext4's numbers.
    fn default() -> Self {
        Self {
            fsid: FsId { major: 1, minor: 0 },
            root: 2,
            first_ino: 11,
            capacity: 1 << 30,
            inodes: 65_536,
            quota: None,
            name_max: 255,
            case_insensitive: false,
            utf8_only: false,
            generations: true,
            strict_cookies: false,
            time_resolution: 1,
            xattrs: true,
            link_max: 65_000,
            inherited_mode: None,
        }
    }
}

/// A file system.
#[derive(Debug, Clone)]
pub struct FileSystem {
    options: FileSystemOptions,
    inodes: BTreeMap<Ino, Inode>,
    /// Free numbers below `next`.
    free: BTreeSet<Ino>,
    /// A number that only the next directory gets.
    reserved: Option<Ino>,
    next: Ino,
    next_generation: u32,
    /// The newest value of a change attribute.
    change: u64,
    /// Bytes in use.
    used: u64,
    now: Time,
    mutations: Vec<Mutation>,
}

impl FileSystem {
    /// Returns an empty file system, whose root belongs to root and has mode 0755.
    pub fn new(options: FileSystemOptions) -> Self {
        let mut file_system = Self {
            inodes: BTreeMap::new(),
            free: BTreeSet::new(),
            reserved: None,
            next: options.first_ino,
            next_generation: 1,
            change: 0,
            used: 0,
            now: Time::default(),
            mutations: Vec::new(),
            options,
        };
        let root = file_system.options.root;
        let directory = Kind::Directory(Directory::new(root));
        let inode = file_system.new_inode(directory, 0o755, 0, 0);
        file_system.used = inode.used();
        file_system.inodes.insert(root, inode);
        file_system
    }

    /// Its properties.
    pub fn options(&self) -> &FileSystemOptions {
        &self.options
    }

    /// Changes its properties, for example the capacity of a full disk.
    pub fn options_mut(&mut self) -> &mut FileSystemOptions {
        &mut self.options
    }

    /// Sets the time of the following changes.
    pub fn set_now(&mut self, now: Time) {
        let nanos = now.nanos - now.nanos % self.options.time_resolution.max(1);
        self.now = Time { nanos, ..now };
    }

    /// The root directory.
    pub fn root(&self) -> Ino {
        self.options.root
    }

    /// Returns what a handle of an object holds.
    pub fn object(&self, ino: Ino) -> NfsResult<Object> {
        let generation = self.inode(ino)?.generation;
        Ok(Object {
            ino,
            generation: if self.options.generations { generation } else { 0 },
        })
    }

    /// Resolves what a handle holds; fails with STALE once the object is removed.
    pub fn resolve(&self, object: Object) -> NfsResult<Ino> {
        if self.object(object.ino)? == object {
            Ok(object.ino)
        } else {
            Err(NfsStat::STALE)
        }
    }

    /// Returns the newest change attribute: it differs once anything has changed.
    pub fn newest_change(&self) -> u64 {
        self.change
    }

    /// Returns an inode.
    pub fn inode(&self, ino: Ino) -> NfsResult<&Inode> {
        self.inodes.get(&ino).ok_or(NfsStat::STALE)
    }

    /// Returns all inodes, by number.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.inodes.iter().map(|(ino, inode)| (*ino, inode))
    }

    /// Returns an inode that is a directory.
    pub fn directory(&self, ino: Ino) -> NfsResult<(&Inode, &Directory)> {
        let inode = self.inode(ino)?;
        Ok((inode, inode.directory().ok_or(NfsStat::NOTDIR)?))
    }

    /// Returns one name of an object, with its directory.
    pub fn name(&self, ino: Ino) -> Option<(Ino, &[u8])> {
        let (directory, name) = self.inodes.get(&ino)?.names.first()?;
        Some((*directory, name))
    }

    /// Returns one path of an object, from the root, without a leading `/`; `None` if it has no name.
    pub fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        if ino == self.root() {
            return Some(Vec::new());
        }
        let (directory, name) = self.inodes.get(&ino)?.names.first()?;
        Some(self.path_of(*directory, name))
    }

    /// Returns the path of a name in a directory.
    fn path_of(&self, directory: Ino, name: &[u8]) -> Vec<u8> {
        let mut path = self.path(directory).unwrap_or_default();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Returns the changes since the last call.
    pub fn take_mutations(&mut self) -> Vec<Mutation> {
        std::mem::take(&mut self.mutations)
    }

    fn inode_mut(&mut self, ino: Ino) -> NfsResult<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(NfsStat::STALE)
    }

    fn directory_mut(&mut self, ino: Ino) -> NfsResult<&mut Directory> {
        match &mut self.inode_mut(ino)?.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(NfsStat::NOTDIR),
        }
    }

    fn next_change(&mut self) -> u64 {
        self.change += 1;
        self.change
    }

    fn new_inode(&mut self, kind: Kind, mode: u32, uid: u32, gid: u32) -> Inode {
        let now = self.now;
        let generation = self.next_generation;
        self.next_generation += 1;
        Inode {
            generation,
            kind,
            mode,
            uid,
            gid,
            accessed: now,
            modified: now,
            changed: now,
            change: self.next_change(),
            xattrs: BTreeMap::new(),
            create_verifier: None,
            names: BTreeSet::new(),
            opens: 0,
        }
    }

    /// Reserves a free number for the next directory that is created. Fails with [`NfsStat::INVAL`] if it is not free.
    pub fn reserve_number(&mut self, number: Ino) -> NfsResult<()> {
        self.reserved = self.free.take(&number);
        self.reserved.map(drop).ok_or(NfsStat::INVAL)
    }

    /// Takes the number that is reserved for a directory, or the lowest free one.
    fn take_number(&mut self, is_directory: bool) -> Ino {
        let reserved = self.reserved.take_if(|_| is_directory);
        reserved.or_else(|| self.free.pop_first()).unwrap_or_else(|| {
            let number = self.next;
            self.next += 1;
            number
        })
    }

    /// Records a change of an object: `content` also of its content.
    fn touch(&mut self, ino: Ino, content: bool) -> NfsResult<()> {
        let (now, change) = (self.now, self.next_change());
        let inode = self.inode_mut(ino)?;
        inode.changed = now;
        inode.change = change;
        if content {
            inode.modified = now;
        }
        Ok(())
    }

    /// The name as it is compared.
    fn key(&self, name: &[u8]) -> Bytes {
        if self.options.case_insensitive {
            name.to_ascii_lowercase().into()
        } else {
            Bytes::copy_from_slice(name)
        }
    }
}
