//! The directories with the data of volumes and archives, wherever they are: who has them, and what may become of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;
use tokio::time::{Duration, Instant};

use super::archives::is_complete;
use super::claims::Claims;
use super::disk::{Disk, is_archive, is_in_trash, is_own};
use crate::actors::nodes::DataFile;
use crate::nfs_server::file_system::Object;
use crate::objects::{name, text};

/// An export and a directory on it.
pub type TreeKey = (usize, Object);

/// Time for which a permission to purge an archive stays valid: the purge may have begun.
const PURGE: Duration = Duration::from_secs(120);

/// What may become of a directory whose claim was deleted: each policy that was in force since.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    pub archived: bool,
    pub deleted: bool,
    pub retained: bool,
    /// When its archive could last be purged.
    pub purgeable: Option<Instant>,
}

/// A directory with the data of a volume or an archive.
#[derive(Debug, Clone)]
pub struct Tree {
    /// UID of the claim whose volume it is or was last; empty for a backup.
    pub claim: String,
    /// The volume; empty for a backup.
    pub volume: String,
    /// What the volume says about its data, if not what the backend does.
    pub policy: Option<String>,
    /// The backend.
    pub backend: String,
    /// The archive that it is now.
    pub archive: Option<String>,
    /// It was no archive at the last look.
    pub is_new_archive: bool,
    /// The path at which it belongs.
    pub path: String,
    pub files: BTreeMap<DataFile, Object>,
    pub fate: Fate,
    /// It was deleted, and may be gone from one moment to the next.
    pub is_deleted: bool,
}

impl Tree {
    /// Returns the name of its archive: that of its volume, unless a requested backup is known.
    pub fn archive_name(&self) -> &str {
        self.archive.as_deref().unwrap_or(&self.volume)
    }

    /// Returns true if an object is that of its archive. The name of a backup may also be that of an object that waits
    /// because its name is taken, or of a backup on another backend; names of volumes are used once.
    pub fn is_archive(&self, archive: &Value) -> bool {
        let is_backup = self.volume.is_empty();
        let is_described = || is_complete(archive) && text(archive, "/status/backendName") == self.backend;
        self.archive_name() == name(archive) && (!is_backup || is_described())
    }

    /// Returns true if the volume of an existing claim is here.
    fn is_live(&self, claims: &Claims) -> bool {
        self.archive.is_none() && claims.exists(&self.claim)
    }

    /// Returns true if its data may be gone.
    fn may_be_deleted(&self, claims: &Claims) -> bool {
        let was_purgeable = self.fate.purgeable.is_some_and(|at| at.elapsed() <= PURGE);
        !self.is_live(claims) && (self.fate.deleted || was_purgeable || self.files.is_empty())
    }

    /// Records files that were found in it.
    pub fn add_files(&mut self, found: BTreeMap<DataFile, Object>) {
        for (file, object) in found {
            self.files.entry(file).or_insert(object);
        }
    }

    /// Follows the directory to where it is now, and checks that it may be there, with its content.
    ///
    /// # Errors
    /// What is wrong.
    pub fn follow(&mut self, root: Object, disk: &Disk, claims: &Claims) -> Result<(), String> {
        if self.is_deleted {
            return Ok(());
        }
        let path = disk.paths.get(&root).filter(|path| !is_in_trash(path));
        let Some(path) = path else {
            if self.may_be_deleted(claims) {
                self.is_deleted = true;
                return Ok(());
            }
            let found = disk.paths.get(&root).map_or("nowhere", String::as_str);
            return Err(format!("is at {found}, and not at {}: {:?}", self.path, self.fate));
        };
        if *path != self.path {
            self.check_move(path, claims)?;
            self.path.clone_from(path);
        }
        self.is_new_archive = false;
        self.check_files(path, disk)
    }

    /// Reports whether the directory was archived and has no archive that is known.
    pub fn is_undescribed_archive(&self) -> bool {
        self.archive.is_none() && is_archive(&self.path)
    }

    /// Checks that the directory may be at another path than before.
    fn check_move(&self, path: &str, claims: &Claims) -> Result<(), String> {
        // Perhaps it was moved, and its archive got an object, since the last look.
        let was_volume = self.archive.is_none() || self.is_new_archive;
        let fault = match (was_volume && claims.exists(&self.claim), is_archive(path)) {
            (true, _) => "the claim exists",
            (false, true) if was_volume && !self.fate.archived && !self.fate.deleted => "it is retained",
            (false, false) if self.archive.is_none() && !is_own(path) => "it is no archive that could be restored",
            _ => return Ok(()),
        };
        Err(format!("was moved from {} to {path}, but {fault}", self.path))
    }

    fn check_files(&self, path: &str, disk: &Disk) -> Result<(), String> {
        let mut expected = String::new();
        for (file, object) in &self.files {
            let (claim, number) = file;
            expected.clear();
            // Writing to a string does not fail.
            let _ = write!(expected, "{path}/file-{number}");
            match disk.data.get(object) {
                Some(found) if found.paths.contains(&expected) && found.file == *file => {}
                Some(found) => return Err(format!("has file-{number} of {claim} at {}", found.paths.join(", "))),
                None => return Err(format!("lost file-{number} of {claim}")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::oracle::disk::Occurrence;
    use crate::oracle::sources;

    #[test]
    fn an_object_that_waits_for_the_name_of_a_backup_is_not_that_of_the_backup() {
        let object = |backend: &str, directory: &str| {
            json!({
                "metadata": {"name": "backup"},
                "status": {"backendName": backend, "directory": directory},
            })
        };
        let backup = object("main", "archived-backup");
        let tree = sources::backup(&backup, &Disk::default(), "archived-backup");
        assert!(tree.is_archive(&backup));
        assert!(!tree.is_archive(&object("", "")));
        assert!(!tree.is_archive(&object("main", "")));
        assert!(!tree.is_archive(&object("other", "archived-backup")));
    }

    #[test]
    fn a_file_of_a_backup_may_also_be_in_other_backups() {
        let (root, object) = (Object { ino: 2, generation: 0 }, Object { ino: 3, generation: 0 });
        let file = ("claim".to_owned(), 1);
        let disk = |paths: &[&str]| {
            let mut disk = Disk::default();
            disk.paths.insert(root, "archived-backup".to_owned());
            let paths = paths.iter().map(|path| (*path).to_owned()).collect();
            let file = file.clone();
            disk.data.insert(object, Occurrence { file, paths });
            disk
        };
        let (other, own) = ("archived-another/file-1", "archived-backup/file-1");
        let archive = json!({"metadata": {"name": "backup"}});
        let mut tree = sources::backup(&archive, &disk(&[other, own]), "archived-backup");
        assert_eq!(tree.files.get(&file), Some(&object));
        for paths in [[own].as_slice(), &[own, other], &[other, own]] {
            assert_eq!(tree.follow(root, &disk(paths), &Claims::default()), Ok(()));
        }
        assert!(tree.follow(root, &disk(&[other]), &Claims::default()).is_err());
    }
}
