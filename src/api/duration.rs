//! Durations, in fields and arguments: the notation of Go, and days (`d`), such as `90s`, `1d12h` or `1h30m`.

use std::time::Duration;

const NANOS_PER_MILLI: u128 = 1_000_000;
const NANOS_PER_SECOND: u128 = 1000 * NANOS_PER_MILLI;

/// Units, the longest name first where one begins with the other.
const UNITS: [(&str, u128); 5] = [
    ("ms", NANOS_PER_MILLI),
    ("s", NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("h", 3600 * NANOS_PER_SECOND),
    ("d", 86_400 * NANOS_PER_SECOND),
];
/// Maximum length of a duration, in bytes.
pub(super) const MAX_LENGTH: u32 = 32;
/// Parses a duration. Returns `None` if it is invalid.
pub fn parse(text: &str) -> Option<Duration> {
    if text.is_empty() || u32::try_from(text.len()).ok()? > MAX_LENGTH {
        return None;
    }
    let (mut rest, mut nanos) = (text, 0_u128);
    while !rest.is_empty() {
        let end = rest.find(|character: char| !(character.is_ascii_digit() || character == '.'))?;
        let (number, unit_and_rest) = rest.split_at_checked(end)?;
        let (unit, factor) = UNITS.iter().find(|(unit, _)| unit_and_rest.starts_with(unit))?;
        // Days are whole and come first.
        if *unit == "d" && (rest.len() != text.len() || number.contains('.')) {
            return None;
        }
        nanos = nanos.checked_add(scale(number, *factor)?)?;
        rest = unit_and_rest.strip_prefix(unit)?;
    }
    let seconds = u64::try_from(nanos / NANOS_PER_SECOND).ok()?;
    Some(Duration::new(seconds, u32::try_from(nanos % NANOS_PER_SECOND).ok()?))
}

/// Returns a decimal number times the factor, in whole nanoseconds.
fn scale(number: &str, factor: u128) -> Option<u128> {
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (number, "0"),
    };
    let is_number =
        |digits: &str| !digits.is_empty() && digits.len() <= 9 && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let places = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction = fraction.parse::<u128>().ok()?.checked_mul(factor)? / places;
    whole.parse::<u128>().ok()?.checked_mul(factor)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go_and_days() {
        for (text, millis) in [
            ("0s", 0),
            ("100ms", 100),
            ("30s", 30_000),
            ("1.5s", 1500),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("1d12h", 129_600_000),
            ("30d", 2_592_000_000),
            ("0.5h", 1_800_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "1",
            "s",
            "-1s",
            "+1s",
            "1 s",
            "1w",
            "1.5d",
            "12h1d",
            "1d1d",
            ".5s",
            "1.s",
            "1..5s",
            "1us",
            "1S",
            "9999999999s",
            "\u{661}s",
            "111111111111111111111111111111111s",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
