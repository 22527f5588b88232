//! The watchdog: detects loops of the operator that make no progress, for `/healthz`.
//!
//! A thread of its own counts beats. Every watched loop is woken by each beat and records it, after its own work was
//! polled. A loop that waits for a slow server is polled and records the beat. A loop whose code blocks its thread, or
//! never returns, does not. The age of a loop is a number of beats, not a time: while the process or its machine is
//! suspended, nothing beats.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{io, thread};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::unconstrained;

/// Interval between beats.
const BEAT: Duration = Duration::from_secs(10);

/// Number of beats after which a loop that recorded none of them is stuck: two minutes. Polling a loop takes
/// milliseconds, and seconds while the caches of a large cluster are filled. A restart that was not necessary would delay
/// all claims.
const MAX_MISSED_BEATS: u64 = 12;

/// Watches loops. Clones share the loops.
#[derive(Clone, Default)]
pub struct Watchdog(Arc<Shared>);

struct Shared {
    /// Number of the last beat.
    beats: watch::Sender<u64>,
    loops: Mutex<Loops>,
}

#[derive(Default)]
struct Loops {
    last: u64,
    watched: BTreeMap<u64, Arc<Heartbeat>>,
}

/// The last beat that a loop recorded.
struct Heartbeat {
    name: &'static str,
    seen: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            beats: watch::Sender::new(0),
            loops: Mutex::default(),
        }
    }
}

impl Shared {
    fn beat(&self) {
        self.beats.send_modify(|beats| *beats += 1);
    }

    fn stuck(&self) -> Vec<&'static str> {
        let beats = *self.beats.borrow();
        let loops = self.loops.lock();
        let names: BTreeSet<_> = loops
            .watched
            .values()
            .filter(|heartbeat| is_stuck(beats, heartbeat.seen.load(Ordering::Relaxed)))
            .map(|heartbeat| heartbeat.name)
            .collect();
        Vec::from_iter(names)
    }
}

/// Decides whether a loop is stuck, from the number of the last beat and the last one that the loop recorded.
fn is_stuck(beats: u64, seen: u64) -> bool {
    beats.saturating_sub(seen) >= MAX_MISSED_BEATS
}

/// Ends the watch of a loop when it is dropped.
struct Watched<'a> {
    shared: &'a Shared,
    number: u64,
    heartbeat: Arc<Heartbeat>,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.shared.loops.lock().watched.remove(&self.number);
    }
}

impl Watchdog {
    /// Starts the thread that beats. Until then, no loop is ever stuck.
    ///
    /// # Errors
    /// The operating system refuses the thread.
    pub fn start(&self) -> io::Result<()> {
        let shared = Arc::downgrade(&self.0);
        let beats = move || {
            let mut reported = Vec::new();
            loop {
                // Not a timer of the runtime: that one stands still if all of its threads are stuck.
                thread::sleep(BEAT);
                let Some(shared) = shared.upgrade() else { return };
                shared.beat();
                let stuck = shared.stuck();
                if stuck != reported && !stuck.is_empty() {
                    tracing::error!("{}", report(&stuck));
                }
                reported = stuck;
            }
        };
        thread::Builder::new().name("watchdog".to_owned()).spawn(beats)?;
        Ok(())
    }

    /// Runs a loop, and watches it until it ends.
    pub fn watch<F: Future>(&self, name: &'static str, work: F) -> impl Future<Output = F::Output> + use<F> {
        let watchdog = self.clone();
        // Boxed here: a future has room for what it captures and, once more, for what it moves that to.
        let mut work = Box::pin(work);
        async move {
            let mut beats = watchdog.0.beats.subscribe();
            let first = *beats.borrow_and_update();
            let watched = watchdog.register(name, first);
            loop {
                tokio::select! {
                    // The work is polled first: only if that returns is the beat recorded.
                    biased;
                    done = &mut work => return done,
                    // `watchdog` holds the sender, so the channel never closes. Work that is always busy leaves nothing
                    // of the budget of its task (`tokio::task::coop`), without which a beat would never be received.
                    _ = unconstrained(beats.changed()) => {
                        let beat = *beats.borrow_and_update();
                        watched.heartbeat.seen.store(beat, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    fn register(&self, name: &'static str, beat: u64) -> Watched<'_> {
        let heartbeat = Arc::new(Heartbeat {
            name,
            seen: AtomicU64::new(beat),
        });
        let mut loops = self.0.loops.lock();
        loops.last += 1;
        let number = loops.last;
        loops.watched.insert(number, Arc::clone(&heartbeat));
        Watched {
            shared: &self.0,
            number,
            heartbeat,
        }
    }

    /// Checks that no loop is stuck. The error describes those that are.
    pub fn check(&self) -> Result<(), String> {
        let stuck = self.0.stuck();
        if stuck.is_empty() { Ok(()) } else { Err(report(&stuck)) }
    }

    /// Beats as the thread does, for tests.
    #[cfg(test)]
    pub fn beat(&self) {
        self.0.beat();
    }
}

fn report(stuck: &[&str]) -> String {
    let seconds = BEAT.as_secs() * MAX_MISSED_BEATS;
    format!("made no progress for {seconds} s: {}", stuck.join(", "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use std::sync::mpsc;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_loop_is_stuck_after_two_minutes_of_beats() {
        for (beats, seen, stuck) in [
            (0, 0, false),
            (100, 100, false),
            (111, 100, false),
            (112, 100, true),
            // It recorded a beat that a stale reading does not contain.
            (99, 100, false),
        ] {
            assert_eq!(is_stuck(beats, seen), stuck, "{beats} {seen}");
        }
    }

    /// Beats often enough that a loop which does not record them is stuck, and lets the others record each of them.
    async fn beat_on(watchdog: &Watchdog) {
        for _ in 0..=MAX_MISSED_BEATS {
            watchdog.beat();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_loop_that_blocks_its_thread_is_stuck_until_it_returns_and_one_that_waits_or_is_busy_is_not() {
        let watchdog = Watchdog::default();
        let (blocks, blocked) = mpsc::channel::<()>();
        let slow = tokio::spawn(watchdog.watch("slow", std::future::pending::<()>()));
        let busy = tokio::spawn(watchdog.watch("busy", async {
            loop {
                tokio::task::consume_budget().await;
            }
        }));
        let work = async move {
            // As a lock that is never released.
            let _ = blocked.recv();
            std::future::pending::<()>().await;
        };
        let stuck = tokio::spawn(watchdog.watch("blocked", work));
        beat_on(&watchdog).await;
        assert_eq!(watchdog.check(), Err("made no progress for 120 s: blocked".to_owned()));
        drop(blocks);
        // The next beat reaches it.
        beat_on(&watchdog).await;
        assert_eq!(watchdog.check(), Ok(()));
        for task in [slow, busy, stuck] {
            task.abort();
            let _ = task.await;
        }
        assert!(
            watchdog.0.loops.lock().watched.is_empty(),
            "a loop that ended is not watched"
        );
    }

    #[tokio::test]
    async fn without_beats_no_time_makes_a_loop_stuck() {
        tokio::time::pause();
        let watchdog = Watchdog::default();
        // As after a suspend: hours have passed, and the thread of the watchdog slept as well.
        let waiting = watchdog.watch("waiting", std::future::pending::<()>());
        let _ = timeout(Duration::from_secs(86_400), waiting).await;
        assert_eq!(watchdog.check(), Ok(()));
    }
}
