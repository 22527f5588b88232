//! Exports on which nothing may change.

use std::collections::BTreeMap;

use super::{Disk, Oracle, Violation};
use crate::nfs_server::file_system::Object;

/// The files of users on each export, and the paths of each.
#[derive(Debug)]
pub struct Frozen(Vec<BTreeMap<Object, Vec<String>>>);

impl Oracle {
    /// Returns what may not change from now on.
    pub fn freeze(&self) -> Frozen {
        let paths = |disk: Disk| {
            let data = disk.data.into_iter();
            data.map(|(object, occurrence)| (object, occurrence.paths)).collect()
        };
        Frozen(self.sites.iter().map(|(_, site)| paths(Disk::read(site))).collect())
    }

    /// Checks that nothing was moved or removed.
    ///
    /// # Errors
    /// The first file that is not where it was.
    pub fn check_frozen(&mut self, frozen: &Frozen) -> Result<(), Violation> {
        let now = self.state();
        if self.seen == now {
            return Ok(());
        }
        self.seen = now;
        for (disk, expected) in self.read_disks().iter().zip(&frozen.0) {
            for (object, paths) in expected {
                let found = disk.data.get(object).map(|occurrence| &occurrence.paths);
                if found != Some(paths) {
                    let found = found.map_or_else(|| "nowhere".to_owned(), |found| found.join(", "));
                    return Err(Violation(format!(
                        "{} is at {found}, although the operator has an older state than the export",
                        paths.join(", ")
                    )));
                }
            }
        }
        Ok(())
    }
}
