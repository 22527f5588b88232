//! Taking back a restore whose claim will have no volume: the directory becomes the archive again that it was.

use super::archives::changed_meanwhile;
use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::record::{ArchiveState, Record, State};
use super::records::Found;
use super::signature::Trust;
use super::{ExportStore, layout};
use crate::naming::LONGEST_NAME;

/// How often what is there may change under one attempt.
const STEPS: u32 = 8;

impl ExportStore {
    /// Gives back what the volume of `own` has of the archive of volume `old`. False: the archive's record is gone, so the
    /// restore had come to its end, and the directory is the volume's.
    pub(super) async fn give_back(&self, ground: &VerifiedRoot, own: &Record, old: &str) -> Result<bool, ExportError> {
        let _turn = self.turns.of(old).await;
        for _ in 0..STEPS {
            let record = match self.read_record(ground, old).await? {
                Found::Nothing => return Ok(false),
                Found::Unreadable(why) => {
                    return Err(ExportError::RecordDamaged {
                        volume: old.to_owned(),
                        why,
                    });
                }
                Found::Record(record, Trust::Signed) => *record,
                Found::Record(record, _) => return Err(ExportError::RecordUnsigned { volume: record.volume }),
            };
            let State::Restoring { archive, to } = &record.state else {
                return Ok(true);
            };
            // Another claim was faster: nothing of it is this one's.
            if to.volume != own.volume || to.claim.uid != own.claim.uid {
                return Ok(true);
            }
            if let Some(node) = self.at_archive(ground, &record, archive).await? {
                // Whatever could not be closed was no better closed before.
                self.close_archive(ground, &node, &archive.target).await?;
                let archived = record.in_state(State::Archived(archive.clone()));
                self.replace_record(ground, &archived).await?;
                self.enter_archive(ground, &archived);
                return Ok(true);
            }
            self.move_back(ground, own, &record, archive).await?;
        }
        Err(ExportError::Unsettled {
            doing: format!("giving back the archive of volume {old}"),
        })
    }

    async fn move_back(
        &self,
        ground: &VerifiedRoot,
        own: &Record,
        record: &Record,
        archive: &ArchiveState,
    ) -> Result<(), ExportError> {
        let nodes = self.walk(ground, &own.directory).await?;
        let leaf = self.leaf_of(&nodes, &own.directory);
        let file_id = leaf
            .filter(|leaf| ground.is_plain_directory(leaf))
            .map(|leaf| leaf.attributes.fileid);
        let Some(file_id) = file_id.filter(|file_id| record.file_id == Some(*file_id)) else {
            return Err(ExportError::DirectoryMissing {
                volume: own.volume.clone(),
                directory: own.directory.to_string(),
            });
        };
        let target = layout::name(&archive.target)?;
        let taken = self.nfs.lookup(&ground.root.handle, &target).await;
        if taken.while_(|| format!("looking up {target}"))?.is_some() {
            return self.rename_archive(ground, record, archive).await;
        }
        let names = own.directory.names();
        let Some(last) = names.last() else { return Ok(()) };
        let parent = self.parent_of(ground, &nodes, &own.directory);
        let (from, to) = ((&parent.handle, last), (&ground.root.handle, &target));
        match self.changing(ground)?.rename(from, file_id, to).await {
            Err(error) if changed_meanwhile(error.status()) => Ok(()),
            moved => moved.while_(|| format!("moving {} back to {target}", own.directory)),
        }
    }

    /// Somebody made something of the archive's name meanwhile: it gets another one, which the record says first.
    async fn rename_archive(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        archive: &ArchiveState,
    ) -> Result<(), ExportError> {
        let State::Restoring { to, .. } = &record.state else {
            return Ok(());
        };
        // Held until it is written down: the next look at it enters it.
        let (target, _held) = self.free_target(ground, record, LONGEST_NAME).await?;
        let archive = ArchiveState {
            target,
            ..archive.clone()
        };
        let state = State::Restoring {
            archive,
            to: to.clone(),
        };
        self.replace_record(ground, &record.in_state(state)).await
    }
}
