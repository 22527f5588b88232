//! Exponential backoff before an object is retried. Does no I/O.

use std::time::Duration;

use export_store::UidMap;
use parking_lot::Mutex;
use rand::RngExt;

use crate::runtime::concurrency_limiter::Priority;

/// Minimum and maximum pause after a failure (`--retry-min`, `--retry-max`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffLimits {
    /// Pause after the first failure.
    pub shortest: Duration,
    /// Maximum pause.
    pub longest: Duration,
}

impl Default for BackoffLimits {
    /// Returns the defaults of the ProvisionController library.
    fn default() -> Self {
        Self {
            shortest: Duration::from_secs(15),
            longest: Duration::from_secs(1000),
        }
    }
}

impl BackoffLimits {
    /// Returns the limits if they are consistent, or an error message with the remedy.
    pub fn validated(self) -> Result<Self, String> {
        let Self { shortest, longest } = self;
        if shortest < Duration::from_millis(100) {
            return Err(format!("--retry-min {shortest:?} is too short: specify at least 100ms"));
        }
        if longest < shortest {
            return Err(format!(
                "--retry-max {longest:?} is below --retry-min {shortest:?}: raise the former or lower the latter"
            ));
        }
        Ok(self)
    }

    /// Returns the pause after a failure that `failures` others preceded.
    pub fn pause(&self, failures: u32) -> Duration {
        self.shortest
            .saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX))
            .min(self.longest)
    }
}

/// Exponential backoff with jitter for each object. Objects are identified by UID, so that a new object with the same
/// name starts without failures.
#[derive(Default)]
pub struct Backoff {
    failures: Mutex<UidMap<u32>>,
    bounds: BackoffLimits,
}

impl Backoff {
    /// Creates a backoff with these limits.
    pub fn new(bounds: BackoffLimits) -> Self {
        Self {
            failures: Mutex::default(),
            bounds,
        }
    }

    /// Records a failure and returns the time to wait: the pause, extended by up to half, so that thousands of objects
    /// that fail together are not retried together.
    pub fn record_failure(&self, uid: &str) -> Duration {
        let mut failures = self.failures.lock();
        let count = failures.get(uid).copied().unwrap_or_default();
        failures.insert(uid, count.saturating_add(1));
        let pause = self.bounds.pause(count);
        pause.mul_f64(rand::rng().random_range(1.0..1.5))
    }

    /// Returns the object's priority: `Retry` if it has failed.
    pub fn priority(&self, uid: &str) -> Priority {
        match self.failures.lock().contains_key(uid) {
            true => Priority::Retry,
            false => Priority::New,
        }
    }

    /// Resets an object's failures, after it succeeded, changed or was deleted.
    pub fn reset(&self, uid: &str) {
        self.failures.lock().remove(uid);
    }
}

/// Extends a duration by up to a tenth, so that periodic work is not synchronized.
pub fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(1.0..1.1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again_after_success() {
        let bounds = BackoffLimits::default();
        let pauses: Vec<u64> = (0..8).map(|n| bounds.pause(n).as_secs()).collect();
        assert_eq!(pauses, [15, 30, 60, 120, 240, 480, 960, 1000]);
        assert_eq!(bounds.pause(u32::MAX), bounds.longest);
        let backoff = Backoff::default();
        let within = |pause: Duration, seconds: u64| {
            let least = Duration::from_secs(seconds);
            assert!(pause >= least && pause < least.mul_f64(1.5), "{pause:?}");
        };
        assert_eq!(backoff.priority("claim"), Priority::New);
        within(backoff.record_failure("claim"), 15);
        within(backoff.record_failure("claim"), 30);
        within(backoff.record_failure("another"), 15);
        assert_eq!(backoff.priority("claim"), Priority::Retry);
        backoff.reset("claim");
        assert_eq!(backoff.priority("claim"), Priority::New);
        within(backoff.record_failure("claim"), 15);
    }

    #[test]
    fn thousands_that_fail_together_come_back_spread_out() {
        let backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..5000).map(|n| backoff.record_failure(&n.to_string())).collect();
        for second in 15..22 {
            let due = pauses.iter().filter(|pause| pause.as_secs() == second).count();
            assert!(due < 1000, "{due} of 5000 in second {second}");
        }
    }

    #[test]
    fn bounds_that_contradict_each_other_are_refused_with_the_remedy() {
        let bounds = |shortest, longest| BackoffLimits {
            shortest: Duration::from_millis(shortest),
            longest: Duration::from_millis(longest),
        };
        assert!(bounds(1000, 1000).validated().is_ok());
        assert!(bounds(0, 1000).validated().unwrap_err().starts_with("--retry-min"));
        assert!(bounds(2000, 1000).validated().unwrap_err().starts_with("--retry-max"));
    }
}
