//! Waiting for a condition, with an error that reports the last observed state.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use crate::error::{Error, Result};

/// Pause after the first check.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause between two checks.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Returns the pause before the next check. It grows with the time waited: many tests wait at the same time, and their
/// checks take CPU time from what they wait for.
fn pause(waited: Duration) -> Duration {
    (waited / 10).clamp(FIRST_PAUSE, LONGEST_PAUSE)
}

/// Calls `check` until it returns `Ok`, for at most `timeout`.
///
/// `check` returns the observed state as `Err`. The error of a timeout contains the last one.
pub async fn until<T, F, Fut>(what: &str, timeout: Duration, mut check: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    let mut last = String::from("unknown, the first check did not return");
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        // A check that does not return is cancelled; the error then reports the state before it.
        match tokio::time::timeout(left, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(state)) => last = state,
            Err(_) => {}
        }
        if start.elapsed() >= timeout {
            return Err(Error::Timeout {
                what: what.to_owned(),
                waited: start.elapsed(),
                last,
            });
        }
        tokio::time::sleep(pause(start.elapsed())).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timeout_reports_the_last_observed_state() {
        let mut calls = 0;
        let error = until::<(), _, _>("the moon", Duration::from_millis(200), || {
            calls += 1;
            let seen = format!("cloud {calls}");
            async move { Err(seen) }
        })
        .await
        .unwrap_err()
        .to_string();
        assert!(error.contains("for the moon; last state: cloud "), "{error}");
    }
}
