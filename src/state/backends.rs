//! State of each backend, and limits on its concurrent work.

mod announcement;
mod backend_state;
mod probe_snapshot;
mod purge_turns;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use announcement::Announcement;
pub use probe_snapshot::ProbeSnapshot;
pub use purge_turns::PurgeTurn;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::ABANDON_LOST_VOLUMES;
use crate::api::{NfsBackend, OrphansStatus};
use crate::runtime::backend_slots::BackendSlots;
use crate::runtime::concurrency_limiter::ConcurrencyLimiter;
use crate::runtime::fair_semaphore::FairSemaphore;
use crate::runtime::waiting::{ClaimRef, VolumeRef};
use crate::state::live_backend::LiveBackend;
use crate::state::quota::QuotaState;
use crate::state::recovery::{MissingDependency, RecoveryState};
use crate::state::requests::RequestLog;
use crate::state::usage::UsageScanState;
use backend_state::BackendState;
use export_store::{self, Beacon, ExportStore, Identity, OccasionalCheck, PurgeReport, ReservedPath};
use nfs_client::Target;

/// Maximum number of archives of one backend that are reconciled concurrently.
const ARCHIVES: usize = 4;

/// All backends, by name.
#[derive(Default)]
pub struct BackendRegistry {
    by_name: RwLock<BTreeMap<String, Arc<Backend>>>,
    /// Digests of the damaged records that were last found on each export.
    damaged_records: Mutex<HashMap<String, u64>>,
}

/// Runtime state of one backend.
pub struct Backend {
    /// Name of the object.
    pub name: String,
    /// UID of the object. It distinguishes a recreated backend from a deleted one of the same name.
    pub uid: String,
    /// Limits concurrent work on claims.
    pub claims: ConcurrencyLimiter<ClaimRef>,
    /// Limits concurrent reclaims, so that a hanging backend does not block the reclaims of others.
    pub reclaims: ConcurrencyLimiter<VolumeRef>,
    /// Limits concurrent work on archives: enough to hide round trips, but few compared to claims.
    pub archives: FairSemaphore,
    /// Notified when there is data to purge.
    pub purge_requested: Arc<Notify>,
    /// Notified when a garbage collection is requested.
    pub gc_requested: Arc<Notify>,
    /// Notified when an orphan scan is requested.
    pub scan_requested: Arc<Notify>,
    /// Notified when an administrator requests that directories are accepted.
    pub acceptance_requested: Arc<Notify>,
    /// One-shot requests of administrators.
    pub requests: RequestLog,
    /// Recovery of volumes whose objects were lost.
    pub recovery: RecoveryState,
    /// State of the usage scan.
    pub usage_scan: UsageScanState,
    /// Limits on the server, and its quota agent.
    pub quota: QuotaState,
    /// Reads the object from the API server.
    pub live: LiveBackend,
    /// Set once the API server had neither volumes nor archives of the backend. What is created later reaches the caches.
    pub has_no_records: AtomicBool,
    /// When to look for the snapshots of the server.
    pub snapshots: OccasionalCheck,
    state: Mutex<BackendState>,
    removed: CancellationToken,
}

/// Result of the last orphan scan.
#[derive(Debug, Clone)]
pub struct ScanResult {
    /// Identity of the scanned export.
    pub export_id: String,
    /// Orphans found.
    pub orphans: OrphansStatus,
}

/// Connection to the export of a backend.
#[derive(Clone)]
pub struct BackendConnection {
    /// Address, credential and all other settings whose change requires a new connection.
    pub target: Target,
    /// Paths of the backend's root, under all its addresses.
    pub roots: Vec<ReservedPath>,
    /// Export that the connection leads to.
    pub store: Arc<ExportStore>,
    /// True if the state that the previous process left on the export is recovered.
    pub recovered: bool,
}

/// Exclusive right to work on the directory of a volume, until dropped.
pub struct PendingGuard<'a> {
    backend: &'a Backend,
    volume: String,
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        self.backend.state().end_work(&self.volume);
    }
}

/// Returns why claims have to wait for the records of a backend with this condition Ready.
pub fn unread(ready: PlannedCondition, uid: &str) -> PlannedCondition {
    let message = format!(
        "its records are read before a claim gets a new volume, because they may show that the claim's volume was lost; \
         not read yet: {}. If the data on it is given up, an administrator annotates it with {ABANDON_LOST_VOLUMES}={uid}",
        ready.message
    );
    PlannedCondition::fails(ready.reason, message)
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.removed.cancel();
    }
}

impl Backend {
    fn new(name: &str, uid: &str, slots: usize, object: Arc<NfsBackend>) -> Self {
        let now = Instant::now();
        Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            claims: ConcurrencyLimiter::new(slots),
            reclaims: ConcurrencyLimiter::new(slots),
            archives: FairSemaphore::new(ARCHIVES),
            purge_requested: Arc::default(),
            gc_requested: Arc::default(),
            scan_requested: Arc::default(),
            acceptance_requested: Arc::default(),
            requests: RequestLog::default(),
            recovery: RecoveryState::default(),
            usage_scan: UsageScanState::default(),
            quota: QuotaState::default(),
            live: LiveBackend::default(),
            has_no_records: AtomicBool::new(false),
            snapshots: OccasionalCheck::default(),
            state: Mutex::new(BackendState::new(ProbeSnapshot::not_probed(object, now), now)),
            removed: CancellationToken::new(),
        }
    }

    /// Returns the use of the limits on concurrent work.
    pub fn slots(&self) -> BackendSlots {
        BackendSlots {
            backend: self.name.clone(),
            work: [
                ("claims", self.claims.usage()),
                ("reclaims", self.reclaims.usage()),
                ("archives", self.archives.usage()),
            ],
        }
    }

    /// Locks the state. Methods of this type release the lock before they return.
    fn state(&self) -> MutexGuard<'_, BackendState> {
        self.state.lock()
    }

    /// Requests the turn of an expired archive of a namespace to be purged. At most one is purged per `pause`.
    pub fn request_purge(&self, archive: &str, namespace: &str, pause: Duration) -> PurgeTurn {
        let now = Instant::now();
        self.state().purge_turns.request(archive, namespace, pause, now)
    }

    /// Removes an archive that is not to be purged any more from those that wait for their turn.
    pub fn forget_purge(&self, archive: &str) {
        self.state().purge_turns.forget(archive);
    }

    /// Returns the number of expired archives that wait for their turn.
    pub fn waiting_purges(&self) -> usize {
        self.state().purge_turns.waiting()
    }

    /// Returns a token that is cancelled when the backend is removed and no longer in use.
    pub fn removal_token(&self) -> CancellationToken {
        self.removed.clone()
    }

    /// Returns the result of the last probe.
    pub fn last_probe(&self) -> Arc<ProbeSnapshot> {
        Arc::clone(&self.state().snapshot)
    }

    /// Records the result of a probe.
    pub fn set_snapshot(&self, snapshot: ProbeSnapshot) {
        self.state().snapshot = Arc::new(snapshot);
    }

    /// Returns the identity that was last confirmed, regardless of its age. The object's status may not show it yet.
    pub fn confirmed(&self) -> Option<Identity> {
        self.state().confirmed.clone()
    }

    /// Records an identity that was created or verified.
    pub fn set_confirmed(&self, identity: Identity) {
        self.state().confirmed = Some(identity);
    }

    /// Returns the beacons that this process last planned to write to the status.
    pub fn announcement(&self) -> Option<Announcement> {
        self.state().announcement.get()
    }

    /// Records the beacons that are about to be written to the status.
    pub fn plan_announcement(&self, announcement: Announcement) {
        self.state().announcement.plan(announcement);
    }

    /// Records that the status has the planned beacons.
    pub fn set_announced(&self) {
        self.state().announcement.set_written();
    }

    /// Returns the beacon that the status has, and the export may get.
    pub fn next_beacon(&self) -> Option<Beacon> {
        self.state().announcement.next()
    }

    /// Starts work on the directory of a volume. Returns `None` if another task is working on it.
    pub fn begin_work(&self, volume: &str, claim: &export_store::ClaimRef) -> Option<PendingGuard<'_>> {
        self.state().begin_work(volume, claim).then(|| PendingGuard {
            backend: self,
            volume: volume.to_owned(),
        })
    }

    /// Records a directory that the previous process started.
    pub fn add_pending(&self, volume: &str, claim: &export_store::ClaimRef) {
        self.state().add_pending(volume, claim);
    }

    /// Records that an archive is moved to the pending directory of a volume.
    pub fn mark_as_move(&self, volume: &str) {
        self.state().mark_as_move(volume);
    }

    /// Returns true if an archive is moved to the pending directory of a volume.
    pub fn is_move(&self, volume: &str) -> bool {
        self.state().is_move(volume)
    }

    /// Returns true if a directory was started for a volume that is not saved yet.
    pub fn has_pending(&self, volume: &str) -> bool {
        self.state().has_pending(volume)
    }

    /// Returns true while a task works on the directory of a volume.
    pub fn is_in_work(&self, volume: &str) -> bool {
        self.state().is_in_work(volume)
    }

    /// Forgets a directory that has its volume or is removed.
    pub fn remove_pending(&self, volume: &str) {
        self.state().remove_pending(volume);
    }

    /// Returns the pending directories: those that were started for a volume that is not saved yet.
    pub fn pending(&self) -> Vec<(String, export_store::ClaimRef)> {
        self.state().pending()
    }

    /// Returns the pending directories that no task works on.
    pub fn abandoned(&self) -> Vec<(String, export_store::ClaimRef)> {
        self.state().abandoned()
    }

    /// Returns the current connection.
    pub fn connection(&self) -> Option<BackendConnection> {
        self.state().connection.clone()
    }

    /// Replaces the connection, and returns the previous one.
    pub fn set_connection(&self, connection: Option<BackendConnection>) -> Option<BackendConnection> {
        self.snapshots.set_due();
        std::mem::replace(&mut self.state().connection, connection)
    }

    /// Returns true if the state that the previous process left on the connected export is recovered.
    pub fn is_recovered(&self) -> bool {
        self.state().is_recovered()
    }

    /// Returns true if the state that the previous process left on this export is recovered.
    pub fn is_recovered_on(&self, export: &Arc<ExportStore>) -> bool {
        self.state().is_recovered_on(export)
    }

    /// Records that the state that the previous process left on this export is recovered.
    pub fn set_recovered(&self, export: &Arc<ExportStore>) {
        self.state().set_recovered(export);
    }

    /// Records that a volume vanished although nothing reclaimed it: its claim must not get a new one before its record is
    /// read.
    pub fn count_lost_volume(&self) {
        self.state().count_lost_volume();
    }

    /// Returns the number of volumes that vanished so far, for [`set_lost_volumes_read`](Self::set_lost_volumes_read).
    pub fn lost_volumes(&self) -> u64 {
        self.state().lost_volumes()
    }

    /// Records that the records were read after this number of volumes had vanished.
    pub fn set_lost_volumes_read(&self, lost: u64) {
        self.state().set_lost_volumes_read(lost);
    }

    /// Returns true if volumes vanished since the records were read.
    pub fn has_unread_lost_volumes(&self) -> bool {
        self.state().has_unread_lost_volumes()
    }

    /// Returns why claims have to wait for the records of the backend: they may name volumes whose objects were lost.
    ///
    /// A backend that cannot be reached or used for another reason does not delay claims that other backends can serve.
    pub fn unread_records(&self) -> Option<PlannedCondition> {
        let state = self.state();
        let ready = &state.snapshot.ready;
        if state.snapshot.is_ready() && state.has_unread_lost_volumes() {
            return Some(PlannedCondition::fails(
                Reason::ProbeOutdated,
                "volumes on it no longer exist; its records are read before a claim gets a new volume",
            ));
        }
        (state.has_unread_records() && state.snapshot.awaits_identity()).then(|| unread(ready.clone(), &self.uid))
    }

    /// Returns the report of the last purge of the trash.
    pub fn purged(&self) -> PurgeReport {
        self.state().purge_report.clone()
    }

    /// Records the report of a purge.
    pub fn set_purge_report(&self, report: PurgeReport) {
        self.state().purge_report = report;
    }

    /// Records when the last completed garbage collection began.
    pub fn set_last_gc(&self, began: Instant) {
        self.state().set_last_gc(began);
    }

    /// Returns true if a garbage collection began after `moment` and has completed.
    pub fn has_gc_run_since(&self, moment: Instant) -> bool {
        self.state().has_gc_run_since(moment)
    }

    /// Returns the result of the last orphan scan, which may be one of the previous process.
    pub fn scanned(&self) -> Option<ScanResult> {
        self.state().last_scan.clone()
    }

    /// Records the result of an orphan scan.
    pub fn set_last_scan(&self, scan: ScanResult) {
        self.state().last_scan = Some(scan);
    }
}

impl BackendRegistry {
    /// Returns the backend of this object, and true if it was created by this call.
    pub fn get_or_create(&self, name: &str, uid: &str, slots: usize, object: &Arc<NfsBackend>) -> (Arc<Backend>, bool) {
        let mut by_name = self.by_name.write();
        if let Some(backend) = by_name.get(name).filter(|backend| backend.uid == uid) {
            return (Arc::clone(backend), false);
        }
        let backend = Arc::new(Backend::new(name, uid, slots, Arc::clone(object)));
        by_name.insert(name.to_owned(), Arc::clone(&backend));
        (backend, true)
    }

    /// Returns the backend with this name.
    pub fn get(&self, name: &str) -> Option<Arc<Backend>> {
        self.by_name.read().get(name).cloned()
    }

    /// Returns false for a backend that was forgotten in the meantime, even if another one has its name now.
    pub fn is_current(&self, backend: &Backend) -> bool {
        self.get(&backend.name)
            .is_some_and(|current| current.uid == backend.uid)
    }

    /// Returns the backend that is responsible for what the backends on an export share, such as the trash: the first one
    /// by name whose last probe confirmed the export and could write to it, or that confirmed it if none could write.
    pub fn first_on_export(&self, export_id: &str) -> Option<Arc<Backend>> {
        // Without a copy of the list: each purge of each backend looks.
        let by_name = self.by_name.read();
        let here = by_name.values().filter_map(|backend| {
            let known = backend.last_probe();
            (known.export_id() == Some(export_id)).then_some((!known.writable, backend))
        });
        // The first one of those with the same key.
        let first = here.min_by_key(|(not_writable, _)| *not_writable);
        first.map(|(_, backend)| Arc::clone(backend))
    }

    /// Returns the next beacon in the status of a backend on an export, except for the one with this name and those
    /// that are being deleted.
    pub fn next_beacon_beside(&self, name: &str, export_id: &str) -> Option<Beacon> {
        let mut others = self.all();
        others.retain(|other| {
            let is_here = other.confirmed().is_some_and(|identity| identity.id == export_id);
            is_here && other.name != name && other.last_probe().object.metadata.deletion_timestamp.is_none()
        });
        others.iter().find_map(|other| other.next_beacon())
    }

    /// Returns true if other records on an export are damaged, or damaged in another way, than when a backend last read them.
    /// Each backend on an export reads all its records, and at a start none of them is the first one yet.
    pub fn damaged_records_changed(&self, export_id: &str, damaged: &[(String, String)]) -> bool {
        let mut sorted: Vec<_> = damaged.iter().collect();
        sorted.sort_unstable();
        let mut hasher = DefaultHasher::new();
        sorted.hash(&mut hasher);
        let digest = hasher.finish();
        let mut last = self.damaged_records.lock();
        last.insert(export_id.to_owned(), digest) != Some(digest)
    }

    /// Returns all backends, sorted by name.
    pub fn all(&self) -> Vec<Arc<Backend>> {
        self.by_name.read().values().cloned().collect()
    }

    /// Calls `visit` for all backends, sorted by name. It must not use the registry.
    pub fn for_each(&self, visit: impl FnMut(&Backend)) {
        let by_name = self.by_name.read();
        by_name.values().map(Arc::as_ref).for_each(visit);
    }

    /// Returns the first backend, by name, that matches. `matches` must not use the registry.
    pub fn find(&self, matches: impl Fn(&Backend) -> bool) -> Option<Arc<Backend>> {
        let by_name = self.by_name.read();
        by_name.values().find(|backend| matches(backend)).map(Arc::clone)
    }

    /// Notifies all backends of an object that volumes to recover may wait for.
    pub fn object_appeared(&self, what: &MissingDependency) {
        self.for_each(|backend| backend.recovery.object_appeared(what));
    }

    /// Removes a backend if its UID matches, and returns it.
    pub fn remove(&self, name: &str, uid: &str) -> Option<Arc<Backend>> {
        let mut by_name = self.by_name.write();
        by_name.get(name).filter(|backend| backend.uid == uid)?;
        by_name.remove(name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;
    use export_store::OwnFileIds;
    use nfs_client::FsId;
    use tokio::time::Instant;

    fn identity(export: &str) -> Identity {
        Identity {
            id: export.to_owned(),
            root_file_id: 2,
            own_file_ids: OwnFileIds {
                identity: 3,
                cluster: 4,
            },
            fsid: FsId { major: 0, minor: 0 },
            created: false,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn the_first_backend_on_an_export_that_can_write_is_responsible_for_what_they_share() {
        let registry = BackendRegistry::default();
        let object = json!({"metadata": {"name": "any"}, "spec": {"server": "nfs", "path": "/"}});
        let object: Arc<NfsBackend> = Arc::new(serde_json::from_value(object).unwrap());
        let probed = |name: &str, export: Option<&str>, writable: bool| {
            let (backend, _) = registry.get_or_create(name, name, 1, &object);
            backend.set_snapshot(ProbeSnapshot {
                identity: export.map(identity),
                writable,
                ..(*backend.last_probe()).clone()
            });
        };
        let first = || registry.first_on_export("x").map(|backend| backend.name.clone());
        assert_eq!(first(), None);
        probed("a", Some("other"), true);
        probed("b", Some("x"), false);
        assert_eq!(first().as_deref(), Some("b"), "none can write");
        probed("c", Some("x"), true);
        probed("d", Some("x"), true);
        assert_eq!(first().as_deref(), Some("c"));
        probed("c", None, false);
        assert_eq!(first().as_deref(), Some("d"), "its probe failed");
        probed("b", Some("x"), true);
        assert_eq!(first().as_deref(), Some("b"));
    }

    #[test]
    fn a_backend_that_is_deleted_writes_a_beacon_that_a_remaining_status_has() {
        let registry = BackendRegistry::default();
        let [first, second, third] = [0, 1, 2].map(|_| Beacon::after(None));
        let add = |name: &str, export: &str, deleted_at: Option<&str>, next: &Beacon| {
            let object = json!({"metadata": {"name": name, "deletionTimestamp": deleted_at},
                "spec": {"server": "nfs", "path": "/"}});
            let object: Arc<NfsBackend> = Arc::new(serde_json::from_value(object).unwrap());
            let (backend, _) = registry.get_or_create(name, name, 1, &object);
            backend.set_confirmed(identity(export));
            backend.plan_announcement(Announcement {
                current: None,
                next: next.clone(),
            });
            backend
        };
        let deleted = "2024-01-01T00:00:00Z";
        add("a", "x", Some(deleted), &first).set_announced();
        add("b", "other", None, &second).set_announced();
        let remaining = add("c", "x", None, &third);
        assert_eq!(registry.next_beacon_beside("d", "x"), None, "no status has it yet");
        remaining.set_announced();
        assert_eq!(registry.next_beacon_beside("d", "x").as_ref(), Some(&third));
        assert_eq!(registry.next_beacon_beside("c", "x"), None, "its own");
    }

    #[test]
    fn new_volumes_wait_for_a_probe_of_a_changed_spec_and_for_a_late_one() {
        let of_generation = |generation: i64| {
            let object =
                json!({"metadata": {"name": "any", "generation": generation}, "spec": {"server": "nfs", "path": "/"}});
            Arc::<NfsBackend>::new(serde_json::from_value(object).unwrap())
        };
        let registry = BackendRegistry::default();
        let (backend, _) = registry.get_or_create("main", "uid", 1, &of_generation(1));
        let probed = |ready: PlannedCondition| ProbeSnapshot {
            ready,
            interval: Duration::from_secs(30),
            ..(*backend.last_probe()).clone()
        };
        let reason = |snapshot: &ProbeSnapshot, object: &NfsBackend, now: Instant| {
            snapshot.outdated(object, now).map(|condition| condition.reason)
        };
        let ready = probed(PlannedCondition::holds(Reason::AllChecksPassed, ""));
        let (at, late) = (ready.probed_at, ready.probed_at + ready.interval * 4);
        assert_eq!(reason(&ready, &of_generation(1), at), None);
        assert_eq!(reason(&ready, &of_generation(2), at), Some(Reason::ProbeOutdated));
        assert_eq!(reason(&ready, &of_generation(1), late), Some(Reason::ProbeOutdated));
        let refused = probed(PlannedCondition::fails(Reason::AccessDenied, ""));
        assert_eq!(
            reason(&refused, &of_generation(2), late),
            None,
            "its own reason helps more"
        );
    }

    #[test]
    fn claims_wait_for_the_records_of_a_backend_whose_export_is_not_confirmed_since_the_start() {
        let registry = BackendRegistry::default();
        let object = json!({"metadata": {"name": "any"}, "spec": {"server": "nfs", "path": "/"}});
        let object: Arc<NfsBackend> = Arc::new(serde_json::from_value(object).unwrap());
        let (backend, _) = registry.get_or_create("main", "uid", 1, &object);
        let why = || backend.unread_records().map(|condition| condition.reason);
        let probed = |ready: PlannedCondition| {
            backend.set_snapshot(ProbeSnapshot {
                ready,
                ..(*backend.last_probe()).clone()
            });
        };
        let undecided = [
            Reason::NotProbed,
            Reason::BeaconMismatch,
            Reason::BeaconObserved,
            Reason::IdentityMismatch,
        ];
        assert_eq!(why(), Some(Reason::NotProbed));
        for reason in undecided {
            probed(PlannedCondition::fails(reason, ""));
            assert_eq!(why(), Some(reason));
        }
        for reason in [Reason::ConnectionTimedOut, Reason::AccessDenied] {
            probed(PlannedCondition::fails(reason, ""));
            assert_eq!(why(), None, "others serve the claims: {reason}");
        }
        backend.state().set_records_read();
        for reason in undecided {
            probed(PlannedCondition::fails(reason, ""));
            assert_eq!(why(), None, "its lost volumes are known: {reason}");
        }
        backend.count_lost_volume();
        assert_eq!(why(), Some(Reason::IdentityMismatch), "a volume vanished since");
        probed(PlannedCondition::holds(Reason::AllChecksPassed, ""));
        assert_eq!(why(), Some(Reason::ProbeOutdated));
        backend.set_lost_volumes_read(1);
        assert_eq!(why(), None);
    }

    #[test]
    fn damaged_records_are_logged_once_for_all_backends_on_an_export() {
        let registry = BackendRegistry::default();
        let damaged =
            |names: &[&str]| Vec::from_iter(names.iter().map(|name| ((*name).to_owned(), "truncated".into())));
        for (export, names, logged) in [
            ("x", vec!["pvc-1", "pvc-2"], true),
            // Another backend, to which the server lists them in another order.
            ("x", vec!["pvc-2", "pvc-1"], false),
            ("y", vec!["pvc-1", "pvc-2"], true),
            ("x", vec!["pvc-2"], true),
            ("x", vec!["pvc-2", "pvc-1"], true),
        ] {
            let changed = registry.damaged_records_changed(export, &damaged(&names));
            assert_eq!(changed, logged, "{export} {names:?}");
        }
        let other = [("pvc-1".to_owned(), "of a newer version".to_owned())];
        registry.damaged_records_changed("x", &damaged(&["pvc-1"]));
        assert!(registry.damaged_records_changed("x", &other));
    }
}
