//! Rollback of what was created for a claim that gets no volume. Uses only RMDIR, and undoes restores.

use crate::archives::changed_meanwhile;
use crate::copy;
use crate::error::{ErrorContext as _, ExportError};
use crate::naming::{DirectoryPath, MAX_NAME_LEN};
use crate::path_reservations::{Holder, Sharing};
use crate::record::{ArchiveState, Record, RecordError, RecordedHandle, State};
use crate::records::ReadRecord;
use crate::request::RollbackOutcome;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, file_holders, layout, other_clusters, parents, paths, records, trash};
use nfs_client::{FileRef, Status};

/// Maximum number of steps of one attempt, in case the directory keeps changing.
const STEPS: u32 = 8;

pub(crate) async fn rollback(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    claim_uid: &str,
    superseded: bool,
) -> Result<RollbackOutcome, ExportError> {
    let holder = Holder::Volume(volume.to_owned());
    let recorded = records::read(store, verified, volume).await?;
    // Backends on one export share the folder of records. The claim is placed on the other backend now.
    if matches!(&recorded, ReadRecord::Record(record, _) if record.backend != store.config.backend) {
        return Ok(RollbackOutcome::Gone);
    }
    if store.reservations.knows(&holder) && !superseded {
        return Err(ExportError::InUse {
            directory: format!("the directory of volume {volume}"),
            holder,
        });
    }
    let outcome = match recorded {
        ReadRecord::Nothing => RollbackOutcome::Gone,
        // The writer stopped before it created anything.
        ReadRecord::Unreadable(RecordError::Truncated) => {
            records::remove(store, verified, volume).await?;
            RollbackOutcome::Gone
        }
        ReadRecord::Unreadable(why) => {
            return Err(ExportError::RecordDamaged {
                volume: volume.to_owned(),
                why,
            });
        }
        ReadRecord::Record(record, _) if record.claim.uid != claim_uid => {
            return Err(ExportError::RecordForeign {
                volume: volume.to_owned(),
                holder: Box::new(record.claim),
            });
        }
        ReadRecord::Record(record, _) if !record.state.belongs_to_volume() => {
            return Err(ExportError::RecordBusy {
                volume: volume.to_owned(),
                state: record.state.name(),
                operation: "undoing",
            });
        }
        // An unsigned record is no reason to remove anything.
        ReadRecord::Record(record, SignatureStatus::Unsigned | SignatureStatus::Forged) => {
            return Err(ExportError::RecordUnsigned { volume: record.volume });
        }
        ReadRecord::Record(record, _) if is_restore_undone(store, verified, &record).await? => {
            parents::remove_empty(store, verified, &holder, &record.directory).await?;
            records::remove(store, verified, volume).await?;
            RollbackOutcome::Gone
        }
        ReadRecord::Record(record, _) => {
            copy::discard_staged(store, verified, (&record.claim, volume)).await?;
            let outcome = remove_directory(store, verified, &record, superseded).await?;
            if outcome == RollbackOutcome::NotEmpty {
                return Ok(outcome);
            }
            if outcome == RollbackOutcome::Gone {
                parents::remove_empty(store, verified, &holder, &record.directory).await?;
            }
            records::remove(store, verified, volume).await?;
            outcome
        }
    };
    store.confirm_answers(verified).await?;
    // It may have been reserved before a record could be written.
    store.reservations.groups.remove_record(&verified.identity.id, volume);
    // Remove only this volume's own reservation: another volume of that name would be a known holder.
    if !store.reservations.knows(&holder) {
        store.reservations.remove(&holder);
    }
    Ok(outcome)
}

/// Reports whether the directory was an archive's and is an archive again.
async fn is_restore_undone(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<bool, ExportError> {
    match &record.restores {
        Some(old) => undo_restore(store, verified, record, old).await,
        None => Ok(false),
    }
}

async fn remove_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    superseded: bool,
) -> Result<RollbackOutcome, ExportError> {
    let directory = &record.directory;
    // Whoever else has it shares it.
    if record.shared {
        return Ok(RollbackOutcome::DirectoryKept);
    }
    if superseded && let Some(holder) = conflicting_holder(store, verified, "", directory).await {
        return Err(ExportError::InUse {
            directory: directory.to_string(),
            holder,
        });
    }
    // An adopted directory existed before and stays, so there is no need to look it up.
    if record.adopted {
        return Ok(RollbackOutcome::DirectoryKept);
    }
    let nodes = match paths::walk(store, verified, directory).await {
        Ok(nodes) => nodes,
        // A parent was replaced, so the directory does not exist.
        Err(ExportError::PathUnusable { .. }) => return Ok(RollbackOutcome::DirectoryKept),
        Err(error) => return Err(error),
    };
    let Some(leaf) = paths::leaf(&nodes, directory) else {
        return Ok(RollbackOutcome::Gone);
    };
    // Compare the handle, too: another directory may reuse the fileid.
    let other = record.file_id.is_some_and(|id| id != leaf.attributes.fileid)
        || record.handle.as_ref().is_some_and(|handle| !handle.is_of(leaf));
    if !verified.is_plain_directory(leaf) || other {
        // After a copy of the export, it may be the recorded one: an administrator decides.
        let was_copied = |handle: &RecordedHandle| handle.is_of_another_folder(verified);
        return Ok(match record.handle.as_ref().is_some_and(was_copied) {
            true => RollbackOutcome::NotEmpty,
            false => RollbackOutcome::DirectoryKept,
        });
    }
    if let Some(holder) = other_holder(store, verified, record, leaf, superseded).await? {
        // With a fileid, two volumes share the directory. Without one, it may have been created for this record and have
        // the fileid of a directory that was removed shortly before, so the record stays until that is known.
        if record.file_id.is_none() && file_holders::certainly_has(store, verified, &holder, leaf).await? {
            return Ok(RollbackOutcome::DirectoryKept);
        }
        return Err(ExportError::InUse {
            directory: directory.to_string(),
            holder,
        });
    }
    match other_clusters::refuse(store, verified, directory, &nodes, Sharing::Exclusive, true).await {
        Err(ExportError::OwnedByOtherCluster { .. }) if record.file_id.is_none() => {
            return Ok(RollbackOutcome::DirectoryKept);
        }
        other => other?,
    }
    // A complete copy that never became a volume. No pod has used it, and it is not empty.
    if record.state == State::Creating && record.file_id.is_some() {
        let parent = paths::parent(verified, &nodes, directory);
        let names = directory.names();
        if let Some(name) = names.last() {
            let own = (&record.claim, record.volume.as_str());
            trash::move_to_trash(store, verified, own, (parent, name), leaf.attributes.fileid).await?;
        }
        return Ok(RollbackOutcome::Gone);
    }
    remove_empty(store, verified, record, &nodes, leaf).await
}

/// Returns another holder of the directory or its path. The superseding volume has the same name and does not count.
async fn other_holder(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    leaf: &FileRef,
    superseded: bool,
) -> Result<Option<Holder>, ExportError> {
    let own = if superseded { "" } else { record.volume.as_str() };
    match file_holders::holder_of(store, verified, leaf, Some(own), Sharing::Exclusive).await? {
        Some(holder) => Ok(Some(holder)),
        None => Ok(conflicting_holder(store, verified, own, &record.directory).await),
    }
}

/// Returns another holder of a directory's path than the volume `own`.
async fn conflicting_holder(
    store: &ExportStore,
    verified: &VerifiedRoot,
    own: &str,
    directory: &DirectoryPath,
) -> Option<Holder> {
    let own = Holder::Volume(own.to_owned());
    let conflict = paths::conflict(store, verified, &own, Sharing::Exclusive, &directory.to_string()).await;
    conflict.map(|conflict| conflict.holder)
}

async fn remove_empty(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    nodes: &[FileRef],
    leaf: &FileRef,
) -> Result<RollbackOutcome, ExportError> {
    let doing = || format!("removing {}", record.directory);
    let parent = paths::parent(verified, nodes, &record.directory);
    let names = record.directory.names();
    let Some(name) = names.last() else {
        return Ok(RollbackOutcome::Gone);
    };
    let removed = store
        .for_write(verified)?
        .remove_directory(&parent.handle, name, leaf.attributes.fileid)
        .await;
    match removed {
        Ok(()) => Ok(RollbackOutcome::Gone),
        Err(error) => match error.status() {
            Some(Status::NotFound) => Ok(RollbackOutcome::Gone),
            // The fileid is unknown and the directory is not empty, so it belongs to someone else.
            Some(Status::NotEmpty) if record.file_id.is_none() => Ok(RollbackOutcome::DirectoryKept),
            Some(Status::NotEmpty) => Ok(RollbackOutcome::NotEmpty),
            Some(Status::NotSame | Status::NotDirectory) => Err(ExportError::ConcurrentlyModified { doing: doing() }),
            _ => Err(error).context(doing),
        },
    }
}

/// Moves a restored directory back to its archive. Returns false if the archive's record is gone: the restore was
/// complete, and the directory is the volume's.
pub(crate) async fn undo_restore(
    store: &ExportStore,
    verified: &VerifiedRoot,
    own: &Record,
    old: &str,
) -> Result<bool, ExportError> {
    let _lock = store.lock_volume(old).await?;
    for _ in 0..STEPS {
        let record = match records::read(store, verified, old).await? {
            ReadRecord::Nothing => return Ok(false),
            ReadRecord::Unreadable(why) => {
                return Err(ExportError::RecordDamaged {
                    volume: old.to_owned(),
                    why,
                });
            }
            ReadRecord::Record(record, SignatureStatus::Signed) => *record,
            ReadRecord::Record(record, _) => return Err(ExportError::RecordUnsigned { volume: record.volume }),
        };
        let State::Restoring { archive, to } = &record.state else {
            return Ok(true);
        };
        // The archive is being restored to another claim.
        if to.volume != own.volume || to.claim.uid != own.claim.uid {
            return Ok(true);
        }
        if let Some(node) = archives::find_directory(store, verified, &record, archive).await? {
            // Ignore warnings: the archive was not restricted more before.
            archives::restrict(store, verified, &node, &archive.target).await?;
            let archived = record.in_state(State::Archived(archive.clone()));
            records::replace(store, verified, &archived).await?;
            archives::track(store, verified, &archived);
            return Ok(true);
        }
        move_back(store, verified, own, &record, archive).await?;
    }
    Err(ExportError::ConcurrentlyModified {
        doing: format!("giving back the archive of volume {old}"),
    })
}

async fn move_back(
    store: &ExportStore,
    verified: &VerifiedRoot,
    own: &Record,
    record: &Record,
    archive: &ArchiveState,
) -> Result<(), ExportError> {
    let nodes = paths::walk(store, verified, &own.directory).await?;
    let leaf = paths::leaf(&nodes, &own.directory);
    let file_id = leaf
        .filter(|leaf| verified.is_plain_directory(leaf))
        .map(|leaf| leaf.attributes.fileid);
    let Some(file_id) = file_id.filter(|file_id| record.file_id == Some(*file_id)) else {
        return Err(ExportError::DirectoryMissing {
            volume: own.volume.clone(),
            directory: own.directory.to_string(),
        });
    };
    let holder = Holder::Volume(own.volume.clone());
    paths::refuse_conflict(store, verified, &holder, Sharing::Exclusive, &own.directory.to_string()).await?;
    other_clusters::refuse_removal(store, verified, &own.volume, own.directory.segments(), &nodes).await?;
    let target = layout::name(&archive.target)?;
    let taken = store.nfs.lookup(&verified.root.handle, &target).await;
    if taken.context(|| format!("looking up {target}"))?.is_some() {
        return rename_archive(store, verified, record, archive).await;
    }
    let names = own.directory.names();
    let Some(last) = names.last() else { return Ok(()) };
    let parent = paths::parent(verified, &nodes, &own.directory);
    let (from, to) = ((&parent.handle, last), (&verified.root.handle, &target));
    match store.for_write(verified)?.rename(from, file_id, to).await {
        Err(error) if changed_meanwhile(error.status()) => Ok(()),
        moved => moved.context(|| format!("moving {} back to {target}", own.directory)),
    }
}

/// Records another name for the archive, because the old one is taken.
async fn rename_archive(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    archive: &ArchiveState,
) -> Result<(), ExportError> {
    let State::Restoring { to, .. } = &record.state else {
        return Ok(());
    };
    // Reserved until it is recorded. The next step reserves the recorded name.
    let (target, _held) = archives::reserve_name(store, verified, record, MAX_NAME_LEN).await?;
    let archive = ArchiveState {
        target,
        ..archive.clone()
    };
    let state = State::Restoring {
        archive,
        to: to.clone(),
    };
    records::replace(store, verified, &record.in_state(state)).await
}
