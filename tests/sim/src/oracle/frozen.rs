//! Exports on which nothing may change.

use std::collections::BTreeMap;

use super::{Disk, Oracle, Violation};
use crate::nfs_server::file_system::Object;

/// The files of users on each export, and their paths.
#[derive(Debug)]
pub struct Frozen(Vec<BTreeMap<Object, String>>);

impl Oracle {
    /// Returns what may not change from now on.
    pub fn freeze(&self) -> Frozen {
        let paths = |disk: Disk| {
            let data = disk.data.into_iter();
            data.map(|(object, occurrence)| (object, occurrence.path)).collect()
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
            for (object, path) in expected {
                let found = disk.data.get(object).map(|occurrence| occurrence.path.as_str());
                if found != Some(path) {
                    let found = found.unwrap_or("nowhere");
                    return Err(Violation(format!(
                        "{path} is at {found}, although the operator has an older state than the export"
                    )));
                }
            }
        }
        Ok(())
    }
}
