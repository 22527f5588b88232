//! Restores an archive to a claim by moving the archive's directory to the volume's path.
//!
//! First the claim's own record is written, then the restore target in the archive's record, so that two claims cannot
//! both get the archive. Then the directory is renamed, and its mode and owner are restored. The archive's record stays
//! until the volume exists, so that an interrupted restore can be undone (`rollback::undo_restore`).

use crate::archives::{ArchiveRef, changed_meanwhile};
use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::path_reservations::{Holder, Sharing};
use crate::provision::create::CreatedDirectory;
use crate::provision::restore_plan::{ArchiveRecord, ClaimRecord, RestoreStep, next};
use crate::provision::{Recorded, create, group, new_record};
use crate::record::{ArchiveState, Record, RecordedHandle, RestoreTarget, State};
use crate::records::{Created, ReadRecord};
use crate::request::{DirectoryRequest, ProvisionedDirectory};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, layout, other_clusters, parents, paths, readdir, records, volume_record};
use nfs_client::FileRef;

/// Maximum number of steps of one attempt, in case the directory keeps changing.
const STEPS: u32 = 12;

/// A restore in progress.
struct Restore<'a> {
    request: &'a DirectoryRequest,
    which: &'a ArchiveRef,
    directory: &'a DirectoryPath,
    own: Recorded,
}

/// The archive as observed.
struct ObservedArchive {
    record: Record,
    archive: ArchiveState,
    node: Option<FileRef>,
}

impl Restore<'_> {
    fn own(&self) -> ClaimRecord {
        match &self.own {
            Recorded::Nothing | Recorded::Replaceable => ClaimRecord::Nothing,
            Recorded::Open(record) if record.state == State::Live => ClaimRecord::Live,
            Recorded::Open(_) => ClaimRecord::Creating,
        }
    }

    fn destination(&self) -> RestoreTarget {
        RestoreTarget {
            volume: self.request.volume.clone(),
            claim: self.request.claim.clone(),
            directory: self.directory.to_string(),
        }
    }

    fn is_for(&self, to: &RestoreTarget) -> bool {
        to.volume == self.request.volume && to.claim.uid == self.request.claim.uid
    }

    /// Returns the error about the archive's record as a refusal, if nothing was begun: then nothing has to be kept for the
    /// claim until the record can be used.
    fn unusable(&self, error: ExportError) -> ExportError {
        match (&self.own, error) {
            (
                Recorded::Nothing,
                source @ (ExportError::RecordDamaged { .. }
                | ExportError::RecordForeign { .. }
                | ExportError::RecordMismatch { .. }
                | ExportError::RecordUnsigned { .. }),
            ) => ExportError::ArchiveUnusable {
                source: Box::new(source),
            },
            (_, error) => error,
        }
    }
}

pub(super) async fn restore(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    which: &ArchiveRef,
    directory: &DirectoryPath,
    own: Recorded,
) -> Result<ProvisionedDirectory, ExportError> {
    let reservation = paths::reserve(store, verified, &request.volume, directory, Sharing::Exclusive).await?;
    // Lock order: first the volume of the claim, then the one of the archive.
    let _lock = store.lock_volume(&which.volume).await?;
    let mut restore = Restore {
        request,
        which,
        directory,
        own,
    };
    for _ in 0..STEPS {
        if let Some(made) = restore_step(store, verified, &mut restore).await? {
            reservation.keep(Some(verified.file_key(made.file_id)));
            return Ok(ProvisionedDirectory {
                directory: directory.clone(),
                file_id: made.file_id,
                adopted: made.adopted,
                shared: false,
                mode_not_kept: None,
                group: restore.own.group(),
            });
        }
    }
    Err(ExportError::ConcurrentlyModified {
        doing: format!("restoring the archive of volume {} to {directory}", which.volume),
    })
}

/// Observes, plans and takes one step. Returns `None` if another step follows.
async fn restore_step(
    store: &ExportStore,
    verified: &VerifiedRoot,
    restore: &mut Restore<'_>,
) -> Result<Option<CreatedDirectory>, ExportError> {
    let directory = restore.directory;
    let nodes = paths::walk(store, verified, directory).await?;
    paths::check_parents_and_clusters(store, verified, directory, &nodes, Sharing::Exclusive).await?;
    let leaf = paths::leaf(&nodes, directory);
    let home = leaf.map(|leaf| verified.is_plain_directory(leaf) && leaf.attributes.fileid == restore.which.file_id);
    let (observed, source) = observe_source(store, verified, restore).await?;
    let at_archive = observed.as_ref().is_some_and(|observed| observed.node.is_some());
    let step = next(restore.own(), source, at_archive, home);
    if matches!(step, RestoreStep::MarkRestoring | RestoreStep::Move) {
        // Another cluster may have recorded the name after the last check.
        other_clusters::recheck(store, verified, directory, &nodes, Sharing::Exclusive).await?;
    }
    match (step, observed, leaf) {
        (RestoreStep::Done, _, Some(leaf)) => {
            if let Recorded::Open(record) = &restore.own {
                volume_record::update_metadata(store, verified, record, restore.request).await?;
            }
            Ok(Some(CreatedDirectory {
                file_id: leaf.attributes.fileid,
                handle: RecordedHandle::new(verified, leaf),
                adopted: restore.own.adopted(),
                mode_not_kept: None,
            }))
        }
        (RestoreStep::Record, Some(observed), _) => {
            check_restore_allowed(store, restore.request, &observed)?;
            archives::refuse_while_volume_exists(store, &observed.record)?;
            write_record(store, verified, restore, &observed).await.map(|()| None)
        }
        (RestoreStep::MarkRestoring, Some(observed), _) => {
            check_restore_allowed(store, restore.request, &observed)?;
            mark_restoring(store, verified, restore, &observed).await.map(|()| None)
        }
        (RestoreStep::Move, Some(observed), _) => move_directory(store, verified, restore, &observed, &nodes)
            .await
            .map(|()| None),
        (RestoreStep::Complete, Some(observed), Some(leaf)) => {
            restore_attributes(store, verified, restore, &observed, leaf)
                .await
                .map(Some)
        }
        (RestoreStep::Refuse, _, Some(leaf)) => Err(ExportError::DirectoryExists {
            directory: directory.to_string(),
            holds_something: !readdir::is_empty(store, leaf, directory).await?,
        }),
        (RestoreStep::Taken, Some(observed), _) => Err(ExportError::ArchiveTaken {
            volume: restore.which.volume.clone(),
            state: observed.record.state.name(),
        }),
        (RestoreStep::Missing, _, _) => Err(ExportError::ArchiveMissing {
            volume: restore.which.volume.clone(),
        }),
        (RestoreStep::Unrecorded, _, _) => Err(ExportError::ArchiveGone {
            volume: restore.which.volume.clone(),
        }),
        (RestoreStep::Mismatch, _, _) => Err(ExportError::RecordMismatch {
            volume: restore.request.volume.clone(),
            directory: directory.to_string(),
            what: "its record says that it was restored, and something else has its name".into(),
        }),
        // The other combinations do not occur: each step is planned only if its inputs were observed.
        _ => Ok(None),
    }
}

async fn observe_source(
    store: &ExportStore,
    verified: &VerifiedRoot,
    restore: &Restore<'_>,
) -> Result<(Option<ObservedArchive>, ArchiveRecord), ExportError> {
    if matches!(
        records::read(store, verified, &restore.which.volume).await?,
        ReadRecord::Nothing
    ) {
        return Ok((None, ArchiveRecord::Nothing));
    }
    let record = archives::signed_record(store, verified, restore.which).await;
    let record = *record.map_err(|error| restore.unusable(error))?;
    let Some(archive) = record.state.archive().cloned() else {
        return Ok((None, ArchiveRecord::Nothing));
    };
    let source = match &record.state {
        State::Archived(_) => ArchiveRecord::Archived,
        State::Restoring { to, .. } if restore.is_for(to) => ArchiveRecord::Restoring,
        _ => ArchiveRecord::Unavailable,
    };
    let node = match source {
        ArchiveRecord::Unavailable => None,
        _ => archives::find_directory(store, verified, &record, &archive).await?,
    };
    Ok((Some(ObservedArchive { record, archive, node }), source))
}

/// Checks whether this claim may have the data, based on the record on the export. File handles that clients still hold
/// remain valid after a move, so only the archive's own namespace may restore this way.
fn check_restore_allowed(
    store: &ExportStore,
    request: &DirectoryRequest,
    observed: &ObservedArchive,
) -> Result<(), ExportError> {
    let (claim, volume) = (&observed.record.claim, &observed.record.volume);
    if claim.namespace_uid.is_empty() || claim.namespace_uid != request.claim.namespace_uid {
        return Err(ExportError::ArchiveForeign { volume: volume.clone() });
    }
    if observed.archive.terms.held {
        return Err(ExportError::ArchiveHeld { volume: volume.clone() });
    }
    if observed.archive.shares_files() {
        let volume = volume.clone();
        return Err(ExportError::ArchiveSharesFiles { volume });
    }
    // Its object was deleted since the claim was checked. Nothing would end the restore and remove the archive's record.
    if observed.archive.released {
        let (volume, state) = (volume.clone(), "kept without an NfsArchive");
        return Err(ExportError::ArchiveTaken { volume, state });
    }
    archives::refuse_while_copied(store, volume)
}

/// Returns the group of the restored volume: that of the archive, which nobody else got meanwhile. Only if a volume has it,
/// because the archive was a copy, the restored volume gets another one of the range.
async fn group_of_restored(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    archive: &Record,
) -> Result<Option<u32>, ExportError> {
    match (archive.group, request.gid_range) {
        (Some(group), Some(range)) => group::allocate(store, verified, &request.volume, range, Some(group))
            .await
            .map(Some),
        (group, _) => Ok(group),
    }
}

/// Writes the claim's own record: the planned directory, and the archive that it restores.
async fn write_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    restore: &mut Restore<'_>,
    observed: &ObservedArchive,
) -> Result<(), ExportError> {
    let group = group_of_restored(store, verified, restore.request, &observed.record).await?;
    let request = group::with_group(restore.request, group);
    let record = Record {
        restores: Some(restore.which.volume.clone()),
        ..new_record(store, &request, restore.directory)
    };
    match restore.own {
        Recorded::Replaceable => records::replace(store, verified, &record).await?,
        _ => {
            if records::create(store, verified, &record).await? == Created::Exists {
                return Err(ExportError::ConcurrentlyModified {
                    doing: format!("recording {}", restore.directory),
                });
            }
        }
    }
    restore.own = Recorded::Open(Box::new(record));
    Ok(())
}

/// Writes the restore target into the archive's record.
async fn mark_restoring(
    store: &ExportStore,
    verified: &VerifiedRoot,
    restore: &Restore<'_>,
    observed: &ObservedArchive,
) -> Result<(), ExportError> {
    let taken = Record {
        handle: observed.node.as_ref().map(|node| RecordedHandle::new(verified, node)),
        ..observed.record.in_state(State::Restoring {
            archive: observed.archive.clone(),
            to: restore.destination(),
        })
    };
    records::replace(store, verified, &taken).await
}

/// Creates missing parents and renames the directory.
async fn move_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    restore: &Restore<'_>,
    observed: &ObservedArchive,
    nodes: &[FileRef],
) -> Result<(), ExportError> {
    let names = restore.directory.names();
    let Some(last) = names.last() else {
        return Ok(());
    };
    let Some(parent) = parents::make(store, verified, restore.directory, nodes).await? else {
        return Ok(());
    };
    let holder = Holder::Archive(restore.which.volume.clone());
    paths::refuse_conflict(store, verified, &holder, Sharing::Exclusive, &observed.archive.target).await?;
    let source = std::slice::from_ref(&observed.archive.target);
    other_clusters::refuse_removal(store, verified, &restore.which.volume, source, observed.node.as_slice()).await?;
    let archive = layout::name(&observed.archive.target)?;
    let from = (&verified.root.handle, &archive);
    let renamed = store
        .for_write(verified)?
        .rename(from, restore.which.file_id, (&parent.handle, last))
        .await;
    match renamed {
        Err(error) if changed_meanwhile(error.status()) => Ok(()),
        moved => moved.context(|| format!("moving {archive} to {}", restore.directory)),
    }
}

/// Restores mode and owner from before the archiving, and records the directory as live.
async fn restore_attributes(
    store: &ExportStore,
    verified: &VerifiedRoot,
    restore: &Restore<'_>,
    observed: &ObservedArchive,
    leaf: &FileRef,
) -> Result<CreatedDirectory, ExportError> {
    let as_it_was = DirectoryRequest {
        mode: observed.archive.mode,
        mode_requested: true,
        uid: observed.archive.uid,
        gid: match restore.own.group() {
            Some(group) if observed.record.group != Some(group) => Some(group),
            _ => observed.archive.gid,
        },
        ..restore.request.clone()
    };
    let mode = Some(observed.archive.mode);
    let made = CreatedDirectory {
        // A directory that existed before the operator is never deleted, whichever volume has it now.
        adopted: observed.record.adopted,
        ..create::apply_attributes(store, verified, &as_it_was, restore.directory, leaf, mode).await?
    };
    create::mark_live(store, verified, &restore.own, &made)
        .await
        .map(|()| made)
}
