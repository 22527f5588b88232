//! Limit of the bandwidth of all copies from and to one backend.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A number of bytes per second, which all copies from and to a backend share. Not limited by default.
#[derive(Debug, Default)]
pub(crate) struct Bandwidth(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Unset if the bandwidth is not limited.
    bytes_per_second: Option<u64>,
    /// Time at which everything so far has been transferred, at this rate.
    free_at: Option<Instant>,
}

impl Bandwidth {
    /// Sets the limit, for all that is transferred from now on.
    pub(crate) fn limit(&self, bytes_per_second: Option<u64>) {
        let mut state = self.0.lock();
        if state.bytes_per_second != bytes_per_second {
            *state = State {
                bytes_per_second,
                free_at: None,
            };
        }
    }

    /// Waits until bytes may be transferred.
    pub(super) async fn spend(&self, bytes: u64) {
        if let Some(at) = self.reserve(bytes) {
            tokio::time::sleep_until(at).await;
        }
    }

    /// Counts bytes that were transferred: what follows waits for them.
    pub(super) fn charge(&self, bytes: u64) {
        self.reserve(bytes);
    }

    /// Returns the time at which the transfer of bytes may begin. `None` if it may begin now.
    fn reserve(&self, bytes: u64) -> Option<Instant> {
        let mut state = self.0.lock();
        let rate = state.bytes_per_second?.max(1);
        let now = Instant::now();
        let begins = state.free_at.filter(|at| *at > now);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let free_at = begins.unwrap_or(now).checked_add(takes);
        // Beyond the end of time, nothing more is added.
        state.free_at = free_at.or(state.free_at);
        begins
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_transfers_together_take_as_long_as_the_bandwidth_allows() {
        let bandwidth = Bandwidth::default();
        let began = Instant::now();
        bandwidth.spend(1 << 40).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "it is not limited");
        bandwidth.limit(Some(1000));
        let transfers = (0..10).map(|_| async {
            for _ in 0..10 {
                bandwidth.spend(80).await;
                bandwidth.charge(20);
            }
        });
        join_all(transfers).await;
        bandwidth.spend(0).await;
        let took = began.elapsed().as_millis();
        assert!((9_990..10_100).contains(&took), "{took} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_limit_applies_at_once() {
        let bandwidth = Bandwidth::default();
        bandwidth.limit(Some(1));
        bandwidth.charge(1 << 40);
        bandwidth.limit(Some(1 << 40));
        let began = Instant::now();
        bandwidth.spend(0).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
