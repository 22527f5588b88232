//! How long to wait before an object is tried again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::RngExt;

/// The first pause, and the longest: what the ProvisionController library uses.
const SHORTEST: Duration = Duration::from_secs(15);
const LONGEST: Duration = Duration::from_secs(1000);

/// Exponential backoff with jitter, for each object on its own. Objects are told apart by their uid: a successor of
/// the same name has not failed yet.
pub struct Backoff {
    failures: Mutex<HashMap<String, u32>>,
    shortest: Duration,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            failures: Mutex::default(),
            shortest: SHORTEST,
            longest: LONGEST,
        }
    }
}

impl Backoff {
    /// Counts a failure and answers how long to wait.
    pub fn failed(&self, uid: &str) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid.to_owned()).or_insert(0);
        let pause = pause(*count, self.shortest, self.longest);
        *count = count.saturating_add(1);
        jittered(pause)
    }

    /// Forgets an object's failures: it succeeded, changed, or is gone.
    pub fn forget(&self, uid: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

fn pause(failures: u32, shortest: Duration, longest: Duration) -> Duration {
    shortest
        .saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX))
        .min(longest)
}

/// A duration up to a tenth longer, so that what failed together does not come back together.
pub fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(1.0..1.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again_after_success() {
        let pauses: Vec<u64> = (0..8).map(|n| pause(n, SHORTEST, LONGEST).as_secs()).collect();
        assert_eq!(pauses, [15, 30, 60, 120, 240, 480, 960, 1000]);
        assert_eq!(pause(u32::MAX, SHORTEST, LONGEST), LONGEST);
        let backoff = Backoff::default();
        backoff.failed("claim");
        assert!(backoff.failed("claim") >= Duration::from_secs(30));
        backoff.forget("claim");
        assert!(backoff.failed("claim") < Duration::from_secs(17));
    }
}
