//! Taking back what was made for a claim that will have no volume: by rmdir only.

use super::ExportStore;
use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::ledger::Holder;
use super::record::{Record, RecordError, State, handle_of};
use super::records::Found;
use super::request::RollbackOutcome;
use super::signature::Trust;
use nfs_client::{FileRef, Status};

impl ExportStore {
    pub(super) async fn undo_on(
        &self,
        ground: &VerifiedRoot,
        volume: &str,
        claim_uid: &str,
        superseded: bool,
    ) -> Result<RollbackOutcome, ExportError> {
        let holder = Holder::Volume(volume.to_owned());
        if self.ledger.knows(&holder) && !superseded {
            return Err(ExportError::InUse {
                directory: format!("the directory of volume {volume}"),
                holder,
            });
        }
        let outcome = match self.read_record(ground, volume).await? {
            Found::Nothing => RollbackOutcome::Gone,
            // It ended while it was written, and so before anything was made.
            Found::Unreadable(RecordError::Short) => {
                self.remove_record(ground, volume).await?;
                RollbackOutcome::Gone
            }
            Found::Unreadable(why) => {
                return Err(ExportError::RecordDamaged {
                    volume: volume.to_owned(),
                    why,
                });
            }
            Found::Record(record, _) if record.claim.uid != claim_uid => {
                return Err(ExportError::RecordForeign {
                    volume: volume.to_owned(),
                    holder: Box::new(record.claim),
                });
            }
            // Backends that share an export share the folder of records.
            Found::Record(record, _) if superseded && record.backend != self.keeper.backend => RollbackOutcome::Gone,
            Found::Record(record, _) if !record.state.is_open() => {
                return Err(ExportError::RecordBusy {
                    volume: volume.to_owned(),
                    state: record.state.name(),
                    asked: "undoing",
                });
            }
            // The word of whoever wrote it is not enough to remove anything.
            Found::Record(record, Trust::Unsigned | Trust::Forged) => {
                return Err(ExportError::RecordUnsigned { volume: record.volume });
            }
            Found::Record(record, _) if self.gave_back(ground, &record).await? => {
                self.remove_record(ground, volume).await?;
                RollbackOutcome::Gone
            }
            Found::Record(record, _) => {
                self.discard_staged(ground, volume).await?;
                let outcome = self.undo_directory(ground, &record, superseded).await?;
                if outcome == RollbackOutcome::NotEmpty {
                    return Ok(outcome);
                }
                self.remove_record(ground, volume).await?;
                outcome
            }
        };
        // Only what was kept for this volume: another volume by that name would be known.
        if !self.ledger.knows(&holder) {
            self.ledger.remove(&holder);
        }
        Ok(outcome)
    }

    /// Whether the directory was an archive's and is it again.
    async fn gave_back(&self, ground: &VerifiedRoot, record: &Record) -> Result<bool, ExportError> {
        match &record.restores {
            Some(old) => self.give_back(ground, record, old).await,
            None => Ok(false),
        }
    }

    async fn undo_directory(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        superseded: bool,
    ) -> Result<RollbackOutcome, ExportError> {
        let directory = &record.directory;
        if superseded && let Some(conflict) = self.in_the_way(ground, "", directory) {
            return Err(ExportError::InUse {
                directory: directory.to_string(),
                holder: conflict.holder,
            });
        }
        // Adopted: it was there before us, and stays. That needs no look.
        if record.adopted {
            return Ok(RollbackOutcome::DirectoryKept);
        }
        let nodes = match self.walk(ground, directory).await {
            Ok(nodes) => nodes,
            // Something else has taken the place of a parent: what we made is not there.
            Err(ExportError::PathUnusable { .. }) => return Ok(RollbackOutcome::DirectoryKept),
            Err(error) => return Err(error),
        };
        let Some(leaf) = self.leaf_of(&nodes, directory) else {
            return Ok(RollbackOutcome::Gone);
        };
        // By its handle too: once it is removed, a stranger's may get its fileid.
        let other = record.file_id.is_some_and(|id| id != leaf.attributes.fileid)
            || record.handle.as_ref().is_some_and(|handle| *handle != handle_of(leaf));
        if !ground.is_plain_directory(leaf) || other {
            return Ok(RollbackOutcome::DirectoryKept);
        }
        if let Some(holder) = self.somebody_else(ground, record, leaf, superseded) {
            // Without a fileid nothing says that it is ours. With one, two volumes have the same directory.
            if record.file_id.is_none() {
                return Ok(RollbackOutcome::DirectoryKept);
            }
            return Err(ExportError::InUse {
                directory: directory.to_string(),
                holder,
            });
        }
        if record.file_id.is_none() {
            match self.refuse_foreign(ground, directory, &nodes, true).await {
                Err(ExportError::HeldByOtherCluster { .. }) => return Ok(RollbackOutcome::DirectoryKept),
                other => other?,
            }
        }
        // A copy that was given its name, and never got as far as a volume: nobody saw it, and it is not empty.
        if record.state == State::Creating && record.file_id.is_some() {
            let parent = self.parent_of(ground, &nodes, directory);
            let names = directory.names();
            if let Some(name) = names.last() {
                self.trash_ours(ground, &record.volume, (parent, name), leaf.attributes.fileid)
                    .await?;
            }
            return Ok(RollbackOutcome::Gone);
        }
        self.remove_empty(ground, record, &nodes, leaf).await
    }

    /// Who has the directory or its place. The volume that superseded this one has its name, and no part in it.
    fn somebody_else(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        leaf: &FileRef,
        superseded: bool,
    ) -> Option<Holder> {
        let own = if superseded { "" } else { record.volume.as_str() };
        let except = Holder::Volume(own.to_owned());
        let by_path = || self.in_the_way(ground, own, &record.directory);
        self.ledger
            .holder_of(&ground.file_key(leaf.attributes.fileid), Some(&except))
            .or_else(|| by_path().map(|conflict| conflict.holder))
    }

    async fn remove_empty(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        nodes: &[FileRef],
        leaf: &FileRef,
    ) -> Result<RollbackOutcome, ExportError> {
        let doing = || format!("removing {}", record.directory);
        let parent = self.parent_of(ground, nodes, &record.directory);
        let names = record.directory.names();
        let Some(name) = names.last() else {
            return Ok(RollbackOutcome::Gone);
        };
        let removed = self
            .changing(ground)?
            .remove_directory(&parent.handle, name, leaf.attributes.fileid)
            .await;
        match removed {
            Ok(()) => Ok(RollbackOutcome::Gone),
            Err(error) => match error.status() {
                Some(Status::NotFound) => Ok(RollbackOutcome::Gone),
                // We never learnt the fileid, and there is something in it: it was somebody else's all along.
                Some(Status::NotEmpty) if record.file_id.is_none() => Ok(RollbackOutcome::DirectoryKept),
                Some(Status::NotEmpty) => Ok(RollbackOutcome::NotEmpty),
                Some(Status::NotSame | Status::NotDirectory) => Err(ExportError::Unsettled { doing: doing() }),
                _ => Err(error).while_(doing),
            },
        }
    }
}
