//! State of each backend, and limits on its concurrent work.

mod known;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

pub use known::ProbeSnapshot;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::{NfsBackend, OrphansStatus};
use crate::runtime::concurrency_limiter::ConcurrencyLimiter;
use crate::runtime::waiting::{ClaimRef, VolumeRef};
use crate::state::recovery::{MissingDependency, RecoveryState};
use crate::state::usage::UsageScanState;
use export_store::{self, ExportStore, Identity, PurgeReport, ReservedPath};
use nfs_client::Target;

/// Maximum number of archives of one backend that are reconciled concurrently.
const ARCHIVES: usize = 4;

/// All backends, by name.
#[derive(Default)]
pub struct BackendRegistry {
    by_name: RwLock<BTreeMap<String, Arc<Backend>>>,
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
    pub archives: Semaphore,
    /// Time of the last purge of an expired archive; initially, the start of the process.
    expiry: Mutex<Instant>,
    snapshot: RwLock<Arc<ProbeSnapshot>>,
    confirmed: Mutex<Option<Identity>>,
    connection: Mutex<Option<BackendConnection>>,
    open: Mutex<HashMap<String, PendingDirectory>>,
    /// Notified when there is data to purge.
    pub purge_requested: Arc<Notify>,
    purge_report: Mutex<PurgeReport>,
    swept: Mutex<Option<Instant>>,
    /// Notified when a garbage collection is requested.
    pub gc_requested: Arc<Notify>,
    /// Notified when an orphan scan is requested.
    pub scan_requested: Arc<Notify>,
    last_scan: Mutex<Option<ScanResult>>,
    /// Recovery of volumes whose objects were lost.
    pub recovery: RecoveryState,
    /// State of the usage scan.
    pub usage_scan: UsageScanState,
    forgotten: CancellationToken,
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

/// Directory that was started and has no volume yet.
#[derive(Debug, Clone)]
pub struct PendingDirectory {
    /// Claim that the directory belongs to.
    pub claim: export_store::ClaimRef,
    /// True while the directory is being worked on; no other task may change it.
    pub active: bool,
    /// True if an archive is moved to the directory.
    pub moves: bool,
}

/// Exclusive right to work on the directory of a volume, until dropped.
pub struct PendingGuard<'a> {
    backend: &'a Backend,
    volume: String,
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.backend.open_directories().get_mut(&self.volume) {
            open.active = false;
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.forgotten.cancel();
    }
}

impl Backend {
    fn new(name: &str, uid: &str, slots: usize, object: Arc<NfsBackend>) -> Self {
        let known = ProbeSnapshot {
            object,
            store: None,
            identity: None,
            ready: PlannedCondition::unknown(Reason::NotProbed, "not probed yet"),
            probed_at: Instant::now(),
            interval: Duration::ZERO,
            statistics: None,
            provisioned: 0,
        };
        Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
            claims: ConcurrencyLimiter::new(slots),
            reclaims: ConcurrencyLimiter::new(slots),
            archives: Semaphore::new(ARCHIVES),
            expiry: Mutex::new(Instant::now()),
            snapshot: RwLock::new(Arc::new(known)),
            confirmed: Mutex::default(),
            connection: Mutex::default(),
            open: Mutex::default(),
            purge_requested: Arc::default(),
            purge_report: Mutex::default(),
            swept: Mutex::default(),
            gc_requested: Arc::default(),
            scan_requested: Arc::default(),
            last_scan: Mutex::default(),
            recovery: RecoveryState::default(),
            usage_scan: UsageScanState::default(),
            forgotten: CancellationToken::new(),
        }
    }

    /// Acquires the right to purge one expired archive now. At most one is granted per `pause`.
    ///
    /// # Errors
    /// The time left until the next purge is allowed.
    pub fn acquire_purge_slot(&self, pause: Duration) -> Result<(), Duration> {
        let mut last = self.expiry.lock().unwrap_or_else(PoisonError::into_inner);
        let left = pause.saturating_sub(last.elapsed());
        if !left.is_zero() {
            return Err(left);
        }
        *last = Instant::now();
        Ok(())
    }

    /// Returns a token that is cancelled when the backend is removed and not in use anymore.
    pub fn removal_token(&self) -> CancellationToken {
        self.forgotten.clone()
    }

    /// Returns the result of the last probe.
    pub fn last_probe(&self) -> Arc<ProbeSnapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the result of a probe.
    pub fn set_snapshot(&self, known: ProbeSnapshot) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// Returns the identity that was last confirmed, regardless of its age. The object's status may not show it yet.
    pub fn confirmed(&self) -> Option<Identity> {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records an identity that was created or verified.
    pub fn set_confirmed(&self, identity: Identity) {
        *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }

    /// Starts work on the directory of a volume. Returns `None` if another task is working on it.
    pub fn begin_work(&self, volume: &str, claim: &export_store::ClaimRef) -> Option<PendingGuard<'_>> {
        let mut open = self.open_directories();
        let former = open.get(volume);
        if former.is_some_and(|former| former.active) {
            return None;
        }
        let begun = PendingDirectory {
            claim: claim.clone(),
            active: true,
            moves: former.is_some_and(|former| former.moves),
        };
        open.insert(volume.to_owned(), begun);
        Some(PendingGuard {
            backend: self,
            volume: volume.to_owned(),
        })
    }

    /// Records a directory that the previous process started.
    pub fn add_pending(&self, volume: &str, claim: &export_store::ClaimRef) {
        self.open_directories()
            .entry(volume.to_owned())
            .or_insert_with(|| PendingDirectory {
                claim: claim.clone(),
                active: false,
                moves: false,
            });
    }

    /// Records that an archive is moved to the pending directory of a volume.
    pub fn mark_as_move(&self, volume: &str) {
        if let Some(open) = self.open_directories().get_mut(volume) {
            open.moves = true;
        }
    }

    /// Returns true if an archive is moved to the pending directory of a volume.
    pub fn is_move(&self, volume: &str) -> bool {
        self.open_directories().get(volume).is_some_and(|open| open.moves)
    }

    /// Returns true if a directory was started for a volume that is not saved yet.
    pub fn has_pending(&self, volume: &str) -> bool {
        self.open_directories().contains_key(volume)
    }

    /// Returns true while the directory of a volume is being worked on.
    pub fn is_in_work(&self, volume: &str) -> bool {
        self.open_directories().get(volume).is_some_and(|open| open.active)
    }

    /// Returns true if the state that the previous process left on the connected export is recovered.
    pub fn is_recovered(&self) -> bool {
        self.connection().is_some_and(|connection| connection.recovered)
    }

    /// Forgets a directory that has its volume or is removed.
    pub fn remove_pending(&self, volume: &str) {
        self.open_directories().remove(volume);
    }

    /// Returns the pending directories that no task is working on.
    pub fn abandoned(&self) -> Vec<(String, export_store::ClaimRef)> {
        let open = self.open_directories();
        open.iter()
            .filter(|(_, open)| !open.active)
            .map(|(name, open)| (name.clone(), open.claim.clone()))
            .collect()
    }

    /// Returns the current connection.
    pub fn connection(&self) -> Option<BackendConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the state that the previous process left on this export is recovered.
    pub fn is_recovered_on(&self, export: &Arc<ExportStore>) -> bool {
        self.connection()
            .is_some_and(|connection| connection.recovered && Arc::ptr_eq(&connection.store, export))
    }

    /// Records that the state that the previous process left on this export is recovered.
    pub fn set_recovered(&self, export: &Arc<ExportStore>) {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connection
            .as_mut()
            .filter(|connection| Arc::ptr_eq(&connection.store, export))
        {
            connection.recovered = true;
        }
    }

    /// Replaces the connection, and returns the previous one.
    pub fn set_connection(&self, connection: Option<BackendConnection>) -> Option<BackendConnection> {
        std::mem::replace(
            &mut *self.connection.lock().unwrap_or_else(PoisonError::into_inner),
            connection,
        )
    }

    /// Returns the report of the last purge of the trash.
    pub fn purged(&self) -> PurgeReport {
        self.purge_report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the report of a purge.
    pub fn set_purge_report(&self, report: PurgeReport) {
        *self.purge_report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// Records when the last completed garbage collection began.
    pub fn set_last_gc(&self, began: Instant) {
        *self.swept.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
    }

    /// Returns true if a garbage collection began after `moment` and has completed.
    pub fn has_gc_run_since(&self, moment: Instant) -> bool {
        let swept = *self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        swept.is_some_and(|began| began > moment)
    }

    /// Returns the result of the last orphan scan, which may be one of the previous process.
    pub fn scanned(&self) -> Option<ScanResult> {
        self.last_scan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the result of an orphan scan.
    pub fn set_last_scan(&self, scanned: ScanResult) {
        *self.last_scan.lock().unwrap_or_else(PoisonError::into_inner) = Some(scanned);
    }

    fn open_directories(&self) -> MutexGuard<'_, HashMap<String, PendingDirectory>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackendRegistry {
    /// Returns the backend of this object, and true if it was created by this call.
    pub fn get_or_create(&self, name: &str, uid: &str, slots: usize, object: &Arc<NfsBackend>) -> (Arc<Backend>, bool) {
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = by_name.get(name).filter(|backend| backend.uid == uid) {
            return (Arc::clone(backend), false);
        }
        let backend = Arc::new(Backend::new(name, uid, slots, Arc::clone(object)));
        by_name.insert(name.to_owned(), Arc::clone(&backend));
        (backend, true)
    }

    /// Returns the backend with this name.
    pub fn get(&self, name: &str) -> Option<Arc<Backend>> {
        self.by_name
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Returns all backends.
    pub fn all(&self) -> Vec<Arc<Backend>> {
        self.by_name
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// Notifies all backends of an object that volumes to recover may wait for.
    pub fn object_appeared(&self, what: &MissingDependency) {
        self.all()
            .iter()
            .for_each(|backend| backend.recovery.object_appeared(what));
    }

    /// Removes a backend if its UID matches, and returns it.
    pub fn remove(&self, name: &str, uid: &str) -> Option<Arc<Backend>> {
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        by_name.get(name).filter(|backend| backend.uid == uid)?;
        by_name.remove(name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use serde_json::json;

    use super::*;

    #[test]
    fn archives_whose_time_is_over_take_turns_and_the_first_one_waits_too() {
        let object = json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/"}});
        let backend = Backend::new("main", "uid", 1, Arc::new(serde_json::from_value(object).unwrap()));
        let hour = Duration::from_secs(3600);
        assert!(backend.acquire_purge_slot(hour).is_err(), "an operator that just began");
        assert_eq!(backend.acquire_purge_slot(Duration::ZERO), Ok(()));
        let left = backend.acquire_purge_slot(hour).unwrap_err();
        assert!(!left.is_zero() && left <= hour, "{left:?}");
    }
}
