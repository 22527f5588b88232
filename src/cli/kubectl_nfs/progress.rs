//! Waits for the operator, and reports on standard error what it is doing meanwhile.

use std::time::Duration;

use export_store::text::escape;
use tokio::time::{Instant, sleep};

use crate::api::conditions::Reason;
use crate::cli::cluster::CommandError;

/// Interval between two reads of an object. A user who may read it may not be allowed to watch it.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What an object says about a wait.
pub enum Progress<T> {
    /// The end of the wait.
    Done(T),
    /// It continues; the text says what happens now.
    Waits(String),
}

/// Returns what a wait for an object does about its condition: it continues, or ends if time does not change the refusal.
pub fn wait_or_refuse<T>(what: &str, reason: &str, message: &str) -> Result<Progress<T>, CommandError> {
    let text = format!("{reason}: {message}");
    match Reason::parse(reason).is_some_and(Reason::lasts_until_changed) {
        true => Err(CommandError::Refused(format!(
            "{what} waits until somebody changes the cause, or deletes it: {text}"
        ))),
        false => Ok(Progress::Waits(text)),
    }
}

/// Calls `look` until it is done. Prints each new text. Fails after the timeout with the last one.
pub async fn wait<T>(
    what: &str,
    timeout: Duration,
    look: impl AsyncFn() -> Result<Progress<T>, CommandError>,
) -> Result<T, CommandError> {
    wait_or_text(what, timeout, look).await?.map_err(|text| {
        CommandError::Refused(format!(
            "timed out waiting for {what}, which continues: {text}; wait longer with --timeout"
        ))
    })
}

/// Calls `look` until it is done. Prints each new text. Returns the last one after the timeout.
pub async fn wait_or_text<T>(
    what: &str,
    timeout: Duration,
    look: impl AsyncFn() -> Result<Progress<T>, CommandError>,
) -> Result<Result<T, String>, CommandError> {
    let deadline = Instant::now() + timeout;
    let mut printed = String::new();
    loop {
        match look().await? {
            Progress::Done(done) => return Ok(Ok(done)),
            Progress::Waits(text) if Instant::now() >= deadline => return Ok(Err(text)),
            Progress::Waits(text) => {
                if text != printed {
                    eprintln!("waiting for {what}: {}", escape(&text));
                    printed = text;
                }
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_a_refusal_that_time_does_not_end() {
        let ends = |reason: &str| wait_or_refuse::<()>("NfsBackup a", reason, "why").is_err();
        for reason in [Reason::SelfServiceNotAllowed, Reason::CopySourceUnsuitable] {
            assert!(ends(&reason.to_string()), "{reason}");
        }
        for reason in [Reason::Copying, Reason::NoSpace, Reason::BackupQuotaExceeded] {
            assert!(!ends(&reason.to_string()), "{reason}");
        }
        assert!(!ends("OfANewerRelease"));
    }
}
