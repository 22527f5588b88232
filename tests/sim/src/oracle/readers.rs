//! Who may read what: no volume shows a namespace the data of another one, unless somebody who may do so permitted it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::claims::tenant;
use super::disk::{Disk, Occurrence};
use super::{Located, Oracle, Violation};
use crate::actors::nodes::DataFile;
use crate::objects::{at, name, text};

/// The namespaces, by UID, that may read each file.
#[derive(Debug, Default)]
pub struct Readers(BTreeMap<DataFile, BTreeSet<String>>);

impl Readers {
    /// Permits a namespace to read a file.
    pub fn add(&mut self, file: &DataFile, tenant: &str) {
        if !self.includes(file, tenant) {
            self.0.entry(file.clone()).or_default().insert(tenant.to_owned());
        }
    }

    /// Returns true if a namespace may read a file.
    pub fn includes(&self, file: &DataFile, tenant: &str) -> bool {
        self.0.get(file).is_some_and(|tenants| tenants.contains(tenant))
    }
}

/// Returns the directories above a path, from the top.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(end, _)| path.get(..end))
}

/// Checks that a file with several names is either in one volume or in none: backups share files, and a pod writes to those of
/// its volume.
fn check_names(found: &Occurrence, is_volume: impl Fn(&str) -> bool) -> Result<(), Violation> {
    let volume_of = |path: &String| above(path).find(|above| is_volume(above)).map(str::to_owned);
    let volumes: BTreeSet<Option<String>> = found.paths.iter().map(volume_of).collect();
    match volumes.len() > 1 {
        true => Err(Violation(format!(
            "one file of a volume is at {}",
            found.paths.join(", ")
        ))),
        false => Ok(()),
    }
}

impl Oracle {
    /// A volume or an archive contains what was written through its claim and, if the claim asked for other data, what its
    /// namespace may read.
    pub(super) fn check_readers(&mut self, disks: &[Arc<Disk>], volumes: &[Located]) -> Result<(), Violation> {
        self.permit_restores();
        let of_volumes = volumes.iter().map(|located| {
            let owner = text(&located.volume, "/spec/claimRef/uid");
            ((located.site, located.directory.as_str()), owner)
        });
        let volumes: BTreeMap<(usize, &str), &str> = of_volumes.collect();
        let archives = self
            .trees
            .iter()
            .filter(|(_, tree)| tree.archive.is_some() && !tree.is_deleted);
        let mut owners: BTreeMap<(usize, &str), &str> = archives
            .map(|((site, _), tree)| ((*site, tree.path.as_str()), tree.claim.as_str()))
            .collect();
        owners.extend(&volumes);
        for (site, disk) in disks.iter().enumerate() {
            for found in disk.data.values().filter(|found| found.paths.len() > 1) {
                check_names(found, |above| volumes.contains_key(&(site, above)))?;
            }
            let found = disk.data.values();
            for (file, path) in found.flat_map(|found| found.paths.iter().map(|path| (&found.file, path))) {
                let owner = above(path).find_map(|above| owners.get(&(site, above)));
                // A volume that an administrator made available belongs to nobody, and so does a backup.
                let Some(owner) = owner.filter(|owner| !owner.is_empty()) else {
                    continue;
                };
                self.check_reader(file, owner)
                    .map_err(|cause| Violation(format!("{path} {cause}")))?;
            }
        }
        Ok(())
    }

    fn check_reader(&self, file: &DataFile, owner: &str) -> Result<(), String> {
        let (writer, number) = file;
        let is_permitted = self
            .claims
            .get(owner)
            .is_some_and(|claim| claim.may_have_more() && self.readers.includes(file, &claim.tenant));
        match writer == owner || is_permitted {
            true => Ok(()),
            false => Err(format!(
                "has the content of file-{number} of {}, and is in a volume or an archive of {}",
                self.claims.shown(writer),
                self.claims.shown(owner)
            )),
        }
    }

    /// Permits what archives and their backends permit.
    fn permit_restores(&mut self) {
        let backends = self.api.all("nfsbackends");
        for archive in self.api.all("nfsarchives") {
            let listed = at(&archive, "/spec/allowedNamespaces/matchNames");
            let mut names: Vec<&str> = listed
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let backend = backends
                .iter()
                .find(|backend| name(backend) == text(&archive, "/status/backendName"));
            let by_name = backend.and_then(|backend| at(backend, "/spec/archivePolicy/restoreByName"));
            if by_name == Some(&Value::Bool(true)) {
                names.push(text(&archive, "/spec/claimRef/namespace"));
            }
            let tenants: Vec<String> = names.into_iter().filter_map(|name| tenant(&self.api, name)).collect();
            if tenants.is_empty() {
                continue;
            }
            let trees = self.trees.values();
            for tree in trees.filter(|tree| tree.archive.is_some() && tree.is_archive(&archive)) {
                for (file, tenant) in tree
                    .files
                    .keys()
                    .flat_map(|file| tenants.iter().map(move |to| (file, to)))
                {
                    self.readers.add(file, tenant);
                }
            }
        }
    }
}
