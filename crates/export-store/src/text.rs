//! Text for people: bounded, escaped, in units that they read.

/// Returns the beginning of a text: at most so many bytes, and whole characters.
pub fn truncate(text: &str, longest: usize) -> &str {
    text.get(..text.floor_char_boundary(longest)).unwrap_or(text)
}

/// For reading: one digit after the point, in the units of Kubernetes, rounded down.
pub fn format_bytes(bytes: u128) -> String {
    const UNITS: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let Some((name, shift)) = UNITS.iter().find(|(_, shift)| bytes >> shift > 0) else {
        return bytes.to_string();
    };
    let whole = bytes >> shift;
    // What is left is below 2^60, so ten times that fits.
    let tenths = ((bytes - (whole << shift)) * 10) >> shift;
    match tenths {
        0 => format!("{whole}{name}"),
        _ => format!("{whole}.{tenths}{name}"),
    }
}
