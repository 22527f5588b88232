//! Clocks of simulated machines: virtual time, and an error of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use export_store::WallClock;
use jiff::{SignedDuration, Timestamp};
use nfs_operator::runtime::clock::ClockSource;
use tokio::time::Instant;

/// The time at the start of each run, in seconds since 1970.
pub const EPOCH: i64 = 1_700_000_000;

/// The clock of a machine. Clones share its error.
#[derive(Debug, Clone)]
pub struct SimulatedClock {
    start: Instant,
    /// Milliseconds by which the wall clock is ahead.
    error: Arc<AtomicI64>,
}

impl SimulatedClock {
    /// Returns a clock that is right. All clocks of a run have the same start.
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            error: Arc::default(),
        }
    }

    /// Sets by how many milliseconds the wall clock is ahead.
    pub fn set_error(&self, milliseconds: i64) {
        self.error.store(milliseconds, Ordering::Relaxed);
    }
}

impl WallClock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let error = SignedDuration::from_millis(self.error.load(Ordering::Relaxed));
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::ZERO);
        let start = Timestamp::from_second(EPOCH).unwrap_or(Timestamp::UNIX_EPOCH);
        start.saturating_add(elapsed + error).unwrap_or(start)
    }
}

impl ClockSource for SimulatedClock {
    fn since_boot(&self) -> Duration {
        // Every machine was started a day before the run.
        Duration::from_secs(86_400) + self.start.elapsed()
    }
}
