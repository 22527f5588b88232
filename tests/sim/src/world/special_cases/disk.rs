//! What the administrator of a disk does with it.

use super::find;
use crate::nfs_server::FileSystem;
use crate::nfs_server::file_system::{AttributeChanges, Caller, Content, Directory, Ino, Kind, Removal, TimeChange};
use crate::nfs_server::status::{NfsResult, NfsStat};

const ROOT: &Caller = &Caller::ROOT;

/// Returns the change of a mode.
pub(super) fn mode(mode: u32) -> AttributeChanges {
    AttributeChanges {
        mode: Some(mode),
        ..AttributeChanges::default()
    }
}

/// Returns the directory and the name at the end of a path.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Renames what is at a path.
pub(super) fn rename(disk: &mut FileSystem, from: &str, to: &str) -> NfsResult<()> {
    let ((from, name), (to, new_name)) = (split(from), split(to));
    let (from, to) = (find(disk, from)?, find(disk, to)?);
    disk.rename(ROOT, (from, name.as_bytes()), (to, new_name.as_bytes()))
}

/// Creates a directory that only root may enter.
pub(super) fn make_directory(disk: &mut FileSystem, path: &str) -> NfsResult<Ino> {
    let (parent, name) = split(path);
    let parent = find(disk, parent)?;
    let folder = Kind::Directory(Directory::new(parent));
    disk.create(ROOT, parent, name.as_bytes(), folder, mode(0o700))
}

/// Creates a file that only root may read.
pub(super) fn make_file(disk: &mut FileSystem, path: &str, content: &[u8]) -> NfsResult<()> {
    let (parent, name) = split(path);
    let parent = find(disk, parent)?;
    let file = Kind::Regular(Content::default());
    let file = disk.create(ROOT, parent, name.as_bytes(), file, mode(0o600))?;
    disk.write(ROOT, file, 0, content).map(drop)
}

/// Removes a tree.
pub(super) fn remove(disk: &mut FileSystem, path: &str) -> NfsResult<()> {
    let mut paths: Vec<String> = disk
        .walk(find(disk, path)?)
        .iter()
        .map(|found| String::from_utf8_lossy(&found.path).into_owned())
        .collect();
    paths.sort();
    for path in paths.iter().rev() {
        let (parent, name) = split(path);
        let parent = find(disk, parent)?;
        disk.remove(ROOT, parent, name.as_bytes(), Removal::Any)?;
    }
    Ok(())
}

/// Returns the content of a file.
pub(super) fn content(disk: &FileSystem, path: &str) -> NfsResult<Vec<u8>> {
    let file = disk.inode(find(disk, path)?)?;
    Ok(file.content().ok_or(NfsStat::INVAL)?.bytes())
}

/// Replaces the content of a file with one of the same size, and keeps its time.
pub(super) fn rewrite(disk: &mut FileSystem, path: &str, content: &[u8]) -> NfsResult<()> {
    let file = find(disk, path)?;
    let before = disk.inode(file)?.modified;
    disk.write(ROOT, file, 0, content)?;
    let time = AttributeChanges {
        modified: Some(TimeChange::To(before)),
        ..AttributeChanges::default()
    };
    disk.set_attributes(ROOT, file, time)
}
