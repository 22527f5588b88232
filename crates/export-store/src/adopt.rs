//! Adoption of one record that this cluster did not sign, as an administrator requested.
//!
//! The request confirms only the record itself: its names, the directory's path and fileid, and conflicts are
//! checked as usual (data-safety rules 5 and 8).

use crate::error::{ErrorContext as _, ExportError};
use crate::path_reservations::Holder;
use crate::record::{ArchiveState, Record, RecordedHandle, RetentionTerms, State};
use crate::recorded_place::{self, Confirmed};
use crate::records::{Created, ReadRecord};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, layout, records, unsigned_records};
use nfs_client::{FileRef, Name, Status};

/// Reference to a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordName {
    /// ID of the cluster that has the record; unset for this cluster.
    pub cluster: Option<String>,
    /// Name of the volume in the record.
    pub volume: String,
}

/// A record that was adopted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Name of the volume in the record.
    pub volume: String,
    /// Path of the archive or directory, relative to the export's path.
    pub directory: String,
    /// The record is of an archive.
    pub archive: bool,
}

impl RecordName {
    /// Reads `<volume>` or `<cluster id>/<volume>`.
    pub fn parse(text: &str) -> Result<Self, ExportError> {
        let (cluster, volume) = match text.split_once('/') {
            Some((cluster, volume)) => (Some(cluster), volume),
            None => (None, text),
        };
        layout::record(volume)?;
        cluster.map(layout::cluster).transpose()?;
        Ok(Self {
            cluster: cluster.map(str::to_owned),
            volume: volume.to_owned(),
        })
    }
}

/// Reports whether a record of this cluster was adopted from the other record.
fn is_same(other: &Record, own: &Record) -> bool {
    (&other.claim, other.file_id, &other.directory) == (&own.claim, own.file_id, &own.directory)
}

fn adopted(record: &Record) -> Adopted {
    Adopted {
        volume: record.volume.clone(),
        directory: recorded_place::path(record),
        archive: record.state.archive().is_some(),
    }
}

fn refused(volume: &str, why: &str) -> ExportError {
    ExportError::NotAdopted {
        volume: volume.to_owned(),
        why: why.to_owned(),
    }
}

pub(crate) async fn adopt(
    store: &ExportStore,
    verified: &VerifiedRoot,
    name: &RecordName,
    is_backend: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<Adopted, ExportError> {
    let foreign = name.cluster.as_ref().filter(|id| **id != store.config.cluster_id);
    match foreign {
        Some(cluster) => adopt_foreign(store, verified, cluster, &name.volume).await,
        None => adopt_own(store, verified, &name.volume, is_backend).await,
    }
}

/// Adopts a record in this cluster's folder without a valid signature.
async fn adopt_own(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    is_backend: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<Adopted, ExportError> {
    let record = match records::read(store, verified, volume).await? {
        ReadRecord::Nothing => return Err(refused(volume, "there is no such record")),
        ReadRecord::Unreadable(why) => return Err(refused(volume, &why.to_string())),
        ReadRecord::Record(record, SignatureStatus::Signed) if record.backend == store.config.backend => {
            return Ok(adopted(&record));
        }
        ReadRecord::Record(record, _) if record.backend != store.config.backend && is_backend(&record.backend) => {
            let why = format!("it belongs to backend {}: annotate that backend", record.backend);
            return Err(refused(volume, &why));
        }
        ReadRecord::Record(record, _) => record,
    };
    let record = verify_record(store, verified, &record, None).await?;
    records::replace(store, verified, &record).await?;
    recorded_place::track(store, verified, &record);
    Ok(adopted(&record))
}

/// Adopts a record of another cluster. Writes this cluster's record before it removes the other one, so that one of
/// them exists at any time.
async fn adopt_foreign(
    store: &ExportStore,
    verified: &VerifiedRoot,
    cluster: &str,
    volume: &str,
) -> Result<Adopted, ExportError> {
    let name = layout::cluster(cluster)?;
    let folder = unsigned_records::records_folder(store, verified, &name).await?;
    let other = match &folder {
        Some(folder) => records::read_in(store, verified, &folder.handle, volume).await?,
        None => ReadRecord::Nothing,
    };
    let own = match records::read_or_remove_truncated(store, verified, volume).await? {
        ReadRecord::Record(record, SignatureStatus::Signed) => Some(record),
        ReadRecord::Nothing => None,
        _ => {
            return Err(refused(
                volume,
                "this cluster has a record of that name, which takes precedence",
            ));
        }
    };
    let record = match (other, own) {
        (ReadRecord::Nothing, Some(own)) => return Ok(adopted(&own)),
        (ReadRecord::Nothing, None) => return Err(refused(volume, &format!("cluster {cluster} has no such record"))),
        (ReadRecord::Unreadable(why), _) => return Err(refused(volume, &why.to_string())),
        // An interrupted adoption.
        (ReadRecord::Record(other, _), Some(own)) if is_same(&other, &own) => *own,
        (ReadRecord::Record(..), Some(_)) => {
            return Err(refused(volume, "this cluster has another record of that name"));
        }
        (ReadRecord::Record(other, _), None) => {
            let record = verify_record(store, verified, &other, Some(cluster)).await?;
            if records::create(store, verified, &record).await? == Created::Exists {
                let doing = format!("adopting the record of volume {volume}");
                return Err(ExportError::ConcurrentlyModified { doing });
            }
            record
        }
    };
    if let Some(folder) = &folder {
        remove_foreign_record(store, verified, folder, volume).await?;
    }
    recorded_place::track(store, verified, &record);
    store.state().foreign = None;
    unsigned_records::refresh_other_clusters(store, verified).await;
    Ok(adopted(&record))
}

/// Returns the record as one of this cluster, if it matches the export.
async fn verify_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    cluster: Option<&str>,
) -> Result<Record, ExportError> {
    let volume = &record.volume;
    if store.reservations.knows(&Holder::Volume(volume.clone())) {
        return Err(refused(volume, "there is a PersistentVolume of that name"));
    }
    let node = match recorded_place::find(store, verified, record, Confirmed::Record(cluster)).await? {
        Ok(node) => node,
        Err(why) => return Err(refused(volume, &why)),
    };
    if let State::Archived(archive) = &record.state {
        archives::restrict(store, verified, &node, &archive.target).await?;
    }
    Ok(to_own_record(store, verified, record, &node))
}

/// Returns the record as one of this cluster. It must not cause a deletion: the archive never expires, and the
/// directory is archived even if the policy is Delete.
fn to_own_record(store: &ExportStore, verified: &VerifiedRoot, record: &Record, node: &FileRef) -> Record {
    let state = match &record.state {
        State::Archived(archive) => {
            let terms = RetentionTerms {
                held: archive.terms.held,
                ..RetentionTerms::default()
            };
            State::Archived(ArchiveState {
                // Another clock than this cluster's.
                volume_created: None,
                ..archive.with_terms(&terms, None)
            })
        }
        other => other.clone(),
    };
    Record {
        backend: store.config.backend.clone(),
        handle: Some(RecordedHandle::new(verified, node)),
        adopted: true,
        restores: None,
        ..record.in_state(state)
    }
}

async fn remove_foreign_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    volume: &str,
) -> Result<(), ExportError> {
    let doing = || format!("removing the former record of volume {volume}");
    let name: Name = layout::record(volume)?;
    let Some(node) = store.nfs.lookup(&folder.handle, &name).await.context(doing)? else {
        return Ok(());
    };
    let removed = store
        .for_write(verified)?
        .remove_file(&folder.handle, &name, node.attributes.fileid)
        .await;
    match removed {
        Err(error) if error.status() == Some(Status::NotFound) => Ok(()),
        other => other.context(doing),
    }
}
