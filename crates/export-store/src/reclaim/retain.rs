//! Removal of records without their directories: Retain, and records that are no longer needed.

use crate::error::ExportError;
use crate::reclaim::{NameOccupant, Reclaim, ReclaimAction, Recorded, archive};
use crate::record::{Record, State};
use crate::records::ReadRecord;
use crate::request::{ArchiveMetadata, ReclaimDecision, Reclaimed, VolumeDirectory};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, reclaim, records, volume_record};

pub(crate) async fn retain(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
    decision: &dyn ReclaimDecision,
) -> Result<Reclaimed, ExportError> {
    let recorded = match records::read(store, verified, &expected.volume).await? {
        ReadRecord::Record(record, _) if record.claim.uid == expected.claim.uid => Some(record),
        // There is no record to remove.
        _ => None,
    };
    if let Some(record) = &recorded
        && !record.state.belongs_to_volume()
        && has_moved(store, verified, record).await?
        // An earlier reclaim with another policy can no longer be undone, so complete it.
        && let Recorded::Agreed(record, file_id) = volume_record::compare_and_sign(store, verified, expected).await?
    {
        let (action, metadata) = (ReclaimAction::Archive, expected.archive_metadata.clone());
        let reclaim = Reclaim::new(verified, *record, file_id, action, metadata, Some(decision));
        match reclaim::run(store, reclaim).await {
            // The directory is missing, so only the record is left to remove.
            Err(ExportError::DirectoryMissing { .. }) => {}
            other => return other,
        }
    }
    // Without its record, the volume could not be reclaimed for a later claim.
    reclaim::decide_about(&expected.directory, decision).await?;
    if recorded.is_some() {
        records::remove(store, verified, &expected.volume).await?;
    }
    Ok(Reclaimed::Retained)
}

pub(crate) async fn forget_volume(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<(), ExportError> {
    let finished = store.state().finished.remove(volume);
    if let Some(file_id) = finished
        && records::remove_file(store, verified, volume, file_id).await?
    {
        return Ok(());
    }
    if let ReadRecord::Record(record, _) = records::read(store, verified, volume).await? {
        remove_finished_record(store, verified, &record).await?;
    }
    Ok(())
}

/// Removes a record that is no longer needed. Returns false if it is still needed.
pub(crate) async fn remove_finished_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
) -> Result<bool, ExportError> {
    let over = matches!(record.state, State::RemovingEmpty | State::Deleting { .. });
    if !over || !has_moved(store, verified, record).await? {
        return Ok(false);
    }
    records::remove(store, verified, &record.volume).await?;
    Ok(true)
}

/// Reports whether the directory is no longer at its volume's path.
async fn has_moved(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<bool, ExportError> {
    let observed = observe_record(store, verified, record).await?;
    Ok(observed.is_none_or(|reclaim| reclaim.observed.source != NameOccupant::Own))
}

/// Observes the directory of a record. Returns `None` if it has no fileid yet.
pub(super) async fn observe_record<'a>(
    store: &ExportStore,
    verified: &'a VerifiedRoot,
    record: &Record,
) -> Result<Option<Reclaim<'a>>, ExportError> {
    let Some(file_id) = record.file_id else { return Ok(None) };
    let (action, metadata) = (ReclaimAction::Archive, ArchiveMetadata::default());
    let mut reclaim = Reclaim::new(verified, record.clone(), file_id, action, metadata, None);
    reclaim::observe(store, &mut reclaim).await?;
    Ok(Some(reclaim))
}

/// Completes the record of an archive whose rename was done.
pub(crate) async fn complete_archive(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
) -> Result<bool, ExportError> {
    if !matches!(record.state, State::Archiving(_)) {
        return Ok(false);
    }
    let observed = observe_record(store, verified, record).await?;
    let Some(mut reclaim) = observed.filter(|reclaim| reclaim.observed.moved == NameOccupant::Own) else {
        return Ok(false);
    };
    archive::complete(store, &mut reclaim).await?;
    archives::track(store, verified, &reclaim.record);
    Ok(matches!(reclaim.record.state, State::Archived(_)))
}
