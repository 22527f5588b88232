//! Deadline and credential of one call, and the backoff between its attempts.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Credential;

/// First pause after DELAY, GRACE or JUKEBOX; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// Maximum pause after DELAY, GRACE or JUKEBOX.
pub const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The credential and the deadline of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// Credential that the server checks.
    pub credential: Credential,
    /// When the call ends at the latest, retries and reconnections included.
    pub deadline: Instant,
    /// The only connection on which the call may be sent, by its number; `None`: any.
    pub generation: Option<u64>,
}

/// A pause that doubles each time.
pub struct Backoff(Duration);

impl Backoff {
    pub fn new() -> Self {
        Self(MIN_PAUSE)
    }

    /// Pauses, unless the time left until the deadline is too short for another attempt. Returns whether to retry; if
    /// not, the reply at hand is more informative than a call that is cut off.
    pub async fn pause_before(&mut self, deadline: Instant) -> bool {
        let pause = self.0;
        if Instant::now() + 2 * pause >= deadline {
            return false;
        }
        sleep(pause).await;
        self.0 = (2 * pause).min(MAX_PAUSE);
        // The machine may have slept longer.
        Instant::now() + pause / 2 < deadline
    }
}
