//! Records that this cluster did not sign. They are reported, and never acted upon without confirmation.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

use crate::error::{ErrorContext as _, ExportError};
use crate::record::Record;
use crate::request::ClaimRef;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, other_clusters};
use nfs_client::{FileKind, FileRef, Name};

/// Number of records of another cluster to name. `nfs-operator archives` lists all.
const NAMED: usize = 3;

/// Maximum number of records that are described. Of further ones, only a hash of the name is kept: whoever can write into the
/// folder of records must not use up the memory, which all backends share.
const MAX_DESCRIBED: usize = 10_000;

/// A record in this cluster's folder without a volume and without a valid signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsignedRecord {
    /// Name of the volume in the record.
    pub volume: String,
    /// Name of the backend in the record.
    pub backend: String,
    /// The claim in the record.
    pub claim: ClaimRef,
    /// The state in the record.
    pub state: &'static str,
    /// Result of checking the signature.
    pub trust: SignatureStatus,
}

/// Another cluster that has records on the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherCluster {
    /// ID of the cluster, which is the name of its folder.
    pub id: String,
    /// Number of its records.
    pub records: usize,
    /// Volumes of the first few records.
    pub named: Vec<String>,
}

/// The records on an export that this cluster did not sign.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnsignedRecords {
    /// Records in this cluster's own folder, sorted by volume.
    pub own: Vec<UnsignedRecord>,
    /// Number of further records there, which are not described.
    pub further: usize,
    /// Other clusters that have records on the export, sorted by ID.
    pub others: Vec<OtherCluster>,
}

/// The records in this cluster's own folder without a volume and without a valid signature, by volume.
#[derive(Debug, Default)]
pub(crate) struct UnsignedVolumes {
    described: BTreeMap<String, UnsignedRecord>,
    /// Hashes of the names of further volumes.
    further: HashSet<u64>,
    hasher: RandomState,
}

impl UnsignedVolumes {
    pub fn contains(&self, volume: &str) -> bool {
        self.described.contains_key(volume) || self.further.contains(&self.hasher.hash_one(volume))
    }

    fn insert(&mut self, volume: &str, record: UnsignedRecord) {
        let hash = self.hasher.hash_one(volume);
        if self.described.len() < MAX_DESCRIBED || self.described.contains_key(volume) {
            self.further.remove(&hash);
            self.described.insert(volume.to_owned(), record);
        } else {
            self.further.insert(hash);
        }
    }

    fn remove(&mut self, volume: &str) {
        self.described.remove(volume);
        self.further.remove(&self.hasher.hash_one(volume));
    }

    fn retain_listed(&mut self, listed: &[Name]) {
        if self.described.is_empty() && self.further.is_empty() {
            return;
        }
        let names: HashSet<&[u8]> = listed.iter().map(Name::as_bytes).collect();
        self.described.retain(|volume, _| names.contains(volume.as_bytes()));
        let names = listed
            .iter()
            .filter_map(|name| std::str::from_utf8(name.as_bytes()).ok());
        let hashes: HashSet<u64> = names.map(|name| self.hasher.hash_one(name)).collect();
        self.further.retain(|hash| hashes.contains(hash));
    }
}

/// Returns the records without a valid signature that recovery found.
pub(crate) fn list(store: &ExportStore) -> UnsignedRecords {
    let state = store.state();
    UnsignedRecords {
        own: state.unsigned.described.values().cloned().collect(),
        further: state.unsigned.further.len(),
        others: state.other_clusters.clone(),
    }
}

/// Remembers a record that recovery found.
pub(crate) fn track(store: &ExportStore, record: &Record, trust: SignatureStatus) {
    let unsigned = UnsignedRecord {
        volume: record.volume.clone(),
        backend: record.backend.clone(),
        claim: record.claim.clone(),
        state: record.state.name(),
        trust,
    };
    store.state().unsigned.insert(&record.volume, unsigned);
}

/// Forgets the records that are not in a new listing of those without a volume.
pub(crate) fn retain_listed(store: &ExportStore, listed: &[Name]) {
    store.state().unsigned.retain_listed(listed);
}

/// Forgets a record that was signed or removed meanwhile.
pub(crate) fn untrack(store: &ExportStore, volume: &str) {
    store.state().unsigned.remove(volume);
}

/// Counts the records of other clusters. A folder that cannot be read causes only a warning.
pub(crate) async fn refresh_other_clusters(store: &ExportStore, verified: &VerifiedRoot) {
    match other_clusters::count_records(store, verified, NAMED).await {
        Ok(others) => store.state().other_clusters = others,
        Err(error) => tracing::warn!(
            backend = store.config.backend,
            "cannot count the records of other clusters: {error}"
        ),
    }
}

/// Returns the folder with another cluster's records. Ignores files, such as the identity, and links.
pub(crate) async fn records_folder(
    store: &ExportStore,
    verified: &VerifiedRoot,
    cluster: &Name,
) -> Result<Option<FileRef>, ExportError> {
    let doing = || format!("looking for the records of the cluster {cluster}");
    let mut folder = verified.reserved.clone();
    for name in [cluster, &layout::name(layout::RECORDS)?] {
        let found = store.nfs.lookup(&folder.handle, name).await.context(doing)?;
        match found.filter(|found| found.attributes.kind == FileKind::Directory) {
            Some(found) => folder = found,
            None => return Ok(None),
        }
    }
    Ok(Some(folder))
}
