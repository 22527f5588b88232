//! Assessment of volumes that have a record and no object (data-safety rule 8). Changes nothing.

use crate::error::ExportError;
use crate::other_clusters::ForeignDirectory;
use crate::path_reservations::Holder;
use crate::record::{Record, State, VolumeMetadata};
use crate::records::ReadRecord;
use crate::request::ClaimRef;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{file_holders, other_clusters, paths, records};

/// Result of assessing whether a volume can be recreated from its record.
#[derive(Debug)]
pub enum Recoverability {
    /// There is nothing to recreate: no record, or one of an archive, or of a directory that is being created or
    /// removed.
    Nothing,
    /// A signed record states that the volume is in use on another backend.
    Elsewhere {
        /// Name of that backend.
        backend: String,
        /// The claim in the record.
        claim: ClaimRef,
    },
    /// The volume can be recreated.
    Volume(Box<RecordedVolume>),
    /// The volume must not be recreated.
    Unfit {
        /// The claim, if the record is readable.
        claim: Option<ClaimRef>,
        /// The reason.
        why: String,
    },
}

/// A volume's directory that matches its signed record.
#[derive(Debug, Clone)]
pub struct RecordedVolume {
    /// The record.
    pub record: Record,
    /// Metadata of the volume.
    pub metadata: VolumeMetadata,
    /// Fileid of the directory.
    pub file_id: u64,
    /// Identity of the export.
    pub export_id: String,
}

/// Assesses a record that is not of a live volume of this backend. Pure.
fn elsewhere(record: Record, trust: SignatureStatus) -> Recoverability {
    if !record.is_in_use() || trust != SignatureStatus::Signed {
        return Recoverability::Nothing;
    }
    Recoverability::Elsewhere {
        backend: record.backend,
        claim: record.claim,
    }
}

/// Reports whether an error concerns this volume only, and not the connection.
fn is_about_it(error: &ExportError) -> bool {
    matches!(
        error,
        ExportError::DirectoryMissing { .. }
            | ExportError::RecordMismatch { .. }
            | ExportError::NestedBackend { .. }
            | ExportError::Overlaps { .. }
            | ExportError::FileidInUse { .. }
            | ExportError::OwnedByOtherCluster { .. }
            | ExportError::PathUnusable { .. }
    )
}

/// Returns the claim of a live volume of this backend, signed or not.
pub(crate) async fn recorded_claim(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<Option<ClaimRef>, ExportError> {
    let ReadRecord::Record(record, _) = records::read(store, verified, volume).await? else {
        return Ok(None);
    };
    let counts = is_live_here(store, &record) && record.is_in_use();
    Ok(counts.then_some(record.claim))
}

/// Returns the claim of a volume in use from its signed record, whatever the name of its backend.
pub(crate) async fn claim_in_use(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<Option<ClaimRef>, ExportError> {
    Ok(match records::read(store, verified, volume).await? {
        ReadRecord::Record(record, SignatureStatus::Signed) if record.is_in_use() => Some(record.claim),
        _ => None,
    })
}

pub(crate) async fn assess(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<Recoverability, ExportError> {
    let (record, trust) = match records::read(store, verified, volume).await? {
        ReadRecord::Nothing => return Ok(Recoverability::Nothing),
        ReadRecord::Unreadable(why) => {
            let why = format!("its record is unreadable: {why}");
            return Ok(Recoverability::Unfit { claim: None, why });
        }
        ReadRecord::Record(record, trust) => (*record, trust),
    };
    if !is_live_here(store, &record) {
        return Ok(elsewhere(record, trust));
    }
    let claim = record.claim.clone();
    let unfit = |why: String| {
        Ok(Recoverability::Unfit {
            claim: Some(claim),
            why,
        })
    };
    match trust {
        SignatureStatus::Signed => {}
        SignatureStatus::Unsigned => return unfit("its record is not signed".to_owned()),
        SignatureStatus::Forged => {
            return unfit("its record's signature is wrong, or was made with another key".to_owned());
        }
    }
    let Some(metadata) = record.metadata.clone() else {
        return unfit("its record does not say what the volume was".to_owned());
    };
    match check_directory(store, verified, &record).await {
        Ok(file_id) => Ok(Recoverability::Volume(Box::new(RecordedVolume {
            export_id: verified.identity.id.clone(),
            record,
            metadata,
            file_id,
        }))),
        Err(error) if is_about_it(&error) => unfit(error.to_string()),
        Err(error) => Err(error),
    }
}

/// Returns the volumes on a backend of this name in records of other clusters.
pub(crate) async fn foreign_directories(
    store: &ExportStore,
    verified: &VerifiedRoot,
) -> Result<Vec<ForeignDirectory>, ExportError> {
    other_clusters::live_volumes(store, verified, &store.config.backend).await
}

fn is_live_here(store: &ExportStore, record: &Record) -> bool {
    record.state == State::Live && record.backend == store.config.backend
}

/// Returns the directory's fileid, if it matches the record and has no other holder.
async fn check_directory(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<u64, ExportError> {
    let (directory, sharing) = (&record.directory, record.sharing());
    let nodes = paths::walk(store, verified, directory).await?;
    paths::check_parents_and_clusters(store, verified, directory, &nodes, sharing).await?;
    let Some(leaf) = paths::leaf(&nodes, directory) else {
        return Err(ExportError::DirectoryMissing {
            volume: record.volume.clone(),
            directory: directory.to_string(),
        });
    };
    let file_id = leaf.attributes.fileid;
    if record.file_id != Some(file_id) || !verified.is_plain_directory(leaf) {
        return Err(ExportError::RecordMismatch {
            volume: record.volume.clone(),
            directory: directory.to_string(),
            what: match record.file_id {
                Some(known) => format!("its record knows fileid {known}, and what has its name has {file_id}"),
                None => "its record knows no fileid".to_owned(),
            },
        });
    }
    if paths::is_backend_root(store, leaf, &directory.to_string()).await? {
        return Err(ExportError::NestedBackend {
            path: directory.to_string(),
        });
    }
    let own = Holder::Volume(record.volume.clone());
    paths::refuse_conflict(store, verified, &own, sharing, &directory.to_string()).await?;
    if let Some(holder) = file_holders::holder_of(store, verified, leaf, Some(&record.volume), sharing).await? {
        return Err(ExportError::FileidInUse {
            directory: directory.to_string(),
            holder,
        });
    }
    other_clusters::refuse(store, verified, directory, &nodes, sharing, false).await?;
    Ok(file_id)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::naming::DirectoryPath;

    #[test]
    fn only_a_signed_record_of_a_volume_in_use_speaks_for_another_backend() {
        let record = |state: State, released: bool| -> Record {
            let metadata = json!({"cluster": "c", "provisioner": "p", "size": "1", "reclaimPolicy": "Delete", "released": released});
            Record {
                volume: "pvc-1".to_owned(),
                backend: "other".to_owned(),
                claim: ClaimRef::default(),
                directory: DirectoryPath::parse("team/data").unwrap(),
                file_id: None,
                handle: None,
                adopted: false,
                shared: false,
                restores: None,
                group: None,
                metadata: Some(serde_json::from_value(metadata).unwrap()),
                state,
            }
        };
        for (state, released, trust, speaks) in [
            (State::Live, false, SignatureStatus::Signed, true),
            (State::Live, false, SignatureStatus::Unsigned, false),
            (State::Live, false, SignatureStatus::Forged, false),
            (State::Live, true, SignatureStatus::Signed, false),
            (State::Creating, false, SignatureStatus::Signed, false),
        ] {
            let what = format!("{state:?} {released} {trust:?}");
            let found = elsewhere(record(state, released), trust);
            let said = matches!(found, Recoverability::Elsewhere { backend, .. } if backend == "other");
            assert_eq!(said, speaks, "{what}");
        }
    }
}
