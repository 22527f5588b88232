//! Archives after they were made: looked at, their terms written down, purged through the trash, spared (design 6.7).
//!
//! A purge is two steps, between which the object's deletion is asked for: [`ManagedExport::begin_purge`] writes down
//! what comes, [`ManagedExport::end_purge`] does it. Whoever dies between them, or finds the archive held, may take the
//! first one back.

use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::ledger::Holder;
use super::record::{ArchiveState, Record, RestoreTarget, RetentionTerms, State, handle_of};
use super::records::Found;
use super::request::ClaimRef;
use super::signature::Trust;
use super::{ExportStore, PoisonError, layout};
use crate::naming::DirectoryPath;
use nfs_client::{FileRef, Status};

/// How often what is there may change under one attempt.
const STEPS: u32 = 8;

/// Which archive is meant: the name alone could be another's by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRef {
    /// The volume that it was; of a copy, the name of the object that asked for it.
    pub volume: String,
    /// The uid of the claim that the volume was for.
    pub claim_uid: String,
    /// The directory's fileid.
    pub file_id: u64,
}

/// How far an archive is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// It is kept.
    Kept,
    /// It is on its way into the trash.
    Purging,
    /// It is on its way to a volume.
    Restoring(RestoreTarget),
}

/// An archive as the export has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedArchive {
    /// The volume that it was; of a copy, the name of the object that asked for it.
    pub volume: String,
    /// The claim that the volume was for.
    pub claim: ClaimRef,
    /// Where the directory was.
    pub directory: DirectoryPath,
    /// Its fileid.
    pub file_id: u64,
    /// What the record says of it.
    pub note: ArchiveState,
    /// How far it is.
    pub stage: Stage,
    /// The directory is where the archive should be.
    pub there: bool,
    /// The export's identity.
    pub export_id: String,
    /// How far the record can be believed.
    pub trust: Trust,
}

impl RecordedArchive {
    /// The volume whose data they are.
    pub fn of_volume(&self) -> &str {
        self.note.copy.as_ref().map_or(&self.volume, |copy| &copy.volume)
    }
}

impl ExportStore {
    /// The archive that is kept of a volume, if it is one of this backend's.
    pub(super) async fn archive_kept_on(
        &self,
        ground: &VerifiedRoot,
        volume: &str,
    ) -> Result<Option<RecordedArchive>, ExportError> {
        let (record, trust) = match self.read_record(ground, volume).await? {
            Found::Nothing => return Ok(None),
            Found::Unreadable(why) => return Err(damaged(volume, why)),
            Found::Record(record, trust) => (record, trust),
        };
        let (Some(note), Some(file_id)) = (record.state.archive().cloned(), record.file_id) else {
            return Ok(None);
        };
        if record.backend != self.keeper.backend {
            return Ok(None);
        }
        let there = self.at_archive(ground, &record, &note).await?;
        let stage = match &record.state {
            State::Purging { .. } => Stage::Purging,
            State::Restoring { to, .. } => Stage::Restoring(to.clone()),
            _ => Stage::Kept,
        };
        Ok(Some(RecordedArchive {
            volume: record.volume,
            claim: record.claim,
            directory: record.directory,
            file_id,
            there: there.is_some(),
            note,
            stage,
            export_id: ground.identity.id.clone(),
            trust,
        }))
    }

    /// Writes down what the object says shall become of the archive.
    pub(super) async fn keep_terms_on(
        &self,
        ground: &VerifiedRoot,
        which: &ArchiveRef,
        terms: &RetentionTerms,
    ) -> Result<(), ExportError> {
        let record = self.record_of(ground, which).await?;
        match &record.state {
            State::Archived(note) if note.terms != *terms => {
                let archived = State::Archived(note.on(terms));
                self.replace_record(ground, &record.in_state(archived)).await
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn begin_purge_on(&self, ground: &VerifiedRoot, which: &ArchiveRef) -> Result<(), ExportError> {
        let record = self.record_of(ground, which).await?;
        let note = match &record.state {
            State::Purging { .. } => return Ok(()),
            State::Archived(note) => note.clone(),
            _ => return Err(busy(&record, "purging it")),
        };
        if note.terms.held {
            return Err(ExportError::ArchiveHeld {
                volume: record.volume.clone(),
            });
        }
        self.refuse_copied(&record.volume)?;
        self.refuse_volume(&record)?;
        let there = self.at_archive(ground, &record, &note).await?;
        let purging = State::Purging {
            archive: note,
            since: now(),
        };
        let record = Record {
            handle: there.as_ref().map(handle_of).or_else(|| record.handle.clone()),
            ..record.in_state(purging)
        };
        self.replace_record(ground, &record).await
    }

    pub(super) async fn end_purge_on(&self, ground: &VerifiedRoot, which: &ArchiveRef) -> Result<(), ExportError> {
        let mut record = self.record_of(ground, which).await?;
        for _ in 0..STEPS {
            let State::Purging { archive, since } = &record.state else {
                return Err(busy(&record, "purging it"));
            };
            let (archive, since) = (archive.clone(), *since);
            if self.at_archive(ground, &record, &archive).await?.is_none() {
                self.remove_record(ground, &record.volume).await?;
                self.forget_archive(&record.volume);
                return Ok(());
            }
            let trashed = layout::trashed(&record.volume, since)?;
            let taken = self.nfs.lookup(&ground.trash.handle, &trashed).await;
            if taken.while_(|| format!("looking up {trashed} in the trash"))?.is_some() {
                // A later second makes another name.
                let since = now().max(since.saturating_add(1));
                *record = record.in_state(State::Purging { archive, since });
                self.replace_record(ground, &record).await?;
                continue;
            }
            let (name, to) = (layout::name(&archive.target)?, (&ground.trash.handle, &trashed));
            let from = (&ground.root.handle, &name);
            match self.changing(ground)?.rename(from, which.file_id, to).await {
                Err(error) if changed_meanwhile(error.status()) => {}
                moved => moved.while_(|| format!("moving {name} into the trash"))?,
            }
        }
        Err(ExportError::Unsettled {
            doing: format!("purging the archive of volume {}", which.volume),
        })
    }

    /// Takes back a purge that was announced and not done; false when it was done.
    pub(super) async fn spare_on(&self, ground: &VerifiedRoot, which: &ArchiveRef) -> Result<bool, ExportError> {
        let record = self.record_of(ground, which).await?;
        match &record.state {
            State::Purging { archive, .. } if self.at_archive(ground, &record, archive).await?.is_some() => {
                let archived = record.in_state(State::Archived(archive.clone()));
                self.replace_record(ground, &archived).await.map(|()| true)
            }
            State::Purging { .. } => Ok(false),
            _ => Ok(true),
        }
    }

    /// The volume that an archive was restored to is there: the archive's own record has done its work.
    pub(super) async fn finish_restore_on(
        &self,
        ground: &VerifiedRoot,
        which: &ArchiveRef,
        to: &RestoreTarget,
    ) -> Result<(), ExportError> {
        let record = self.record_of(ground, which).await?;
        if !matches!(&record.state, State::Restoring { to: noted, .. } if noted == to) {
            return Err(busy(&record, "finishing its restore"));
        }
        let directory = DirectoryPath::parse(&to.directory).map_err(|error| ExportError::NameUnusable {
            name: to.directory.clone(),
            why: error.to_string(),
        })?;
        let nodes = self.walk(ground, &directory).await?;
        let leaf = self.leaf_of(&nodes, &directory);
        if leaf.map(|leaf| leaf.attributes.fileid) != record.file_id {
            return Err(ExportError::Disagrees {
                volume: to.volume.clone(),
                directory: to.directory.clone(),
                what: "it is not the directory that was restored".into(),
            });
        }
        self.remove_record(ground, &record.volume).await?;
        self.forget_archive(&record.volume);
        Ok(())
    }

    /// The record of an archive, if it is the one that is meant and this cluster signed it.
    pub(super) async fn record_of(
        &self,
        ground: &VerifiedRoot,
        which: &ArchiveRef,
    ) -> Result<Box<Record>, ExportError> {
        match self.record_and_trust(ground, which).await? {
            (record, Trust::Signed) => Ok(record),
            (record, Trust::Unsigned | Trust::Forged) => Err(ExportError::RecordUnsigned { volume: record.volume }),
        }
    }

    /// The same, whoever wrote it.
    pub(super) async fn record_and_trust(
        &self,
        ground: &VerifiedRoot,
        which: &ArchiveRef,
    ) -> Result<(Box<Record>, Trust), ExportError> {
        let (record, trust) = match self.read_record(ground, &which.volume).await? {
            Found::Record(record, trust) => (record, trust),
            Found::Unreadable(why) => return Err(damaged(&which.volume, why)),
            Found::Nothing => {
                return Err(ExportError::ArchiveUnrecorded {
                    volume: which.volume.clone(),
                });
            }
        };
        if record.claim.uid != which.claim_uid {
            return Err(ExportError::RecordForeign {
                volume: which.volume.clone(),
                holder: Box::new(record.claim),
            });
        }
        if record.file_id != Some(which.file_id) || record.backend != self.keeper.backend {
            return Err(ExportError::Disagrees {
                volume: which.volume.clone(),
                directory: record.directory.to_string(),
                what: format!(
                    "its object says fileid {} on backend {}, its record {:?} on backend {}",
                    which.file_id, self.keeper.backend, record.file_id, record.backend
                ),
            });
        }
        Ok((record, trust))
    }

    /// The archive's directory, if it is where it should be.
    ///
    /// # Errors
    /// [`ExportError::Disagrees`] when something is under way and what has the name has the fileid and another handle:
    /// either the server changed its handles, or another directory got the fileid.
    pub(super) async fn at_archive(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        note: &ArchiveState,
    ) -> Result<Option<FileRef>, ExportError> {
        let name = layout::name(&note.target)?;
        let found = self.nfs.lookup(&ground.root.handle, &name).await;
        let found = found.while_(|| format!("looking up {name}"))?;
        let Some(node) =
            found.filter(|node| ground.is_plain_directory(node) && record.file_id == Some(node.attributes.fileid))
        else {
            return Ok(None);
        };
        if record.is_about(&node) {
            return Ok(Some(node));
        }
        Err(ExportError::Disagrees {
            volume: record.volume.clone(),
            directory: note.target.clone(),
            what: "it has the fileid and not the file handle that its record knows".into(),
        })
    }

    /// The directory of an archive that is kept, neither purged nor restored, and what its record says of it.
    pub(super) async fn kept_at(
        &self,
        ground: &VerifiedRoot,
        which: &ArchiveRef,
    ) -> Result<(FileRef, ArchiveState), ExportError> {
        let volume = which.volume.clone();
        let record = match self.record_of(ground, which).await {
            Err(ExportError::ArchiveUnrecorded { .. }) => return Err(ExportError::ArchiveGone { volume }),
            record => record?,
        };
        let State::Archived(note) = &record.state else {
            let state = record.state.name();
            return Err(ExportError::ArchiveTaken { volume, state });
        };
        match self.at_archive(ground, &record, note).await? {
            Some(node) => Ok((node, note.clone())),
            None => Err(ExportError::ArchiveMissing { volume }),
        }
    }

    /// What is being copied stays where it is.
    pub(super) fn refuse_copied(&self, volume: &str) -> Result<(), ExportError> {
        if self.is_being_copied(volume) {
            let volume = volume.to_owned();
            return Err(ExportError::ArchiveCopied { volume });
        }
        Ok(())
    }

    /// Whose volume object is still there is not an archive alone: its reclaim comes first.
    pub(super) fn refuse_volume(&self, record: &Record) -> Result<(), ExportError> {
        let holder = Holder::Volume(record.volume.clone());
        if self.ledger.knows(&holder) {
            return Err(ExportError::InUse {
                directory: format!("the archive of volume {}", record.volume),
                holder,
            });
        }
        Ok(())
    }

    /// An archive is none any more.
    pub(super) fn forget_archive(&self, volume: &str) {
        self.ledger.remove(&Holder::Archive(volume.to_owned()));
        let mut archives = self.archives.lock().unwrap_or_else(PoisonError::into_inner);
        archives.remove(volume);
    }
}

/// Whether a rename met something else than what was looked at: looking tells.
pub(super) fn changed_meanwhile(status: Option<Status>) -> bool {
    matches!(
        status,
        Some(Status::Exists | Status::NotEmpty | Status::NotFound | Status::NotSame)
    )
}

pub(super) fn busy(record: &Record, asked: &'static str) -> ExportError {
    ExportError::RecordBusy {
        volume: record.volume.clone(),
        state: record.state.name(),
        asked,
    }
}

fn damaged(volume: &str, why: super::RecordError) -> ExportError {
    ExportError::RecordDamaged {
        volume: volume.to_owned(),
        why,
    }
}

/// In seconds since 1970.
fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}
