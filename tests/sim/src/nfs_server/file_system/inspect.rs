//! Looking at a whole file system, for oracles and tests.

use std::collections::BTreeMap;

use super::FileSystem;
use super::inode::{Ino, Inode};

/// A name in a file system, with its object.
#[derive(Debug, Clone)]
pub struct Found<'a> {
    /// Path from the root, without a leading `/`; empty for the root.
    pub path: Vec<u8>,
    /// Inode number.
    pub ino: Ino,
    /// The object.
    pub inode: &'a Inode,
}

impl FileSystem {
    /// Returns every name below a directory, and the directory itself, depth first in the order of creation. An object with
    /// several names appears with each.
    pub fn walk(&self, from: Ino) -> Vec<Found<'_>> {
        let (mut found, mut remaining) = (Vec::new(), Vec::new());
        if let Ok(inode) = self.inode(from) {
            let path = self.path(from).unwrap_or_default();
            remaining.push(Found { path, ino: from, inode });
        }
        while let Some(next) = remaining.pop() {
            if let Some(directory) = next.inode.directory() {
                let entries: Vec<_> = directory.entries().collect();
                for entry in entries.into_iter().rev() {
                    let Ok(inode) = self.inode(entry.ino) else { continue };
                    let mut path = next.path.clone();
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(&entry.name);
                    remaining.push(Found {
                        path,
                        ino: entry.ino,
                        inode,
                    });
                }
            }
            found.push(next);
        }
        found
    }

    /// Checks the invariants of the model, as fsck does; `Err` names the first that is broken.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut used = 0;
        let mut names: BTreeMap<Ino, usize> = BTreeMap::new();
        for (ino, inode) in self.inodes() {
            used += inode.used();
            if self.free.contains(&ino) {
                return Err(format!("inode {ino} is in use and free"));
            }
            let Some(directory) = inode.directory() else { continue };
            for entry in directory.entries() {
                let object = self.inodes.get(&entry.ino);
                let object = object.ok_or_else(|| format!("inode {ino} has an entry for free inode {}", entry.ino))?;
                if !object.names.contains(&(ino, entry.name.clone())) {
                    return Err(format!("inode {} does not know its name in {ino}", entry.ino));
                }
                match object.directory() {
                    Some(below) if below.parent != ino => {
                        return Err(format!(
                            "directory {} has parent {}, not {ino}",
                            entry.ino, below.parent
                        ));
                    }
                    below if below.is_some() != entry.is_directory => {
                        return Err(format!("the entry of inode {} has another type", entry.ino));
                    }
                    _ => {}
                }
                *names.entry(entry.ino).or_default() += 1;
            }
        }
        for (ino, inode) in self.inodes() {
            let count = names.get(&ino).copied().unwrap_or(0);
            if count != inode.names.len() {
                return Err(format!(
                    "inode {ino} has {count} entries and {} names",
                    inode.names.len()
                ));
            }
            if count == 0 && inode.opens == 0 && ino != self.root() {
                return Err(format!("inode {ino} has no name and is not open"));
            }
        }
        if self.walk(self.root()).len() != 1 + names.values().sum::<usize>() {
            return Err("not everything is below the root".to_owned());
        }
        if used != self.used {
            return Err(format!("{} bytes are charged for {used}", self.used));
        }
        Ok(())
    }
}
