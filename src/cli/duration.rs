//! Parser of durations in arguments.

use std::time::Duration;

use crate::api::duration;

/// Parses a duration, such as `1m30s` or `2d`.
///
/// # Errors
/// Description of the expected format.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| "expected a duration such as 15s, 1m30s or 2d".to_owned())
}
