//! The clocks: that of this process, and that of the API server. Data is not purged because the clock of one machine is
//! wrong.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::runtime::writes::WriteError;
use export_store::WallClock;
use rustix::time::{ClockId, clock_gettime};

/// The clock of a process.
pub trait ClockSource: WallClock + fmt::Debug + Send + Sync {
    /// Returns the time since boot, including time in suspend. `Instant` does not include it on Linux: after a suspend, a
    /// leader would rely on a Lease that another process has taken.
    fn since_boot(&self) -> Duration;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
struct SystemClock;

impl WallClock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

impl ClockSource for SystemClock {
    fn since_boot(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        // The clock starts at zero, so neither part is negative.
        let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
        Duration::new(seconds.unwrap_or(0), nanoseconds.unwrap_or(0))
    }
}

/// A handle to the clock of this process: by default, that of the operating system.
#[derive(Debug, Clone)]
pub struct Clock(Arc<dyn ClockSource>);

impl Clock {
    /// Returns a handle to this clock.
    pub fn new(source: impl ClockSource + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// Returns the current time. It may be wrong, and it may be set back.
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// Returns the time since boot, including time in suspend.
    pub fn since_boot(&self) -> Duration {
        self.0.since_boot()
    }
}

impl WallClock for Clock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(SystemClock)
    }
}

/// Time for which a reading is advanced by the monotonic clock, which does not follow corrections of this machine's time.
const VALID: Duration = Duration::from_secs(60);

/// The API server's clock, read at most once a minute: a thousand directories that are archived at once do not need a
/// thousand readings. Not for purges, which read it each time.
#[derive(Default)]
pub struct ServerClock(Mutex<Option<(Instant, Timestamp)>>);

impl ServerClock {
    /// Returns the API server's time.
    ///
    /// # Errors
    /// Those of [`api_server_time`].
    pub async fn now(&self, client: &Client) -> Result<Timestamp, WriteError> {
        let now = Instant::now();
        let last = *self.0.lock();
        if let Some(time) = last.and_then(|last| advanced(last, now)) {
            return Ok(time);
        }
        let time = api_server_time(client).await?;
        *self.0.lock() = Some((now, time));
        Ok(time)
    }
}

/// Returns the time at `now`, or `None` if the reading is too old.
fn advanced((read, time): (Instant, Timestamp), now: Instant) -> Option<Timestamp> {
    let passed = now.saturating_duration_since(read);
    if passed > VALID {
        return None;
    }
    time.checked_add(passed).ok()
}

/// Returns the API server's current time: the creation time of an object that it does not store
/// (<https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/self-subject-review-v1/>).
///
/// # Errors
/// The API server does not answer, or answers without a time: nothing may be purged now.
pub async fn api_server_time(client: &Client) -> Result<Timestamp, WriteError> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let failed = WriteError::action("read the API server's time");
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(failed)?;
    let created = review.metadata.creation_timestamp;
    created.map(|time| time.0).ok_or(WriteError::Conflict)
}

/// Returns a duration in milliseconds, for logs: JSON logs print larger integers as strings.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_advanced_for_a_minute_and_then_repeated() {
        let (read, time) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let after = |seconds| advanced((read, time), read + Duration::from_secs(seconds)).map(Timestamp::as_second);
        assert_eq!([after(0), after(60), after(61)], [Some(0), Some(60), None]);
    }
}
