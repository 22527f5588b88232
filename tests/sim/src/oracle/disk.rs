//! What is on a server's disk.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::actors::nodes::{DataFile, TAG, parse};
use crate::nfs_server::file_system::{FileSystem, Ino, Inode, Object, PAGE};
use crate::sites::Site;

/// Name of the disk of each server.
pub const DISK: &str = "disk";
/// The operator's folder.
pub const OWN_FOLDER: &str = ".nfs-operator";
/// Part of the paths of the records of parent directories.
const PARENT_RECORDS: &str = "/parents/";

/// A file on the disk that a pod wrote, or a copy of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The file.
    pub file: DataFile,
    /// Where it is, with each of its names: backups share unchanged files as hard links. Their order means nothing.
    pub paths: Vec<String>,
}

/// The content of a disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Files that pods wrote, and copies of them.
    pub data: BTreeMap<Object, Occurrence>,
    /// All other files outside of the operator's folder, with their content, by path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// All directories by path.
    pub directories: BTreeMap<String, Object>,
    /// The paths of all directories.
    pub paths: BTreeMap<Object, String>,
    /// The parent directories that the operator recorded as its own, by their records.
    pub recorded_parents: BTreeMap<Object, String>,
    /// Where each object is that has a path.
    places: BTreeMap<Ino, (Object, String)>,
    /// The newest change that was read.
    seen: u64,
}

/// Returns the path in the record of a parent directory.
fn recorded_parent(path: &str, content: &[u8]) -> Option<String> {
    let (_, name) = path.split_once(PARENT_RECORDS)?;
    let record: Value = serde_json::from_slice(content).ok()?;
    let path = record.get("path").and_then(Value::as_str)?;
    (!name.starts_with('.')).then(|| path.to_owned())
}

impl Disk {
    /// Reads the disk of an export as it is now.
    pub fn read(site: &Site) -> Self {
        let mut found = Self::default();
        found.update(site);
        found
    }

    /// Reads what has changed on the disk of the same export since the last time. Most of a disk never changes.
    pub fn update(&mut self, site: &Site) {
        if let Ok(disk) = site.server.state().namespace.disk(site.disk) {
            self.follow(disk);
        }
    }

    /// Reads what has changed in a file system. A change is noticed by the change attribute of the object: a rename, a link
    /// and the removal of a name change that of the object, too.
    fn follow(&mut self, disk: &FileSystem) {
        if self.seen == disk.newest_change() {
            return;
        }
        let mut directories = Directories::new(disk);
        if self.has_moved_directory(disk, &mut directories) {
            // Everything in it is elsewhere.
            *self = Self::default();
        }
        self.forget_removed(disk);
        let seen = std::mem::replace(&mut self.seen, disk.newest_change());
        let changed = || disk.inodes().filter(|(_, inode)| inode.change > seen);
        // First: another object may have the path of one that was moved.
        changed().for_each(|(number, _)| self.forget(number));
        for (number, inode) in changed() {
            if let (Some(path), Ok(object)) = (directories.path(number), disk.object(number)) {
                let paths = inode.names.iter();
                let paths = paths.map(|(directory, name)| directories.path_of(*directory, name));
                self.add(object, (path, paths.collect()), inode);
            }
        }
    }

    fn has_moved_directory(&self, disk: &FileSystem, directories: &mut Directories<'_>) -> bool {
        let changed = disk.inodes().filter(|(_, inode)| inode.change > self.seen);
        let mut changed = changed.filter(|(_, inode)| inode.directory().is_some());
        changed.any(|(number, _)| {
            let known = self.places.get(&number);
            let known = known.filter(|(object, _)| disk.object(number) == Ok(*object));
            known.is_some_and(|(_, path)| directories.path(number).as_ref() != Some(path))
        })
    }

    /// Forgets the objects that do not exist any more.
    fn forget_removed(&mut self, disk: &FileSystem) {
        let places = self.places.iter();
        let removed = places.filter(|(number, (object, _))| disk.object(**number) != Ok(*object));
        let removed: Vec<Ino> = removed.map(|(number, _)| *number).collect();
        removed.into_iter().for_each(|number| self.forget(number));
    }

    fn forget(&mut self, number: Ino) {
        let Some((object, path)) = self.places.remove(&number) else {
            return;
        };
        self.data.remove(&object);
        self.paths.remove(&object);
        self.recorded_parents.remove(&object);
        self.directories.remove(&path);
        self.files.remove(&path);
    }

    fn add(&mut self, object: Object, (path, paths): (String, Vec<String>), inode: &Inode) {
        self.places.insert(object.ino, (object, path.clone()));
        let Some(content) = inode.content() else {
            self.directories.insert(path.clone(), object);
            self.paths.insert(object, path);
            return;
        };
        // What pods write is shorter than the operator's reserve.
        let begin = || content.read(0, TAG.len() as u64);
        let is_read = || path.contains(PARENT_RECORDS) || begin() == TAG.as_bytes();
        if is_own(&path) && (content.size() > PAGE || !is_read()) {
            return;
        }
        let content = content.bytes();
        match parse(&content) {
            Some(file) => {
                self.data.insert(object, Occurrence { file, paths });
            }
            None if is_own(&path) => {
                if let Some(parent) = recorded_parent(&path, &content) {
                    self.recorded_parents.insert(object, parent);
                }
            }
            None => {
                self.files.insert(path, content);
            }
        }
    }

    /// Returns the files in a directory, at any depth, also as links.
    pub fn data_in<'a>(&'a self, directory: &str) -> impl Iterator<Item = (Object, &'a DataFile)> {
        let prefix = format!("{directory}/");
        let is_within = move |path: &String| path.starts_with(&prefix);
        let within = self.data.iter();
        let within = within.filter(move |(_, found)| found.paths.iter().any(&is_within));
        within.map(|(object, occurrence)| (*object, &occurrence.file))
    }

    /// Returns true if a directory contains a file, at any depth, also as a link.
    pub fn has_data(&self, directory: &str, file: &DataFile) -> bool {
        self.data_in(directory).any(|(_, found)| found == file)
    }
}

/// The paths of directories, each of which is part of the paths in it.
struct Directories<'a> {
    disk: &'a FileSystem,
    known: BTreeMap<Ino, String>,
}

impl<'a> Directories<'a> {
    fn new(disk: &'a FileSystem) -> Self {
        let known = BTreeMap::from([(disk.root(), String::new())]);
        Self { disk, known }
    }

    /// Returns one path of an object; `None` if it has no name.
    fn path(&mut self, number: Ino) -> Option<String> {
        if let Some(known) = self.known.get(&number) {
            return Some(known.clone());
        }
        let (directory, name) = self.disk.name(number)?;
        let path = self.path_of(directory, name);
        if self.disk.directory(number).is_ok() {
            self.known.insert(number, path.clone());
        }
        Some(path)
    }

    /// Returns the path of a name in a directory.
    fn path_of(&mut self, directory: Ino, name: &[u8]) -> String {
        let mut path = self.path(directory).unwrap_or_default();
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&String::from_utf8_lossy(name));
        path
    }
}

/// Returns true for what the operator keeps for itself, tombstones included.
pub fn is_own(path: &str) -> bool {
    path.starts_with(OWN_FOLDER)
}

/// Returns true for an archived directory.
pub fn is_archive(path: &str) -> bool {
    path.starts_with("archived-")
}

/// Returns true for what is not deleted yet, but will be: in the trash, or renamed to a tombstone.
pub fn is_in_trash(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    is_own(path) && path.contains("/trash/") || last.starts_with(".nfs-operator-deleted")
}

/// Returns true for a directory, and for everything in it.
pub fn is_within(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::actors::nodes;
    use crate::chance::Chance;
    use crate::nfs_server::file_system::{
        AttributeChanges, Caller, Content, Directory, FileSystemOptions, Kind, Removal,
    };

    const ROOT: Caller = Caller::ROOT;

    /// Returns a directory that exists: the root, the operator's folder, one of the two in it, or one of users.
    fn directory(disk: &FileSystem, chance: &Chance) -> Ino {
        let all = disk.inodes().filter(|(_, inode)| inode.directory().is_some());
        let all: Vec<Ino> = all.map(|(number, _)| number).collect();
        *chance.choose(&all).unwrap()
    }

    /// Changes a disk in some way, or not at all: most ways are refused now and then.
    fn change(disk: &mut FileSystem, chance: &Chance, number: u64) {
        let names = ["parents", "trash", "a", "b", "c"];
        let name = || chance.choose(&names).unwrap().as_bytes();
        let (from, to) = (directory(disk, chance), directory(disk, chance));
        let (set, found) = (AttributeChanges::default(), disk.lookup(&ROOT, from, name()));
        let _refused = match chance.below(8) {
            0 | 1 => {
                let folder = Kind::Directory(Directory::new(from));
                disk.create(&ROOT, from, name(), folder, set).map(drop)
            }
            2 => disk
                .create(&ROOT, from, name(), Kind::Regular(Content::default()), set)
                .map(drop),
            3 => found.and_then(|file| {
                let texts = [
                    nodes::content(&("claim".to_owned(), number)),
                    format!(r#"{{"path": "parent-{number}"}}"#),
                    "other".to_owned(),
                ];
                let mut content = Content::default();
                content.write(0, chance.choose(&texts).unwrap().as_bytes());
                disk.set_content(file, content)
            }),
            4 => disk.remove(&ROOT, from, name(), Removal::Any),
            5 | 6 => disk.rename(&ROOT, (from, name()), (to, name())),
            _ => found.and_then(|file| disk.link(&ROOT, file, to, name())),
        };
    }

    #[test]
    fn reading_what_has_changed_gives_the_same_as_reading_everything() {
        for seed in 1..200 {
            let chance = Chance::new(seed, "disk");
            let mut disk = FileSystem::new(FileSystemOptions::default());
            let root = disk.root();
            let own = Kind::Directory(Directory::new(root));
            disk.create(&ROOT, root, OWN_FOLDER.as_bytes(), own, AttributeChanges::default())
                .unwrap();
            let mut known = Disk::default();
            for number in 0..60 {
                change(&mut disk, &chance, number);
                if chance.below(3) == 0 {
                    known.follow(&disk);
                    let mut new = Disk::default();
                    new.follow(&disk);
                    assert_eq!(known, new, "seed {seed}, after {number} changes");
                }
            }
        }
    }
}
