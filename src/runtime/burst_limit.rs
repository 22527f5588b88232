//! Limits how much brief work runs at the same time.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Time after which work no longer counts. What does not respond must not delay everything else.
const BRIEF: Duration = Duration::from_secs(1);

/// Lets a number of futures run at the same time. The others wait, and use no memory until then.
#[derive(Debug)]
pub struct BurstLimit(Semaphore);

impl BurstLimit {
    /// Creates a limit of this number of futures.
    pub fn new(limit: usize) -> Self {
        Self(Semaphore::new(limit))
    }

    /// Runs the future that `create` returns, once it may run.
    pub async fn run<F: Future>(&self, create: impl FnOnce() -> F) -> F::Output {
        // The semaphore is never closed.
        let slot = self.0.acquire().await.ok();
        let mut running = Box::pin(create());
        match timeout(BRIEF, &mut running).await {
            Ok(output) => output,
            Err(_) => {
                drop(slot);
                running.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Runs this number of futures, each for this time, two at the same time. Returns the time it took and the most that ran.
    async fn run(count: usize, each: Duration) -> (Duration, usize) {
        let (limit, running, most) = (BurstLimit::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        let began = Instant::now();
        let one = || async {
            most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            sleep(each).await;
            running.fetch_sub(1, Ordering::Relaxed);
        };
        join_all((0..count).map(|_| limit.run(one))).await;
        (began.elapsed(), most.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn brief_work_waits_for_its_turn_and_what_does_not_respond_delays_it_by_a_second() {
        assert_eq!(run(6, BRIEF / 2).await, (BRIEF / 2 * 3, 2));
        // Each pair waits for a second, not for the end of the one before.
        assert_eq!(run(6, BRIEF * 20).await, (BRIEF * 22, 6));
    }
}
