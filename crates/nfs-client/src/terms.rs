//! Until when a call may take, as whom it is made, and how long to pause when the server asks for it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Credential;

/// First pause after DELAY or GRACE; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where and as whom a call is made, and until when.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// The credential.
    pub credential: Credential,
    /// The end of all waiting.
    pub deadline: Instant,
}

/// A pause that grows.
pub struct Backoff(Duration);

impl Backoff {
    pub fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    /// Pauses; false when what would be left until the deadline is too short for an answer: then the one that is there
    /// says more than a call that was cut off.
    pub async fn until(&mut self, deadline: Instant) -> bool {
        let pause = self.0;
        if Instant::now() + 2 * pause >= deadline {
            return false;
        }
        sleep(pause).await;
        self.0 = (2 * pause).min(LONGEST_PAUSE);
        // The machine may have slept longer.
        Instant::now() + pause / 2 < deadline
    }
}
