//! What is on a server's disk.

use std::collections::BTreeMap;

use crate::actors::nodes::{DataFile, parse};
use crate::nfs_server::file_system::{Object, PAGE};
use crate::sites::Site;

/// Name of the disk of each server.
pub const DISK: &str = "disk";
/// The operator's folder.
pub const OWN_FOLDER: &str = ".nfs-operator";

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
}

impl Disk {
    /// Reads the disk of an export as it is now.
    pub fn read(site: &Site) -> Self {
        let mut found = Self::default();
        let state = site.server.state();
        let Ok(disk) = state.namespace.disk(site.disk) else {
            return found;
        };
        for (number, inode) in disk.inodes() {
            let (Some(path), Ok(object)) = (disk.path(number), disk.object(number)) else {
                continue;
            };
            let path = String::from_utf8_lossy(&path).into_owned();
            let Some(content) = inode.content() else {
                found.directories.insert(path.clone(), object);
                found.paths.insert(object, path);
                continue;
            };
            // What pods write is shorter than the operator's reserve.
            if is_own(&path) && content.size() > PAGE {
                continue;
            }
            let content = content.bytes();
            match parse(&content) {
                Some(file) => {
                    found.data.insert(object, Occurrence { file, path });
                }
                None if is_own(&path) => {}
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

/// Returns true for what the operator keeps for itself, tombstones included.
pub fn is_own(path: &str) -> bool {
    path.starts_with(OWN_FOLDER)
}

/// Returns true for what is not deleted yet, but will be: in the trash, or renamed to a tombstone.
pub fn is_in_trash(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    is_own(path) && path.contains("/trash/") || last.starts_with(".nfs-operator-deleted")
}
