//! How many calls a backend may hold up at once, and who waits for his turn.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::waiting::Waiting;

/// The slots of a backend for one kind of work.
pub struct Gate<R> {
    slots: Arc<Semaphore>,
    queue: Mutex<Queue<R>>,
}

/// The right to one call at a time on a backend; given back when dropped, and the next in the queue is woken.
pub struct Slot<'a, R: Eq + Hash + Clone> {
    permit: Option<OwnedSemaphorePermit>,
    gate: &'a Gate<R>,
    waiting: &'a Waiting<R>,
}

/// Whether an object comes for the first time, or after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coming {
    /// It has not failed.
    Fresh,
    /// Its last attempt failed: it most likely fails again, and lets others go first.
    Again,
}

/// After so many that go first, one that failed before has its turn: a stream of new ones must not keep it out for ever.
const TURNS: u32 = 8;

/// Objects that wait for a slot, each once.
struct Queue<R> {
    fresh: VecDeque<R>,
    again: VecDeque<R>,
    members: HashSet<R>,
    served: u32,
}

impl<R: Eq + Hash + Clone> Queue<R> {
    fn push(&mut self, object: R, coming: Coming) {
        if !self.members.insert(object.clone()) {
            return;
        }
        match coming {
            Coming::Fresh => self.fresh.push_back(object),
            Coming::Again => self.again.push_back(object),
        }
    }

    fn pop(&mut self) -> Option<R> {
        self.served = self.served.wrapping_add(1);
        let (first, second) = if self.served.is_multiple_of(TURNS) {
            (&mut self.again, &mut self.fresh)
        } else {
            (&mut self.fresh, &mut self.again)
        };
        let object = first.pop_front().or_else(|| second.pop_front())?;
        self.members.remove(&object);
        Some(object)
    }
}

impl<R: Eq + Hash + Clone> Drop for Slot<'_, R> {
    fn drop(&mut self) {
        // The permit goes back before the next one is woken, or it would find none.
        drop(self.permit.take());
        self.gate.call_in(self.waiting);
    }
}

impl<R: Eq + Hash + Clone> Gate<R> {
    /// With that many slots.
    pub fn new(slots: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(slots)),
            queue: Mutex::new(Queue {
                fresh: VecDeque::new(),
                again: VecDeque::new(),
                members: HashSet::new(),
                served: 0,
            }),
        }
    }

    /// A slot for an object, or none: then it is in the queue and is woken when one is free.
    pub fn enter<'a>(&'a self, object: &R, coming: Coming, waiting: &'a Waiting<R>) -> Option<Slot<'a, R>> {
        // Held until the object is in the queue: a slot that is given back meanwhile must find it there.
        let mut queue = self.queue();
        match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(permit) => Some(Slot {
                permit: Some(permit),
                gate: self,
                waiting,
            }),
            Err(_) => {
                queue.push(object.clone(), coming);
                None
            }
        }
    }

    /// Wakes as many of the queue as there are free slots. Who is woken may be gone or go elsewhere, so this is also
    /// called at each probe.
    pub fn call_in(&self, waiting: &Waiting<R>) {
        for _ in 0..self.slots.available_permits() {
            let Some(next) = self.queue().pop() else { return };
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
    fn who_found_no_slot_is_woken_when_one_is_given_back() {
        let (waiting, mut woken) = Waiting::<&str>::new();
        let gate = Gate::new(1);
        let first = gate.enter(&"first", Coming::Fresh, &waiting).unwrap();
        assert!(gate.enter(&"second", Coming::Fresh, &waiting).is_none());
        assert!(gate.enter(&"second", Coming::Fresh, &waiting).is_none());
        assert!(woken.try_recv().is_err());
        drop(first);
        assert_eq!(woken.try_recv(), Ok("second"));
        assert!(woken.try_recv().is_err(), "it was in the queue once");
        assert!(gate.enter(&"second", Coming::Fresh, &waiting).is_some());
    }
    #[test]
    fn who_failed_before_lets_others_go_first_and_has_his_turn_in_the_end() {
        let mut queue = Queue {
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            members: HashSet::new(),
            served: 0,
        };
        queue.push(1000, Coming::Again);
        queue.push(1001, Coming::Again);
        for number in 0..20 {
            queue.push(number, Coming::Fresh);
        }
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order.len(), 22);
        assert_eq!(order.iter().position(|number| *number == 1000), Some(7));
        assert_eq!(order.iter().position(|number| *number == 1001), Some(15));
        let fresh: Vec<i32> = order.into_iter().filter(|number| *number < 1000).collect();
        assert_eq!(fresh, (0..20).collect::<Vec<_>>());
    }
}
