//! A directory: names, and the cookies of READDIR.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::content::PAGE;
use super::inode::Ino;

/// Bytes of an entry besides its name, about as on ext4 and XFS.
const ENTRY: u64 = 16;

/// The cookie before the first entry: 0 is reserved, and 1 and 2 are discouraged (RFC 8881 section 18.23.3).
const FIRST_COOKIE: u64 = 3;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name, in the case in which it was created.
    pub name: Bytes,
    /// The object.
    pub ino: Ino,
    /// Whether the object is a directory.
    pub is_directory: bool,
}

/// The entries of a directory. A listing has the order of creation; an entry keeps its cookie as long as it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// The directory above; the root's is itself.
    pub parent: Ino,
    by_cookie: BTreeMap<u64, Entry>,
    /// From the name as it is compared to the cookie.
    by_key: BTreeMap<Bytes, u64>,
    next_cookie: u64,
    bytes: u64,
    subdirectories: usize,
}

impl Directory {
    /// Returns an empty directory.
    pub fn new(parent: Ino) -> Self {
        Self {
            parent,
            by_cookie: BTreeMap::new(),
            by_key: BTreeMap::new(),
            next_cookie: FIRST_COOKIE,
            bytes: 0,
            subdirectories: 0,
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Number of entries that are directories.
    pub fn subdirectories(&self) -> usize {
        self.subdirectories
    }

    /// Disk usage in bytes: one page at least.
    pub fn used(&self) -> u64 {
        self.bytes.div_ceil(PAGE).max(1) * PAGE
    }

    /// Disk usage with another entry.
    pub fn used_with(&self, name: &[u8]) -> u64 {
        (self.bytes + ENTRY + name.len() as u64).div_ceil(PAGE).max(1) * PAGE
    }

    /// Finds an entry by the key of its name.
    pub fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.by_cookie.get(self.by_key.get(key)?)
    }

    /// Adds an entry; the key must be free.
    pub fn insert(&mut self, key: Bytes, entry: Entry) {
        self.bytes += ENTRY + entry.name.len() as u64;
        self.subdirectories += usize::from(entry.is_directory);
        self.by_key.insert(key, self.next_cookie);
        self.by_cookie.insert(self.next_cookie, entry);
        self.next_cookie += 1;
    }

    /// Removes an entry by the key of its name.
    pub fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let entry = self.by_cookie.remove(&self.by_key.remove(key)?)?;
        self.bytes -= ENTRY + entry.name.len() as u64;
        self.subdirectories -= usize::from(entry.is_directory);
        Some(entry)
    }

    /// Returns the entries after a cookie, with theirs.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let entries = self.by_cookie.range(cookie.saturating_add(1)..);
        entries.map(|(cookie, entry)| (*cookie, entry))
    }

    /// Returns all entries.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.by_cookie.values()
    }
}
