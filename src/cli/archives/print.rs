//! Output of the list as a table or as JSON. Data from an export is not trusted: the output contains only printable ASCII.

use export_store::{ExportListing, ListedDirectory, Presence, Signature};
use jiff::Timestamp;
use nfs_client::address::ExportAddress;
use serde_json::{Value, json};

use super::verify::Verified;
use crate::cli::output::{Table, Tone, escape_non_ascii};

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
    let mut table = Table::new(&HEADINGS);
    for row in &listing.rows {
        let tone = if row.needs_attention() {
            Tone::Problem
        } else {
            Tone::Plain
        };
        table.row(tone, cells(row).each_ref().map(String::as_str));
    }
    table.render()
}

fn cells(row: &ListedDirectory) -> [String; 9] {
    let claim = match (row.namespace.as_str(), row.claim.as_str()) {
        ("", "") => String::new(),
        (namespace, claim) => format!("{namespace}/{claim}"),
    };
    let state = match &row.why {
        Some(why) => format!("{}: {why}", row.state),
        None => row.state.to_owned(),
    };
    [
        plain(&row.directory),
        plain(&claim),
        plain(&state),
        plain(&archived_at(row).unwrap_or_default()),
        plain(row.size.as_deref().unwrap_or_default()),
        presence(row.presence),
        signature(row.signature),
        plain(&row.cluster),
        plain(&row.volume),
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

/// Returns a JSON object with the export, its identity, the rows, and the verified backups.
pub fn json(export: &ExportAddress, listing: &ExportListing, verified: &[Verified]) -> serde_json::Result<String> {
    let rows: Vec<Value> = listing.rows.iter().map(row).collect::<Result<_, _>>()?;
    let text = serde_json::to_string_pretty(&json!({
        "export": export.to_string(),
        "exportID": listing.identity,
        "complete": listing.unseen.is_empty(),
        "unseen": listing.unseen,
        "rows": rows,
        "verified": verified.iter().map(Verified::json).collect::<Vec<_>>(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_sequence_is_printed() {
        let malicious = "\u{1b}[31m\u{9b}2J\u{7f}\u{202e}\r\n\té𝄞\"\\";
        let shown = plain(malicious);
        assert!(shown.chars().all(is_plain), "{shown}");
    }
}
