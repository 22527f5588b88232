//! The oracle: it knows the owner of every byte, and which data may be gone.
//!
//! It sees the API server and the servers' disks as they are, not through the operator. [`Oracle::look`] tests what must
//! hold at every moment; [`Oracle::unsettled`] what must hold once faults have stopped for a while.
//!
//! Its unit is the directory with the data of a volume or an archive ([`trees`]), by inode: the operator renames it as a
//! whole, and every file that a pod wrote into it has to stay in it. Copies are other inodes with the same content, which
//! says who wrote it. Each file has readers ([`readers`]): the namespaces whose volumes may contain it or a copy.

mod archives;
mod claims;
mod disk;
mod frozen;
mod kept;
mod readers;
mod settled;
mod sources;
mod trees;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::actors::administrator;
use crate::actors::nodes::Written;
use crate::api_server::ApiServer;
use crate::objects::{name, text, uid};
use crate::sites::Sites;

use archives::{Ages, Released};
use claims::Claims;
use readers::Readers;
use sources::Backups;
use trees::{Fate, Tree, TreeKey};

use disk::is_within;
pub use disk::{DISK, Disk, OWN_FOLDER};
pub use kept::KeptArchives;

/// The kinds of objects that it looks at.
const KINDS: [&str; 5] = [
    "persistentvolumeclaims",
    "persistentvolumes",
    "namespaces",
    "nfsbackends",
    "nfsarchives",
];

/// The kinds that decide when archives may be purged.
const PURGE_KINDS: [&str; 2] = ["nfsarchives", "nfsbackends"];

/// A rule that was violated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// A volume and where it is.
#[derive(Debug)]
struct Located {
    volume: Arc<Value>,
    site: usize,
    directory: String,
}

/// The oracle.
#[derive(Debug)]
pub struct Oracle {
    api: ApiServer,
    sites: Sites,
    claims: Claims,
    trees: BTreeMap<TreeKey, Tree>,
    readers: Readers,
    backups: Backups,
    /// Names of archives that exist or existed.
    archives: BTreeSet<String>,
    released: Released,
    /// Files of strangers on each export: they never change.
    strangers: Vec<BTreeMap<String, Vec<u8>>>,
    /// What it saw last: the resource version, and the newest change of each disk.
    seen: (u64, Vec<u64>),
    /// The disks as they were read last.
    disks: Vec<Arc<Disk>>,
    /// From when on archives may be purged, as things are between two resource versions: of the last archive that was seen,
    /// and of what decides about it.
    purges: ((u64, u64), Purges),
}

/// Archives, and from when on each may be purged.
type Purges = Vec<(Arc<Value>, Timestamp)>;

impl Oracle {
    /// Returns an oracle that takes all files that exist for those of strangers.
    pub fn new(api: ApiServer, sites: Sites) -> Self {
        let strangers = sites.iter().map(|(_, site)| Disk::read(site).files).collect();
        Self {
            api,
            sites,
            claims: Claims::default(),
            trees: BTreeMap::new(),
            readers: Readers::default(),
            backups: Backups::default(),
            archives: BTreeSet::new(),
            released: Released::default(),
            strangers,
            seen: (0, Vec::new()),
            disks: Vec::new(),
            purges: ((0, 0), Vec::new()),
        }
    }

    /// Records a file that a pod wrote.
    pub fn written(&mut self, written: Written) {
        if let Some(claim) = self.claims.get(&written.file.0) {
            self.readers.add(&written.file, &claim.tenant);
        }
        if let Some(tree) = self.trees.get_mut(&(written.site, written.directory)) {
            tree.files.insert(written.file, written.object);
        }
    }

    /// Looks at everything, and checks what must hold at every moment. Call it after each change that an actor made, and
    /// every now and then.
    ///
    /// # Errors
    /// The first violation.
    pub fn look(&mut self) -> Result<(), Violation> {
        self.permit_purges();
        let now = self.state();
        if self.seen == now {
            return Ok(());
        }
        self.seen = now;
        let disks = self.read_disks();
        let volumes = self.volumes()?;
        let new_claims = self.claims.observe(&self.api);
        self.observe_archives(&disks)?;
        self.observe_volumes(&disks, &volumes);
        self.observe_sources(&new_claims);
        self.permit_reclaims();
        // Again, for what was observed just now.
        self.permit_purges();
        self.check_strangers(&disks)?;
        self.check_readers(&disks, &volumes)?;
        self.check_trees(&disks)?;
        self.check_objects(&volumes)?;
        self.check_copies(&disks)
    }

    /// Reads what has changed on the disks.
    fn read_disks(&mut self) -> Vec<Arc<Disk>> {
        self.disks.resize_with(self.sites.iter().count(), Arc::default);
        for ((_, site), disk) in self.sites.iter().zip(&mut self.disks) {
            match Arc::get_mut(disk) {
                Some(disk) => disk.update(site),
                // Somebody has what it was.
                None => *disk = Arc::new(Disk::read(site)),
            }
        }
        self.disks.clone()
    }

    /// Returns what differs if anything has changed that it looks at.
    fn state(&self) -> (u64, Vec<u64>) {
        let newest = self.sites.iter().map(|(_, site)| {
            let change = site.server.inspect(site.disk, |disk| disk.newest_change());
            change.unwrap_or(0)
        });
        (self.api.revision_of(&KINDS), newest.collect())
    }

    /// Returns the volumes and where they are, except those that administrators created themselves, and those that share a
    /// directory of strangers. No two others have the same directory, and none lies in another.
    fn volumes(&self) -> Result<Vec<Located>, Violation> {
        let mut located: Vec<Located> = Vec::new();
        for volume in self.api.all("persistentvolumes") {
            if !text(&volume, "/metadata/labels/static").is_empty() {
                continue;
            }
            let Some((site, directory)) = self.sites.of_volume(&volume) else {
                let path = text(&volume, "/spec/nfs/path");
                return Err(Violation(format!("volume {} is at {path}", name(&volume))));
            };
            // Volumes share what belongs to strangers.
            if self.is_above_strangers(site, directory) {
                continue;
            }
            let overlaps = |other: &&Located| {
                other.site == site && (is_within(directory, &other.directory) || is_within(&other.directory, directory))
            };
            if let Some(other) = located.iter().find(overlaps) {
                let other = &other.directory;
                return Err(Violation(format!("two volumes overlap: {directory} and {other}")));
            }
            let directory = directory.to_owned();
            located.push(Located {
                volume,
                site,
                directory,
            });
        }
        Ok(located)
    }

    /// Finds the archives whose objects exist, although nothing describes them yet: between two looks, an archive can be
    /// described and restored.
    fn observe_created_archives(&mut self, archives: &[Arc<Value>]) {
        let undescribed = self.trees.values_mut().filter(|tree| tree.is_undescribed_archive());
        for tree in undescribed {
            tree.archive = archives
                .iter()
                .any(|archive| name(archive) == tree.volume)
                .then(|| tree.volume.clone());
        }
    }

    /// Finds the directories of archives.
    fn observe_archives(&mut self, disks: &[Arc<Disk>]) -> Result<(), Violation> {
        let backends = self.api.all("nfsbackends");
        let archives = self.api.all("nfsarchives");
        self.observe_created_archives(&archives);
        for archive in archives {
            let backend = backends
                .iter()
                .find(|backend| name(backend) == text(&archive, "/status/backendName"));
            let directory = text(&archive, "/status/directory");
            let site = backend.and_then(|backend| self.sites.of_backend(backend));
            let Some(site) = site.filter(|_| !directory.is_empty()) else {
                self.backups.requested(&archive, &self.claims, &self.trees);
                continue;
            };
            if !self.archives.contains(name(&archive)) {
                self.archives.insert(name(&archive).to_owned());
                archives::check_times(&archive, self.api.now())?;
            }
            let Some(disk) = disks.get(site) else { continue };
            let Some(root) = disk.directories.get(directory) else {
                continue;
            };
            if let Some(tree) = self.trees.get_mut(&(site, *root)) {
                tree.is_new_archive = tree.archive.replace(name(&archive).to_owned()).is_none();
                if let Some(claim) = self.claims.get(&tree.claim).filter(|claim| !claim.is_checked) {
                    // Perhaps it is a copy whose claim was never bound: nobody has looked at its content.
                    let mut found = sources::files_in(disk, directory);
                    found.retain(|file, _| file.0 == tree.claim || self.readers.includes(file, &claim.tenant));
                    tree.add_files(found);
                }
            } else if archives::is_backup(&archive) {
                let tree = sources::backup(&archive, disk, directory);
                self.backups.check(&archive, disk, directory)?;
                self.trees.insert((site, *root), tree);
            } else if let Some(claim) = self.claims.get(text(&archive, "/status/claimUID")) {
                // Its volume was created and archived since the last look.
                let tree = sources::archive(&archive, claim, directory);
                self.trees.insert((site, *root), tree);
            }
        }
        Ok(())
    }

    /// Finds the directories of volumes, and who has them.
    fn observe_volumes(&mut self, disks: &[Arc<Disk>], volumes: &[Located]) {
        for located in volumes {
            let owner = text(&located.volume, "/spec/claimRef/uid");
            let root = disks
                .get(located.site)
                .and_then(|disk| disk.directories.get(&located.directory));
            let (Some(root), Some(claim)) = (root, self.claims.get(owner)) else {
                continue;
            };
            let key = (located.site, *root);
            let known = self.trees.get(&key);
            if known.is_some_and(|tree| tree.claim == owner && tree.archive.is_none()) {
                continue;
            }
            let volume = name(&located.volume);
            let is_same_volume = known.is_some_and(|tree| tree.volume == volume);
            let policy = match known {
                Some(tree) if is_same_volume => tree.policy.clone(),
                _ => claim.policy.clone(),
            };
            let mut files = known.map(|tree| tree.files.clone()).unwrap_or_default();
            let is_given = claim.chose_volume && is_same_volume;
            if let Some(disk) = disks.get(located.site).filter(|_| is_given) {
                // Perhaps it is a copy, and no claim was bound to it before: nobody has looked at its content.
                files.extend(sources::files_in(disk, &located.directory));
            }
            let takes_it = is_given || claim.adopts && located.directory.starts_with(&format!("{}/", claim.namespace));
            if takes_it {
                for file in files.keys() {
                    self.readers.add(file, &claim.tenant);
                }
            }
            let backend = text(&located.volume, "/metadata/annotations/nfs-operator.io~1backend");
            let tree = Tree {
                claim: owner.to_owned(),
                volume: volume.to_owned(),
                policy,
                backend: backend.to_owned(),
                archive: None,
                path: located.directory.clone(),
                files,
                fate: Fate::default(),
                is_new_archive: false,
                is_deleted: false,
            };
            self.trees.insert(key, tree);
        }
    }

    /// Records the policies that are in force for the data of deleted claims.
    fn permit_reclaims(&mut self) {
        let (volumes, backends) = (self.api.all("persistentvolumes"), self.api.all("nfsbackends"));
        let volumes: BTreeMap<&str, &Arc<Value>> = volumes.iter().map(|volume| (name(volume), volume)).collect();
        for tree in self.trees.values_mut() {
            if tree.claim.is_empty() || self.claims.exists(&tree.claim) {
                continue;
            }
            let volume = volumes.get(tree.volume.as_str());
            let is_kept = volume.is_some_and(|volume| text(volume, "/spec/persistentVolumeReclaimPolicy") == "Retain");
            let of_backend = || {
                let backend = backends.iter().find(|backend| name(backend) == tree.backend)?;
                Some(administrator::policy_of_backend(backend))
            };
            match tree.policy.clone().or_else(of_backend).as_deref() {
                _ if is_kept => tree.fate.retained = true,
                Some("archive") => tree.fate.archived = true,
                Some("delete") => tree.fate.deleted = true,
                Some("retain") => tree.fate.retained = true,
                _ => {}
            }
        }
    }

    /// Records which archives may be purged now. An object may have been created and deleted again since the last time.
    fn permit_purges(&mut self) {
        // What was seen before the newest change of an archive makes no difference.
        let seen = self.seen.0.min(self.api.revision_of(&["nfsarchives"]));
        let revisions = (seen, self.api.revision_of(&PURGE_KINDS));
        if self.purges.0 != revisions {
            self.purges = (revisions, self.find_purges());
        }
        let now = self.api.now();
        let due = self.purges.1.iter().filter(|(_, from)| now >= *from);
        for (archive, _) in due {
            for tree in self.trees.values_mut() {
                if tree.is_archive(archive) {
                    tree.fate.purgeable = Some(Instant::now());
                }
            }
        }
    }

    /// Returns the archives that may be purged at some time as things are, including those that were deleted since the
    /// last look, and that time. Records which of them are released.
    fn find_purges(&mut self) -> Purges {
        let archives = self.api.all("nfsarchives");
        let backends = self.api.all("nfsbackends");
        let changes = self.api.changes_of("nfsarchives", self.seen.0);
        let changed = changes.iter().map(|change| &change.object);
        let ages = Ages::new(archives.iter().map(|archive| &**archive));
        let purges = archives.iter().chain(changed).filter_map(|archive| {
            self.released.observe(archive);
            let backend = backends
                .iter()
                .find(|backend| name(backend) == text(archive, "/status/backendName"));
            let from = archives::purgeable_from(archive, backend.map(|backend| &**backend), &ages)?;
            Some((Arc::clone(archive), from))
        });
        purges.collect()
    }

    /// Files of strangers are where they were.
    fn check_strangers(&self, disks: &[Arc<Disk>]) -> Result<(), Violation> {
        for (files, disk) in self.strangers.iter().zip(disks) {
            for (path, content) in files {
                if disk.files.get(path) != Some(content) {
                    return Err(Violation(format!(
                        "{path}, which belongs to nobody here, was changed or removed"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The volume of an archived directory is there until its archive has an object.
    fn check_objects(&self, volumes: &[Located]) -> Result<(), Violation> {
        let undescribed = |tree: &&Tree| !tree.is_deleted && tree.is_undescribed_archive();
        for tree in self.trees.values().filter(undescribed) {
            let has_volume = volumes.iter().any(|located| name(&located.volume) == tree.volume);
            if !has_volume && !self.had_archive(&tree.volume) {
                let (path, claim) = (&tree.path, self.claims.shown(&tree.claim));
                return Err(Violation(format!(
                    "{path} of claim {claim} has neither a volume nor an archive"
                )));
            }
        }
        Ok(())
    }

    /// Returns true if an archive of a volume has or had an object, as far as that is known.
    fn had_archive(&self, volume: &str) -> bool {
        let is_known = self.archives.contains(volume) || self.released.contains(volume);
        let existing = || {
            self.api
                .all("nfsarchives")
                .iter()
                .any(|archive| name(archive) == volume)
        };
        let changes = || self.api.changes_of("nfsarchives", 0);
        is_known || existing() || changes().iter().any(|change| name(&change.object) == volume)
    }

    /// Every directory is where it belongs, with all files in it.
    fn check_trees(&mut self, disks: &[Arc<Disk>]) -> Result<(), Violation> {
        for ((site, root), tree) in &mut self.trees {
            let Some(disk) = disks.get(*site) else { continue };
            tree.follow(*root, disk, &self.claims).map_err(|cause| {
                let holder = tree.archive.as_deref().unwrap_or(&tree.volume);
                let claim = self.claims.shown(&tree.claim);
                Violation(format!("the data of {holder}, of claim {claim}, {cause}"))
            })?;
        }
        Ok(())
    }

    /// Returns true if a claim was given a volume whose directory had been reclaimed: the policy of the volume was set
    /// to Retain only after that. Its pods wait, and the claim has to say why.
    pub fn was_given_in_vain(&self, claim: &str) -> bool {
        let chose_volume = self.claims.get(claim).is_some_and(|claim| claim.chose_volume);
        // Not even one that was archived or deleted since.
        chose_volume && self.trees.values().all(|tree| tree.claim != claim)
    }

    /// Returns the directory of a claim's volume.
    fn tree_of_claim(&self, claim: &str) -> Option<(TreeKey, &Tree)> {
        let found = self
            .trees
            .iter()
            .find(|(_, tree)| tree.claim == claim && tree.archive.is_none());
        found.map(|(key, tree)| (*key, tree))
    }
}

/// Returns the UIDs of claims that are bound.
fn bound_claims(api: &ApiServer) -> Vec<String> {
    let mut claims = api.all("persistentvolumeclaims");
    claims.retain(|claim| text(claim, "/status/phase") == "Bound");
    claims.iter().map(|claim| uid(claim).to_owned()).collect()
}
