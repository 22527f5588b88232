//! Rate limit of a count.

use std::time::Duration;

/// Minimum duration of a pause: the timer has no higher resolution. Shorter pauses are accumulated.
const SHORTEST: Duration = Duration::from_millis(10);

/// Limits the number of names per second, however fast the server is. The duration of calls is not subtracted from the
/// pauses, so a busy server gets fewer calls.
#[derive(Debug)]
pub struct RateLimiter {
    each: Duration,
    owed: Duration,
}

impl RateLimiter {
    /// Creates a limiter without pauses between calls.
    pub fn unlimited() -> Self {
        Self::taking(Duration::ZERO)
    }

    /// Creates a limiter with a maximum number of names per second.
    pub fn of(names_a_second: u32) -> Self {
        Self::taking(Duration::from_secs(1) / names_a_second.max(1))
    }

    fn taking(each: Duration) -> Self {
        Self {
            each,
            owed: Duration::ZERO,
        }
    }

    /// Pauses for this number of names, once the accumulated pause is long enough.
    pub async fn spend(&mut self, names: usize) {
        let names = u32::try_from(names).unwrap_or(u32::MAX);
        self.owed = self.owed.saturating_add(self.each.saturating_mul(names));
        if self.owed >= SHORTEST {
            tokio::time::sleep(std::mem::take(&mut self.owed)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn names_take_their_time_one_by_one_or_a_page_at_once() {
        for page in [1, 250] {
            let (began, mut pace) = (Instant::now(), RateLimiter::of(1000));
            for _ in 0..10_000 / page {
                pace.spend(page).await;
            }
            let took = began.elapsed();
            assert!(
                took >= Duration::from_millis(9_990) && took <= Duration::from_secs(11),
                "{took:?}"
            );
        }
    }
}
