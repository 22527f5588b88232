//! A semaphore that is fair by namespace.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::runtime::backend_slots::SlotUsage;
use export_store::fair_queue::FairQueue;

/// A limited number of permits. The namespaces that wait for one take turns (docs/security.md, Budget).
pub struct FairSemaphore(Mutex<Permits>);

struct Permits {
    limit: usize,
    free: usize,
    queue: FairQueue<u64>,
    /// The tasks in the queue.
    waiting: HashMap<u64, oneshot::Sender<()>>,
    last: u64,
}

/// A permit, until this is dropped.
pub struct FairPermit<'a>(&'a FairSemaphore);

impl Drop for FairPermit<'_> {
    fn drop(&mut self) {
        self.0.0.lock().release();
    }
}

/// A task that waits. Dropping it removes it from the queue, or passes on the permit that it was given meanwhile.
struct Waiting<'a> {
    semaphore: &'a FairSemaphore,
    number: u64,
    is_served: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_served {
            return;
        }
        let mut permits = self.semaphore.0.lock();
        permits.queue.remove(&self.number);
        if permits.waiting.remove(&self.number).is_none() {
            permits.release();
        }
    }
}

impl Permits {
    /// Passes a permit on to the next task, or adds it to the free ones.
    fn release(&mut self) {
        match self.queue.pop().and_then(|next| self.waiting.remove(&next)) {
            // A task that no longer waits passes it on when it is dropped.
            Some(next) => drop(next.send(())),
            None => self.free += 1,
        }
    }
}

impl FairSemaphore {
    /// Creates a semaphore with this number of permits.
    pub fn new(permits: usize) -> Self {
        Self(Mutex::new(Permits {
            limit: permits,
            free: permits,
            queue: FairQueue::default(),
            waiting: HashMap::new(),
            last: 0,
        }))
    }

    /// Returns the current use of the permits.
    pub fn usage(&self) -> SlotUsage {
        let permits = self.0.lock();
        SlotUsage {
            limit: permits.limit,
            used: permits.limit.saturating_sub(permits.free),
            queued: permits.waiting.len(),
        }
    }

    /// Waits for a permit.
    pub async fn acquire(&self, namespace: &str) -> FairPermit<'_> {
        let Some((number, granted)) = self.enqueue(namespace) else {
            return FairPermit(self);
        };
        let mut waiting = Waiting {
            semaphore: self,
            number,
            is_served: false,
        };
        // The sender is dropped only with the semaphore, or after it was used.
        let _ = granted.await;
        waiting.is_served = true;
        FairPermit(self)
    }

    /// Takes a free permit, or adds a task to the queue.
    fn enqueue(&self, namespace: &str) -> Option<(u64, oneshot::Receiver<()>)> {
        let mut permits = self.0.lock();
        if permits.free > 0 {
            permits.free -= 1;
            return None;
        }
        let (grant, granted) = oneshot::channel();
        permits.last += 1;
        let number = permits.last;
        permits.queue.push(number, namespace);
        permits.waiting.insert(number, grant);
        Some((number, granted))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;

    /// Polls the tasks, and returns the number of the one that got a permit.
    fn served<'a>(tasks: &mut Vec<(u32, BoxFuture<'a, FairPermit<'a>>)>) -> Option<(u32, FairPermit<'a>)> {
        for position in 0..tasks.len() {
            if let Some(permit) = tasks.get_mut(position).and_then(|(_, task)| task.now_or_never()) {
                return Some((tasks.remove(position).0, permit));
            }
        }
        None
    }

    #[test]
    fn many_tasks_of_one_namespace_delay_another_namespace_by_one_permit() {
        let semaphore = FairSemaphore::new(1);
        let mut tasks: Vec<_> = (0..1000)
            .map(|number| (number, semaphore.acquire("large").boxed()))
            .collect();
        let (first, mut permit) = served(&mut tasks).unwrap_or_else(|| unreachable!("a permit is free"));
        assert_eq!(first, 0);
        tasks.push((1000, semaphore.acquire("small").boxed()));
        assert!(served(&mut tasks).is_none(), "all wait");
        for expected in [1, 1000, 2] {
            drop(permit);
            let (number, next) = served(&mut tasks).unwrap_or_else(|| unreachable!("the permit was passed on"));
            assert_eq!(number, expected);
            permit = next;
        }
    }

    #[test]
    fn a_task_that_is_cancelled_keeps_no_permit() {
        let semaphore = FairSemaphore::new(1);
        let permit = semaphore.acquire("a").now_or_never();
        assert!(permit.is_some());
        let mut tasks: Vec<_> = (0..3).map(|number| (number, semaphore.acquire("a").boxed())).collect();
        assert!(served(&mut tasks).is_none(), "all wait");
        // One is cancelled in the queue, and one after it was given the permit.
        drop(tasks.remove(0));
        drop(permit);
        drop(tasks.remove(0));
        assert!(matches!(served(&mut tasks), Some((2, _))));
        assert!(semaphore.acquire("b").now_or_never().is_some(), "it is free again");
    }
}
