//! Waiting for something to come about, with an error that says what was seen instead.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use crate::error::{Error, Result};

/// Short beside everything that is waited for, and next to no load.
const INTERVAL: Duration = Duration::from_millis(50);

/// Asks again and again until `look` answers `Ok`, for at most `timeout`.
///
/// `look` says with `Err` what it saw instead; the last such answer is in the error.
pub async fn until<T, F, Fut>(what: &str, timeout: Duration, mut look: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    let mut last = String::from("nothing, the first look did not come back");
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        // A look that hangs is cut off; what was seen before it is then what is reported.
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(instead)) => last = instead,
            Err(_) => {}
        }
        if start.elapsed() >= timeout {
            return Err(Error::Timeout {
                what: what.to_owned(),
                waited: start.elapsed(),
                last,
            });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_timeout_says_what_was_seen_at_last() {
        let mut looks = 0;
        let error = until::<(), _, _>("the moon", Duration::from_millis(200), || {
            looks += 1;
            let seen = format!("cloud {looks}");
            async move { Err(seen) }
        })
        .await
        .unwrap_err()
        .to_string();
        assert!(error.contains("for the moon; last state: cloud "), "{error}");
    }
}
