//! Limits the concurrent calls to a backend, and queues the objects that wait for a slot.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::runtime::waiting::WaitSet;

/// Concurrency limit of a backend for one kind of work.
pub struct ConcurrencyLimiter<R> {
    slots: Arc<Semaphore>,
    /// Slots that objects may occupy after a failure.
    lane: Arc<Semaphore>,
    queue: Mutex<Queue<R>>,
}

/// Permission for one call at a time on a backend. Dropping it releases the slot and wakes the next queued object.
pub struct Slot<'a, R: Eq + Hash + Clone> {
    permits: Option<Permits>,
    gate: &'a ConcurrencyLimiter<R>,
    waiting: &'a WaitSet<R>,
}

/// Priority of an object in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// The object has not failed.
    New,
    /// The last attempt failed. The next one probably fails too, so other objects go first.
    Retry,
}

/// Divisor for the slots that failed objects may occupy. Thousands of objects that keep failing use at most this share
/// of the NFS server's and the API server's time, and the other slots stay available to new objects. With 64 slots,
/// eight are enough for hundreds of attempts per second.
const RETRY_SHARE: usize = 8;

/// One in this many dequeued objects is a failed one, so that a stream of new objects does not starve it.
const TURNS: u32 = 8;

/// Permit for a slot and, for an object that failed, the permit for a retry.
type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// Objects that wait for a slot, without duplicates.
struct Queue<R> {
    fresh: VecDeque<R>,
    again: VecDeque<R>,
    members: HashSet<R>,
    served: u32,
}

impl<R: Eq + Hash + Clone> Queue<R> {
    fn push(&mut self, object: R, coming: Priority) {
        if !self.members.insert(object.clone()) {
            return;
        }
        match coming {
            Priority::New => self.fresh.push_back(object),
            Priority::Retry => self.again.push_back(object),
        }
    }

    /// Removes and returns the next object. Returns a failed object only if `lane_open`.
    fn pop(&mut self, lane_open: bool) -> Option<(R, Priority)> {
        self.served = self.served.wrapping_add(1);
        let order = if self.served.is_multiple_of(TURNS) {
            [Priority::Retry, Priority::New]
        } else {
            [Priority::New, Priority::Retry]
        };
        let (object, coming) = order.into_iter().find_map(|coming| {
            let object = match coming {
                Priority::New => self.fresh.pop_front(),
                Priority::Retry => lane_open.then(|| self.again.pop_front()).flatten(),
            };
            Some((object?, coming))
        })?;
        self.members.remove(&object);
        Some((object, coming))
    }
}

impl<R: Eq + Hash + Clone> Drop for Slot<'_, R> {
    fn drop(&mut self) {
        // Release the permits first: the object that is woken needs them.
        drop(self.permits.take());
        self.gate.wake_next(self.waiting);
    }
}

impl<R: Eq + Hash + Clone> ConcurrencyLimiter<R> {
    /// Creates a limiter with this number of slots.
    pub fn new(slots: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(slots)),
            lane: Arc::new(Semaphore::new(slots.div_ceil(RETRY_SHARE))),
            queue: Mutex::new(Queue {
                fresh: VecDeque::new(),
                again: VecDeque::new(),
                members: HashSet::new(),
                served: 0,
            }),
        }
    }

    /// Returns a slot for an object. If no slot is free, queues the object, which is woken when one becomes free.
    pub fn enter<'a>(&'a self, object: &R, coming: Priority, waiting: &'a WaitSet<R>) -> Option<Slot<'a, R>> {
        // Hold the lock until the object is queued, so that a slot that is released meanwhile wakes it.
        let mut queue = self.queue();
        let permits = self.permits(coming);
        if permits.is_none() {
            queue.push(object.clone(), coming);
        }
        permits.map(|permits| Slot {
            permits: Some(permits),
            gate: self,
            waiting,
        })
    }

    fn permits(&self, coming: Priority) -> Option<Permits> {
        let one_of = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        match coming {
            Priority::New => Some((one_of(&self.slots)?, None)),
            Priority::Retry => {
                let lane = one_of(&self.lane)?;
                Some((one_of(&self.slots)?, Some(lane)))
            }
        }
    }

    /// Wakes as many queued objects as there are free slots. An object that is woken may no longer exist or may use
    /// another backend, so each probe calls this too.
    pub fn wake_next(&self, waiting: &WaitSet<R>) {
        // An object that fails to enter may briefly hold a permit. The lock ensures that it is queued by now.
        let mut queue = self.queue();
        let mut lane = self.lane.available_permits();
        for _ in 0..self.slots.available_permits() {
            let Some((next, coming)) = queue.pop(lane > 0) else {
                return;
            };
            lane = lane.saturating_sub(usize::from(coming == Priority::Retry));
            waiting.wake(next);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_slot_is_woken_when_one_is_free() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let gate = ConcurrencyLimiter::new(1);
        let first = gate.enter(&"first", Priority::New, &waiting).unwrap();
        assert!(gate.enter(&"second", Priority::New, &waiting).is_none());
        assert!(gate.enter(&"second", Priority::New, &waiting).is_none());
        assert!(woken.try_recv().is_err());
        drop(first);
        assert_eq!(woken.try_recv(), Ok("second"));
        assert!(woken.try_recv().is_err(), "it was in the queue once");
        assert!(gate.enter(&"second", Priority::New, &waiting).is_some());
    }

    #[test]
    fn many_that_failed_before_leave_slots_to_one_that_comes_for_the_first_time() {
        let (waiting, mut woken) = WaitSet::<u32>::new();
        let gate = ConcurrencyLimiter::new(16);
        let failed: Vec<_> = (0..16).map(|n| gate.enter(&n, Priority::Retry, &waiting)).collect();
        assert_eq!(failed.iter().flatten().count(), 2, "one slot in eight");
        let new: Vec<_> = (100..114).map(|n| gate.enter(&n, Priority::New, &waiting)).collect();
        assert!(new.iter().all(Option::is_some));
        drop(new);
        assert!(
            woken.try_recv().is_err(),
            "slots are free, and none of them is for those"
        );
        drop(failed);
        assert_eq!(woken.try_recv(), Ok(2));
        assert_eq!(woken.try_recv(), Ok(3));
        assert!(gate.enter(&2, Priority::Retry, &waiting).is_some());
    }

    #[test]
    fn failed_objects_yield_but_are_not_starved() {
        let mut queue = Queue {
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            members: HashSet::new(),
            served: 0,
        };
        queue.push(1000, Priority::Retry);
        queue.push(1001, Priority::Retry);
        for number in 0..20 {
            queue.push(number, Priority::New);
        }
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop(true))
            .map(|(number, _)| number)
            .collect();
        assert_eq!(order.len(), 22);
        assert_eq!(order.iter().position(|number| *number == 1000), Some(7));
        assert_eq!(order.iter().position(|number| *number == 1001), Some(15));
        let fresh: Vec<i32> = order.into_iter().filter(|number| *number < 1000).collect();
        assert_eq!(fresh, (0..20).collect::<Vec<_>>());
    }
}
