//! Inodes: what a file system stores about an object.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nfs_client::Time;

use super::content::{Content, PAGE};
use super::directory::Directory;

/// The number of an object in its file system, reported as its fileid.
pub type Ino = u64;

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    Regular(Content),
    /// A directory.
    Directory(Directory),
    /// A symbolic link, with its target.
    Symlink(Bytes),
    /// A device, socket or FIFO, by its number in `nfs_ftype4`.
    Special(u32),
}

impl Kind {
    /// The number in `nfs_ftype4` and `ftype3`, which agree for these.
    pub fn number(&self) -> u32 {
        match self {
            Self::Regular(_) => 1,
            Self::Directory(_) => 2,
            Self::Symlink(_) => 5,
            Self::Special(number) => *number,
        }
    }
}

/// An object of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Distinguishes the objects that had the same number one after the other.
    pub generation: u32,
    /// Type and content.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of anything.
    pub changed: Time,
    /// Change attribute (RFC 8881 section 5.8.1.4).
    pub change: u64,
    /// User attributes (RFC 8276).
    pub xattrs: BTreeMap<Bytes, Bytes>,
    /// Verifier of the exclusive create that made the file (RFC 1813 section 3.3.8).
    pub create_verifier: Option<[u8; 8]>,
    /// The names of the object: directory and name.
    pub names: BTreeSet<(Ino, Bytes)>,
    /// Opens that keep the object alive without a name.
    pub opens: u32,
}

impl Inode {
    /// The directory, if it is one.
    pub fn directory(&self) -> Option<&Directory> {
        match &self.kind {
            Kind::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// The content, if it is a regular file.
    pub fn content(&self) -> Option<&Content> {
        match &self.kind {
            Kind::Regular(content) => Some(content),
            _ => None,
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        match &self.kind {
            Kind::Regular(content) => content.size(),
            Kind::Directory(directory) => directory.used(),
            Kind::Symlink(target) => target.len() as u64,
            Kind::Special(_) => 0,
        }
    }

    /// Disk usage in bytes.
    pub fn used(&self) -> u64 {
        match &self.kind {
            Kind::Regular(content) => content.used(),
            Kind::Directory(directory) => directory.used(),
            // A short target is stored in the inode, as on ext4 and XFS.
            Kind::Symlink(target) if target.len() >= 60 => PAGE,
            Kind::Symlink(_) | Kind::Special(_) => 0,
        }
    }

    /// Number of hard links.
    pub fn links(&self) -> u32 {
        let names = match &self.kind {
            Kind::Directory(directory) => 2 + directory.subdirectories(),
            _ => self.names.len(),
        };
        u32::try_from(names).unwrap_or(u32::MAX)
    }
}
