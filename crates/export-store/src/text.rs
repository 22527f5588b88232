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

/// Formats a number of bytes for display: one digit after the decimal point, in Kubernetes units, rounded down.
pub fn format_bytes(bytes: u128) -> String {
    const UNITS: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let Some((name, shift)) = UNITS.iter().find(|(_, shift)| bytes >> shift > 0) else {
        return bytes.to_string();
    };
    let whole = bytes >> shift;
    // The rest is below 2^60, so ten times the rest fits.
    let tenths = ((bytes - (whole << shift)) * 10) >> shift;
    match tenths {
        0 => format!("{whole}{name}"),
        _ => format!("{whole}.{tenths}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
