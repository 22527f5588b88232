//! Whether this process may write now.
//!
//! Asked before every write to the API (a layer of the client) and at the start of every operation on an export. It
//! costs a look at the clock. It cannot call back what was sent already, or what is stopped between the look and the
//! sending: that is what the fence on the export and the preconditions of the writes are for, as the decision on
//! who may write says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine was started, by a clock that goes on while the machine sleeps: `Instant` does not on Linux,
/// and a leader that slept would believe in a Lease that is long another's.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    // The clock starts at zero: neither part is negative.
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanoseconds.unwrap_or(0))
}

/// Open while we lead; clones are one guard.
#[derive(Debug, Clone, Default)]
pub struct WriteFence(Arc<AtomicU64>);

/// Open until it is closed.
const WITHOUT_END: u64 = u64::MAX;

impl WriteFence {
    /// Whether this process may write now.
    pub fn may_write(&self) -> bool {
        nanoseconds(since_boot()) < self.0.load(Ordering::Acquire)
    }

    /// Opens it until that time since boot, or without end.
    pub fn open(&self, until: Option<Duration>) {
        self.0.store(until.map_or(WITHOUT_END, nanoseconds), Ordering::Release);
    }

    /// Closes it.
    pub fn close(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Enough for 584 years.
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
        guard.open(Some(since_boot() + Duration::from_secs(60)));
        assert!(guard.clone().may_write());
        guard.open(Some(since_boot()));
        assert!(!guard.may_write());
        guard.open(None);
        assert!(guard.may_write());
        guard.close();
        assert!(!guard.may_write());
    }
}
