//! What is known of one backend, as plain data.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::announcement::AnnouncementState;
use super::purge_turns::PurgeTurns;
use super::{BackendConnection, ProbeSnapshot, ScanResult};
use export_store::{ClaimRef, ExportStore, Identity, PurgeReport};

/// Mutable state of one backend. [`Backend`](super::Backend) guards it with one lock.
pub(super) struct BackendState {
    /// Result of the last probe.
    pub(super) snapshot: Arc<ProbeSnapshot>,
    /// Identity that was last confirmed.
    pub(super) confirmed: Option<Identity>,
    /// Current connection.
    pub(super) connection: Option<BackendConnection>,
    /// Next beacon.
    pub(super) announcement: AnnouncementState,
    /// Report of the last purge of the trash.
    pub(super) purge_report: PurgeReport,
    /// Result of the last orphan scan.
    pub(super) last_scan: Option<ScanResult>,
    /// Directories that have no volume yet, by volume.
    pending: HashMap<String, PendingDirectory>,
    /// Expired archives that wait to be purged.
    pub(super) purge_turns: PurgeTurns,
    /// Time when the last completed garbage collection began.
    last_gc: Option<Instant>,
    /// Number of volumes of the backend that vanished although nothing reclaimed them.
    lost_volumes: u64,
    /// The part of these whose records were read since.
    lost_volumes_read: u64,
    /// True if the records were read since the start of the process.
    records_read: bool,
}

/// Directory that was started and has no volume yet.
struct PendingDirectory {
    /// Claim that the directory belongs to.
    claim: ClaimRef,
    /// True while a task works on the directory; no other task may change it.
    active: bool,
    /// True if an archive is moved to the directory.
    is_move: bool,
}

impl BackendState {
    pub(super) fn new(snapshot: ProbeSnapshot, now: Instant) -> Self {
        Self {
            snapshot: Arc::new(snapshot),
            confirmed: None,
            connection: None,
            announcement: AnnouncementState::default(),
            purge_report: PurgeReport::default(),
            last_scan: None,
            pending: HashMap::new(),
            purge_turns: PurgeTurns::new(now),
            last_gc: None,
            lost_volumes: 0,
            lost_volumes_read: 0,
            records_read: false,
        }
    }

    pub(super) fn count_lost_volume(&mut self) {
        self.lost_volumes += 1;
    }

    pub(super) fn lost_volumes(&self) -> u64 {
        self.lost_volumes
    }

    pub(super) fn set_lost_volumes_read(&mut self, lost: u64) {
        self.lost_volumes_read = self.lost_volumes_read.max(lost);
    }

    pub(super) fn has_unread_lost_volumes(&self) -> bool {
        self.lost_volumes_read < self.lost_volumes
    }

    pub(super) fn set_records_read(&mut self) {
        self.records_read = true;
    }

    /// Returns true if the records were not read since the start of the process, or since a volume vanished.
    pub(super) fn has_unread_records(&self) -> bool {
        !self.records_read || self.has_unread_lost_volumes()
    }

    /// Returns false if another task works on the directory.
    pub(super) fn begin_work(&mut self, volume: &str, claim: &ClaimRef) -> bool {
        let former = self.pending.get(volume);
        if former.is_some_and(|former| former.active) {
            return false;
        }
        let begun = PendingDirectory {
            claim: claim.clone(),
            active: true,
            is_move: former.is_some_and(|former| former.is_move),
        };
        self.pending.insert(volume.to_owned(), begun);
        true
    }

    pub(super) fn end_work(&mut self, volume: &str) {
        if let Some(pending) = self.pending.get_mut(volume) {
            pending.active = false;
        }
    }

    pub(super) fn add_pending(&mut self, volume: &str, claim: &ClaimRef) {
        self.pending
            .entry(volume.to_owned())
            .or_insert_with(|| PendingDirectory {
                claim: claim.clone(),
                active: false,
                is_move: false,
            });
    }

    pub(super) fn remove_pending(&mut self, volume: &str) {
        self.pending.remove(volume);
    }

    pub(super) fn mark_as_move(&mut self, volume: &str) {
        if let Some(pending) = self.pending.get_mut(volume) {
            pending.is_move = true;
        }
    }

    pub(super) fn is_move(&self, volume: &str) -> bool {
        self.pending.get(volume).is_some_and(|pending| pending.is_move)
    }

    pub(super) fn has_pending(&self, volume: &str) -> bool {
        self.pending.contains_key(volume)
    }

    pub(super) fn is_in_work(&self, volume: &str) -> bool {
        self.pending.get(volume).is_some_and(|pending| pending.active)
    }

    pub(super) fn pending(&self) -> Vec<(String, ClaimRef)> {
        let pending = self.pending.iter();
        pending
            .map(|(volume, pending)| (volume.clone(), pending.claim.clone()))
            .collect()
    }

    pub(super) fn abandoned(&self) -> Vec<(String, ClaimRef)> {
        self.pending
            .iter()
            .filter(|(_, pending)| !pending.active)
            .map(|(volume, pending)| (volume.clone(), pending.claim.clone()))
            .collect()
    }

    pub(super) fn is_recovered(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.recovered)
    }

    pub(super) fn is_recovered_on(&self, export: &Arc<ExportStore>) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.recovered && Arc::ptr_eq(&connection.store, export))
    }

    pub(super) fn set_recovered(&mut self, export: &Arc<ExportStore>) {
        self.set_records_read();
        let current = self.connection.as_mut();
        if let Some(connection) = current.filter(|connection| Arc::ptr_eq(&connection.store, export)) {
            connection.recovered = true;
        }
    }

    pub(super) fn set_last_gc(&mut self, began: Instant) {
        self.last_gc = Some(began);
    }

    pub(super) fn has_gc_run_since(&self, moment: Instant) -> bool {
        self.last_gc.is_some_and(|began| began > moment)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn state(now: Instant) -> BackendState {
        let object = json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/"}});
        let object = Arc::new(serde_json::from_value(object).unwrap());
        BackendState::new(ProbeSnapshot::not_probed(object, now), now)
    }

    fn claim(name: &str) -> ClaimRef {
        ClaimRef {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            ..ClaimRef::default()
        }
    }

    #[test]
    fn one_task_works_on_a_directory_until_it_ends() {
        let mut state = state(Instant::now());
        assert!(state.begin_work("pv", &claim("a")));
        assert!(!state.begin_work("pv", &claim("b")), "another task is at work");
        assert!(state.begin_work("other", &claim("b")), "another directory");
        assert!(state.abandoned().is_empty());
        assert_eq!(state.pending().len(), 2);

        state.end_work("pv");
        assert!(state.has_pending("pv") && !state.is_in_work("pv"));
        assert_eq!(state.abandoned(), [("pv".to_owned(), claim("a"))]);
        assert!(state.begin_work("pv", &claim("a")));

        state.remove_pending("pv");
        state.end_work("pv");
        assert!(!state.has_pending("pv"), "the end of work adds nothing");
    }

    #[test]
    fn a_move_remains_one_when_work_resumes() {
        let mut state = state(Instant::now());
        state.mark_as_move("pv");
        assert!(!state.is_move("pv"), "nothing is pending");
        state.add_pending("pv", &claim("a"));
        state.mark_as_move("pv");
        assert!(state.begin_work("pv", &claim("a")));
        assert!(state.is_move("pv"));
    }

    #[test]
    fn a_recovered_directory_does_not_replace_one_in_work() {
        let mut state = state(Instant::now());
        assert!(state.begin_work("pv", &claim("a")));
        state.add_pending("pv", &claim("b"));
        assert!(state.is_in_work("pv"));
        state.end_work("pv");
        assert_eq!(state.abandoned(), [("pv".to_owned(), claim("a"))]);
    }

    #[test]
    fn a_volume_that_vanishes_while_the_records_are_read_requires_another_reading() {
        let mut state = state(Instant::now());
        assert!(!state.has_unread_lost_volumes());
        state.count_lost_volume();
        let before = state.lost_volumes();
        state.count_lost_volume();
        state.set_lost_volumes_read(before);
        assert!(state.has_unread_lost_volumes());
        state.set_lost_volumes_read(state.lost_volumes());
        assert!(!state.has_unread_lost_volumes());
    }

    #[test]
    fn a_garbage_collection_counts_by_its_start() {
        let start = Instant::now();
        let mut state = state(start);
        assert!(!state.has_gc_run_since(start), "none has completed");
        state.set_last_gc(start + Duration::from_secs(10));
        assert!(state.has_gc_run_since(start + Duration::from_secs(9)));
        assert!(!state.has_gc_run_since(start + Duration::from_secs(10)));
    }
}
