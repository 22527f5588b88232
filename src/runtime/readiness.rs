//! Readiness of the operator: the source of `/readyz`, and the state that decisions wait for.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// A watch cache that must be filled before anything is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// Namespaces.
    Namespaces,
    /// StorageClasses.
    StorageClasses,
    /// Nodes.
    Nodes,
    /// PersistentVolumes.
    Volumes,
    /// NfsBackends.
    Backends,
    /// PersistentVolumeClaims.
    Claims,
    /// NfsArchives.
    Archives,
    /// NfsBackups.
    Backups,
    /// NfsBackupSchedules.
    Schedules,
}

impl Cache {
    /// All caches.
    pub const ALL: [Self; 9] = [
        Self::Namespaces,
        Self::StorageClasses,
        Self::Nodes,
        Self::Volumes,
        Self::Backends,
        Self::Claims,
        Self::Archives,
        Self::Backups,
        Self::Schedules,
    ];
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespaces => "namespaces",
            Self::StorageClasses => "storage classes",
            Self::Nodes => "nodes",
            Self::Volumes => "volumes",
            Self::Backends => "backends",
            Self::Claims => "claims",
            Self::Archives => "archives",
            Self::Backups => "backups",
            Self::Schedules => "schedules",
        })
    }
}

/// State of the operator's startup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadinessState {
    /// It waits for the Lease, for this reason.
    Waiting(String),
    /// It is healthy and stands by; the named process leads.
    Standby(String),
    /// It leads; these caches are not filled yet.
    Leading(Vec<Cache>),
}

/// The operator's readiness. Clones share it.
///
/// The caches' own `wait_until_ready` (kube 5.0) wakes only the most recent waiter, and each controller waits for its
/// own cache that way. Everything else waits here.
#[derive(Clone)]
pub struct Readiness(Arc<watch::Sender<ReadinessState>>);

impl Default for Readiness {
    fn default() -> Self {
        let first = ReadinessState::Waiting("the Lease was not read yet".to_owned());
        Self(Arc::new(watch::Sender::new(first)))
    }
}

impl Readiness {
    /// Records the state of a process that does not lead yet. Returns true if the state changed.
    pub fn set_state(&self, state: ReadinessState) -> bool {
        self.0.send_if_modified(|former| {
            let changed = *former != state;
            *former = state;
            changed
        })
    }

    /// Records that this process leads. It is ready once every cache was filled.
    pub fn set_leading(&self) {
        self.0.send_replace(ReadinessState::Leading(Cache::ALL.to_vec()));
    }

    /// Records that a cache was filled.
    pub fn set_filled(&self, cache: Cache) {
        self.0.send_modify(|state| {
            if let ReadinessState::Leading(missing) = state {
                missing.retain(|waiting| *waiting != cache);
            }
        });
    }

    /// Returns true if this process leads, and the cache was filled.
    pub fn is_filled(&self, cache: Cache) -> bool {
        matches!(&*self.0.borrow(), ReadinessState::Leading(missing) if !missing.contains(&cache))
    }

    /// Returns the current state.
    pub fn state(&self) -> ReadinessState {
        self.0.borrow().clone()
    }

    /// Waits until this process leads and all caches are filled.
    pub async fn wait_until_ready(&self) {
        let ready = |state: &ReadinessState| matches!(state, ReadinessState::Leading(missing) if missing.is_empty());
        // `self` holds the sender, so the channel never closes.
        let _ = self.0.subscribe().wait_for(ready).await;
    }
}
