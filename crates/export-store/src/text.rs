//! Text for display: bounded, escaped, and with readable units.

/// Returns the beginning of a text, up to a maximum number of bytes, without splitting a character.
pub fn truncate(text: &str, longest: usize) -> &str {
    text.get(..text.floor_char_boundary(longest)).unwrap_or(text)
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
