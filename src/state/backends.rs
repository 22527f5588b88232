//! What is known of each backend now, and how many calls it may hold up at once.

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
use crate::state::recovery::{Missing, RecoveryState};
use crate::state::usage::UsageScanState;
use export_store::{self, ExportStore, Identity, PurgeReport, ReservedPath};
use nfs_client::Target;

/// Archives of a backend looked at at a time.
const ARCHIVES: usize = 4;

/// All backends by name.
#[derive(Default)]
pub struct BackendRegistry {
    by_name: RwLock<BTreeMap<String, Arc<Backend>>>,
}

/// One backend while the operator runs.
pub struct Backend {
    /// The object's name.
    pub name: String,
    /// The object's uid: a backend made anew under the same name is another one.
    pub uid: String,
    /// Lets claims in.
    pub claims: ConcurrencyLimiter<ClaimRef>,
    /// Lets reclaims in: a hanging backend must not hold up those of others.
    pub reclaims: ConcurrencyLimiter<VolumeRef>,
    /// How many of its archives are looked at at a time: enough to hide round trips, few beside its claims.
    pub archives: Semaphore,
    /// When the last archive was purged because its time was over, or this process began.
    expiry: Mutex<Instant>,
    snapshot: RwLock<Arc<ProbeSnapshot>>,
    confirmed: Mutex<Option<Identity>>,
    connection: Mutex<Option<BackendConnection>>,
    open: Mutex<HashMap<String, PendingDirectory>>,
    /// Rung when there is something to purge.
    pub purge_requested: Arc<Notify>,
    purge_report: Mutex<PurgeReport>,
    swept: Mutex<Option<Instant>>,
    /// Requests a garbage collection.
    pub gc_requested: Arc<Notify>,
    /// Rung when the export is to be scanned for orphans now, and when the backend is forgotten.
    pub scan_requested: Arc<Notify>,
    last_scan: Mutex<Option<ScanResult>>,
    /// Volumes made again after their objects were lost.
    pub recovery: RecoveryState,
    /// The count of what its volumes hold.
    pub usage_scan: UsageScanState,
    forgotten: CancellationToken,
}

/// What the last scan for orphans found.
#[derive(Debug, Clone)]
pub struct ScanResult {
    /// The identity of the export that was scanned.
    pub export_id: String,
    /// What was found.
    pub orphans: OrphansStatus,
}

/// A connection, and what it was made for.
#[derive(Clone)]
pub struct BackendConnection {
    /// Address, credential and all else that makes another connection necessary when it changes.
    pub target: Target,
    /// The places of the backend's root, under all its addresses.
    pub roots: Vec<ReservedPath>,
    /// The export at its other end.
    pub store: Arc<ExportStore>,
    /// What a former life left there was taken in.
    pub recovered: bool,
}

/// A directory that was begun and has no volume yet.
#[derive(Debug, Clone)]
pub struct PendingDirectory {
    /// Whose it is.
    pub claim: export_store::ClaimRef,
    /// Being worked on right now: nobody else may touch it.
    pub active: bool,
    /// It becomes what an archive was, by moving that.
    pub moves: bool,
}

/// A volume's directory is being worked on, until this is dropped.
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

    /// Whether an archive whose time is over may be purged now, or how long to wait: one in each `pause`. Whoever is told
    /// that he may, has taken the turn.
    pub fn acquire_purge_slot(&self, pause: Duration) -> Result<(), Duration> {
        let mut last = self.expiry.lock().unwrap_or_else(PoisonError::into_inner);
        let left = pause.saturating_sub(last.elapsed());
        if !left.is_zero() {
            return Err(left);
        }
        *last = Instant::now();
        Ok(())
    }

    /// Returns a token that is cancelled when the backend is forgotten and nothing uses it any more.
    pub fn forgotten(&self) -> CancellationToken {
        self.forgotten.clone()
    }

    /// What the last probe found.
    pub fn known(&self) -> Arc<ProbeSnapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A probe ended.
    pub fn set_snapshot(&self, known: ProbeSnapshot) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// The identity that was confirmed last, however long ago: the object's status may not say it yet.
    pub fn confirmed(&self) -> Option<Identity> {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An identity was made, or found to be the one that it must be.
    pub fn set_confirmed(&self, identity: Identity) {
        *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }

    /// Begins to work on a volume's directory; none when somebody else is at it.
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

    /// A directory that a former life began.
    pub fn add_pending(&self, volume: &str, claim: &export_store::ClaimRef) {
        self.open_directories()
            .entry(volume.to_owned())
            .or_insert_with(|| PendingDirectory {
                claim: claim.clone(),
                active: false,
                moves: false,
            });
    }

    /// An archive is moved to a directory that is open.
    pub fn mark_as_move(&self, volume: &str) {
        if let Some(open) = self.open_directories().get_mut(volume) {
            open.moves = true;
        }
    }

    /// Whether an archive is moved to a directory that is open.
    pub fn is_move(&self, volume: &str) -> bool {
        self.open_directories().get(volume).is_some_and(|open| open.moves)
    }

    /// Whether a directory was begun here for a volume that is not saved yet.
    pub fn has_pending(&self, volume: &str) -> bool {
        self.open_directories().contains_key(volume)
    }

    /// Whether a volume's directory is being worked on right now.
    pub fn is_in_work(&self, volume: &str) -> bool {
        self.open_directories().get(volume).is_some_and(|open| open.active)
    }

    /// Whether it is known what a former life began here.
    pub fn is_recovered(&self) -> bool {
        self.connection().is_some_and(|connection| connection.recovered)
    }

    /// A directory has its volume, or is gone.
    pub fn remove_pending(&self, volume: &str) {
        self.open_directories().remove(volume);
    }

    /// The directories that were begun, have no volume yet, and nobody works on.
    pub fn abandoned(&self) -> Vec<(String, export_store::ClaimRef)> {
        let open = self.open_directories();
        open.iter()
            .filter(|(_, open)| !open.active)
            .map(|(name, open)| (name.clone(), open.claim.clone()))
            .collect()
    }

    /// The connection, if there is one.
    pub fn connection(&self) -> Option<BackendConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether what a former life left on this export was taken in.
    pub fn is_recovered_on(&self, export: &Arc<ExportStore>) -> bool {
        self.connection()
            .is_some_and(|connection| connection.recovered && Arc::ptr_eq(&connection.store, export))
    }

    /// What a former life left on this export was taken in.
    pub fn set_recovered(&self, export: &Arc<ExportStore>) {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connection
            .as_mut()
            .filter(|connection| Arc::ptr_eq(&connection.store, export))
        {
            connection.recovered = true;
        }
    }

    /// Takes another connection, and answers the former one.
    pub fn set_connection(&self, connection: Option<BackendConnection>) -> Option<BackendConnection> {
        std::mem::replace(
            &mut *self.connection.lock().unwrap_or_else(PoisonError::into_inner),
            connection,
        )
    }

    /// What the last purge of the trash reported.
    pub fn purged(&self) -> PurgeReport {
        self.purge_report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A purge ended.
    pub fn set_purge_report(&self, report: PurgeReport) {
        *self.purge_report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// A sweep of directories that were left open ended; it began then.
    pub fn set_last_gc(&self, began: Instant) {
        *self.swept.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
    }

    /// Whether a sweep began after that, and has ended.
    pub fn has_gc_run_since(&self, moment: Instant) -> bool {
        let swept = *self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        swept.is_some_and(|began| began > moment)
    }

    /// What the last scan found, this life's or a former one's.
    pub fn scanned(&self) -> Option<ScanResult> {
        self.last_scan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A scan came to its end.
    pub fn set_last_scan(&self, scanned: ScanResult) {
        *self.last_scan.lock().unwrap_or_else(PoisonError::into_inner) = Some(scanned);
    }

    fn open_directories(&self) -> MutexGuard<'_, HashMap<String, PendingDirectory>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackendRegistry {
    /// The backend of this object, and whether it was made just now.
    pub fn get_or_create(&self, name: &str, uid: &str, slots: usize, object: &Arc<NfsBackend>) -> (Arc<Backend>, bool) {
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = by_name.get(name).filter(|backend| backend.uid == uid) {
            return (Arc::clone(backend), false);
        }
        let backend = Arc::new(Backend::new(name, uid, slots, Arc::clone(object)));
        by_name.insert(name.to_owned(), Arc::clone(&backend));
        (backend, true)
    }

    /// The backend of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Backend>> {
        self.by_name
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// All backends.
    pub fn all(&self) -> Vec<Arc<Backend>> {
        self.by_name
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// Something is there that volumes may wait for which are to be made again.
    pub fn object_appeared(&self, what: &Missing) {
        self.all()
            .iter()
            .for_each(|backend| backend.recovery.object_appeared(what));
    }

    /// A backend is gone.
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
