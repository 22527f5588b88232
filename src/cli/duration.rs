//! Parser of durations in arguments.

use std::time::Duration;

/// Parses a duration in Go notation, such as `1m30s`.
///
/// # Errors
/// Description of the expected format.
pub fn parse_go_duration(text: &str) -> Result<Duration, String> {
    // The parser panics on numbers that are too large, so the length is limited.
    if text.len() > 12 || text.starts_with('-') {
        return Err("expected a duration such as 15s or 1m30s".to_owned());
    }
    let parsed = text.parse::<kube::core::Duration>();
    parsed
        .map(Duration::from)
        .map_err(|error| format!("{error}: expected a duration such as 15s or 1m30s"))
}
