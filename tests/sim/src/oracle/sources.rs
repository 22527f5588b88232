//! Copies are complete: a claim that is bound, and a backup that is available, contain what their source contained when
//! they were requested.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::claims::{Claim, Claims, Source};
use super::disk::Disk;
use super::trees::{Fate, Tree, TreeKey};
use super::{Oracle, Violation, bound_claims};
use crate::actors::nodes::DataFile;
use crate::nfs_server::file_system::Object;
use crate::objects::{name, text, uid};

/// The backups that were requested, by UID, and what their claims contained then.
#[derive(Debug, Default)]
pub struct Backups(BTreeMap<String, Source>);

impl Backups {
    /// Records a backup that is requested and not made yet.
    pub fn requested(&mut self, backup: &Value, claims: &Claims, trees: &BTreeMap<TreeKey, Tree>) {
        if self.0.contains_key(uid(backup)) {
            return;
        }
        let shown = format!(
            "{}/{}",
            text(backup, "/spec/claimRef/namespace"),
            text(backup, "/spec/claimRef/name")
        );
        let claim = claims.named(&shown).unwrap_or_default().to_owned();
        let tree = trees
            .iter()
            .find(|(_, tree)| tree.claim == claim && tree.archive.is_none());
        let source = Source {
            tree: tree.map(|(key, _)| *key),
            files: tree
                .map(|(_, tree)| tree.files.keys().cloned().collect())
                .unwrap_or_default(),
            claim,
        };
        self.0.insert(uid(backup).to_owned(), source);
    }

    /// Checks a backup that is complete.
    ///
    /// # Errors
    /// A file is missing.
    pub fn check(&self, backup: &Value, disk: &Disk, directory: &str) -> Result<(), Violation> {
        let source = self.0.get(uid(backup));
        let source = source.filter(|source| source.claim == text(backup, "/status/claimUID"));
        let mut files = source.into_iter().flat_map(|source| &source.files);
        match files.find(|file| !disk.has_data(directory, file)) {
            None => Ok(()),
            Some((claim, number)) => Err(Violation(format!(
                "backup {} is complete without file-{number} of {claim}",
                name(backup)
            ))),
        }
    }
}

/// Returns a file of a source that a copy does not have.
fn missing<'a>(source: &'a Source, copy: &Tree) -> Option<&'a DataFile> {
    source.files.iter().find(|file| !copy.files.contains_key(*file))
}

/// Returns the directory of a complete backup.
pub fn backup(archive: &Value, disk: &Disk, directory: &str) -> Tree {
    Tree {
        files: files_in(disk, directory),
        ..described(archive, directory)
    }
}

/// Returns the directory of an archive whose volume nobody saw, as if it had no files yet.
pub fn archive(archive: &Value, claim: &Claim, directory: &str) -> Tree {
    Tree {
        claim: text(archive, "/status/claimUID").to_owned(),
        volume: name(archive).to_owned(),
        policy: claim.policy.clone(),
        ..described(archive, directory)
    }
}

/// Returns the directory of an archive, of no volume and without files.
fn described(archive: &Value, directory: &str) -> Tree {
    Tree {
        claim: String::new(),
        volume: String::new(),
        policy: None,
        backend: text(archive, "/status/backendName").to_owned(),
        archive: Some(name(archive).to_owned()),
        path: directory.to_owned(),
        files: BTreeMap::new(),
        fate: Fate::default(),
        is_new_archive: false,
        is_deleted: false,
    }
}

/// Returns the files in a directory, with their inodes.
pub fn files_in(disk: &Disk, directory: &str) -> BTreeMap<DataFile, Object> {
    disk.data_in(directory)
        .map(|(object, file)| (file.clone(), object))
        .collect()
}

impl Oracle {
    /// Records the data sources of new claims, and what they contain.
    pub(super) fn observe_sources(&mut self, new_claims: &[String]) {
        if new_claims.is_empty() {
            return;
        }
        for object in self.api.all("persistentvolumeclaims") {
            let named = text(&object, "/spec/dataSourceRef/name");
            if !new_claims.iter().any(|new| new == uid(&object)) || named.is_empty() {
                continue;
            }
            let is_archive = text(&object, "/spec/dataSourceRef/kind") == "NfsArchive";
            let source = match is_archive {
                true => self.source_archive(named),
                false => self.source_claim(&format!("{}/{named}", text(&object, "/metadata/namespace"))),
            };
            if let Some(claim) = self.claims.get_mut(uid(&object)) {
                claim.source = Some(source);
            }
        }
    }

    fn source_archive(&self, named: &str) -> Source {
        let tree = self
            .trees
            .iter()
            .find(|(_, tree)| tree.archive.as_deref() == Some(named) && !tree.is_deleted);
        Source {
            claim: String::new(),
            tree: tree.map(|(key, _)| *key),
            files: tree
                .map(|(_, tree)| tree.files.keys().cloned().collect())
                .unwrap_or_default(),
        }
    }

    fn source_claim(&self, shown: &str) -> Source {
        let claim = self.claims.named(shown).unwrap_or_default().to_owned();
        let tree = self.tree_of_claim(&claim).filter(|_| !claim.is_empty());
        let files: BTreeSet<DataFile> = tree
            .map(|(_, tree)| tree.files.keys().cloned().collect())
            .unwrap_or_default();
        Source {
            tree: tree.map(|(key, _)| key),
            files,
            claim,
        }
    }

    /// Checks the content of claims that were bound since the last look, and from then on keeps it.
    pub(super) fn check_copies(&mut self, disks: &[Arc<Disk>]) -> Result<(), Violation> {
        for bound in bound_claims(&self.api) {
            let key = self.tree_of_claim(&bound).map(|(key, _)| key);
            let Some(claim) = self.claims.get(&bound).filter(|claim| !claim.is_checked).cloned() else {
                continue;
            };
            let Some(((site, _), tree)) = key.and_then(|key| Some((key, self.trees.get_mut(&key)?))) else {
                continue;
            };
            if let Some(disk) = disks.get(site) {
                tree.files.extend(files_in(disk, &tree.path));
            }
            let source = claim.source.as_ref().filter(|source| self.is_unchanged(source));
            let tree = key.and_then(|key| self.trees.get(&key));
            if let Some((writer, number)) = source.zip(tree).and_then(|(source, tree)| missing(source, tree)) {
                return Err(Violation(format!(
                    "claim {} is bound without file-{number} of {}, which its source has",
                    claim.shown,
                    self.claims.shown(writer)
                )));
            }
            if let Some(claim) = self.claims.get_mut(&bound) {
                claim.is_checked = true;
            }
        }
        Ok(())
    }

    /// Returns true if a source is still what it was when it was named.
    fn is_unchanged(&self, source: &Source) -> bool {
        let tree = source.tree.and_then(|key| self.trees.get(&key));
        let is_same_claim = source.claim.is_empty() || self.claims.exists(&source.claim);
        is_same_claim && tree.is_some_and(|tree| !tree.is_deleted)
    }
}
