//! Records that this cluster did not sign: told, and never acted upon by themselves.

use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::record::Record;
use super::request::ClaimRef;
use super::signature::Trust;
use super::{ExportStore, PoisonError, layout};
use nfs_client::{FileKind, FileRef, Name};

/// Clusters that are told of. Beyond, it is no export that clusters share.
const MOST_CLUSTERS: usize = 64;
/// Records of another cluster that are counted; more are told as so many.
const MOST_COUNTED: usize = 100_000;
/// Records of another cluster that are named: enough to see what they are. `nfs-operator archives` lists all.
const NAMED: usize = 3;

/// A record in this cluster's folder that has no volume here and no good signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsignedRecord {
    /// The volume that it is about.
    pub volume: String,
    /// The claim that it says the volume was for.
    pub claim: ClaimRef,
    /// How far it says that the directory is.
    pub state: &'static str,
    /// What is wrong with its signature.
    pub trust: Trust,
}

/// What another cluster keeps on the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherCluster {
    /// Its id: the name of its folder.
    pub id: String,
    /// How many records it has.
    pub records: usize,
    /// The volumes that the first few are about.
    pub named: Vec<String>,
}

/// What is on an export beside the records that this cluster signed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnsignedRecords {
    /// In this cluster's own folder, by volume.
    pub own: Vec<UnsignedRecord>,
    /// Other clusters that have records here, by id.
    pub others: Vec<OtherCluster>,
}

impl ExportStore {
    /// Records without a good signature, as far as [`settle`](Self::settle) met them.
    pub fn doubts(&self) -> UnsignedRecords {
        let doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        UnsignedRecords {
            own: doubted.values().cloned().collect(),
            others: others.clone(),
        }
    }

    /// Whether nothing may be made of a volume's record.
    pub fn is_doubted(&self, volume: &str) -> bool {
        let doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        doubted.contains_key(volume)
    }

    pub(super) fn doubt(&self, record: &Record, trust: Trust) {
        let doubted = UnsignedRecord {
            volume: record.volume.clone(),
            claim: record.claim.clone(),
            state: record.state.name(),
            trust,
        };
        let mut all = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(record.volume.clone(), doubted);
    }

    /// The record was written by us, or is gone.
    pub(super) fn no_doubt(&self, volume: &str) {
        let mut all = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(volume);
    }

    /// Counts what other clusters keep here. A folder that can't be looked into stops nothing: it is not ours.
    pub(super) async fn count_others(&self, ground: &VerifiedRoot) {
        match self.others_on(ground).await {
            Ok(others) => *self.others.lock().unwrap_or_else(PoisonError::into_inner) = others,
            Err(error) => tracing::warn!(
                backend = self.keeper.backend,
                "cannot count the records of other clusters: {error}"
            ),
        }
    }

    async fn others_on(&self, ground: &VerifiedRoot) -> Result<Vec<OtherCluster>, ExportError> {
        let ours = layout::cluster(&self.keeper.cluster_id)?;
        let reserved = &ground.reserved.handle;
        let names = self.names_in(reserved, layout::RESERVED, MOST_CLUSTERS).await?;
        let mut others = Vec::new();
        for name in names.into_iter().filter(|name| *name != ours) {
            let Some(folder) = self.records_of(ground, &name).await? else {
                continue;
            };
            let path = format!("the records of the cluster {name}");
            let mut named = self.names_in(&folder.handle, &path, MOST_COUNTED).await?;
            named.retain(|name| !layout::is_draft(name));
            named.sort_unstable();
            if named.is_empty() {
                continue;
            }
            others.push(OtherCluster {
                id: name.to_string(),
                records: named.len(),
                named: named.iter().take(NAMED).map(Name::to_string).collect(),
            });
        }
        others.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        Ok(others)
    }

    /// The folder with another cluster's records. A file, such as the identity, or a link is none, and not gone through.
    pub(super) async fn records_of(
        &self,
        ground: &VerifiedRoot,
        cluster: &Name,
    ) -> Result<Option<FileRef>, ExportError> {
        let doing = || format!("looking for the records of the cluster {cluster}");
        let mut folder = ground.reserved.clone();
        for name in [cluster, &layout::name(layout::RECORDS)?] {
            let found = self.nfs.lookup(&folder.handle, name).await.while_(doing)?;
            match found.filter(|found| found.attributes.kind == FileKind::Directory) {
                Some(found) => folder = found,
                None => return Ok(None),
            }
        }
        Ok(Some(folder))
    }
}
