//! Records that this cluster did not sign. They are reported, and never acted upon without confirmation.

use std::collections::HashSet;

use crate::error::{ErrorContext as _, ExportError};
use crate::record::Record;
use crate::request::ClaimRef;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, other_clusters};
use nfs_client::{FileKind, FileRef, Name, NfsError};

/// Number of records of another cluster to name. `nfs-operator archives` lists all.
const NAMED: usize = 3;

/// Maximum number of records without a volume and without a valid signature.
const MAX_UNSIGNED: usize = 10_000;

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
    /// Other clusters that have records on the export, sorted by ID.
    pub others: Vec<OtherCluster>,
}

/// Returns the records without a valid signature that recovery found.
pub(crate) fn list(store: &ExportStore) -> UnsignedRecords {
    let state = store.state();
    UnsignedRecords {
        own: state.unsigned.values().cloned().collect(),
        others: state.other_clusters.clone(),
    }
}

/// Remembers a record that recovery found.
///
/// # Errors
/// There are more than [`MAX_UNSIGNED`]: whoever can write into the folder of records must not use up the memory, which all
/// backends share.
pub(crate) fn track(store: &ExportStore, record: &Record, trust: SignatureStatus) -> Result<(), ExportError> {
    let unsigned = UnsignedRecord {
        volume: record.volume.clone(),
        backend: record.backend.clone(),
        claim: record.claim.clone(),
        state: record.state.name(),
        trust,
    };
    let mut state = store.state();
    let is_known = state.unsigned.contains_key(&record.volume);
    if !is_known && state.unsigned.len() >= MAX_UNSIGNED {
        let limit = format!(
            "more than {MAX_UNSIGNED} records without a volume that this cluster did not sign: find out who wrote them, and \
             move them away"
        );
        let action = "recovering volumes";
        return Err(NfsError::Limit { action, limit }).context(|| "reading the records".to_owned());
    }
    state.unsigned.insert(record.volume.clone(), unsigned);
    Ok(())
}

/// Forgets the records that are not in a new listing of those without a volume.
pub(crate) fn retain_listed(store: &ExportStore, listed: &[Name]) {
    let mut state = store.state();
    if state.unsigned.is_empty() {
        return;
    }
    let listed: HashSet<&[u8]> = listed.iter().map(Name::as_bytes).collect();
    state.unsigned.retain(|volume, _| listed.contains(volume.as_bytes()));
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
