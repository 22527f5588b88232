//! The position in a depth-first walk through a tree, by file handle and without recursion. Counts and copies use it.
//!
//! The walk decides what comes next, and the caller makes the calls to the server. A walk holds the directories from
//! its root to the current one, each with the subdirectories of one page. It never leaves the file system of its root.

use std::future::Future;
use std::vec;

use crate::readdir::{DirectoryPage, DirectoryReader};
use nfs_client::{Attributes, Entry, FileHandle, FileKind, FileRef, FsId, Name, NfsError, Page, PageCookie};

/// Maximum depth of directories. A path has at most 4,096 bytes on Linux, so at most 2,048 components, and each level
/// takes memory.
pub(crate) const MAX_DEPTH: usize = 1024;

/// Returns the size of a page in bytes. The server looks up the attributes of each entry, which takes one seek per
/// entry on a disk with nothing cached. A page has about 250 entries near the root and a few at great depth, because
/// each directory on the path keeps the names of one page in memory.
pub(crate) fn page_size(depth: usize) -> u32 {
    match depth {
        0..8 => 32 << 10,
        8..64 => 8 << 10,
        _ => 1 << 10,
    }
}

/// A walk through a tree, with data of the caller for each directory from the root to the current one.
#[derive(Debug)]
pub(crate) struct TreeWalk<D> {
    fsid: FsId,
    /// Fileids of the current directory and of all directories above it.
    ancestors: Vec<u64>,
    parents: Vec<OpenDirectory<D>>,
    current: OpenDirectory<D>,
}

/// A directory that is being walked through.
#[derive(Debug)]
pub(crate) struct OpenDirectory<D> {
    pub handle: FileHandle,
    pub data: D,
    reader: DirectoryReader,
    /// Subdirectories in the last page that are still to be looked up.
    subdirectories: vec::IntoIter<Name>,
}

/// What comes next in a walk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look up a subdirectory of the current directory, and enter it if it may be entered.
    LookUp(Name),
    /// Read the next page of the current directory.
    ReadPage,
    /// The current directory is complete: leave it.
    Leave,
}

/// A page of a directory within a walk.
#[derive(Debug)]
pub(crate) struct WalkedPage {
    /// See [`DirectoryPage::is_first`].
    pub is_first: bool,
    /// The entries on the walk's file system.
    pub entries: Vec<Entry>,
    /// Number of entries on other file systems.
    pub elsewhere: usize,
}

/// Reason not to enter a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Another file system is mounted there.
    OtherFileSystem,
    /// It is not a directory, or no longer.
    NotDirectory,
    /// It is one of the directories above it.
    Loop,
    /// It is below the maximum depth.
    TooDeep,
}

/// Returns the reason not to enter a looked-up subdirectory, if there is one. `ancestors` are the fileids of the
/// directories from its parent to the root.
pub(crate) fn obstacle(found: &Attributes, fsid: FsId, ancestors: &[u64]) -> Option<Obstacle> {
    if found.fsid != fsid {
        Some(Obstacle::OtherFileSystem)
    } else if found.kind != FileKind::Directory {
        Some(Obstacle::NotDirectory)
    } else if ancestors.contains(&found.fileid) {
        Some(Obstacle::Loop)
    } else if ancestors.len() >= MAX_DEPTH {
        Some(Obstacle::TooDeep)
    } else {
        None
    }
}

/// Reports whether an entry of a listing may be a directory: the server may not know its type.
pub(crate) fn may_be_directory(entry: &Entry) -> bool {
    matches!(entry.kind, Some(FileKind::Directory) | None)
}

/// Removes the attributes of an entry that do not say where it is, so that it is looked up. Now and then, nfs-ganesha lists an
/// entry over NFSv3 with fsid 0, which is not on another file system.
fn remove_unread_attributes(entry: &mut Entry, fsid: FsId) {
    const NO_FSID: FsId = FsId { major: 0, minor: 0 };
    if entry.fsid == Some(NO_FSID) && fsid != NO_FSID {
        (entry.kind, entry.fsid, entry.details) = (None, None, None);
    }
}

impl<D> TreeWalk<D> {
    pub(crate) fn new(root: &FileRef, data: D) -> Self {
        Self {
            fsid: root.attributes.fsid,
            ancestors: vec![root.attributes.fileid],
            parents: Vec::new(),
            current: OpenDirectory::new(root.handle.clone(), data),
        }
    }

    /// Returns a separate walk through a subdirectory of the current directory.
    pub(crate) fn fork(&self, file_id: u64, handle: FileHandle, data: D) -> Self {
        let mut ancestors = self.ancestors.clone();
        ancestors.push(file_id);
        Self {
            fsid: self.fsid,
            ancestors,
            parents: Vec::new(),
            current: OpenDirectory::new(handle, data),
        }
    }

    pub(crate) fn next_step(&mut self) -> Step {
        match self.current.subdirectories.next() {
            Some(name) => Step::LookUp(name),
            None if self.current.reader.is_done() => Step::Leave,
            None => Step::ReadPage,
        }
    }

    pub(crate) fn current(&mut self) -> &mut OpenDirectory<D> {
        &mut self.current
    }

    /// Returns the number of directories above the current one.
    pub(crate) fn depth(&self) -> usize {
        self.ancestors.len().saturating_sub(1)
    }

    /// Reads the next page of the current directory with the given call. Returns `None` at the end.
    pub(crate) async fn read_page<F>(
        &mut self,
        list: impl Fn(Option<PageCookie>) -> F,
    ) -> Result<Option<WalkedPage>, NfsError>
    where
        F: Future<Output = Result<Page, NfsError>>,
    {
        let Some(DirectoryPage { is_first, mut entries }) = self.current.reader.next_page_with(list).await? else {
            return Ok(None);
        };
        for entry in &mut entries {
            remove_unread_attributes(entry, self.fsid);
        }
        let listed = entries.len();
        entries.retain(|entry| entry.fsid.is_none_or(|fsid| fsid == self.fsid));
        let directories = entries.iter().filter(|entry| may_be_directory(entry));
        let names: Vec<Name> = directories.map(|entry| entry.name.clone()).collect();
        self.current.subdirectories = names.into_iter();
        Ok(Some(WalkedPage {
            is_first,
            elsewhere: listed - entries.len(),
            entries,
        }))
    }

    /// Returns the reason not to enter a looked-up subdirectory of the current directory, if there is one.
    pub(crate) fn obstacle(&self, found: &Attributes) -> Option<Obstacle> {
        obstacle(found, self.fsid, &self.ancestors)
    }

    /// Makes a subdirectory the current directory.
    pub(crate) fn enter(&mut self, file_id: u64, handle: FileHandle, data: D) {
        self.ancestors.push(file_id);
        let parent = std::mem::replace(&mut self.current, OpenDirectory::new(handle, data));
        self.parents.push(parent);
    }

    /// Makes the parent the current directory. Returns false at the root of the walk.
    pub(crate) fn leave(&mut self) -> bool {
        let Some(parent) = self.parents.pop() else { return false };
        self.ancestors.pop();
        self.current = parent;
        true
    }
}

impl<D> OpenDirectory<D> {
    fn new(handle: FileHandle, data: D) -> Self {
        Self {
            reader: DirectoryReader::new(handle.clone()),
            handle,
            data,
            subdirectories: Vec::new().into_iter(),
        }
    }

    /// Lists the directory again from the beginning.
    pub(crate) fn list_again(&mut self) {
        self.reader = DirectoryReader::new(self.handle.clone());
    }

    /// Skips the rest of the listing.
    pub(crate) fn stop(&mut self) {
        self.reader.stop();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::layout;

    const FSID: FsId = FsId { major: 7, minor: 0 };

    fn directory(fileid: u64) -> Attributes {
        Attributes {
            kind: FileKind::Directory,
            mode: 0o755,
            uid: Some(0),
            gid: Some(0),
            owner: "0".to_owned(),
            group: "0".to_owned(),
            size: 4096,
            fileid,
            fsid: FSID,
            links: 2,
        }
    }

    #[test]
    fn only_new_directories_of_the_same_file_system_are_entered() {
        let ancestors = [1, 2, 3];
        let obstacle = |found: Attributes| obstacle(&found, FSID, &ancestors);
        assert_eq!(obstacle(directory(4)), None);
        assert_eq!(obstacle(directory(1)), Some(Obstacle::Loop));
        assert_eq!(obstacle(directory(3)), Some(Obstacle::Loop));
        let kind = FileKind::Symlink;
        assert_eq!(
            obstacle(Attributes { kind, ..directory(4) }),
            Some(Obstacle::NotDirectory)
        );
        let fsid = FsId { major: 8, minor: 0 };
        // Fileids of different file systems have nothing in common.
        assert_eq!(
            obstacle(Attributes { fsid, ..directory(1) }),
            Some(Obstacle::OtherFileSystem)
        );
    }

    #[test]
    fn an_entry_that_is_listed_without_a_file_system_is_looked_up() {
        let none = FsId { major: 0, minor: 0 };
        let other = FsId { major: 8, minor: 0 };
        for (listed, fsid, is_looked_up) in [
            (none, FSID, true),
            (none, none, false),
            (FSID, FSID, false),
            (other, FSID, false),
        ] {
            let mut entry = Entry {
                name: layout::name("file").unwrap(),
                kind: Some(FileKind::Regular),
                size: Some(4),
                fileid: Some(5),
                fsid: Some(listed),
                used: None,
                links: None,
                details: None,
            };
            remove_unread_attributes(&mut entry, fsid);
            assert_eq!(may_be_directory(&entry), is_looked_up, "{listed:?}");
            assert_eq!(entry.fsid.is_none(), is_looked_up, "{listed:?}");
        }
    }

    #[test]
    fn the_depth_is_limited() {
        let mut ancestors: Vec<u64> = (0..MAX_DEPTH as u64).collect();
        let found = directory(u64::MAX);
        assert_eq!(obstacle(&found, FSID, &ancestors), Some(Obstacle::TooDeep));
        ancestors.pop();
        assert_eq!(obstacle(&found, FSID, &ancestors), None);
    }
}
