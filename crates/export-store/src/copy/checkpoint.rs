//! Checkpoints of a backup: from time to time, its record says which part of it is complete, so that the next attempt can
//! take it over if this one is interrupted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::copy::manifest::{DirectoryManifest, ManifestWriter};
use crate::copy::to_archive::{ArchiveRequest, record_checkpoint};
use crate::copy::{Outcome, SourceTree, Staging};
use crate::record::Checkpoint;
use crate::store::ExportStore;

/// Default of the time between two checkpoints. Each one writes the record, and repeats about 0.3% of the manifest of the
/// open directories: over ten hours, the manifest at most doubles.
pub(super) const INTERVAL: Duration = Duration::from_secs(60);

/// Writes the checkpoints of a backup.
pub(super) struct Checkpoints<'a> {
    pub store: &'a Arc<ExportStore>,
    pub request: &'a ArchiveRequest,
    pub staging: &'a Staging,
    pub interval: Duration,
    /// What the recorded checkpoint saves: it stays until there is a better one.
    pub saving: u64,
}

impl Checkpoints<'_> {
    /// Writes checkpoints until it is told to stop, and never stops in the middle of one: a record that is written after
    /// that of the complete copy would replace it.
    pub(super) async fn run(
        mut self,
        source: &SourceTree,
        (manifest, root): (&ManifestWriter, &Arc<DirectoryManifest>),
        stop: &Notify,
    ) -> Outcome {
        loop {
            tokio::select! {
                biased;
                () = stop.notified() => return Ok(()),
                () = tokio::time::sleep(self.interval) => {}
            }
            let saving = manifest.saving();
            if saving <= self.saving {
                continue;
            }
            let checkpoint = Checkpoint {
                tree: self.staging.tree.attributes.fileid,
                manifest: manifest.checkpoint(source, root).await?,
                saving,
            };
            match record_checkpoint(self.store, self.request, self.staging, checkpoint).await {
                Ok(()) => self.saving = saving,
                // The copy continues as long as it can. Without a checkpoint, it only takes longer once it is interrupted.
                Err(error) => tracing::debug!(archive = self.request.name, "no checkpoint of the backup: {error}"),
            }
        }
    }
}
