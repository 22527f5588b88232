//! Text for display: bounded, escaped, and with readable units.

use std::borrow::Cow;
use std::fmt::Display;

/// Maximum length of a quoted text in a message, in bytes.
const MAX_QUOTE_LEN: usize = 80;

/// Returns the beginning of a text, up to a maximum number of bytes, without splitting a character.
pub fn truncate(text: &str, max_len: usize) -> &str {
    text.get(..text.floor_char_boundary(max_len)).unwrap_or(text)
}

/// Returns bytes in lower-case hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Like [`truncate`], with an ellipsis that shows that a part is missing.
pub fn abbreviate(text: &str, max_len: usize) -> String {
    match truncate(text, max_len) {
        start if start.len() < text.len() => format!("{start}…"),
        whole => whole.to_owned(),
    }
}

/// Returns a text from a tenant or server for a message: escaped and truncated.
pub fn quoted(text: &str) -> String {
    match truncate(text, MAX_QUOTE_LEN) {
        start if start.len() < text.len() => format!("{start:?}…"),
        whole => format!("{whole:?}"),
    }
}

/// Returns a text in which every character that can change how the text around it is displayed or split is replaced by
/// its Rust escape, such as `\u{9b}`. YAML does not allow most of them either, so the API server rejects an apply that
/// contains one.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_with(text, |character| character.escape_debug())
}

/// Replaces the same characters as [`escape`] by what `replacement` returns.
pub fn escape_with<R: Display>(text: &str, replacement: impl Fn(char) -> R) -> Cow<'_, str> {
    // Most texts are ASCII, which takes a fraction of the time to check.
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain || !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unprintable(character) {
            escaped.push_str(&replacement(character).to_string());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Returns true for control characters, line separators, invisible and bidirectional formatting characters, and the
/// noncharacters of the Basic Multilingual Plane that YAML excludes.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{fffe}'..='\u{ffff}'
        )
}

/// Returns a number with its noun, such as `1 claim` or `2 claims`.
pub fn counted(number: impl Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Units of Kubernetes quantities, and what they mean: powers of two, and powers of ten.
const BINARY_UNITS: [(&str, u128); 6] = [
    ("Ei", 1 << 60),
    ("Pi", 1 << 50),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
];
const DECIMAL_UNITS: [(&str, u128); 6] = [
    ("E", 10_u128.pow(18)),
    ("P", 10_u128.pow(15)),
    ("T", 10_u128.pow(12)),
    ("G", 10_u128.pow(9)),
    ("M", 10_u128.pow(6)),
    ("k", 10_u128.pow(3)),
];

/// Formats a measured number of bytes for display: one digit after the decimal point, in Kubernetes units, rounded down.
pub fn format_bytes(bytes: u128) -> String {
    in_tenths(bytes, |rest, unit| rest / unit)
}

/// Formats a measured number of bytes for which somebody has to make room: like [`format_bytes`], rounded up.
pub fn format_bytes_up(bytes: u128) -> String {
    in_tenths(bytes, u128::div_ceil)
}

/// Formats a number of bytes that somebody requested or configured, exactly and as short as that is possible: `1.5Gi`,
/// `1025Mi` or `5G`. A reader compares such numbers, and writes them into fields.
pub fn format_amount(bytes: u128) -> String {
    let (down, up) = (format_bytes(bytes), format_bytes_up(bytes));
    let whole = [format_whole(bytes), in_whole(bytes, DECIMAL_UNITS)];
    let exact = (down == up).then_some(down).into_iter().chain(whole);
    // The first of the shortest ones.
    exact.min_by_key(String::len).unwrap_or_default()
}

/// Formats a number of bytes exactly, with the largest binary unit that leaves a whole number.
pub fn format_whole(bytes: u128) -> String {
    in_whole(bytes, BINARY_UNITS)
}

/// Formats a number of bytes with the largest of these units that leaves a whole number.
fn in_whole(bytes: u128, units: [(&str, u128); 6]) -> String {
    let divides = |unit: u128| bytes > 0 && bytes.is_multiple_of(unit);
    match units.into_iter().find(|(_, unit)| divides(*unit)) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Formats a number of bytes with one digit after the decimal point. `divide` rounds that digit.
fn in_tenths(bytes: u128, divide: impl Fn(u128, u128) -> u128) -> String {
    let Some((name, unit)) = BINARY_UNITS.into_iter().find(|(_, unit)| bytes >= *unit) else {
        return bytes.to_string();
    };
    // The rest is below 2^60, so ten times the rest fits.
    let tenths = divide(bytes % unit * 10, unit);
    match (bytes / unit + tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole}{name}"),
        (whole, tenths) => format!("{whole}.{tenths}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_and_measured_sizes_are_rounded() {
        const GI: u128 = 1 << 30;
        for (bytes, amount, down, up) in [
            (0, "0", "0", "0"),
            (1, "1", "1", "1"),
            (1000, "1k", "1000", "1000"),
            (1023, "1023", "1023", "1023"),
            (1024, "1Ki", "1Ki", "1Ki"),
            (1025, "1025", "1Ki", "1.1Ki"),
            (1535, "1535", "1.4Ki", "1.5Ki"),
            (1536, "1536", "1.5Ki", "1.5Ki"),
            (2 * GI, "2Gi", "2Gi", "2Gi"),
            (5 * GI, "5Gi", "5Gi", "5Gi"),
            (GI * 3 / 2, "1.5Gi", "1.5Gi", "1.5Gi"),
            (GI + (1 << 20), "1025Mi", "1Gi", "1.1Gi"),
            (5_000_000_000, "5G", "4.6Gi", "4.7Gi"),
            (1_000_000_000_000, "1T", "931.3Gi", "931.4Gi"),
            (1024 * GI - 1, "1099511627775", "1023.9Gi", "1024Gi"),
            (1 << 63, "8Ei", "8Ei", "8Ei"),
            (u128::from(u64::MAX), "18446744073709551615", "15.9Ei", "16Ei"),
        ] {
            assert_eq!(format_amount(bytes), amount);
            assert_eq!(format_bytes(bytes), down);
            assert_eq!(format_bytes_up(bytes), up);
        }
        assert!(format_amount(u128::MAX).starts_with("3402"));
        assert!(format_bytes(u128::MAX).ends_with("Ei"));
    }

    #[test]
    fn characters_that_change_the_display_are_escaped_once() {
        for (text, escaped) in [
            (
                "plain \u{e9} \u{1f600} \"quoted\" \\n",
                "plain \u{e9} \u{1f600} \"quoted\" \\n",
            ),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[31m\u{9b}\u{7f}\0", "\\u{1b}[31m\\u{9b}\\u{7f}\\0"),
            (
                "\u{202e}\u{2066}\u{2028}\u{feff}\u{ffff}",
                "\\u{202e}\\u{2066}\\u{2028}\\u{feff}\\u{ffff}",
            ),
        ] {
            assert_eq!(escape(text), escaped);
            assert_eq!(escape(escaped), escaped, "escaped twice");
        }
    }

    #[test]
    fn a_number_of_one_is_singular() {
        assert_eq!(
            (counted(1, "claim"), counted(0, "claim")),
            ("1 claim".into(), "0 claims".into())
        );
    }
}
