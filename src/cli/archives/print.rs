//! Output of the list as a table or as JSON. Data from an export is not trusted: the output contains only printable ASCII.

use export_store::{ExportListing, ListedDirectory, Presence, Signature};
use jiff::Timestamp;
use nfs_client::address::ExportAddress;
use serde_json::{Value, json};

const HEADINGS: [&str; 9] = [
    "DIRECTORY",
    "CLAIM",
    "STATE",
    "ARCHIVED",
    "SIZE",
    "PRESENCE",
    "SIGNATURE",
    "CLUSTER",
    "VOLUME",
];

/// Escapes everything that could move the cursor, change colors or change the direction of writing.
pub fn plain(text: &str) -> String {
    text.chars()
        .map(|letter| {
            if is_plain(letter) {
                letter.to_string()
            } else {
                letter.escape_default().to_string()
            }
        })
        .collect()
}

fn is_plain(letter: char) -> bool {
    letter == ' ' || letter.is_ascii_graphic()
}

/// Returns a table with a row for each record and for each archive without one.
pub fn table(listing: &ExportListing) -> String {
    let rows: Vec<[String; 9]> = listing.rows.iter().map(cells).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let line = |cells: &[String; 9]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let headings = HEADINGS.map(str::to_owned);
    std::iter::once(&headings)
        .chain(&rows)
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

fn cells(row: &ListedDirectory) -> [String; 9] {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { plain(text) };
    let claim = match (row.namespace.as_str(), row.claim.as_str()) {
        ("", "") => String::new(),
        (namespace, claim) => format!("{namespace}/{claim}"),
    };
    let state = match &row.why {
        Some(why) => format!("{}: {why}", row.state),
        None => row.state.to_owned(),
    };
    [
        or_dash(&row.directory),
        or_dash(&claim),
        plain(&state),
        or_dash(&archived_at(row).unwrap_or_default()),
        or_dash(row.size.as_deref().unwrap_or_default()),
        presence(row.presence),
        signature(row.signature),
        or_dash(&row.cluster),
        or_dash(&row.volume),
    ]
}

fn archived_at(row: &ListedDirectory) -> Option<String> {
    Timestamp::from_second(row.archived_at?).ok().map(|at| at.to_string())
}

/// Returns the same word as in the JSON output.
fn presence(presence: Presence) -> String {
    format!("{presence:?}")
}

/// Returns the same word as in the JSON output.
fn signature(signature: Signature) -> String {
    format!("{signature:?}")
}

/// Returns a JSON object with the export, its identity and the rows.
pub fn json(export: &ExportAddress, listing: &ExportListing) -> serde_json::Result<String> {
    let rows: Vec<Value> = listing.rows.iter().map(row).collect::<Result<_, _>>()?;
    let text = serde_json::to_string_pretty(&json!({
        "export": export.to_string(),
        "exportID": listing.identity,
        "complete": listing.unseen.is_empty(),
        "unseen": listing.unseen,
        "rows": rows,
    }))?;
    Ok(escape_non_ascii(&text))
}

/// Returns a row with its time as the table shows it.
fn row(row: &ListedDirectory) -> serde_json::Result<Value> {
    let mut fields = serde_json::to_value(row)?;
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("archiveTime".to_owned(), json!(archived_at(row)));
    }
    Ok(fields)
}

/// Replaces all but printable ASCII by the equivalent escapes of JSON, which a terminal does not interpret.
fn escape_non_ascii(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_plain(letter) || letter == '\n' {
            plain.push(letter);
            continue;
        }
        let mut units = [0; 2];
        let units = letter.encode_utf16(&mut units);
        plain.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
    }
    plain
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn no_control_sequence_is_printed_and_json_keeps_its_value() {
        let malicious = "\u{1b}[31m\u{9b}2J\u{7f}\u{202e}\r\n\té𝄞\"\\";
        let shown = plain(malicious);
        assert!(shown.chars().all(is_plain), "{shown}");
        let text = escape_non_ascii(&serde_json::to_string(&[malicious]).unwrap());
        assert!(text.chars().all(is_plain), "{text}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [malicious]);
    }
}
