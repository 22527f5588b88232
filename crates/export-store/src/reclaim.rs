//! Reclaim of a volume's directory: observe, plan, record, act, until it is done (data-safety rules 4, 6, 7 and 8).
//!
//! An interrupted reclaim resumes from the record and the fileid.

mod archive;
pub(crate) mod plan;
mod retain;
mod transfer;

pub(crate) use crate::reclaim::retain::{complete_archive, forget_volume, remove_finished_record, retain};
pub(crate) use crate::reclaim::transfer::transfer;

use crate::archives::RecordedArchive;
use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::path_reservations::{Holder, Reservation};
use crate::paths::LookInside;
pub(crate) use crate::reclaim::plan::ReclaimAction;
use crate::reclaim::plan::{NameOccupant, NextState, ObservedPaths, ReclaimResult, ReclaimStep, decide};
use crate::record::{Record, RecordedHandle, State};
use crate::request::{ArchiveMetadata, ReclaimDecision, Reclaimed, VolumeDirectory};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::volume_record::Recorded;
use crate::{archives, file_holders, layout, other_clusters, parents, paths, readdir, records, trash, volume_record};
use nfs_client::{Conditional, FileRef, Name, Rename, Status, Unchanged};

/// Maximum number of steps of one attempt, in case the directory keeps changing.
const STEPS: u32 = 24;

/// A directory that was just renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// An archive that only the operator may enter.
    Restricted,
    Unrestricted,
}

/// State of one reclaim.
struct Reclaim<'a> {
    verified: &'a VerifiedRoot,
    record: Record,
    /// The directory's fileid, which volume and record agree on.
    file_id: u64,
    action: ReclaimAction,
    /// Metadata for the record of an archive.
    archive_metadata: ArchiveMetadata,
    /// Decides about the directory; `None` if it is only observed.
    decision: Option<&'a dyn ReclaimDecision>,
    /// The nodes of the directory's path.
    nodes: Vec<FileRef>,
    observed: ObservedPaths,
    warnings: Vec<String>,
    /// Maximum name length of the server, as far as known.
    longest_name: usize,
    /// Reserves the archive's name until the rename.
    target: Option<Reservation>,
    /// The fileid of the file with the last record that this attempt wrote.
    record_file: Option<u64>,
    /// The directory is the root of a backend of any cluster.
    is_backend_root: bool,
    /// This attempt has just moved the directory, so its handle is that of what has the recorded name now.
    moved: Option<Moved>,
    /// The archive that this attempt completed.
    archived: Option<Box<RecordedArchive>>,
}

impl<'a> Reclaim<'a> {
    fn new(
        verified: &'a VerifiedRoot,
        record: Record,
        file_id: u64,
        action: ReclaimAction,
        archive_metadata: ArchiveMetadata,
        decision: Option<&'a dyn ReclaimDecision>,
    ) -> Self {
        Self {
            archive_metadata,
            decision,
            verified,
            record,
            file_id,
            action,
            nodes: Vec::new(),
            observed: ObservedPaths {
                source: NameOccupant::Nothing,
                moved: NameOccupant::Nothing,
                empty: None,
                trash_refused: false,
                unrecorded: false,
            },
            warnings: Vec::new(),
            longest_name: crate::naming::MAX_NAME_LEN,
            target: None,
            record_file: None,
            is_backend_root: false,
            moved: None,
            archived: None,
        }
    }

    fn directory(&self) -> &DirectoryPath {
        &self.record.directory
    }

    /// Decides that the directory is moved or removed now: the calls before may have taken minutes, and meanwhile an
    /// administrator may have given the volume to another claim (data-safety rule 15). If it is not, what is recorded stays,
    /// and the next attempt decides again.
    async fn decide(&self) -> Result<(), ExportError> {
        match self.decision {
            Some(decision) => decide_about(self.directory(), decision).await,
            None => Err(undecided(self.directory())),
        }
    }
}

/// Fails unless it is decided that a directory is reclaimed.
async fn decide_about(directory: &DirectoryPath, decision: &dyn ReclaimDecision) -> Result<(), ExportError> {
    match decision.decide().await {
        true => Ok(()),
        false => Err(undecided(directory)),
    }
}

fn undecided(directory: &DirectoryPath) -> ExportError {
    ExportError::Undecided {
        directory: directory.to_string(),
    }
}

/// Returns `now`, in seconds since 1970, or later if that time is recorded already.
fn later(state: &State, now: i64) -> i64 {
    match state {
        State::Deleting { since } => now.max(since.saturating_add(1)),
        _ => now,
    }
}

/// Archives or deletes the directory of a volume. A shared one is left alone, with its parents: only the record is removed.
pub(crate) async fn reclaim(
    store: &ExportStore,
    verified: &VerifiedRoot,
    expected: &VolumeDirectory,
    (action, decision): (ReclaimAction, &dyn ReclaimDecision),
) -> Result<Reclaimed, ExportError> {
    match volume_record::compare_and_sign(store, verified, expected).await? {
        // It belongs to nobody here, whatever the policy says.
        Recorded::Agreed(record, _) if record.shared => {
            decide_about(&record.directory, decision).await?;
            records::remove(store, verified, &record.volume).await?;
            Ok(Reclaimed::Retained)
        }
        Recorded::Agreed(record, file_id) => {
            let metadata = expected.archive_metadata.clone();
            let reclaim = Reclaim::new(verified, *record, file_id, action, metadata, Some(decision));
            run(store, reclaim).await
        }
        Recorded::Nothing(NameOccupant::Nothing) if action == ReclaimAction::Delete => Ok(Reclaimed::AlreadyGone),
        Recorded::Nothing(NameOccupant::Nothing) => Err(volume_record::missing(expected)),
        Recorded::Nothing(_) => Err(volume_record::unrecorded(expected)),
    }
}

async fn run(store: &ExportStore, mut reclaim: Reclaim<'_>) -> Result<Reclaimed, ExportError> {
    let verified = reclaim.verified;
    observe(store, &mut reclaim).await?;
    archive::find_existing(store, &mut reclaim).await?;
    archive::reserve_recorded_name(store, &mut reclaim);
    for _ in 0..STEPS {
        let (state, adopted) = (reclaim.record.state.clone(), reclaim.record.adopted);
        let step = decide(&state, adopted, reclaim.action, &reclaim.observed);
        // Of no other cluster, if the change is made only as long as that is so.
        let mut none_while = None;
        if reclaim.observed.source == NameOccupant::Own
            && matches!(
                step,
                ReclaimStep::Record(_) | ReclaimStep::RemoveEmpty | ReclaimStep::Move
            )
        {
            // The records of other clusters are read after this cluster's is written.
            let look = match step {
                ReclaimStep::Record(_) => LookAtOthers::Known,
                ReclaimStep::Move => {
                    none_while = other_clusters::none_while(store, verified);
                    none_while
                        .as_ref()
                        .map_or(LookAtOthers::Refreshed, |_| LookAtOthers::None)
                }
                _ => LookAtOthers::Refreshed,
            };
            refuse_overlap(store, &reclaim, look).await?;
        }
        match step {
            ReclaimStep::CheckEmpty => check_empty(store, &mut reclaim).await?,
            ReclaimStep::Record(next) => match write_state(store, &mut reclaim, next).await {
                Err(error) if error.is_full() && next == NextState::Deleting => {
                    delete_unrecorded(store, &mut reclaim, error).await?;
                }
                written => written?,
            },
            ReclaimStep::RemoveEmpty => remove_directory(store, &mut reclaim).await?,
            ReclaimStep::Move => move_directory(store, &mut reclaim, none_while.as_ref()).await?,
            ReclaimStep::Restrict => archive::complete(store, &mut reclaim).await?,
            ReclaimStep::DoneUnrecorded => {
                remove_remains(store, &reclaim).await?;
                return Ok(Reclaimed::Deleted);
            }
            ReclaimStep::AlreadyGone => {
                // Without its record, the volume could not be reclaimed for a later claim.
                reclaim.decide().await?;
                remove_remains(store, &reclaim).await?;
                return Ok(Reclaimed::AlreadyGone);
            }
            ReclaimStep::Done(end) => {
                remove_parents(store, &reclaim).await?;
                return Ok(finish(store, reclaim, end));
            }
            ReclaimStep::Missing => {
                return Err(ExportError::DirectoryMissing {
                    volume: reclaim.record.volume.clone(),
                    directory: reclaim.directory().to_string(),
                });
            }
            ReclaimStep::Replaced => return Err(replaced_error(&reclaim)),
            ReclaimStep::NeverCompleted => {
                return Err(ExportError::RecordBusy {
                    volume: reclaim.record.volume.clone(),
                    state: reclaim.record.state.name(),
                    operation: "reclaiming",
                });
            }
        }
    }
    Err(ExportError::ConcurrentlyModified {
        doing: format!("reclaiming {}", reclaim.directory()),
    })
}

/// Removes the parents of the directory that are empty now. Until the volume object is gone, a repeated reclaim does it.
async fn remove_parents(store: &ExportStore, reclaim: &Reclaim<'_>) -> Result<(), ExportError> {
    match reclaim.record.state {
        // It has the tombstone in it, until that is purged.
        State::Tombstone { .. } => Ok(()),
        _ => {
            let own = Holder::Volume(reclaim.record.volume.clone());
            parents::remove_empty(store, reclaim.verified, &own, reclaim.directory()).await
        }
    }
}

/// Removes what remains of a directory that is gone: its empty parents, and its record.
async fn remove_remains(store: &ExportStore, reclaim: &Reclaim<'_>) -> Result<(), ExportError> {
    remove_parents(store, reclaim).await?;
    records::remove(store, reclaim.verified, &reclaim.record.volume).await
}

fn finish(store: &ExportStore, reclaim: Reclaim<'_>, end: ReclaimResult) -> Reclaimed {
    match (end, &reclaim.record.state) {
        (ReclaimResult::Archived, State::Archived(archive)) => {
            archives::track(store, reclaim.verified, &reclaim.record);
            Reclaimed::Archived {
                name: archive.target.clone(),
                warnings: reclaim.warnings,
                recorded: reclaim.archived,
            }
        }
        (ReclaimResult::Deleted, State::Tombstone { .. }) => {
            trash::track_tombstone(store, &reclaim.record);
            Reclaimed::Deleted
        }
        (ReclaimResult::EmptyRemoved, _) => finished(store, &reclaim, Reclaimed::EmptyRemoved),
        (ReclaimResult::Deleted, _) => finished(store, &reclaim, Reclaimed::Deleted),
        (ReclaimResult::Archived, _) => Reclaimed::Deleted,
    }
}

/// Remembers the record of a directory that is gone, for [`forget_volume`].
fn finished(store: &ExportStore, reclaim: &Reclaim<'_>, result: Reclaimed) -> Reclaimed {
    if let Some(file_id) = reclaim.record_file {
        store.state().finished.insert(reclaim.record.volume.clone(), file_id);
    }
    result
}

fn replaced_error(reclaim: &Reclaim<'_>) -> ExportError {
    ExportError::RecordMismatch {
        volume: reclaim.record.volume.clone(),
        directory: reclaim.directory().to_string(),
        what: format!(
            "its directory had fileid {}, and something else has the name now",
            reclaim.file_id
        ),
    }
}

/// Looks up the directory and its target.
async fn observe(store: &ExportStore, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
    let verified = reclaim.verified;
    reclaim.moved = None;
    let record = reclaim.record.clone();
    let directory = reclaim.record.directory.clone();
    let at = |node: Option<&FileRef>| match node {
        None => NameOccupant::Nothing,
        Some(node) if verified.is_plain_directory(node) && record.matches_node(node) => NameOccupant::Own,
        Some(_) => NameOccupant::Other,
    };
    let walked = match record.state {
        State::Live => paths::walk_and_look_inside(store, verified, &directory).await,
        _ => {
            let nodes = paths::walk(store, verified, &directory).await;
            nodes.map(|nodes| (nodes, LookInside::default()))
        }
    };
    let source = match walked {
        Ok((nodes, inside)) => {
            let source = at(paths::leaf(&nodes, &directory));
            reclaim.nodes = nodes;
            reclaim.is_backend_root = inside.is_backend_root;
            reclaim.observed.empty = inside.is_empty.or(reclaim.observed.empty);
            source
        }
        Err(ExportError::PathUnusable { .. }) => {
            reclaim.nodes.clear();
            NameOccupant::Other
        }
        Err(error) => return Err(error),
    };
    let moved = match destination(reclaim)? {
        Some((folder, name)) => {
            let found = store.nfs.lookup(&folder.handle, &name).await;
            at(found.context(|| format!("looking up {name}"))?.as_ref())
        }
        None => NameOccupant::Nothing,
    };
    reclaim.observed.source = source;
    reclaim.observed.moved = moved;
    reclaim.observed.unrecorded = is_deleted_unrecorded(store, reclaim).await?;
    Ok(())
}

async fn check_empty(store: &ExportStore, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
    match paths::leaf(&reclaim.nodes, reclaim.directory()) {
        Some(leaf) => {
            reclaim.observed.empty = Some(readdir::is_empty(store, leaf, reclaim.directory()).await?);
            Ok(())
        }
        None => observe(store, reclaim).await,
    }
}

/// How the records of other clusters are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookAtOthers {
    /// They are read again.
    Refreshed,
    /// They may have been read up to a minute ago.
    Known,
    /// There are none, and the next change is made only as long as that is so.
    None,
}

/// Fails if another holder or another cluster has the directory, a parent of it, or a path inside it (data-safety rules
/// 5 and 20).
async fn refuse_overlap(store: &ExportStore, reclaim: &Reclaim<'_>, look: LookAtOthers) -> Result<(), ExportError> {
    let (verified, record) = (reclaim.verified, &reclaim.record);
    let own = Holder::Volume(record.volume.clone());
    paths::refuse_conflict(store, verified, &own, record.sharing(), &record.directory.to_string()).await?;
    let leaf = paths::leaf(&reclaim.nodes, &record.directory);
    if let Some(leaf) = leaf
        && let Some(holder) =
            file_holders::holder_of(store, verified, leaf, Some(&record.volume), record.sharing()).await?
    {
        return Err(ExportError::FileidInUse {
            directory: record.directory.to_string(),
            holder,
        });
    }
    let segments = record.directory.segments();
    let nodes = &reclaim.nodes;
    match look {
        LookAtOthers::Refreshed => {
            other_clusters::refuse_removal(store, verified, &record.volume, segments, nodes).await?;
        }
        LookAtOthers::Known => {
            other_clusters::refuse_known_removal(store, verified, &record.volume, segments, nodes).await?;
        }
        LookAtOthers::None => {}
    }
    if record.state == State::Live && reclaim.is_backend_root {
        return Err(ExportError::NestedBackend {
            path: record.directory.to_string(),
        });
    }
    Ok(())
}

async fn write_state(store: &ExportStore, reclaim: &mut Reclaim<'_>, next: NextState) -> Result<(), ExportError> {
    let state = match next {
        NextState::RemovingEmpty => State::RemovingEmpty,
        NextState::Archiving => State::Archiving(archive::choose_name(store, reclaim).await?),
        NextState::Deleting => State::Deleting {
            since: later(&reclaim.record.state, store.unix_time()),
        },
        NextState::Tombstone => State::Tombstone {
            since: later(&reclaim.record.state, store.unix_time()),
        },
    };
    let leaf = paths::leaf(&reclaim.nodes, reclaim.directory());
    let found = leaf.map(|leaf| RecordedHandle::new(reclaim.verified, leaf));
    let record = Record {
        handle: found.or_else(|| reclaim.record.handle.clone()),
        ..reclaim.record.in_state(state)
    };
    reclaim.record_file = records::replace_to_free_space(store, reclaim.verified, &record).await?;
    reclaim.record = record;
    // The target was free when it was chosen. If it is taken meanwhile, the rename reports that.
    reclaim.observed.moved = NameOccupant::Nothing;
    Ok(())
}

async fn remove_directory(store: &ExportStore, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
    let names = reclaim.directory().names();
    let Some(name) = names.last() else { return Ok(()) };
    let parent = paths::parent(reclaim.verified, &reclaim.nodes, reclaim.directory());
    reclaim.decide().await?;
    let removed = store
        .for_write(reclaim.verified)?
        .remove_directory(&parent.handle, name, reclaim.file_id)
        .await;
    match removed {
        Ok(()) => reclaim.observed.source = NameOccupant::Nothing,
        Err(error) => match error.status() {
            // A pod that still mounts the directory wrote to it meanwhile. The data is kept.
            Some(Status::NotEmpty) => reclaim.observed.empty = Some(false),
            Some(Status::NotFound | Status::NotSame | Status::NotDirectory) => observe(store, reclaim).await?,
            _ => return Err(error).context(|| format!("removing {}", reclaim.directory())),
        },
    }
    Ok(())
}

/// Renames the directory to the recorded target, and restricts an archive to the operator. With `none_while`, no other
/// cluster has a record as long as that is unchanged; otherwise, their records were read.
async fn move_directory(
    store: &ExportStore,
    reclaim: &mut Reclaim<'_>,
    none_while: Option<&Unchanged>,
) -> Result<(), ExportError> {
    let names = reclaim.directory().names();
    let (Some(name), Some((folder, target))) = (names.last(), destination(reclaim)?) else {
        return observe(store, reclaim).await;
    };
    let verified = reclaim.verified;
    let parent = paths::parent(verified, &reclaim.nodes, reclaim.directory());
    let leaf = paths::leaf(&reclaim.nodes, reclaim.directory());
    let trash_ours = matches!(reclaim.record.state, State::Deleting { .. });
    let archive = leaf.filter(|_| matches!(reclaim.record.state, State::Archiving(_)));
    let mut rename = Rename {
        from: (&parent.handle, name),
        fileid: reclaim.file_id,
        to: (&folder.handle, &target),
        // Only the operator enters the trash, and what has this name there is to be purged: an empty directory at most is
        // replaced.
        replaces: trash_ours,
        unchanged: none_while.map_or(&[], std::slice::from_ref),
        then_set: archive.map(|archive| (&archive.handle, archives::restriction(verified, archive))),
    };
    reclaim.decide().await?;
    let mut renamed = store.for_write(verified)?.rename_if(&rename).await;
    if matches!(renamed, Ok(Conditional::Changed)) {
        refuse_overlap(store, reclaim, LookAtOthers::Refreshed).await?;
        reclaim.decide().await?;
        rename.unchanged = &[];
        renamed = store.for_write(verified)?.rename_if(&rename).await;
    }
    let error = match renamed {
        Ok(Conditional::Done(restricted)) => {
            reclaim.observed.source = NameOccupant::Nothing;
            reclaim.observed.moved = NameOccupant::Own;
            reclaim.moved = Some(match restricted {
                Some(_) => Moved::Restricted,
                None => Moved::Unrestricted,
            });
            return Ok(());
        }
        Ok(Conditional::Changed) => {
            return Err(ExportError::ConcurrentlyModified {
                doing: format!("renaming {} to {target}", reclaim.directory()),
            });
        }
        Err(error) => error,
    };
    match error.status() {
        Some(Status::Exists | Status::NotEmpty | Status::NotFound | Status::NotSame) => observe(store, reclaim).await,
        Some(Status::CrossDevice | Status::Access | Status::NotPermitted) if trash_ours => {
            reclaim.observed.trash_refused = true;
            Ok(())
        }
        Some(Status::NameTooLong) if archive::shorten_name(reclaim) => {
            reclaim.observed.moved = NameOccupant::Other;
            Ok(())
        }
        _ => Err(error).context(|| format!("renaming {} to {target}", reclaim.directory())),
    }
}

/// Moves the directory into the trash of a full export, where its deletion cannot be recorded. What the record would
/// say is in the name: interrupted here, the deletion is found to be done.
async fn delete_unrecorded(
    store: &ExportStore,
    reclaim: &mut Reclaim<'_>,
    full: ExportError,
) -> Result<(), ExportError> {
    // The step before was to be a record, after which the records of other clusters are read again.
    refuse_overlap(store, reclaim, LookAtOthers::Refreshed).await?;
    let verified = reclaim.verified;
    let names = reclaim.directory().names();
    let Some(name) = names.last() else { return Err(full) };
    let target = layout::trashed_unrecorded(&reclaim.record.claim, &reclaim.record.volume, reclaim.file_id)?;
    let parent = paths::parent(verified, &reclaim.nodes, reclaim.directory());
    reclaim.decide().await?;
    let renamed = store
        .for_write(verified)?
        .rename(
            (&parent.handle, name),
            reclaim.file_id,
            (&verified.trash.handle, &target),
        )
        .await;
    match renamed {
        Ok(()) => {
            reclaim.observed.source = NameOccupant::Nothing;
            reclaim.observed.unrecorded = true;
            Ok(())
        }
        Err(error) => match error.status() {
            Some(Status::NotFound | Status::NotSame) => observe(store, reclaim).await,
            // The former error has the remedy.
            Some(_) => Err(full),
            None => Err(error).context(|| format!("renaming {} to {target}", reclaim.directory())),
        },
    }
}

/// Reports whether the directory is in the trash under a name for deletions without a record.
async fn is_deleted_unrecorded(store: &ExportStore, reclaim: &Reclaim<'_>) -> Result<bool, ExportError> {
    if reclaim.action != ReclaimAction::Delete || reclaim.observed.source == NameOccupant::Own {
        return Ok(false);
    }
    let target = layout::trashed_unrecorded(&reclaim.record.claim, &reclaim.record.volume, reclaim.file_id)?;
    let found = store.nfs.lookup(&reclaim.verified.trash.handle, &target).await;
    let found = found.context(|| format!("looking up {target}"))?;
    Ok(found.is_some_and(|found| found.attributes.fileid == reclaim.file_id))
}

/// Returns the target that the record's state announces: a folder and a name.
fn destination<'a>(reclaim: &'a Reclaim<'_>) -> Result<Option<(&'a FileRef, Name)>, ExportError> {
    let (verified, volume) = (reclaim.verified, &reclaim.record.volume);
    Ok(match &reclaim.record.state {
        State::Archiving(archive) | State::Archived(archive) => Some((&verified.root, layout::name(&archive.target)?)),
        State::Deleting { since } => Some((&verified.trash, layout::trashed(&reclaim.record.claim, volume, *since)?)),
        State::Tombstone { .. } => {
            let depth = reclaim.directory().segments().len();
            // If a parent is missing, the tombstone is missing, too.
            (reclaim.nodes.len() + 1 >= depth).then_some((
                paths::parent(verified, &reclaim.nodes, reclaim.directory()),
                layout::tombstone(volume)?,
            ))
        }
        _ => None,
    })
}
