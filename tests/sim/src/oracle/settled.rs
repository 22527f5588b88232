//! What must hold once faults have stopped for a while.

use std::collections::BTreeSet;

use serde_json::Value;

use super::disk::{OWN_FOLDER, is_in_trash, is_within};
use super::{Disk, Oracle, archives};
use crate::actors::users::NAMESPACES;
use crate::nfs_server::FileSystem;
use crate::objects::{at, is_deleting, name, text, uid};

/// Reasons of a backend whose export is full.
const LACK_OF_SPACE: [&str; 3] = ["NoSpace", "NoInodes", "QuotaExceeded"];

impl Oracle {
    /// Returns what the operator still has to do, or nothing.
    pub fn unsettled(&mut self) -> Vec<String> {
        let disks = self.read_disks();
        let mut left = Vec::new();
        self.unsettled_claims(&mut left);
        self.unsettled_volumes(&mut left);
        self.unsettled_archives(&mut left);
        left.extend(self.unsettled_backends());
        // A deleted backend leaves its export as it is.
        let backends = self.api.all("nfsbackends");
        let sites: BTreeSet<usize> = backends
            .iter()
            .filter_map(|backend| self.sites.of_backend(backend))
            .collect();
        for (index, disk) in disks.iter().enumerate().filter(|(index, _)| sites.contains(index)) {
            self.unsettled_disk(index, disk, &mut left);
        }
        left
    }

    /// Every claim is bound, or reports why not.
    fn unsettled_claims(&self, left: &mut Vec<String>) {
        for claim in self.api.all("persistentvolumeclaims") {
            let conditions = at(&claim, "/status/conditions").and_then(Value::as_array);
            let conditions: Vec<&Value> = conditions.into_iter().flatten().collect();
            let find = |type_: &str| {
                let found = conditions.iter().find(|condition| text(condition, "/type") == type_);
                found.copied()
            };
            let condition = find("nfs-operator.io/Provisioned");
            let phase = text(&claim, "/status/phase");
            let reported = condition.is_some_and(|condition| match phase {
                "Bound" => text(condition, "/status") == "True",
                _ => text(condition, "/status") == "False",
            });
            // A claim whose user chose its volume is the volume controller's task.
            let chose_volume = self.claims.get(uid(&claim)).is_some_and(|claim| claim.chose_volume);
            if !reported && !is_deleting(&claim) && !chose_volume {
                left.push(format!(
                    "claim {} is {phase}, with the condition {condition:?}",
                    name(&claim)
                ));
            }
            let is_missing =
                find("nfs-operator.io/DirectoryMissing").is_some_and(|found| text(found, "/status") == "True");
            if phase == "Bound" && !is_deleting(&claim) && self.was_given_in_vain(uid(&claim)) && !is_missing {
                left.push(format!(
                    "claim {} does not say that its directory is missing",
                    name(&claim)
                ));
            }
        }
    }

    /// Every released volume that is to be reclaimed is gone.
    fn unsettled_volumes(&self, left: &mut Vec<String>) {
        for volume in self.api.all("persistentvolumes") {
            let phase = text(&volume, "/status/phase");
            let is_kept = text(&volume, "/spec/persistentVolumeReclaimPolicy") == "Retain";
            if phase == "Released" && !is_kept || is_deleting(&volume) {
                left.push(format!("volume {} is {phase}", name(&volume)));
            }
        }
    }

    /// Every backend serves claims, unless it is suspended or being deleted, or reports that its export is full.
    pub fn unsettled_backends(&self) -> Vec<String> {
        let mut left = Vec::new();
        for backend in self.api.all("nfsbackends") {
            let is_suspended = at(&backend, "/spec/suspend") == Some(&Value::Bool(true));
            let conditions = at(&backend, "/status/conditions").and_then(Value::as_array);
            let mut conditions = conditions.into_iter().flatten();
            let ready = conditions.find(|condition| text(condition, "/type") == "Ready");
            let is_ready = ready.is_some_and(|ready| text(ready, "/status") == "True");
            let reason = ready.map_or("", |ready| text(ready, "/reason"));
            let is_full = LACK_OF_SPACE.contains(&reason) && self.is_full(&backend);
            if !is_ready && !is_suspended && !is_deleting(&backend) && !is_full {
                left.push(format!("backend {} is not ready: {reason}", name(&backend)));
            }
        }
        left
    }

    /// Returns true if the export of a backend has no space or no inodes. Perhaps there is nothing on it that the operator
    /// could delete.
    fn is_full(&self, backend: &Value) -> bool {
        let site = self.sites.of_backend(backend).and_then(|index| self.sites.get(index));
        let free = site.and_then(|site| site.server.inspect(site.disk, FileSystem::statistics).ok());
        free.is_some_and(|free| free.available == 0 || free.inodes_free == 0)
    }

    /// Every archive has a state, those that are deleted are gone, and no backup is still being copied. An archive whose
    /// volume was retained is kept with it.
    fn unsettled_archives(&self, left: &mut Vec<String>) {
        for archive in self.api.all("nfsarchives") {
            let state = text(&archive, "/status/state");
            let is_stuck = is_deleting(&archive) && !archives::is_held(&archive) || state == "Copying";
            if state.is_empty() || is_stuck && !self.has_volume(&archive) {
                left.push(format!("archive {} is {state:?}", name(&archive)));
            }
        }
    }

    /// Returns the archives that have expired and are not purged.
    pub fn expired(&self) -> Vec<String> {
        let (backends, now) = (self.api.all("nfsbackends"), self.api.now());
        let must_be_purged = |archive: &Value| {
            let backend = backends
                .iter()
                .find(|backend| name(backend) == text(archive, "/status/backendName"));
            let backend = backend.map(|backend| &**backend);
            archives::must_be_purged(archive, backend, now) && !self.has_volume(archive)
        };
        let archives = self.api.all("nfsarchives");
        let expired = archives.iter().filter(|archive| must_be_purged(archive));
        expired
            .map(|archive| format!("archive {} has expired", name(archive)))
            .collect()
    }

    fn has_volume(&self, archive: &Value) -> bool {
        let volumes = self.api.all("persistentvolumes");
        volumes.iter().any(|volume| name(volume) == name(archive))
    }

    /// Every directory belongs to a volume, to an archive or to a stranger, or is retained, and the trash is empty. No parent
    /// that the operator made is empty.
    fn unsettled_disk(&self, site: usize, disk: &Disk, left: &mut Vec<String>) {
        let mut known = self.known_directories(site, disk);
        let kept = disk
            .directories
            .keys()
            .filter(|path| self.claims.is_copy_without_source(path));
        known.extend(kept.cloned());
        for path in disk.directories.keys() {
            if is_in_trash(path) && !path.ends_with("/trash") {
                left.push(format!("{path} is in the trash"));
            }
            let belongs = path.is_empty()
                || path.starts_with(OWN_FOLDER)
                || NAMESPACES.contains(&path.as_str())
                || known.iter().any(|known| is_within(path, known))
                || self.is_above_strangers(site, path);
            if !belongs {
                left.push(format!("{path} belongs to nobody"));
            }
        }
        for parent in disk.recorded_parents.values() {
            let below = format!("{parent}/");
            let mut paths = disk.directories.keys().chain(disk.files.keys());
            let is_empty = !paths.any(|path| path.starts_with(&below));
            if disk.directories.contains_key(parent) && is_empty {
                left.push(format!("the parent {parent} is empty"));
            }
        }
        let archives = self.api.all("nfsarchives");
        for path in disk.data.values().flat_map(|occurrence| &occurrence.paths) {
            // A backup whose claim was deleted while it was copied keeps what it has until its object is deleted.
            let is_of_backup = archives
                .iter()
                .any(|archive| path.contains(&format!("/staging/{}/", name(archive))));
            if path.starts_with(OWN_FOLDER) && !is_of_backup {
                left.push(format!("{path} is left in the operator's folder"));
            }
        }
    }

    /// Returns the directories of volumes and archives, and those that are retained.
    fn known_directories(&self, site: usize, disk: &Disk) -> BTreeSet<String> {
        let volumes = self.api.all("persistentvolumes");
        let located = volumes.iter().filter_map(|volume| self.sites.of_volume(volume));
        let mut known: BTreeSet<String> = located
            .filter(|(found, _)| *found == site)
            .map(|(_, directory)| directory.to_owned())
            .collect();
        let archives = self.api.all("nfsarchives");
        known.extend(
            archives
                .iter()
                .map(|archive| text(archive, "/status/directory").to_owned()),
        );
        // An archive whose object was deleted, and whose name another backup has that waits.
        known.extend(archives.iter().map(|archive| format!("archived-{}", name(archive))));
        // A backup whose object was deleted as soon as it was complete.
        known.extend(self.released.names().map(|name| format!("archived-{name}")));
        let retained = self
            .trees
            .iter()
            .filter(|((found, _), tree)| *found == site && tree.fate.retained && tree.archive.is_none());
        known.extend(retained.map(|(_, tree)| tree.path.clone()));
        let trees = self.trees.values();
        let released = trees.filter(|tree| self.released.contains(tree.archive_name()));
        known.extend(released.map(|tree| tree.path.clone()));
        known.extend(self.reported_orphans(disk));
        known.remove("");
        known
    }

    /// Returns the directories that the operator reports as orphans, and that it leaves to administrators. A copy that was
    /// complete when its claim was deleted, just before the volume was created, may be a volume's. A backend whose export
    /// cannot be used is removed at once, and leaves what it had begun for claims, which contains nothing.
    fn reported_orphans(&self, disk: &Disk) -> Vec<String> {
        let mut reported = Vec::new();
        for backend in self.api.all("nfsbackends") {
            let list = |value: &Value, field: &str| {
                let items = value.pointer(field).and_then(Value::as_array);
                items.cloned().unwrap_or_default()
            };
            for kind in list(&backend, "/status/orphans/kinds") {
                let has_no_backend = text(&kind, "/kind") == "RecordWithoutBackend";
                let may_stay = |directory: &String| {
                    let is_empty = disk.data_in(directory).next().is_none();
                    self.claims.is_unused_copy(directory) || has_no_backend && is_empty
                };
                let examples = list(&kind, "/examples").into_iter();
                let directories = examples.map(|orphan| text(&orphan, "/directory").to_owned());
                reported.extend(directories.filter(may_stay));
            }
        }
        reported
    }

    pub(super) fn is_above_strangers(&self, site: usize, path: &str) -> bool {
        let files = self.strangers.get(site);
        files.is_some_and(|files| files.keys().any(|file| is_within(file, path)))
    }
}
