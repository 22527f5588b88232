//! Durations in arguments.

use std::time::Duration;

/// A duration as Go writes it, such as `1m30s`.
///
/// # Errors
/// What was expected.
pub fn go_duration(text: &str) -> Result<Duration, String> {
    // Nobody needs more digits, and a number that is too great would end the parser.
    if text.len() > 12 || text.starts_with('-') {
        return Err("expected a duration such as 15s or 1m30s".to_owned());
    }
    let parsed = text.parse::<kube::core::Duration>();
    parsed
        .map(Duration::from)
        .map_err(|error| format!("{error}: expected a duration such as 15s or 1m30s"))
}
