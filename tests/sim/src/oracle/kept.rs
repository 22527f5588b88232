//! Archives that have to be kept, whatever older objects say about them.

use jiff::Timestamp;

use super::disk::is_in_trash;
use super::trees::TreeKey;
use super::{Oracle, Violation, archives};
use crate::objects::{is_deleting, name, text};

/// Archives, and how long they have to be kept.
#[derive(Debug)]
pub struct KeptArchives(Vec<Kept>);

#[derive(Debug)]
struct Kept {
    archive: String,
    directory: TreeKey,
    /// `None`: it is held.
    until: Option<Timestamp>,
}

impl Oracle {
    /// Returns the archives that have to be kept from now on as long as their objects say now.
    pub fn kept_archives(&self) -> KeptArchives {
        let objects = self.api.all("nfsarchives");
        let objects = objects.iter().filter(|archive| !is_deleting(archive));
        let kept = objects.filter_map(|archive| {
            let until = match archives::is_held(archive) {
                true => None,
                false => Some(text(archive, "/spec/expirationTime").parse().ok()?),
            };
            let mut trees = self.trees.iter().filter(|(_, tree)| !tree.is_deleted);
            let (directory, _) = trees.find(|(_, tree)| tree.archive.as_deref() == Some(name(archive)))?;
            Some(Kept {
                archive: name(archive).to_owned(),
                directory: *directory,
                until,
            })
        });
        KeptArchives(kept.collect())
    }

    /// Checks that none of them is deleted before its time.
    ///
    /// # Errors
    /// The first one that is.
    pub fn check_kept(&mut self, kept: &KeptArchives) -> Result<(), Violation> {
        let (disks, now) = (self.read_disks(), self.api.now());
        let due = |kept: &&Kept| kept.until.is_none_or(|until| now < until);
        for archive in kept.0.iter().filter(due) {
            let (site, root) = archive.directory;
            let path = disks.get(site).and_then(|disk| disk.paths.get(&root));
            if path.is_none_or(|path| is_in_trash(path)) {
                let until = archive
                    .until
                    .map_or_else(|| "it was held".to_owned(), |until| format!("it is kept until {until}"));
                return Err(Violation(format!(
                    "the data of archive {} are deleted because of an older object, but {until}",
                    archive.archive
                )));
            }
        }
        Ok(())
    }
}
