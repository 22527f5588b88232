use crate::error::ExportError;
use crate::path_reservations::{Holder, Sharing};
use crate::reclaim::plan::NameOccupant;
use crate::record::{Record, RecordedHandle, State};
use crate::records::{Created, ReadRecord};
use crate::request::VolumeDirectory;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::volume_record::Recorded;
use crate::{file_holders, other_clusters, paths, records, rollback, volume_record};
use nfs_client::FileRef;

pub(crate) async fn create_missing_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
    adopted: bool,
) -> Result<u64, ExportError> {
    let begun = earlier_attempt(store, verified, expected).await?;
    if begun.is_none() {
        match volume_record::compare_and_sign(store, verified, expected).await? {
            Recorded::Agreed(_, file_id) => return Ok(file_id),
            Recorded::Nothing(NameOccupant::Nothing) => return Err(volume_record::missing(expected)),
            Recorded::Nothing(_) => {}
        }
    }
    let directory = &expected.directory;
    let leaf = find_unclaimed(store, verified, expected).await?;
    let record = Record {
        volume: expected.volume.clone(),
        backend: store.config.backend.clone(),
        claim: expected.claim.clone(),
        directory: directory.clone(),
        file_id: Some(leaf.attributes.fileid),
        handle: Some(RecordedHandle::new(verified, &leaf)),
        adopted: adopted || begun.as_ref().is_some_and(|begun| begun.adopted),
        shared: begun.as_ref().is_some_and(|begun| begun.shared),
        restores: None,
        group: None,
        metadata: None,
        state: State::Live,
    };
    if begun.is_some() {
        records::replace(store, verified, &record).await?;
    } else if records::create(store, verified, &record).await? == Created::Exists {
        return Err(ExportError::ConcurrentlyModified {
            doing: format!("recording {directory}"),
        });
    }
    Ok(leaf.attributes.fileid)
}

/// Returns the record of an unfinished attempt for the same directory. Rolls back one for another directory.
async fn earlier_attempt(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
) -> Result<Option<Record>, ExportError> {
    let record = match records::read_or_remove_truncated(store, verified, &expected.volume).await? {
        ReadRecord::Record(record, _) => record,
        ReadRecord::Nothing | ReadRecord::Unreadable(_) => return Ok(None),
    };
    if record.claim.uid != expected.claim.uid || !record.state.belongs_to_volume() {
        return Ok(None);
    }
    if record.directory == expected.directory {
        return Ok(Some(*record).filter(|record| record.file_id.is_none()));
    }
    rollback::rollback(store, verified, &expected.volume, &expected.claim.uid, true).await?;
    Ok(None)
}

/// Returns the directory of a volume without a record, if it has no other holder.
async fn find_unclaimed(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
) -> Result<FileRef, ExportError> {
    let directory = &expected.directory;
    let own = Holder::Volume(expected.volume.clone());
    paths::refuse_conflict(store, verified, &own, Sharing::Exclusive, &directory.to_string()).await?;
    let nodes = paths::walk(store, verified, directory).await?;
    let Some(leaf) = paths::leaf(&nodes, directory) else {
        return Err(volume_record::missing(expected));
    };
    if let Some(bad) = nodes.iter().find(|node| !verified.is_plain_directory(node)) {
        return Err(ExportError::PathUnusable {
            path: directory.to_string(),
            why: if bad.attributes.kind == nfs_client::FileKind::Directory {
                "leads to another file system"
            } else {
                "leads to something that is not a directory"
            },
        });
    }
    paths::check_parents_and_clusters(store, verified, directory, &nodes, Sharing::Exclusive).await?;
    let file_id = leaf.attributes.fileid;
    if let Some(holder) =
        file_holders::holder_of(store, verified, leaf, Some(&expected.volume), Sharing::Exclusive).await?
    {
        return Err(ExportError::FileidInUse {
            directory: directory.to_string(),
            holder,
        });
    }
    if expected.file_id.is_some_and(|said| said != file_id) {
        return Err(ExportError::RecordMismatch {
            volume: expected.volume.clone(),
            directory: directory.to_string(),
            what: format!(
                "its object has fileid {:?}, and the directory {file_id}",
                expected.file_id
            ),
        });
    }
    other_clusters::refuse(store, verified, directory, &nodes, Sharing::Exclusive, true).await?;
    Ok(leaf.clone())
}
