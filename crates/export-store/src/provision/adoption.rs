//! Checks before an existing directory is adopted or shared (data-safety rules 3, 19 and 26).

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::error::ExportError;
use crate::naming::DirectoryPath;
use crate::path_reservations::Holder;
use crate::record::{Record, RecordError, State};
use crate::records::ReadRecord;
use crate::request::{DirectoryRequest, Existing};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{file_holders, layout, other_clusters, paths, readdir, records};
use nfs_client::{FileRef, Name};

/// Number of concurrent reads of records.
const READS: usize = 16;
/// Maximum number of records in a listing: an endless listing must not exhaust the memory.
const MAX_RECORDS: usize = 1_000_000;

/// Checks whether an existing directory may be adopted or shared.
pub(super) async fn refuse(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    nodes: &[FileRef],
    leaf: &FileRef,
) -> Result<(), ExportError> {
    if !request.adoptable {
        let why = match request.existing {
            Existing::Share => {
                "tenants could choose it. Use a pattern that is a fixed path or contains ${pvc.namespace} and no other \
                 variable, or one in which ${pvc.namespace} is a segment of its own and that has no labels and \
                 annotations"
            }
            Existing::Refuse | Existing::Adopt => {
                "a claim of another namespace could name it too. Use a pattern without labels and annotations in which \
             ${pvc.namespace} is a segment of its own, or one with ${pvc.uid} or ${pv.name}; or allow a single namespace \
             on the backend (allowedNamespaces.matchNames)"
            }
        };
        return Err(unsuitable(request, directory, why));
    }
    if paths::is_backend_root(store, leaf, &directory.to_string()).await? {
        return Err(ExportError::NestedBackend {
            path: directory.to_string(),
        });
    }
    check_own_records(store, verified, request, directory, leaf).await?;
    other_clusters::refuse(store, verified, directory, nodes, request.existing.sharing(), true).await
}

/// Checks that no record of this cluster shows that the directory belonged to someone else.
///
/// The path reservations contain the directories of volumes that exist, and those of other records only after the next
/// start. The result must not depend on a restart. Whether another volume shares the directory is in its record, too:
/// somebody may have edited the volume.
async fn check_own_records(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    leaf: &FileRef,
) -> Result<(), ExportError> {
    let names = readdir::list_names(store, &verified.records.handle, "the records", MAX_RECORDS).await?;
    let unchecked = names
        .into_iter()
        .filter(|name| !layout::is_draft(name) && !is_reserved(store, request, name))
        .filter(|name| may_conflict(store, verified, request, name, directory, leaf));
    let mut found = stream::iter(unchecked.map(|name| read(store, verified, name))).buffer_unordered(READS);
    while let Some(record) = found.try_next().await? {
        let Some(record) = record else { continue };
        match &record.state {
            _ if record.shares(directory, request.existing.sharing()) => {}
            State::Creating | State::Live | State::Archiving(_) | State::RemovingEmpty | State::Deleting { .. }
                if record.directory.overlaps(directory)
                    || (record.file_id == Some(leaf.attributes.fileid)
                        && !file_holders::is_other(store, verified, &record, leaf).await?) =>
            {
                return Err(ExportError::FileidInUse {
                    directory: directory.to_string(),
                    holder: Holder::Volume(record.volume),
                });
            }
            State::Archived(_) | State::Purging { .. } | State::Restoring { .. }
                if record.directory.overlaps(directory) && is_foreign(&record, request) =>
            {
                return Err(unsuitable(
                    request,
                    directory,
                    "an archive of another namespace was at this path. Move the directory away, or choose another \
                     pattern",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns true if the record is that of the claim itself, or of a volume that exists and reserves its directory for
/// itself.
fn is_reserved(store: &ExportStore, request: &DirectoryRequest, name: &Name) -> bool {
    let reserves = |volume: &str| {
        let volume = Holder::Volume(volume.to_owned());
        request.existing != Existing::Share && store.reservations.knows(&volume)
    };
    std::str::from_utf8(name.as_bytes()).is_ok_and(|volume| volume == request.volume || reserves(volume))
}

fn may_conflict(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    name: &Name,
    directory: &DirectoryPath,
    leaf: &FileRef,
) -> bool {
    let (index, export_id) = (&store.reservations.record_index, &verified.identity.id);
    let (place, sharing) = ((directory, leaf.attributes.fileid), request.existing.sharing());
    std::str::from_utf8(name.as_bytes()).is_ok_and(|volume| index.may_conflict(export_id, volume, place, sharing))
}

async fn read(store: &ExportStore, verified: &VerifiedRoot, name: Name) -> Result<Option<Record>, ExportError> {
    // No volume has such a name, so it is not a record.
    let Ok(volume) = std::str::from_utf8(name.as_bytes()) else {
        return Ok(None);
    };
    match records::read(store, verified, volume).await {
        Ok(ReadRecord::Record(record, _)) => {
            let index = &store.reservations.record_index;
            index.insert_if_unknown(&verified.identity.id, &record);
            Ok(Some(*record))
        }
        // An incomplete record was written before anything was created.
        Ok(ReadRecord::Nothing | ReadRecord::Unreadable(RecordError::Truncated))
        | Err(ExportError::NameUnusable { .. }) => Ok(None),
        Ok(ReadRecord::Unreadable(why)) => Err(ExportError::RecordDamaged {
            volume: volume.to_owned(),
            why,
        }),
        Err(error) => Err(error),
    }
}

fn is_foreign(record: &Record, request: &DirectoryRequest) -> bool {
    let (recorded, requested) = (&record.claim, &request.claim);
    (&recorded.namespace, &recorded.namespace_uid) != (&requested.namespace, &requested.namespace_uid)
}

fn unsuitable(request: &DirectoryRequest, directory: &DirectoryPath, why: &'static str) -> ExportError {
    let directory = directory.to_string();
    match request.existing {
        Existing::Share => ExportError::NotShareable { directory, why },
        Existing::Refuse | Existing::Adopt => ExportError::NotAdoptable { directory, why },
    }
}
