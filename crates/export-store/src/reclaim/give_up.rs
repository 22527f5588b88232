//! Giving up a directory: Retain, and records that have done their work. And the record of a volume that others made.

use super::{At, Reclaim, ReclaimAction, Recorded};
use crate::ExportStore;
use crate::error::ExportError;
use crate::ground::VerifiedRoot;
use crate::ledger::Holder;
use crate::record::{Record, State, handle_of};
use crate::records::{Created, Found};
use crate::request::{ArchiveMetadata, ReclaimRequest, Reclaimed};
use nfs_client::FileRef;

impl ExportStore {
    pub(crate) async fn retain_on(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
    ) -> Result<Reclaimed, ExportError> {
        let Found::Record(record, _) = self.read_record(ground, &request.volume).await? else {
            // Nothing of ours: nothing to give up.
            return Ok(Reclaimed::Retained);
        };
        if record.claim.uid != request.claim.uid {
            return Ok(Reclaimed::Retained);
        }
        if !record.state.is_open() && self.is_moved(ground, &record).await? {
            // Another policy was at work before this one, and came too far to be turned back.
            let Recorded::Agreed(record, file_id) = self.recorded(ground, request).await? else {
                return Ok(Reclaimed::Retained);
            };
            match self
                .reclaim(
                    ground,
                    *record,
                    file_id,
                    ReclaimAction::Archive,
                    &request.archive_metadata,
                )
                .await
            {
                // It is nowhere, and whoever gives it up knows.
                Err(ExportError::DirectoryMissing { .. }) => {}
                other => return other,
            }
        }
        self.remove_record(ground, &request.volume).await?;
        Ok(Reclaimed::Retained)
    }

    pub(crate) async fn forget_on(&self, ground: &VerifiedRoot, volume: &str) -> Result<(), ExportError> {
        if let Found::Record(record, _) = self.read_record(ground, volume).await? {
            self.forget_record(ground, &record).await?;
        }
        Ok(())
    }

    /// Removes a record that has done its work; false when it has not.
    pub(crate) async fn forget_record(&self, ground: &VerifiedRoot, record: &Record) -> Result<bool, ExportError> {
        let over = matches!(record.state, State::RemovingEmpty | State::Deleting { .. });
        if !over || !self.is_moved(ground, record).await? {
            return Ok(false);
        }
        self.remove_record(ground, &record.volume).await?;
        Ok(true)
    }

    /// Whether the directory is no longer at its volume's path.
    async fn is_moved(&self, ground: &VerifiedRoot, record: &Record) -> Result<bool, ExportError> {
        let seen = self.seen(ground, record).await?;
        Ok(seen.is_none_or(|seen| seen.source != At::Ours))
    }

    /// What is where, for a record; nothing when it was never finished.
    async fn seen(&self, ground: &VerifiedRoot, record: &Record) -> Result<Option<super::Seen>, ExportError> {
        let Some(file_id) = record.file_id else { return Ok(None) };
        let mut reclaim = Reclaim::new(
            ground,
            record.clone(),
            file_id,
            ReclaimAction::Archive,
            &ArchiveMetadata::default(),
        );
        self.look(&mut reclaim).await?;
        Ok(Some(reclaim.seen))
    }

    /// A rename to an archive that went through before its end was recorded: records it.
    pub(crate) async fn complete_archive(&self, ground: &VerifiedRoot, record: &Record) -> Result<bool, ExportError> {
        let (State::Archiving(_), Some(file_id)) = (&record.state, record.file_id) else {
            return Ok(false);
        };
        let mut reclaim = Reclaim::new(
            ground,
            record.clone(),
            file_id,
            ReclaimAction::Archive,
            &ArchiveMetadata::default(),
        );
        self.look(&mut reclaim).await?;
        if reclaim.seen.moved != At::Ours {
            return Ok(false);
        }
        self.seal(&mut reclaim).await?;
        self.enter_archive(ground, &reclaim.record);
        Ok(matches!(reclaim.record.state, State::Archived(_)))
    }

    pub(crate) async fn register_on(
        &self,
        ground: &VerifiedRoot,
        request: &ReclaimRequest,
        adopted: bool,
    ) -> Result<u64, ExportError> {
        let begun = self.begun(ground, request).await?;
        if begun.is_none() {
            match self.recorded(ground, request).await? {
                Recorded::Agreed(_, file_id) => return Ok(file_id),
                Recorded::Nothing(At::Nothing) => return Err(super::missing(request)),
                Recorded::Nothing(_) => {}
            }
        }
        let directory = &request.directory;
        let leaf = self.unclaimed(ground, request).await?;
        let record = Record {
            volume: request.volume.clone(),
            backend: self.keeper.backend.clone(),
            claim: request.claim.clone(),
            directory: directory.clone(),
            file_id: Some(leaf.attributes.fileid),
            handle: Some(handle_of(&leaf)),
            adopted: adopted || begun.as_ref().is_some_and(|begun| begun.adopted),
            restores: None,
            note: None,
            state: State::Live,
        };
        if begun.is_some() {
            self.replace_record(ground, &record).await?;
        } else if self.create_record(ground, &record).await? == Created::Exists {
            return Err(ExportError::Unsettled {
                doing: format!("recording {directory}"),
            });
        }
        Ok(leaf.attributes.fileid)
    }

    /// What a provisioning here had begun for the same volume when the other provisioner finished it: the record, if it is
    /// about the same directory. One about another directory is taken back.
    async fn begun(&self, ground: &VerifiedRoot, request: &ReclaimRequest) -> Result<Option<Record>, ExportError> {
        let Found::Record(record, _) = self.read_record(ground, &request.volume).await? else {
            return Ok(None);
        };
        if record.claim.uid != request.claim.uid || !record.state.is_open() {
            return Ok(None);
        }
        if record.directory == request.directory {
            return Ok(Some(*record).filter(|record| record.file_id.is_none()));
        }
        self.undo_on(ground, &request.volume, &request.claim.uid, true).await?;
        Ok(None)
    }

    /// The directory of a volume that has no record, if it is nobody else's.
    async fn unclaimed(&self, ground: &VerifiedRoot, request: &ReclaimRequest) -> Result<FileRef, ExportError> {
        let directory = &request.directory;
        if let Some(conflict) = self.in_the_way(ground, &request.volume, directory) {
            return Err(ExportError::Overlaps {
                directory: directory.to_string(),
                conflict: Box::new(conflict),
            });
        }
        let nodes = self.walk(ground, directory).await?;
        let Some(leaf) = self.leaf_of(&nodes, directory) else {
            return Err(super::missing(request));
        };
        if let Some(bad) = nodes.iter().find(|node| !ground.is_plain_directory(node)) {
            return Err(ExportError::PathUnusable {
                path: directory.to_string(),
                why: if bad.attributes.kind == nfs_client::FileKind::Directory {
                    "leads to another file system"
                } else {
                    "leads to something that is no directory"
                },
            });
        }
        self.judge_way(ground, directory, &nodes).await?;
        let file_id = leaf.attributes.fileid;
        let own = Holder::Volume(request.volume.clone());
        if let Some(holder) = self.ledger.holder_of(&ground.file_key(file_id), Some(&own)) {
            return Err(ExportError::Held {
                directory: directory.to_string(),
                holder,
            });
        }
        if request.file_id.is_some_and(|said| said != file_id) {
            return Err(ExportError::Disagrees {
                volume: request.volume.clone(),
                directory: directory.to_string(),
                what: format!("it says fileid {:?}, and the directory has {file_id}", request.file_id),
            });
        }
        self.refuse_foreign(ground, directory, &nodes, true).await?;
        Ok(leaf.clone())
    }
}
