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
pub struct Waiting<R> {
    hall: Mutex<Hall<R>>,
    bell: mpsc::UnboundedSender<R>,
    soon: Notify,
}

/// Many changes in this time are one ring: a thousand deleted volumes must not wake every claim a thousand times.
const GATHER: Duration = Duration::from_millis(250);

struct Hall<R> {
    waiting: HashSet<R>,
    rings: u64,
}

/// How often the bell had rung at some moment: what is decided with knowledge of that moment may be out of date when
/// it has rung since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(u64);

impl<R: Eq + Hash> Waiting<R> {
    /// The set, and the stream of objects to be looked at again. The stream holds at most one entry an object and
    /// ring, so it is bounded by the number of objects.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<R>) {
        let (bell, woken) = mpsc::unbounded_channel();
        (
            Self {
                hall: Mutex::new(Hall {
                    waiting: HashSet::new(),
                    rings: 0,
                }),
                bell,
                soon: Notify::new(),
            },
            woken,
        )
    }

    /// Now. To be asked before it is looked whether an object can be served.
    pub fn moment(&self) -> Moment {
        Moment(self.hall().rings)
    }

    /// An object waits, by what was known at that moment. False: the bell has rung since, so look again at once.
    pub fn add(&self, object: R, known_at: Moment) -> bool {
        let mut hall = self.hall();
        if hall.rings != known_at.0 {
            return false;
        }
        hall.waiting.insert(object);
        true
    }

    /// Something changed that may cure the wait: all are looked at again.
    pub fn wake_all(&self) {
        let mut hall = self.hall();
        hall.rings += 1;
        let waiting = std::mem::take(&mut hall.waiting);
        drop(hall);
        for object in waiting {
            self.wake(object);
        }
    }

    /// As [`wake_all`](Self::wake_all), soon: for changes that come in crowds.
    pub fn wake_soon(&self) {
        self.soon.notify_one();
    }

    /// Rings when [`wake_soon`](Self::wake_soon) asked for it; runs for ever.
    pub async fn keep_ringing(&self) {
        loop {
            self.soon.notified().await;
            tokio::time::sleep(GATHER).await;
            self.wake_all();
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
        let (waiting, mut woken) = Waiting::<&str>::new();
        let looked = waiting.moment();
        waiting.wake_all();
        assert!(!waiting.add("claim", looked), "it must look again");
        assert!(waiting.add("claim", waiting.moment()));
        waiting.wake_all();
        assert_eq!(woken.try_recv(), Ok("claim"));
        waiting.wake_all();
        assert!(woken.try_recv().is_err(), "each is woken once");
    }
}
