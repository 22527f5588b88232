//! Objects that wait for something other than their own change, and their wake-ups.
//!
//! Waiting claims are woken by changes of StorageClasses, Namespaces and Nodes (`app/caches.rs`), by backends that become
//! ready, change or go (`controllers/backend/reconcile.rs`, `removal.rs`), by volumes that go (`state/volume_indexer.rs`),
//! by the end of a recovery pass (`recovery/mod.rs`), of a copy (`state/copy_jobs/job.rs`) and of an archive's change
//! (`Context::wake_restores`), and by a slot that becomes free (`concurrency_limiter.rs`).

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Notify, mpsc};

/// A claim by name.
pub type ClaimRef = ObjectRef<PersistentVolumeClaim>;
/// A volume by name.
pub type VolumeRef = ObjectRef<PersistentVolume>;

/// The objects that cannot be served now, and the channel that requeues them.
pub struct WaitSet<R> {
    state: Mutex<WaitState<R>>,
    wake_tx: mpsc::UnboundedSender<R>,
    soon: Notify,
}

/// Changes within this time cause one wake-up: a thousand deleted volumes must not wake every claim a thousand times.
const DEBOUNCE: Duration = Duration::from_millis(250);

struct WaitState<R> {
    waiting: HashSet<R>,
    /// Objects that failed. Fewer changes wake them.
    failing: HashSet<R>,
    epoch: Epoch,
}

/// A point in time, counted in wake-ups. A decision that was made in an earlier epoch may be out of date.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Wake-ups of any kind.
    any: u64,
    /// Wake-ups of all objects, failed ones included.
    all: u64,
}

impl<R: Eq + Hash> WaitSet<R> {
    /// Returns the set and the stream of objects to reconcile. Each wake-up adds an object at most once, so the number
    /// of objects bounds the stream.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<R>) {
        let (wake_tx, woken) = mpsc::unbounded_channel();
        (
            Self {
                state: Mutex::new(WaitState {
                    waiting: HashSet::new(),
                    failing: HashSet::new(),
                    epoch: Epoch::default(),
                }),
                wake_tx,
                soon: Notify::new(),
            },
            woken,
        )
    }

    /// Returns the current epoch. Read it before you check whether an object can be served.
    pub fn epoch(&self) -> Epoch {
        self.state().epoch
    }

    /// Adds an object that waits, as decided in epoch `known_at`. Returns false if there was a wake-up since. If so,
    /// check again.
    pub fn add(&self, object: R, known_at: Epoch) -> bool {
        let mut state = self.state();
        if state.epoch != known_at {
            return false;
        }
        state.failing.remove(&object);
        state.waiting.insert(object);
        true
    }

    /// Adds an object that failed. Its own backoff or [`wake_all`](Self::wake_all) wakes it, but not the deletion of a
    /// volume: thousands of failing objects must not be retried at the rate of other objects' changes. Returns false
    /// as [`add`](Self::add) does.
    pub fn park_failed(&self, object: R, known_at: Epoch) -> bool {
        let mut state = self.state();
        if state.epoch.all != known_at.all {
            return false;
        }
        state.waiting.remove(&object);
        state.failing.insert(object);
        true
    }

    /// Wakes all objects, for a change that may unblock waiting and failed ones.
    pub fn wake_all(&self) {
        let mut state = self.state();
        state.epoch.any += 1;
        state.epoch.all += 1;
        let waiting = std::mem::take(&mut state.waiting);
        let failing = std::mem::take(&mut state.failing);
        drop(state);
        for object in waiting.into_iter().chain(failing) {
            self.wake(object);
        }
    }

    /// Wakes waiting objects soon, but no failed ones, for changes that come in large numbers.
    pub fn wake_debounced(&self) {
        self.soon.notify_one();
    }

    fn wake_waiting(&self) {
        let mut state = self.state();
        state.epoch.any += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for object in waiting {
            self.wake(object);
        }
    }

    /// Runs the wake-ups that [`wake_debounced`](Self::wake_debounced) requests. Never returns.
    pub async fn run_debounced(&self) {
        loop {
            self.soon.notified().await;
            tokio::time::sleep(DEBOUNCE).await;
            self.wake_waiting();
        }
    }

    /// Wakes one object.
    pub fn wake(&self, object: R) {
        // The receiver closes only when the operator shuts down.
        let _ = self.wake_tx.send(object);
    }

    fn state(&self) -> MutexGuard<'_, WaitState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_between_the_check_and_the_wait_is_not_lost() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let checked_at = waiting.epoch();
        waiting.wake_all();
        assert!(!waiting.add("claim", checked_at), "it must be checked again");
        assert!(waiting.add("claim", waiting.epoch()));
        waiting.wake_all();
        assert_eq!(woken.try_recv(), Ok("claim"));
        waiting.wake_all();
        assert!(woken.try_recv().is_err(), "each is woken once");
    }

    #[test]
    fn only_a_change_that_may_unblock_failures_wakes_a_failed_object() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let checked_at = waiting.epoch();
        waiting.wake_waiting();
        assert!(
            waiting.park_failed("failing", checked_at),
            "that wake-up was for waiting objects"
        );
        assert!(waiting.add("waiting", waiting.epoch()));
        waiting.wake_waiting();
        assert_eq!(woken.try_recv(), Ok("waiting"));
        assert!(woken.try_recv().is_err());
        let checked_at = waiting.epoch();
        waiting.wake_all();
        assert_eq!(woken.try_recv(), Ok("failing"));
        assert!(!waiting.park_failed("failing", checked_at), "it must be checked again");
    }
}
