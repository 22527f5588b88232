//! Objects that wait for something other than their own change, and the bell that wakes them.

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

/// The objects that cannot be served now.
pub struct WaitSet<R> {
    hall: Mutex<Hall<R>>,
    bell: mpsc::UnboundedSender<R>,
    soon: Notify,
}

/// Many changes in this time are one ring: a thousand deleted volumes must not wake every claim a thousand times.
const GATHER: Duration = Duration::from_millis(250);

struct Hall<R> {
    waiting: HashSet<R>,
    /// Objects that failed: they wait for less.
    failing: HashSet<R>,
    rings: Moment,
}

/// How often the bells had rung at some moment: what is decided with knowledge of that moment may be out of date when
/// they have rung since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moment {
    /// Whatever rang.
    any: u64,
    /// For all.
    all: u64,
}

impl<R: Eq + Hash> WaitSet<R> {
    /// The set, and the stream of objects to be looked at again. The stream holds at most one entry an object and
    /// ring, so it is bounded by the number of objects.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<R>) {
        let (bell, woken) = mpsc::unbounded_channel();
        (
            Self {
                hall: Mutex::new(Hall {
                    waiting: HashSet::new(),
                    failing: HashSet::new(),
                    rings: Moment::default(),
                }),
                bell,
                soon: Notify::new(),
            },
            woken,
        )
    }

    /// Now. To be asked before it is looked whether an object can be served.
    pub fn moment(&self) -> Moment {
        self.hall().rings
    }

    /// An object waits, by what was known at that moment. False: the bell has rung since, so look again at once.
    pub fn add(&self, object: R, known_at: Moment) -> bool {
        let mut hall = self.hall();
        if hall.rings != known_at {
            return false;
        }
        hall.failing.remove(&object);
        hall.waiting.insert(object);
        true
    }

    /// An object failed: its own pause ends that, or a change that may cure failures. Every volume that goes somewhere
    /// is none: thousands of failing objects must not be tried at the pace of others' changes.
    pub fn add_failing(&self, object: R, known_at: Moment) -> bool {
        let mut hall = self.hall();
        if hall.rings.all != known_at.all {
            return false;
        }
        hall.waiting.remove(&object);
        hall.failing.insert(object);
        true
    }

    /// Something changed that may cure waits and failures: all are looked at again.
    pub fn wake_all(&self) {
        let mut hall = self.hall();
        hall.rings.any += 1;
        hall.rings.all += 1;
        let waiting = std::mem::take(&mut hall.waiting);
        let failing = std::mem::take(&mut hall.failing);
        drop(hall);
        for object in waiting.into_iter().chain(failing) {
            self.wake(object);
        }
    }

    /// Something changed that may end waits, and cures no failure: for changes that come in crowds.
    pub fn wake_soon(&self) {
        self.soon.notify_one();
    }

    fn wake_waiting(&self) {
        let mut hall = self.hall();
        hall.rings.any += 1;
        let waiting = std::mem::take(&mut hall.waiting);
        drop(hall);
        for object in waiting {
            self.wake(object);
        }
    }

    /// Rings when [`wake_soon`](Self::wake_soon) asked for it; runs for ever.
    pub async fn keep_ringing(&self) {
        loop {
            self.soon.notified().await;
            tokio::time::sleep(GATHER).await;
            self.wake_waiting();
        }
    }

    /// One object is looked at again.
    pub fn wake(&self, object: R) {
        // The receiver ends only with the operator: then nobody is to be woken.
        let _ = self.bell.send(object);
    }

    fn hall(&self) -> MutexGuard<'_, Hall<R>> {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_between_the_look_and_the_wait_is_not_lost() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let looked = waiting.moment();
        waiting.wake_all();
        assert!(!waiting.add("claim", looked), "it must look again");
        assert!(waiting.add("claim", waiting.moment()));
        waiting.wake_all();
        assert_eq!(woken.try_recv(), Ok("claim"));
        waiting.wake_all();
        assert!(woken.try_recv().is_err(), "each is woken once");
    }
    #[test]
    fn who_failed_is_woken_by_what_may_cure_a_failure_alone() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let looked = waiting.moment();
        waiting.wake_waiting();
        assert!(waiting.add_failing("failing", looked), "that ring was not for it");
        assert!(waiting.add("waiting", waiting.moment()));
        waiting.wake_waiting();
        assert_eq!(woken.try_recv(), Ok("waiting"));
        assert!(woken.try_recv().is_err());
        let looked = waiting.moment();
        waiting.wake_all();
        assert_eq!(woken.try_recv(), Ok("failing"));
        assert!(!waiting.add_failing("failing", looked), "it must look again");
    }
}
