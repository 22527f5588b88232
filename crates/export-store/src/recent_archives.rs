//! Archives that this process has just made: the reports about their new objects need not read their records again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::record::{Record, State};
use crate::verified_root::VerifiedRoot;

/// Time after which a record is read again. The object of a new archive has its status long before.
const LIFETIME: Duration = Duration::from_secs(10);
/// Maximum number of archives, about 1 MiB: those of several seconds.
const MAX_RECENT: usize = 500;

/// Archives whose records this process wrote and whose directories it renamed, by export and volume. Shared by the backends
/// of an export, which may change each other's records.
#[derive(Debug, Default)]
pub(crate) struct RecentArchives(Mutex<HashMap<Key, RecentArchive>>);

/// ID of the export, and volume.
type Key = (String, String);

/// An archive as it is on the export.
#[derive(Debug, Clone)]
pub(crate) struct RecentArchive {
    /// Its record.
    pub record: Record,
    /// Time at which its directory was renamed.
    renamed: Instant,
    /// Token of the root that was verified then.
    root: Arc<()>,
}

impl RecentArchive {
    /// Returns an archive whose directory was just renamed on a verified root, and whose record was written.
    pub(crate) fn new(verified: &VerifiedRoot, record: Record) -> Self {
        Self::on(&verified.token, record)
    }

    /// Returns the same archive after its record was written again.
    pub(crate) fn with_record(self, record: Record) -> Self {
        Self { record, ..self }
    }

    fn on(root: &Arc<()>, record: Record) -> Self {
        Self {
            // Only the record of a volume has its metadata.
            record: Record {
                metadata: None,
                ..record
            },
            renamed: Instant::now(),
            root: Arc::clone(root),
        }
    }
}

impl RecentArchives {
    /// Remembers an archive that is kept. Forgets the oldest one if there are too many.
    pub(crate) fn insert(&self, export_id: &str, archive: RecentArchive) {
        if !matches!(archive.record.state, State::Archived(_)) {
            return;
        }
        let mut recent = self.0.lock();
        recent.insert(key(export_id, &archive.record.volume), archive);
        if recent.len() > MAX_RECENT {
            let oldest = recent.iter().min_by_key(|(_, archive)| archive.renamed);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                recent.remove(&oldest);
            }
        }
    }

    /// Returns the archive of a volume, if it is known, and if its root is the one that was verified last: later, another
    /// export may have taken the place of this one.
    pub(crate) fn get(&self, export_id: &str, root: &Arc<()>, volume: &str) -> Option<RecentArchive> {
        let recent = self.0.lock();
        let found = recent.get(&key(export_id, volume))?;
        let is_valid = found.renamed.elapsed() < LIFETIME && Arc::ptr_eq(&found.root, root);
        is_valid.then(|| found.clone())
    }

    /// Forgets an archive whose record or directory is about to change.
    pub(crate) fn remove(&self, export_id: &str, volume: &str) {
        self.0.lock().remove(&key(export_id, volume));
    }
}

fn key(export_id: &str, volume: &str) -> Key {
    (export_id.to_owned(), volume.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(volume: &str, state: &str) -> Record {
        let record = json!({
            "version": 1, "volume": volume, "backend": "main", "directory": "team-data", "fileID": 1,
            "claim": {"namespace": "team", "namespaceUID": "ns", "name": "data", "uid": "1"},
            "state": {"name": state, "target": "archived-team-data", "mode": 0o777},
        });
        Record::parse(volume, record.to_string().as_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_archive_is_remembered_for_a_while_and_only_with_its_root() {
        let (recent, root) = (RecentArchives::default(), Arc::default());
        let archive = RecentArchive::on(&root, record("pvc-1", "Archived"));
        recent.insert("export", archive.clone());
        assert!(recent.get("export", &root, "pvc-1").is_some());
        assert!(recent.get("other", &root, "pvc-1").is_none(), "another export");
        assert!(recent.get("export", &Arc::default(), "pvc-1").is_none(), "another root");
        tokio::time::advance(LIFETIME).await;
        assert!(recent.get("export", &root, "pvc-1").is_none(), "outdated");
        // A change of the record does not make it younger.
        recent.insert("export", archive);
        assert!(recent.get("export", &root, "pvc-1").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn only_archives_that_are_kept_are_remembered_and_the_oldest_is_forgotten() {
        let (recent, root) = (RecentArchives::default(), Arc::default());
        recent.insert("export", RecentArchive::on(&root, record("pvc-live", "Live")));
        assert!(recent.get("export", &root, "pvc-live").is_none());
        for number in 0..=MAX_RECENT {
            recent.insert(
                "export",
                RecentArchive::on(&root, record(&format!("pvc-{number}"), "Archived")),
            );
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(recent.get("export", &root, "pvc-0").is_none());
        assert!(recent.get("export", &root, "pvc-1").is_some());
        recent.remove("export", "pvc-1");
        assert!(recent.get("export", &root, "pvc-1").is_none());
    }
}
