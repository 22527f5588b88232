//! The write fence: prevents writes by a process that does not lead.
//!
//! It is checked before every write to the API (in the client's connections) and at the start of every operation on an
//! export. A check only reads the clock. The fence cannot recall a request that was sent already or that is delayed
//! between check and transmission. The fence on the export and the preconditions of the writes cover that case
//! (docs/adr/0010-who-may-write.md).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::runtime::clock::Clock;

/// A fence that is open while this process leads. Clones share its state.
#[derive(Debug, Clone, Default)]
pub struct WriteFence {
    /// Nanoseconds since boot.
    until: Arc<AtomicU64>,
    clock: Clock,
}

/// Value of a fence that is open until it is closed.
const WITHOUT_END: u64 = u64::MAX;

impl WriteFence {
    /// Creates a closed fence that reads the time from `clock`.
    pub fn new(clock: Clock) -> Self {
        Self {
            until: Arc::default(),
            clock,
        }
    }

    /// Returns the clock of this process.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Returns true while this process may write.
    pub fn may_write(&self) -> bool {
        nanoseconds(self.clock.since_boot()) < self.until.load(Ordering::Acquire)
    }

    /// Opens the fence until a time since boot, or without a limit.
    pub fn open(&self, until: Option<Duration>) {
        self.until
            .store(until.map_or(WITHOUT_END, nanoseconds), Ordering::Release);
    }

    /// Closes the fence.
    pub fn close(&self) {
        self.until.store(0, Ordering::Release);
    }
}

/// Converts to nanoseconds. The range is sufficient for 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(WITHOUT_END - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_closed_until_it_is_opened_and_after_its_time() {
        let guard = WriteFence::default();
        assert!(!guard.may_write());
        guard.open(Some(guard.clock().since_boot() + Duration::from_secs(60)));
        assert!(guard.clone().may_write());
        guard.open(Some(guard.clock().since_boot()));
        assert!(!guard.may_write());
        guard.open(None);
        assert!(guard.may_write());
        guard.close();
        assert!(!guard.may_write());
    }
}
