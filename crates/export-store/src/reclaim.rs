//! Reclaiming a volume's directory: look, decide, record, act, until it is done (design 6.4, 6.6, 6.7, 6.8).
//!
//! Cut off anywhere, the same reclaim goes on where the record and the fileid say that it is.

mod archive;
mod decide;
mod delete;
mod give_up;
mod in_use;
mod recorded;

use self::decide::{At, End, Next, ReclaimAction, Seen, Step, decide};
use self::recorded::Recorded;
use super::ExportStore;
use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::ledger::Holder;
use super::record::{Record, State, handle_of};
use super::request::{ArchiveMetadata, ReclaimRequest, Reclaimed};
use crate::naming::DirectoryPath;
use nfs_client::{FileRef, Status};

/// How often what is there may change under one attempt.
const STEPS: u32 = 24;

/// One reclaim on its way.
struct Reclaim<'a> {
    ground: &'a VerifiedRoot,
    record: Record,
    /// The directory's fileid, on which volume and record agree.
    file_id: u64,
    wish: ReclaimAction,
    /// What an archive's record is to say.
    keeping: ArchiveMetadata,
    /// What leads to the directory.
    nodes: Vec<FileRef>,
    seen: Seen,
    warnings: Vec<String>,
    /// The longest name that the server takes, as far as it is known.
    longest_name: usize,
    /// Holds the archive's name until it is taken.
    target: Option<super::ledger::Reservation>,
}

impl<'a> Reclaim<'a> {
    fn new(
        ground: &'a VerifiedRoot,
        record: Record,
        file_id: u64,
        wish: ReclaimAction,
        keeping: &ArchiveMetadata,
    ) -> Self {
        Self {
            keeping: keeping.clone(),
            ground,
            record,
            file_id,
            wish,
            nodes: Vec::new(),
            seen: Seen {
                source: At::Nothing,
                moved: At::Nothing,
                empty: None,
                trash_refused: false,
            },
            warnings: Vec::new(),
            longest_name: crate::naming::LONGEST_NAME,
            target: None,
        }
    }

    fn directory(&self) -> &DirectoryPath {
        &self.record.directory
    }
}

impl ExportStore {
    pub(super) async fn archive_on(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
    ) -> Result<Reclaimed, ExportError> {
        let (record, file_id) = match self.recorded(ground, request).await? {
            Recorded::Agreed(record, file_id) => (record, file_id),
            Recorded::Nothing(At::Nothing) => return Err(missing(request)),
            Recorded::Nothing(_) => return Err(unrecorded(request)),
        };
        self.reclaim(
            ground,
            *record,
            file_id,
            ReclaimAction::Archive,
            &request.archive_metadata,
        )
        .await
    }

    pub(super) async fn delete_on(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
    ) -> Result<Reclaimed, ExportError> {
        let (record, file_id) = match self.recorded(ground, request).await? {
            Recorded::Agreed(record, file_id) => (record, file_id),
            Recorded::Nothing(At::Nothing) => return Ok(Reclaimed::AlreadyGone),
            Recorded::Nothing(_) => return Err(unrecorded(request)),
        };
        self.reclaim(
            ground,
            *record,
            file_id,
            ReclaimAction::Delete,
            &request.archive_metadata,
        )
        .await
    }

    async fn reclaim(
        &self,
        ground: &VerifiedRoot,
        record: Record,
        file_id: u64,
        wish: ReclaimAction,
        keeping: &ArchiveMetadata,
    ) -> Result<Reclaimed, ExportError> {
        let mut reclaim = Reclaim::new(ground, record, file_id, wish, keeping);
        self.look(&mut reclaim).await?;
        self.look_for_archive(&mut reclaim).await?;
        self.hold_target(&mut reclaim);
        for _ in 0..STEPS {
            let (state, adopted) = (reclaim.record.state.clone(), reclaim.record.adopted);
            let step = decide(&state, adopted, reclaim.wish, &reclaim.seen);
            if reclaim.seen.source == At::Ours && matches!(step, Step::Record(_) | Step::RemoveEmpty | Step::Move) {
                self.refuse_others(&reclaim).await?;
            }
            match step {
                Step::LookInside => self.look_inside(&mut reclaim).await?,
                Step::Record(next) => self.record(&mut reclaim, next).await?,
                Step::RemoveEmpty => self.remove_source(&mut reclaim).await?,
                Step::Move => self.move_source(&mut reclaim).await?,
                Step::Seal => self.seal(&mut reclaim).await?,
                Step::Done(end) => return Ok(self.done(reclaim, end)),
                Step::Missing => {
                    return Err(ExportError::DirectoryMissing {
                        volume: reclaim.record.volume.clone(),
                        directory: reclaim.directory().to_string(),
                    });
                }
                Step::Replaced => return Err(self.replaced(&reclaim)),
                Step::NotMade => {
                    return Err(ExportError::RecordBusy {
                        volume: reclaim.record.volume.clone(),
                        state: reclaim.record.state.name(),
                        asked: "reclaiming",
                    });
                }
            }
        }
        Err(ExportError::Unsettled {
            doing: format!("reclaiming {}", reclaim.directory()),
        })
    }

    fn done(&self, reclaim: Reclaim<'_>, end: End) -> Reclaimed {
        match (end, &reclaim.record.state) {
            (End::Archived, State::Archived(note)) => {
                self.enter_archive(reclaim.ground, &reclaim.record);
                Reclaimed::Archived {
                    name: note.target.clone(),
                    warnings: reclaim.warnings,
                }
            }
            (End::Deleted, State::Tombstone { .. }) => {
                self.remember_tombstone(&reclaim.record);
                Reclaimed::Deleted
            }
            (End::EmptyRemoved, _) => Reclaimed::EmptyRemoved,
            (End::AlreadyGone, _) => Reclaimed::AlreadyGone,
            (End::Deleted | End::Archived, _) => Reclaimed::Deleted,
        }
    }

    fn replaced(&self, reclaim: &Reclaim<'_>) -> ExportError {
        ExportError::Disagrees {
            volume: reclaim.record.volume.clone(),
            directory: reclaim.directory().to_string(),
            what: format!(
                "its directory had fileid {}, and something else has the name now",
                reclaim.file_id
            ),
        }
    }

    /// Looks what is where.
    async fn look(&self, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
        let ground = reclaim.ground;
        let record = reclaim.record.clone();
        let directory = reclaim.record.directory.clone();
        let at = |node: Option<&FileRef>| match node {
            None => At::Nothing,
            Some(node) if ground.is_plain_directory(node) && record.is_about(node) => At::Ours,
            Some(_) => At::Stranger,
        };
        let source = match self.walk(ground, &directory).await {
            Ok(nodes) => {
                let source = at(self.leaf_of(&nodes, &directory));
                reclaim.nodes = nodes;
                source
            }
            Err(ExportError::PathUnusable { .. }) => {
                reclaim.nodes.clear();
                At::Stranger
            }
            Err(error) => return Err(error),
        };
        let moved = match self.destination(reclaim)? {
            Some((folder, name)) => {
                let found = self.nfs.lookup(&folder.handle, &name).await;
                at(found.while_(|| format!("looking up {name}"))?.as_ref())
            }
            None => At::Nothing,
        };
        reclaim.seen.source = source;
        reclaim.seen.moved = moved;
        Ok(())
    }

    async fn look_inside(&self, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
        match self.leaf_of(&reclaim.nodes, reclaim.directory()) {
            Some(leaf) => {
                reclaim.seen.empty = Some(self.is_empty(leaf, reclaim.directory()).await?);
                Ok(())
            }
            None => self.look(reclaim).await,
        }
    }

    /// Whether somebody else is in the directory, around it, or has it too (design 6.5).
    async fn refuse_others(&self, reclaim: &Reclaim<'_>) -> Result<(), ExportError> {
        let (ground, record) = (reclaim.ground, &reclaim.record);
        if let Some(conflict) = self.in_the_way(ground, &record.volume, &record.directory) {
            return Err(ExportError::Overlaps {
                directory: record.directory.to_string(),
                conflict: Box::new(conflict),
            });
        }
        let own = Holder::Volume(record.volume.clone());
        let holder = self.ledger.holder_of(&ground.file_key(reclaim.file_id), Some(&own));
        if let Some(holder) = holder
            && holder != Holder::Archive(record.volume.clone())
        {
            return Err(ExportError::Held {
                directory: record.directory.to_string(),
                holder,
            });
        }
        if record.state == State::Live
            && let Some(leaf) = self.leaf_of(&reclaim.nodes, &record.directory)
            && self.holds_reserved(leaf, &record.directory.to_string()).await?
        {
            return Err(ExportError::NestedBackend {
                path: record.directory.to_string(),
            });
        }
        Ok(())
    }

    async fn record(&self, reclaim: &mut Reclaim<'_>, next: Next) -> Result<(), ExportError> {
        let state = match next {
            Next::RemovingEmpty => State::RemovingEmpty,
            Next::Archiving => State::Archiving(self.choose_target(reclaim).await?),
            Next::Deleting => State::Deleting {
                since: later(&reclaim.record.state),
            },
            Next::Tombstone => State::Tombstone {
                since: later(&reclaim.record.state),
            },
        };
        let leaf = self.leaf_of(&reclaim.nodes, reclaim.directory());
        let record = Record {
            handle: leaf.map(handle_of).or_else(|| reclaim.record.handle.clone()),
            ..reclaim.record.in_state(state)
        };
        self.replace_record(reclaim.ground, &record).await?;
        reclaim.record = record;
        // Where it is to go was free when it was chosen, in the trash because nobody else makes names there. Whatever
        // is there all the same is met when it is moved.
        reclaim.seen.moved = At::Nothing;
        Ok(())
    }

    async fn remove_source(&self, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
        let names = reclaim.directory().names();
        let Some(name) = names.last() else { return Ok(()) };
        let parent = self.parent_of(reclaim.ground, &reclaim.nodes, reclaim.directory());
        let removed = self
            .changing(reclaim.ground)?
            .remove_directory(&parent.handle, name, reclaim.file_id)
            .await;
        match removed {
            Ok(()) => reclaim.seen.source = At::Nothing,
            Err(error) => match error.status() {
                // Written into since we looked, by a pod that still has it: that is data, and kept.
                Some(Status::NotEmpty) => reclaim.seen.empty = Some(false),
                Some(Status::NotFound | Status::NotSame | Status::NotDirectory) => self.look(reclaim).await?,
                _ => return Err(error).while_(|| format!("removing {}", reclaim.directory())),
            },
        }
        Ok(())
    }

    /// Renames the directory to where the record says.
    async fn move_source(&self, reclaim: &mut Reclaim<'_>) -> Result<(), ExportError> {
        let names = reclaim.directory().names();
        let (Some(name), Some((folder, target))) = (names.last(), self.destination(reclaim)?) else {
            return self.look(reclaim).await;
        };
        let parent = self.parent_of(reclaim.ground, &reclaim.nodes, reclaim.directory());
        let renamed = self
            .changing(reclaim.ground)?
            .rename((&parent.handle, name), reclaim.file_id, (&folder.handle, &target))
            .await;
        let Err(error) = renamed else {
            reclaim.seen.source = At::Nothing;
            reclaim.seen.moved = At::Ours;
            return Ok(());
        };
        let trash_ours = matches!(reclaim.record.state, State::Deleting { .. });
        match error.status() {
            Some(Status::Exists | Status::NotEmpty | Status::NotFound | Status::NotSame) => self.look(reclaim).await,
            Some(Status::CrossDevice | Status::Access | Status::NotPermitted) if trash_ours => {
                reclaim.seen.trash_refused = true;
                Ok(())
            }
            Some(Status::NameTooLong) if self.shorten(reclaim) => {
                reclaim.seen.moved = At::Stranger;
                Ok(())
            }
            _ => Err(error).while_(|| format!("renaming {} to {target}", reclaim.directory())),
        }
    }
}

/// The present time, in seconds since 1970, and later than the one that is recorded already.
fn later(state: &State) -> i64 {
    let now = jiff::Timestamp::now().as_second();
    match state {
        State::Deleting { since } => now.max(since.saturating_add(1)),
        _ => now,
    }
}

fn missing(request: &ReclaimRequest) -> ExportError {
    let (volume, directory) = (request.volume.clone(), request.directory.to_string());
    ExportError::DirectoryMissing { volume, directory }
}

fn unrecorded(request: &ReclaimRequest) -> ExportError {
    let (volume, directory) = (request.volume.clone(), request.directory.to_string());
    ExportError::RecordMissing { volume, directory }
}
