//! What is on a server's disk.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::actors::nodes::{DataFile, TAG, parse};
use crate::nfs_server::file_system::{FileSystem, Ino, Object, PAGE};
use crate::sites::Site;

/// Name of the disk of each server.
pub const DISK: &str = "disk";
/// The operator's folder.
pub const OWN_FOLDER: &str = ".nfs-operator";
/// Part of the paths of the records of parent directories.
const PARENT_RECORDS: &str = "/parents/";

/// A file on the disk that a pod wrote, or a copy of it.
#[derive(Debug)]
pub struct Occurrence {
    /// The file.
    pub file: DataFile,
    /// Where it is.
    pub path: String,
}

/// The content of a disk.
#[derive(Debug, Default)]
pub struct Disk {
    /// Files that pods wrote, and copies of them.
    pub data: BTreeMap<Object, Occurrence>,
    /// All other files outside of the operator's folder, with their content, by path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// All directories by path.
    pub directories: BTreeMap<String, Object>,
    /// The paths of all directories.
    pub paths: BTreeMap<Object, String>,
    /// The parent directories that the operator recorded as its own.
    pub recorded_parents: Vec<String>,
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
        let state = site.server.state();
        let Ok(disk) = state.namespace.disk(site.disk) else {
            return found;
        };
        let mut directories = Directories::new(disk);
        for (number, inode) in disk.inodes() {
            let (Some(path), Ok(object)) = (directories.path(number), disk.object(number)) else {
                continue;
            };
            let Some(content) = inode.content() else {
                found.directories.insert(path.clone(), object);
                found.paths.insert(object, path);
                continue;
            };
            // What pods write is shorter than the operator's reserve.
            let begin = || content.read(0, TAG.len() as u64);
            let is_read = || path.contains(PARENT_RECORDS) || begin() == TAG.as_bytes();
            if is_own(&path) && (content.size() > PAGE || !is_read()) {
                continue;
            }
            let content = content.bytes();
            match parse(&content) {
                Some(file) => {
                    found.data.insert(object, Occurrence { file, path });
                }
                None if is_own(&path) => found.recorded_parents.extend(recorded_parent(&path, &content)),
                None => {
                    found.files.insert(path, content);
                }
            }
        }
        found
    }

    /// Returns the files in a directory, at any depth.
    pub fn data_in<'a>(&'a self, directory: &str) -> impl Iterator<Item = (Object, &'a DataFile)> {
        let prefix = format!("{directory}/");
        let within = self
            .data
            .iter()
            .filter(move |(_, occurrence)| occurrence.path.starts_with(&prefix));
        within.map(|(object, occurrence)| (*object, &occurrence.file))
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
        let mut path = self.path(directory).unwrap_or_default();
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&String::from_utf8_lossy(name));
        if self.disk.directory(number).is_ok() {
            self.known.insert(number, path.clone());
        }
        Some(path)
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
