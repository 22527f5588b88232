//! Comparison of a volume with its record (data-safety rule 8), and updates of the record of a volume in use.

use crate::error::ExportError;
use crate::reclaim::plan::NameOccupant;
use crate::record::{Record, State, VolumeMetadata};
use crate::records::ReadRecord;
use crate::request::{DirectoryRequest, VolumeDirectory};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{paths, records};

/// Result of comparing a volume with its record.
pub(crate) enum Recorded {
    /// The record matches the volume. Includes the directory's fileid.
    Agreed(Box<Record>, u64),
    /// There is no record. Includes what the volume's path holds.
    Nothing(NameOccupant),
}

/// Compares a volume with its record (data-safety rule 8). Signs an unsigned record that matches: the volume confirms
/// it.
pub(crate) async fn compare_and_sign(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
) -> Result<Recorded, ExportError> {
    let (recorded, trust) = compare(store, verified, expected).await?;
    if let Recorded::Agreed(record, _) = &recorded {
        ensure_signed(store, verified, record, trust).await?;
    }
    Ok(recorded)
}

/// Signs a record that matches its volume, unless it is signed already.
pub(crate) async fn ensure_signed(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    trust: SignatureStatus,
) -> Result<(), ExportError> {
    match trust {
        SignatureStatus::Signed => Ok(()),
        SignatureStatus::Unsigned | SignatureStatus::Forged => {
            records::replace_to_free_space(store, verified, record).await.map(drop)
        }
    }
}

/// Compares a volume with its record without signing it.
pub(crate) async fn compare(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
) -> Result<(Recorded, SignatureStatus), ExportError> {
    let (record, trust) = match records::read(store, verified, &expected.volume).await? {
        ReadRecord::Record(record, trust) => (record, trust),
        ReadRecord::Unreadable(why) => {
            return Err(ExportError::RecordDamaged {
                volume: expected.volume.clone(),
                why,
            });
        }
        ReadRecord::Nothing => {
            let occupant = match paths::walk(store, verified, &expected.directory).await {
                Ok(nodes) if paths::leaf(&nodes, &expected.directory).is_none() => NameOccupant::Nothing,
                Ok(_) | Err(ExportError::PathUnusable { .. }) => NameOccupant::Other,
                Err(error) => return Err(error),
            };
            return Ok((Recorded::Nothing(occupant), SignatureStatus::Signed));
        }
    };
    if record.claim.uid != expected.claim.uid {
        return Err(ExportError::RecordForeign {
            volume: expected.volume.clone(),
            holder: Box::new(record.claim),
        });
    }
    let disagrees = |what: String| ExportError::RecordMismatch {
        volume: expected.volume.clone(),
        directory: expected.directory.to_string(),
        what,
    };
    if record.directory != expected.directory {
        return Err(disagrees(format!("its record is about {}", record.directory)));
    }
    match (record.file_id, expected.file_id) {
        (Some(known), Some(said)) if known != said => Err(disagrees(format!(
            "its object has fileid {said}, and its record {known}"
        ))),
        (Some(known), _) => {
            let record = match trust {
                SignatureStatus::Signed => record,
                // The volume confirms the claim. Nothing confirms the metadata of an unsigned record.
                SignatureStatus::Unsigned | SignatureStatus::Forged => Box::new(Record {
                    claim: expected.claim.clone(),
                    group: None,
                    metadata: None,
                    ..*record
                }),
            };
            Ok((Recorded::Agreed(record, known), trust))
        }
        (None, _) => Err(disagrees("its record knows no fileid: it was never finished".into())),
    }
}

/// Returns the record of a volume in use, if it matches the volume, and the fileid that both have.
pub(crate) async fn confirmed_source(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
) -> Result<(Record, u64), ExportError> {
    live_record(store, verified, expected, "copying").await
}

/// Returns the record of a volume in use, if it matches the volume.
pub(crate) async fn confirmed_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
) -> Result<Record, ExportError> {
    let (record, _) = live_record(store, verified, expected, "writing down what it is").await?;
    Ok(record)
}

async fn live_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
    operation: &'static str,
) -> Result<(Record, u64), ExportError> {
    match compare(store, verified, expected).await? {
        (Recorded::Agreed(record, file_id), trust) if record.state == State::Live => {
            ensure_signed(store, verified, &record, trust).await?;
            Ok((*record, file_id))
        }
        (Recorded::Agreed(record, _), _) => Err(ExportError::RecordBusy {
            volume: expected.volume.clone(),
            state: record.state.name(),
            operation,
        }),
        (Recorded::Nothing(NameOccupant::Nothing), _) => Err(missing(expected)),
        (Recorded::Nothing(_), _) => Err(unrecorded(expected)),
    }
}

pub(crate) async fn save_metadata(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
    metadata: &VolumeMetadata,
) -> Result<(), ExportError> {
    let signed = matches!(
        records::read(store, verified, &expected.volume).await?,
        ReadRecord::Record(_, SignatureStatus::Signed)
    );
    let record = confirmed_record(store, verified, expected).await?;
    if signed && record.metadata.as_ref() == Some(metadata) {
        return Ok(());
    }
    // A signed record is trusted later, so its claim must be the volume's, not one that any client could write.
    let mut claim = expected.claim.clone();
    if claim.namespace_uid.is_empty() {
        claim.namespace_uid.clone_from(&record.claim.namespace_uid);
    }
    let record = Record {
        metadata: Some(metadata.clone()),
        group: record.group.or(metadata.gid),
        claim: if signed { record.claim } else { claim },
        backend: store.config.backend.clone(),
        ..record
    };
    records::replace(store, verified, &record).await
}

/// Records that the directory of a claim belongs to this backend from now on: its provisioning began on another backend
/// of the same export.
pub(crate) async fn take_over(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: Record,
) -> Result<Record, ExportError> {
    let backend = &store.config.backend;
    if record.backend == *backend {
        return Ok(record);
    }
    let own = Record {
        backend: backend.clone(),
        ..record
    };
    records::replace(store, verified, &own).await.map(|()| own)
}

/// Updates the metadata of a directory that an earlier process created for the same volume.
pub(crate) async fn update_metadata(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    request: &DirectoryRequest,
) -> Result<(), ExportError> {
    if record.metadata == request.metadata || record.state != State::Live {
        return Ok(());
    }
    let record = Record {
        metadata: request.metadata.clone(),
        ..record.clone()
    };
    records::replace(store, verified, &record).await
}

/// Returns the error for a volume whose directory is missing.
pub(crate) fn missing(expected: &VolumeDirectory) -> ExportError {
    let (volume, directory) = (expected.volume.clone(), expected.directory.to_string());
    ExportError::DirectoryMissing { volume, directory }
}

/// Returns the error for a volume that has a directory and no record.
pub(crate) fn unrecorded(expected: &VolumeDirectory) -> ExportError {
    let (volume, directory) = (expected.volume.clone(), expected.directory.to_string());
    ExportError::RecordMissing { volume, directory }
}
