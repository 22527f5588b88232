//! Limits the concurrent calls to a backend, and queues the objects that wait for a slot.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::runtime::backend_slots::SlotUsage;
use crate::runtime::waiting::WaitSet;
use export_store::fair_queue::FairQueue;

/// Concurrency limit of a backend for one kind of work. Namespaces take turns (docs/security.md, Budget).
pub struct ConcurrencyLimiter<R> {
    limit: usize,
    slots: Arc<Semaphore>,
    /// Slots that objects may occupy after a failure.
    retry_slots: Arc<Semaphore>,
    queue: Mutex<Queue<R>>,
}

/// Permission for one call at a time on a backend. Dropping it releases the slot and wakes the next queued object.
pub struct Slot<'a, R: Eq + Hash + Clone> {
    permits: Option<Permits>,
    limiter: &'a ConcurrencyLimiter<R>,
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

/// Maximum time for which a slot is reserved for an object that was woken. Its reconciliation begins within
/// milliseconds, unless the object was deleted while the watch was disconnected.
const RESERVED: Duration = Duration::from_secs(5);

/// Permit for a slot and, for an object that failed, the permit for a retry.
type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// Objects that wait for a slot, without duplicates.
struct Queue<R> {
    new: FairQueue<R>,
    retries: FairQueue<R>,
    /// Objects that were woken. A slot is reserved for each, so that no object that arrives meanwhile gets ahead of it.
    woken: HashMap<R, (Priority, Instant)>,
    served: u32,
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        Self {
            new: FairQueue::default(),
            retries: FairQueue::default(),
            woken: HashMap::new(),
            served: 0,
        }
    }
}

impl<R: Eq + Hash + Clone> Queue<R> {
    fn push(&mut self, object: R, namespace: &str, priority: Priority) {
        if self.new.contains(&object) || self.retries.contains(&object) {
            return;
        }
        match priority {
            Priority::New => self.new.push(object, namespace),
            Priority::Retry => self.retries.push(object, namespace),
        }
    }

    /// Removes and returns the next object. Returns a failed object only if `may_retry`.
    fn pop(&mut self, may_retry: bool) -> Option<(R, Priority)> {
        self.served = self.served.wrapping_add(1);
        let order = if self.served.is_multiple_of(TURNS) {
            [Priority::Retry, Priority::New]
        } else {
            [Priority::New, Priority::Retry]
        };
        order.into_iter().find_map(|priority| {
            let object = match priority {
                Priority::New => self.new.pop(),
                Priority::Retry => may_retry.then(|| self.retries.pop()).flatten(),
            };
            Some((object?, priority))
        })
    }

    /// Returns the number of slots and of retry slots that are reserved.
    fn reserved(&mut self, now: Instant) -> (usize, usize) {
        self.woken
            .retain(|_, (_, since)| now.saturating_duration_since(*since) < RESERVED);
        let retries = self.woken.values().filter(|(priority, _)| *priority == Priority::Retry);
        (self.woken.len(), retries.count())
    }
}

impl<R: Eq + Hash + Clone> Drop for Slot<'_, R> {
    fn drop(&mut self) {
        // Release the permits first: the object that is woken needs them.
        drop(self.permits.take());
        self.limiter.wake_next(self.waiting);
    }
}

impl<R: Eq + Hash + Clone> ConcurrencyLimiter<R> {
    /// Creates a limiter with this number of slots.
    pub fn new(slots: usize) -> Self {
        Self {
            limit: slots,
            slots: Arc::new(Semaphore::new(slots)),
            retry_slots: Arc::new(Semaphore::new(slots.div_ceil(RETRY_SHARE))),
            queue: Mutex::default(),
        }
    }

    /// Returns the current use of the slots.
    pub fn usage(&self) -> SlotUsage {
        let queue = self.queue.lock();
        SlotUsage {
            limit: self.limit,
            used: self.limit.saturating_sub(self.slots.available_permits()),
            queued: queue.new.len() + queue.retries.len() + queue.woken.len(),
        }
    }

    /// Returns a slot for an object. If no slot is free, queues the object, which is woken when one becomes free.
    pub fn enter<'a>(
        &'a self,
        object: &R,
        namespace: &str,
        priority: Priority,
        waiting: &'a WaitSet<R>,
    ) -> Option<Slot<'a, R>> {
        // Hold the lock until the object is queued, so that a slot that is released meanwhile wakes it.
        let mut queue = self.queue.lock();
        let had_reservation = queue.woken.remove(object).is_some();
        let (reserved, reserved_retries) = queue.reserved(Instant::now());
        let is_free = self.slots.available_permits() > reserved
            && (priority == Priority::New || self.retry_slots.available_permits() > reserved_retries);
        let permits = is_free.then(|| self.permits(priority)).flatten();
        match permits {
            Some(permits) => {
                queue.new.remove(object);
                queue.retries.remove(object);
                Some(Slot {
                    permits: Some(permits),
                    limiter: self,
                    waiting,
                })
            }
            None => {
                queue.push(object.clone(), namespace, priority);
                drop(queue);
                if had_reservation {
                    // It failed since it was queued, and no slot for a retry is free.
                    self.wake_next(waiting);
                }
                None
            }
        }
    }

    fn permits(&self, priority: Priority) -> Option<Permits> {
        let one_of = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        match priority {
            Priority::New => Some((one_of(&self.slots)?, None)),
            Priority::Retry => {
                let retry = one_of(&self.retry_slots)?;
                Some((one_of(&self.slots)?, Some(retry)))
            }
        }
    }

    /// Ends the reservation of an object that was woken and no longer needs a slot.
    pub fn release_reservation(&self, object: &R, waiting: &WaitSet<R>) {
        let mut queue = self.queue.lock();
        // Asked of each of perhaps a thousand backends, of which nearly all have an empty queue.
        let reserved = !queue.woken.is_empty() && queue.woken.remove(object).is_some();
        drop(queue);
        if reserved {
            self.wake_next(waiting);
        }
    }

    /// Forgets a deleted object.
    pub fn forget(&self, object: &R, waiting: &WaitSet<R>) {
        let mut queue = self.queue.lock();
        if !queue.new.is_empty() {
            queue.new.remove(object);
        }
        if !queue.retries.is_empty() {
            queue.retries.remove(object);
        }
        drop(queue);
        self.release_reservation(object, waiting);
    }

    /// Wakes as many queued objects as there are free slots. The deletion of an object that was woken may be missed, so
    /// each probe calls this too.
    pub fn wake_next(&self, waiting: &WaitSet<R>) {
        // An object that fails to enter may briefly hold a permit. The lock ensures that it is queued by now.
        let (mut queue, now) = (self.queue.lock(), Instant::now());
        let (reserved, reserved_retries) = queue.reserved(now);
        let mut retries = self.retry_slots.available_permits().saturating_sub(reserved_retries);
        for _ in reserved..self.slots.available_permits() {
            let Some((next, priority)) = queue.pop(retries > 0) else {
                return;
            };
            retries = retries.saturating_sub(usize::from(priority == Priority::Retry));
            queue.woken.insert(next.clone(), (priority, now));
            waiting.wake(next);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_slot_is_woken_when_one_is_free() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let limiter = ConcurrencyLimiter::new(1);
        let first = limiter.enter(&"first", "", Priority::New, &waiting).unwrap();
        assert!(limiter.enter(&"second", "", Priority::New, &waiting).is_none());
        assert!(limiter.enter(&"second", "", Priority::New, &waiting).is_none());
        assert!(woken.try_recv().is_err());
        drop(first);
        assert_eq!(woken.try_recv(), Ok("second"));
        assert!(woken.try_recv().is_err(), "it was in the queue once");
        assert!(limiter.enter(&"second", "", Priority::New, &waiting).is_some());
    }

    #[test]
    fn many_that_failed_before_leave_slots_to_one_that_comes_for_the_first_time() {
        let (waiting, mut woken) = WaitSet::<u32>::new();
        let limiter = ConcurrencyLimiter::new(16);
        let failed: Vec<_> = (0..16)
            .map(|n| limiter.enter(&n, "", Priority::Retry, &waiting))
            .collect();
        assert_eq!(failed.iter().flatten().count(), 2, "one slot in eight");
        let new: Vec<_> = (100..114)
            .map(|n| limiter.enter(&n, "", Priority::New, &waiting))
            .collect();
        assert!(new.iter().all(Option::is_some));
        drop(new);
        assert!(
            woken.try_recv().is_err(),
            "slots are free, and none of them is for those"
        );
        drop(failed);
        assert_eq!(woken.try_recv(), Ok(2));
        assert_eq!(woken.try_recv(), Ok(3));
        assert!(limiter.enter(&2, "", Priority::Retry, &waiting).is_some());
    }

    #[test]
    fn failed_objects_yield_but_are_not_starved() {
        let mut queue = Queue::default();
        queue.push(1000, "", Priority::Retry);
        queue.push(1001, "", Priority::Retry);
        for number in 0..20 {
            queue.push(number, "", Priority::New);
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

    /// In paused time, because a reservation ends after a while.
    #[tokio::test(start_paused = true)]
    async fn many_objects_of_one_namespace_delay_another_namespace_by_one_slot() {
        let (waiting, mut woken) = WaitSet::<(&str, u32)>::new();
        let limiter = ConcurrencyLimiter::new(1);
        let enter = |object: (&'static str, u32)| limiter.enter(&object, object.0, Priority::New, &waiting);
        let mut running = enter(("large", 0));
        assert!((1..10_000).all(|number| enter(("large", number)).is_none()));
        assert!(enter(("small", 0)).is_none());
        for expected in [("large", 1), ("small", 0), ("large", 2)] {
            drop(running.take());
            assert_eq!(woken.try_recv(), Ok(expected));
            assert!(woken.try_recv().is_err());
            assert!(
                enter(("late", 0)).is_none(),
                "the slot is reserved for the object that was woken"
            );
            limiter.forget(&("late", 0), &waiting);
            running = enter(expected);
            assert!(running.is_some());
        }
    }

    #[test]
    fn a_slot_that_a_woken_object_does_not_need_goes_to_the_next_one() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let limiter = ConcurrencyLimiter::new(1);
        let first = limiter.enter(&"first", "", Priority::New, &waiting);
        for name in ["deleted while queued", "deleted after that", "placed elsewhere", "last"] {
            assert!(limiter.enter(&name, "", Priority::New, &waiting).is_none());
        }
        limiter.forget(&"deleted while queued", &waiting);
        drop(first);
        assert_eq!(woken.try_recv(), Ok("deleted after that"));
        limiter.forget(&"deleted after that", &waiting);
        assert_eq!(woken.try_recv(), Ok("placed elsewhere"));
        limiter.release_reservation(&"placed elsewhere", &waiting);
        limiter.release_reservation(&"placed elsewhere", &waiting);
        assert_eq!(woken.try_recv(), Ok("last"));
        assert!(woken.try_recv().is_err());
        assert!(limiter.enter(&"last", "", Priority::New, &waiting).is_some());
    }
}
