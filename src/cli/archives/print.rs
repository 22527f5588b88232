//! What was found as a table, or as JSON. What lies on an export is anybody's word: no more than letters and signs of ASCII
//! come out of here.

use export_store::{ExportListing, ListedDirectory, Presence, Signature};
use jiff::Timestamp;
use nfs_client::address::ExportAddress;
use serde_json::json;

const HEADS: [&str; 9] = [
    "DIRECTORY",
    "CLAIM",
    "STATE",
    "ARCHIVED",
    "REQUEST",
    "PRESENT",
    "SIGNATURE",
    "CLUSTER",
    "VOLUME",
];

/// A text of which nothing can move a cursor, change a colour or turn the writing round.
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

/// A row for each record, and for each archive without one; each column as broad as its broadest cell.
pub fn table(survey: &ExportListing) -> String {
    let rows: Vec<[String; 9]> = survey.rows.iter().map(cells).collect();
    let mut widths = HEADS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let line = |cells: &[String; 9]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let heads = HEADS.map(str::to_owned);
    std::iter::once(&heads)
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
        or_dash(&archived(row).unwrap_or_default()),
        or_dash(row.size.as_deref().unwrap_or_default()),
        presence(row.presence).to_owned(),
        signature(row.signature).to_owned(),
        or_dash(&row.cluster),
        or_dash(&row.volume),
    ]
}

fn archived(row: &ListedDirectory) -> Option<String> {
    Timestamp::from_second(row.archived_at?).ok().map(|at| at.to_string())
}

fn presence(presence: Presence) -> &'static str {
    match presence {
        Presence::There => "yes",
        Presence::Other => "ANOTHER",
        Presence::Missing => "MISSING",
        Presence::Unknown => "-",
    }
}

fn signature(signature: Signature) -> &'static str {
    match signature {
        Signature::Signed => "good",
        Signature::Unsigned => "none",
        Signature::Wrong => "WRONG",
        Signature::Unchecked => "unchecked",
        Signature::None => "-",
    }
}

/// One object: the export, its identity, and the rows.
pub fn json(export: &ExportAddress, survey: &ExportListing) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(&json!({
        "export": export.to_string(),
        "exportID": survey.identity,
        "complete": survey.unseen.is_empty(),
        "unseen": survey.unseen,
        "rows": survey.rows,
    }))?;
    Ok(in_ascii(&text))
}

/// JSON says what is not of ASCII as `\uXXXX` just as well, and a terminal takes nothing of that for an order.
fn in_ascii(json: &str) -> String {
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
    fn nothing_that_a_terminal_obeys_is_printed_and_json_says_the_same_as_before() {
        let evil = "\u{1b}[31m\u{9b}2J\u{7f}\u{202e}\r\n\té𝄞\"\\";
        let shown = plain(evil);
        assert!(shown.chars().all(is_plain), "{shown}");
        let text = in_ascii(&serde_json::to_string(&[evil]).unwrap());
        assert!(text.chars().all(is_plain), "{text}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [evil]);
    }
}
