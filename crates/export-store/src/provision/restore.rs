//! Giving a claim the data of an archive, by moving the archive's directory to where the volume's is to be.
//!
//! The claim's own record comes first, then the archive's record says whose it becomes: two claims can't both get it. Then
//! the rename; then mode and owner are put back. The archive's record stays until the volume is there, so that whoever
//! dies before that can still give it back (`give_back.rs`).

use super::Recorded;
use super::make::Made;
use super::next_step::{Own, Source, Step, next};
use crate::ExportStore;
use crate::archives::{ArchiveRef, changed_meanwhile};
use crate::error::{ErrorContext as _, ExportError};
use crate::ground::VerifiedRoot;
use crate::layout;
use crate::naming::DirectoryPath;
use crate::record::{ArchiveState, Record, RestoreTarget, State, handle_of};
use crate::records::{Created, Found};
use crate::request::{DirectoryRequest, ProvisionedDirectory};
use nfs_client::FileRef;

/// How often what is there may change under one attempt.
const STEPS: u32 = 12;

/// A restore on its way.
struct Restore<'a> {
    request: &'a DirectoryRequest,
    which: &'a ArchiveRef,
    directory: &'a DirectoryPath,
    own: Recorded,
}

/// The archive, as it was seen.
struct Seen {
    record: Record,
    note: ArchiveState,
    node: Option<FileRef>,
}

impl ExportStore {
    pub(super) async fn restore(
        &self,
        ground: &VerifiedRoot,
        request: &DirectoryRequest,
        which: &ArchiveRef,
        directory: &DirectoryPath,
        own: Recorded,
    ) -> Result<ProvisionedDirectory, ExportError> {
        let reservation = self.reserve(ground, &request.volume, directory)?;
        // Taken after the claim's own, by everybody who takes both.
        let _turn = self.turns.of(&which.volume).await;
        let mut restore = Restore {
            request,
            which,
            directory,
            own,
        };
        for _ in 0..STEPS {
            if let Some(made) = self.restore_step(ground, &mut restore).await? {
                reservation.keep(Some(ground.file_key(made.file_id)));
                return Ok(ProvisionedDirectory {
                    directory: directory.clone(),
                    file_id: made.file_id,
                    adopted: made.adopted,
                    mode_not_kept: None,
                });
            }
        }
        Err(ExportError::Unsettled {
            doing: format!("restoring the archive of volume {} to {directory}", which.volume),
        })
    }

    /// Looks, decides, acts; `None` when it is to be looked at again.
    async fn restore_step(
        &self,
        ground: &VerifiedRoot,
        restore: &mut Restore<'_>,
    ) -> Result<Option<Made>, ExportError> {
        let directory = restore.directory;
        let nodes = self.walk(ground, directory).await?;
        self.judge_way(ground, directory, &nodes).await?;
        let leaf = self.leaf_of(&nodes, directory);
        let home = leaf.map(|leaf| ground.is_plain_directory(leaf) && leaf.attributes.fileid == restore.which.file_id);
        let (seen, source) = self.look_at_source(ground, restore).await?;
        let at_archive = seen.as_ref().is_some_and(|seen| seen.node.is_some());
        let step = next(restore.own(), source, at_archive, home);
        match (step, seen, leaf) {
            (Step::Done, _, Some(leaf)) => {
                if let Recorded::Open(record) = &restore.own {
                    self.renote(ground, record, restore.request).await?;
                }
                Ok(Some(Made {
                    file_id: leaf.attributes.fileid,
                    handle: handle_of(leaf),
                    adopted: restore.own.adopted(),
                    mode_not_kept: None,
                }))
            }
            (Step::Record, Some(seen), _) => {
                self.may_move(restore.request, &seen)?;
                self.refuse_volume(&seen.record)?;
                self.record_restore(ground, restore).await.map(|()| None)
            }
            (Step::Take, Some(seen), _) => {
                self.may_move(restore.request, &seen)?;
                self.take(ground, restore, &seen).await.map(|()| None)
            }
            (Step::Move, Some(seen), _) => self.move_home(ground, restore, &seen, &nodes).await.map(|()| None),
            (Step::Settle, Some(seen), Some(leaf)) => self.put_back(ground, restore, &seen, leaf).await.map(Some),
            (Step::Refuse, _, Some(leaf)) => Err(ExportError::DirectoryExists {
                directory: directory.to_string(),
                holds_something: !self.is_empty(leaf, directory).await?,
            }),
            (Step::Taken, Some(seen), _) => Err(ExportError::ArchiveTaken {
                volume: restore.which.volume.clone(),
                state: seen.record.state.name(),
            }),
            (Step::Missing, _, _) => Err(ExportError::ArchiveMissing {
                volume: restore.which.volume.clone(),
            }),
            (Step::Gone, _, _) => Err(ExportError::ArchiveGone {
                volume: restore.which.volume.clone(),
            }),
            (Step::Disagree, _, _) => Err(ExportError::Disagrees {
                volume: restore.request.volume.clone(),
                directory: directory.to_string(),
                what: "its record says that it was restored, and something else has its name".into(),
            }),
            // What a step needs was seen whenever it is decided.
            _ => Ok(None),
        }
    }

    async fn look_at_source(
        &self,
        ground: &VerifiedRoot,
        restore: &Restore<'_>,
    ) -> Result<(Option<Seen>, Source), ExportError> {
        if matches!(self.read_record(ground, &restore.which.volume).await?, Found::Nothing) {
            return Ok((None, Source::Gone));
        }
        let record = *self.record_of(ground, restore.which).await?;
        let Some(note) = record.state.archive().cloned() else {
            return Ok((None, Source::Gone));
        };
        let source = match &record.state {
            State::Archived(_) => Source::Kept,
            State::Restoring { to, .. } if restore.is_for(to) => Source::Mine,
            _ => Source::Others,
        };
        let node = match source {
            Source::Others => None,
            _ => self.at_archive(ground, &record, &note).await?,
        };
        Ok((Some(Seen { record, note, node }), source))
    }

    /// The last word on whether this claim may have these data, by the record on the export: moving gives away all
    /// handles that somebody still holds, so only the namespace that had them gets them so.
    fn may_move(&self, request: &DirectoryRequest, seen: &Seen) -> Result<(), ExportError> {
        let (claim, volume) = (&seen.record.claim, &seen.record.volume);
        if claim.namespace_uid.is_empty() || claim.namespace_uid != request.claim.namespace_uid {
            return Err(ExportError::ArchiveForeign { volume: volume.clone() });
        }
        if seen.note.terms.held {
            return Err(ExportError::ArchiveHeld { volume: volume.clone() });
        }
        self.refuse_copied(volume)
    }

    /// The claim's own record: what is to come, and from which archive.
    async fn record_restore(&self, ground: &VerifiedRoot, restore: &mut Restore<'_>) -> Result<(), ExportError> {
        let record = Record {
            volume: restore.request.volume.clone(),
            backend: self.keeper.backend.clone(),
            claim: restore.request.claim.clone(),
            directory: restore.directory.clone(),
            file_id: None,
            handle: None,
            adopted: false,
            restores: Some(restore.which.volume.clone()),
            note: restore.request.note.clone(),
            state: State::Creating,
        };
        match restore.own {
            Recorded::Short => self.replace_record(ground, &record).await?,
            _ => {
                if self.create_record(ground, &record).await? == Created::Exists {
                    return Err(ExportError::Unsettled {
                        doing: format!("recording {}", restore.directory),
                    });
                }
            }
        }
        restore.own = Recorded::Open(Box::new(record));
        Ok(())
    }

    /// The archive's record says whose it becomes.
    async fn take(&self, ground: &VerifiedRoot, restore: &Restore<'_>, seen: &Seen) -> Result<(), ExportError> {
        let taken = Record {
            handle: seen.node.as_ref().map(handle_of),
            ..seen.record.in_state(State::Restoring {
                archive: seen.note.clone(),
                to: restore.destination(),
            })
        };
        self.replace_record(ground, &taken).await
    }

    /// Parents, and the rename.
    async fn move_home(
        &self,
        ground: &VerifiedRoot,
        restore: &Restore<'_>,
        seen: &Seen,
        nodes: &[FileRef],
    ) -> Result<(), ExportError> {
        let names = restore.directory.names();
        let Some(last) = names.last() else {
            return Ok(());
        };
        let Some(parent) = self.make_parents(ground, restore.directory, nodes).await? else {
            return Ok(());
        };
        let archive = layout::name(&seen.note.target)?;
        let from = (&ground.root.handle, &archive);
        let renamed = self
            .changing(ground)?
            .rename(from, restore.which.file_id, (&parent.handle, last))
            .await;
        match renamed {
            Err(error) if changed_meanwhile(error.status()) => Ok(()),
            moved => moved.while_(|| format!("moving {archive} to {}", restore.directory)),
        }
    }

    /// Mode and owner as they were before it was archived; then the record says that all is well.
    async fn put_back(
        &self,
        ground: &VerifiedRoot,
        restore: &Restore<'_>,
        seen: &Seen,
        leaf: &FileRef,
    ) -> Result<Made, ExportError> {
        let as_it_was = DirectoryRequest {
            mode: seen.note.mode,
            mode_asked: true,
            uid: seen.note.uid,
            gid: seen.note.gid,
            ..restore.request.clone()
        };
        let mode = Some(seen.note.mode);
        let made = Made {
            // What was there before us is never deleted, whoever has it now.
            adopted: seen.record.adopted,
            ..self.set(ground, &as_it_was, restore.directory, leaf, mode).await?
        };
        self.live(ground, &restore.own, &made).await.map(|()| made)
    }
}

impl Restore<'_> {
    fn own(&self) -> Own {
        match &self.own {
            Recorded::Nothing | Recorded::Short => Own::Nothing,
            Recorded::Open(record) if record.state == State::Live => Own::Live,
            Recorded::Open(_) => Own::Creating,
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
}
