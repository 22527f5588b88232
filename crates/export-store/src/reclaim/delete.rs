//! Out of sight: the trash, and tombstones for what can't be moved there (design 6.6).

use super::Reclaim;
use crate::error::ExportError;
use crate::record::{Record, State};
use crate::{ExportStore, PoisonError, layout};
use nfs_client::{FileRef, Name};

impl ExportStore {
    /// Where the record's state says that the directory goes: a folder and the name there.
    pub(super) fn destination<'a>(&self, reclaim: &'a Reclaim<'_>) -> Result<Option<(&'a FileRef, Name)>, ExportError> {
        let (ground, volume) = (reclaim.ground, &reclaim.record.volume);
        Ok(match &reclaim.record.state {
            State::Archiving(note) | State::Archived(note) => Some((&ground.root, layout::name(&note.target)?)),
            State::Deleting { since } => Some((&ground.trash, layout::trashed(volume, *since)?)),
            State::Tombstone { .. } => {
                let depth = reclaim.directory().segments().len();
                // A parent that is gone took the tombstone with it.
                (reclaim.nodes.len() + 1 >= depth).then_some((
                    self.parent_of(ground, &reclaim.nodes, reclaim.directory()),
                    layout::tombstone(volume)?,
                ))
            }
            _ => None,
        })
    }

    /// Remembers a tombstone for the purge.
    pub(crate) fn remember_tombstone(&self, record: &Record) {
        let mut tombstones = self.tombstones.lock().unwrap_or_else(PoisonError::into_inner);
        tombstones.insert(record.volume.clone(), record.clone());
    }
}
