//! An archive that is a copy of a volume in use, made because somebody asked for it.
//!
//! The record comes first, under the name of the object that asks, and says by its uid who that is; then the copy is made
//! where all copies are, and gets an archive's name once it is complete. Killed anywhere before the RENAME, it is begun
//! anew; after it, the record's fileid tells that it is there.

use std::sync::Arc;

use super::publish::Named;
use super::{Budget, CopyError, CopySource, SourceTree, Staging, Tally};
use crate::archives::RecordedArchive;
use crate::error::{ErrorContext as _, ExportError};
use crate::ground::VerifiedRoot;
use crate::ledger::{Holder, Reservation};
use crate::naming::LONGEST_NAME;
use crate::record::{ArchiveState, CopyState, Record, RecordError, RetentionTerms, State, handle_of};
use crate::records::{Created, Found};
use crate::request::{ClaimRef, ReclaimRequest};
use crate::signature::Trust;
use crate::{ExportStore, PoisonError, layout};
use nfs_client::SetAttributes;

/// An archive to make of a volume in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRequest {
    /// The name of the object that asks: that of the record.
    pub name: String,
    /// Its uid.
    pub asked_by: String,
    /// Whose data they are.
    pub claim: ClaimRef,
    /// The volume, on this export, as it says of itself.
    pub of: ReclaimRequest,
    /// What shall become of the archive.
    pub terms: RetentionTerms,
}

/// What there is of an archive that an object asks for.
#[derive(Debug)]
pub enum Asked {
    /// Nothing that is complete.
    Unfinished,
    /// It is there.
    Done(Box<RecordedArchive>),
    /// The name is another one's, which is this.
    Taken(&'static str),
}

/// What became of a copy that nobody wants any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// There is nothing of it, but in the trash.
    Gone,
    /// It was complete: it is an archive.
    Complete,
}

/// The record by the name of an object that asks.
enum Begun {
    Nothing,
    /// Its own.
    Own(Box<Record>),
    /// Its own, and complete: an archive, whatever became of it since.
    Archive(Trust),
    Others(&'static str),
}

/// Copies a volume's directory to an archive. Nobody sees it before it is complete. Killed or dropped at any point, and run
/// again, it ends with one complete archive.
///
/// # Errors
/// The first thing that could not be copied; what there is stays until [`ManagedExport::discard_asked`], or the next attempt.
pub async fn copy_to_archive(
    export: &Arc<ExportStore>,
    request: &ArchiveRequest,
    budget: &Budget,
    tally: &Arc<Tally>,
) -> Result<(), CopyError> {
    let source = export.source(&CopySource::Volume(request.of.clone())).await?;
    let Some(staging) = export.stage_archive(request, &source).await? else {
        return Ok(());
    };
    ExportStore::copy_tree(&source, export, &staging, budget, tally).await?;
    let outcome = tally.snapshot().to_string();
    export.publish_archive(request, &source, &staging, outcome).await
}

impl ExportStore {
    /// What there is of the archive that an object asks for. What a former life left beside a complete one goes into the trash.
    pub async fn archive_asked(&self, name: &str, asked_by: &str) -> Result<Asked, ExportError> {
        let _turn = self.turns.of(name).await;
        let ground = self.ground().await?;
        let asked = self.asked_on(&ground, name, asked_by).await;
        self.told(asked).await
    }

    async fn asked_on(&self, ground: &VerifiedRoot, name: &str, asked_by: &str) -> Result<Asked, ExportError> {
        match self.begun_copy(ground, name, asked_by).await? {
            Begun::Nothing => return Ok(Asked::Unfinished),
            Begun::Others(state) => return Ok(Asked::Taken(state)),
            Begun::Own(record) if !self.complete_copy(ground, &record).await? => return Ok(Asked::Unfinished),
            Begun::Archive(trust) if trust != Trust::Signed => {
                return Ok(Asked::Taken("an archive whose record this cluster did not sign"));
            }
            Begun::Own(_) | Begun::Archive(_) => self.discard_staged(ground, name).await?,
        }
        let kept = self.archive_kept_on(ground, name).await?;
        Ok(kept.map_or(Asked::Unfinished, |kept| Asked::Done(Box::new(kept))))
    }

    /// Puts into the trash what there is of a copy that its asker does not want any more, unless it is complete.
    pub async fn discard_asked(&self, name: &str, asked_by: &str) -> Result<Discarded, ExportError> {
        let _turn = self.turns.of(name).await;
        let ground = self.ground().await?;
        let discarded = self.discard_asked_on(&ground, name, asked_by).await;
        self.told(discarded).await
    }

    async fn discard_asked_on(
        &self,
        ground: &VerifiedRoot,
        name: &str,
        asked_by: &str,
    ) -> Result<Discarded, ExportError> {
        match self.begun_copy(ground, name, asked_by).await? {
            Begun::Archive(_) => return Ok(Discarded::Complete),
            Begun::Own(record) if self.complete_copy(ground, &record).await? => return Ok(Discarded::Complete),
            Begun::Own(_) => {
                self.discard_staged(ground, name).await?;
                self.remove_record(ground, name).await?;
                self.ledger.remove(&Holder::Archive(name.to_owned()));
            }
            Begun::Nothing | Begun::Others(_) => {}
        }
        self.copy_ended(name, asked_by);
        Ok(Discarded::Gone)
    }

    /// Copies that were begun and are not complete: the names of the objects that asked, and their uids.
    pub fn unfinished_archives(&self) -> Vec<(String, String)> {
        let copying = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        copying.iter().map(|(name, by)| (name.clone(), by.clone())).collect()
    }

    /// The record by that name, beside who asks. One of its own that nobody signed counts as one that was being written.
    async fn begun_copy(&self, ground: &VerifiedRoot, name: &str, asked_by: &str) -> Result<Begun, ExportError> {
        let (record, trust) = match self.read_record(ground, name).await? {
            Found::Nothing => return Ok(Begun::Nothing),
            Found::Unreadable(RecordError::Short) => {
                self.remove_record(ground, name).await?;
                return Ok(Begun::Nothing);
            }
            Found::Unreadable(why) => {
                let volume = name.to_owned();
                return Err(ExportError::RecordDamaged { volume, why });
            }
            Found::Record(record, trust) => (record, trust),
        };
        let note = record.state.note().and_then(|note| note.copy.as_ref());
        if note.is_none_or(|note| note.asked_by != asked_by) || record.backend != self.keeper.backend {
            return Ok(Begun::Others(record.state.name()));
        }
        match (&record.state, trust) {
            (State::Copying(_), Trust::Signed) => Ok(Begun::Own(record)),
            (State::Copying(_), _) => {
                self.discard_staged(ground, name).await?;
                self.remove_record(ground, name).await?;
                Ok(Begun::Nothing)
            }
            _ => Ok(Begun::Archive(trust)),
        }
    }

    /// The record, and the folder for the copy; none when a former life came to the end of it.
    async fn stage_archive(&self, request: &ArchiveRequest, source: &SourceTree) -> Result<Option<Staging>, CopyError> {
        let _turn = self.turns.of(&request.name).await;
        let ground = self.ground().await?;
        let former = match self.begun_copy(&ground, &request.name, &request.asked_by).await? {
            Begun::Nothing => None,
            Begun::Own(record) if self.complete_copy(&ground, &record).await? => return Ok(None),
            Begun::Own(record) => Some(record),
            Begun::Archive(_) => return Ok(None),
            Begun::Others(state) => return Err(taken(&request.name, state).into()),
        };
        let (record, held) = self.announced(&ground, request, source).await?;
        // Its own archive would not be told from this one.
        if self.ledger.knows(&Holder::Volume(request.name.clone())) {
            return Err(taken(&request.name, State::Live.name()).into());
        }
        match former {
            Some(_) => self.replace_record(&ground, &record).await?,
            None if self.create_record(&ground, &record).await? == Created::Exists => {
                let doing = format!("recording the archive {}", request.name);
                return Err(ExportError::Unsettled { doing }.into());
            }
            None => {}
        }
        held.keep(None);
        self.copy_begun(&request.name, &request.asked_by);
        self.discard_staged(&ground, &request.name).await?;
        self.make_staging(&ground, &request.name).await.map(Some)
    }

    /// The record that announces the copy, with the mode and owner that the source has now.
    async fn announced(
        &self,
        ground: &VerifiedRoot,
        request: &ArchiveRequest,
        source: &SourceTree,
    ) -> Result<(Record, Reservation), CopyError> {
        let was = &source.details.attributes;
        if was.uid.is_none() || was.gid.is_none() {
            return Err(CopyError::OwnerUnknown {
                path: "the root of the tree".into(),
                owner: format!("{}:{}", was.owner, was.group),
            });
        }
        let note = ArchiveState {
            terms: request.terms.clone(),
            copy: Some(CopyState {
                volume: request.of.volume.clone(),
                asked_by: request.asked_by.clone(),
                outcome: None,
            }),
            ..request.of.archive_metadata.note(String::new(), Some(was))
        };
        let record = Record {
            volume: request.name.clone(),
            backend: self.keeper.backend.clone(),
            claim: request.claim.clone(),
            directory: request.of.directory.clone(),
            file_id: None,
            handle: None,
            adopted: false,
            restores: None,
            note: None,
            state: State::Copying(note.clone()),
        };
        let (target, held) = self.free_target(ground, &record, LONGEST_NAME).await?;
        Ok((record.in_state(State::Copying(ArchiveState { target, ..note })), held))
    }

    /// Gives a complete copy its name.
    async fn publish_archive(
        &self,
        request: &ArchiveRequest,
        source: &SourceTree,
        staging: &Staging,
        outcome: String,
    ) -> Result<(), CopyError> {
        let _turn = self.turns.of(&request.name).await;
        let ground = self.ground().await?;
        if ground.differs_from(&staging.ground) {
            return Err(CopyError::ExportChanged);
        }
        let Begun::Own(record) = self.begun_copy(&ground, &request.name, &request.asked_by).await? else {
            return Err(CopyError::ExportChanged);
        };
        let State::Copying(mut note) = record.state.clone() else {
            return Err(CopyError::ExportChanged);
        };
        if let Some(copy) = &mut note.copy {
            copy.outcome = Some(outcome);
        }
        self.close_copy(&ground, source, staging).await?;
        self.clear_links(&ground, staging).await?;
        let record = Record {
            file_id: Some(staging.tree.attributes.fileid),
            handle: Some(handle_of(&staging.tree)),
            ..record.in_state(State::Copying(note))
        };
        self.replace_record(&ground, &record).await?;
        self.name_archive(&ground, &record, staging).await?;
        if !self.complete_copy(&ground, &record).await? {
            return Err(unsettled(&record).into());
        }
        // It can wait: whoever looks for the archive again does it.
        if let Err(error) = self.discard_staged(&ground, &request.name).await {
            tracing::debug!(archive = request.name, "its staging folder is left for later: {error}");
        }
        Ok(())
    }

    /// Mode 0700 of the operator's own, as every archive has it, and the source's times.
    async fn close_copy(
        &self,
        ground: &VerifiedRoot,
        source: &SourceTree,
        staging: &Staging,
    ) -> Result<(), ExportError> {
        let ours = &ground.reserved.attributes;
        let credential = &self.keeper.credential;
        let set = SetAttributes {
            mode: Some(0o700),
            uid: ours.uid.or(Some(credential.uid)),
            gid: ours.gid.or(Some(credential.gid)),
            size: None,
            times: Some(source.details.times),
        };
        let closed = self.changing(ground)?.set_attributes(&staging.tree.handle, set).await;
        closed.map(drop).while_(|| "closing the copy".to_owned())
    }

    async fn name_archive(&self, ground: &VerifiedRoot, record: &Record, staging: &Staging) -> Result<(), ExportError> {
        let Some(note) = record.state.note() else {
            return Err(unsettled(record));
        };
        let name = layout::name(&note.target)?;
        let there = self.nfs.lookup(&ground.root.handle, &name).await;
        match there.while_(|| format!("looking up {name}"))? {
            Some(node) if record.is_about(&node) => return Ok(()),
            // Somebody made something of that name meanwhile: the next attempt chooses another.
            Some(_) => return Err(unsettled(record)),
            None => {}
        }
        match self
            .rename_staged(ground, record, staging, (&ground.root, &name))
            .await?
        {
            Named::Given => Ok(()),
            Named::Taken => Err(unsettled(record)),
        }
    }

    /// Whether a copy has its archive's name: then its record says that it is one.
    pub(crate) async fn complete_copy(&self, ground: &VerifiedRoot, record: &Record) -> Result<bool, ExportError> {
        let State::Copying(note) = &record.state else {
            return Ok(false);
        };
        if record.file_id.is_none() || self.at_archive(ground, record, note).await?.is_none() {
            return Ok(false);
        }
        let archived = record.in_state(State::Archived(note.clone()));
        self.replace_record(ground, &archived).await?;
        self.enter_archive(ground, &archived);
        let mut copying = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        copying.remove(&record.volume);
        Ok(true)
    }

    /// Keeps the place of a copy taken that a former life began, and remembers whose it is, if this cluster signed that.
    pub(crate) fn hold_copy(&self, ground: &VerifiedRoot, record: &Record, signed: bool) {
        let Some(note) = record.state.note() else { return };
        let places = self.archive_places(ground, &note.target);
        let holder = Holder::Archive(record.volume.clone());
        // In somebody's way already: then the next attempt chooses another name.
        if let Ok(reservation) = self.ledger.reserve(holder, places, &self.keeper.backend) {
            reservation.keep(None);
        }
        let ours = signed && record.backend == self.keeper.backend;
        if let Some(copy) = note.copy.as_ref().filter(|_| ours) {
            self.copy_begun(&record.volume, &copy.asked_by);
        }
    }

    fn copy_begun(&self, name: &str, asked_by: &str) {
        let mut copying = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        copying.insert(name.to_owned(), asked_by.to_owned());
    }

    fn copy_ended(&self, name: &str, asked_by: &str) {
        let mut copying = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        if copying.get(name).is_some_and(|by| by == asked_by) {
            copying.remove(name);
        }
    }
}

fn taken(name: &str, state: &'static str) -> ExportError {
    ExportError::RecordBusy {
        volume: name.to_owned(),
        state,
        asked: "making an archive of that name",
    }
}

fn unsettled(record: &Record) -> ExportError {
    ExportError::Unsettled {
        doing: format!("giving the archive {} its name", record.volume),
    }
}
