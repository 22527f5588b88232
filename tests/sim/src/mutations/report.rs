//! The results, as two tables in docs/reliability.md.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs, io};

use super::patch::Patch;

const FILE: &str = "docs/reliability.md";
const DETECTED: &str = "| rule | mutation | seeds | what the oracle reports |\n|---|---|---|---|\n";
const UNDETECTED: &str = "| rule | mutation | seeds | why it is not detected |\n|---|---|---|---|\n";
/// Longest part of a report that is shown.
const LONGEST: usize = 160;

/// What became of a mutation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The oracle reported something.
    Detected {
        /// Number of seeds until then.
        seeds: u64,
        /// What it reported.
        cause: String,
    },
    /// No seed failed.
    Undetected {
        /// Number of seeds.
        seeds: u64,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detected { seeds, cause } => write!(f, "detected after {seeds} seeds: {cause}"),
            Self::Undetected { seeds } => write!(f, "not detected in {seeds} seeds"),
        }
    }
}

/// The rows of both tables, by the name of the mutation.
#[derive(Debug, Default)]
pub struct Report {
    detected: BTreeMap<String, String>,
    undetected: BTreeMap<String, String>,
}

/// Returns the markers around a table.
fn markers(table: &str) -> (String, String) {
    (format!("<!-- {table} -->\n"), format!("<!-- end of {table} -->"))
}

/// Returns the text between two markers, with what precedes and follows it.
fn around<'a>(text: &'a str, table: &str) -> io::Result<(&'a str, &'a str, &'a str)> {
    let (begin, end) = markers(table);
    let parts = || {
        let at = text.find(&begin)? + begin.len();
        let (before, rest) = text.split_at_checked(at)?;
        let (rows, after) = rest.split_at_checked(rest.find(&end)?)?;
        Some((before, rows, after))
    };
    parts().ok_or_else(|| io::Error::other(format!("{FILE} has no table between {begin}and {end}")))
}

/// Reads the rows of a table.
fn rows(table: &str) -> BTreeMap<String, String> {
    let rows = table.lines().filter_map(|row| {
        let name = row.split('`').nth(1)?;
        Some((name.to_owned(), row.to_owned()))
    });
    rows.collect()
}

impl Report {
    /// Reads the tables.
    pub fn read(repository: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(repository.join(FILE))?;
        Ok(Self {
            detected: rows(around(&text, "detected mutations")?.1),
            undetected: rows(around(&text, "undetected mutations")?.1),
        })
    }

    /// Removes the rows of other patches.
    pub fn keep_only(&mut self, patches: &[Patch]) {
        let exists = |name: &String| patches.iter().any(|patch| patch.name == *name);
        self.detected.retain(|name, _| exists(name));
        self.undetected.retain(|name, _| exists(name));
    }

    /// Sets the row of a patch.
    pub fn set(&mut self, patch: &Patch, outcome: &Outcome) {
        self.detected.remove(&patch.name);
        self.undetected.remove(&patch.name);
        let Patch {
            name, rule, reverts, ..
        } = patch;
        let (table, seeds, text) = match outcome {
            Outcome::Detected { seeds, cause } => (&mut self.detected, seeds, shortened(cause)),
            Outcome::Undetected { seeds } => {
                let why = patch.undetected.clone().unwrap_or_else(|| "not known".to_owned());
                (&mut self.undetected, seeds, why)
            }
        };
        let row = format!("| {rule} | `{name}`: {reverts} | {seeds} | {text} |");
        table.insert(name.clone(), row);
    }

    /// Writes the tables.
    pub fn write(&self, repository: &Path) -> io::Result<()> {
        let path = repository.join(FILE);
        let mut text = fs::read_to_string(&path)?;
        for (table, head, rows) in [
            ("detected mutations", DETECTED, &self.detected),
            ("undetected mutations", UNDETECTED, &self.undetected),
        ] {
            let (before, _, after) = around(&text, table)?;
            let rows: String = rows.values().map(|row| format!("{row}\n")).collect();
            let shown = match rows.is_empty() {
                true => "none\n".to_owned(),
                false => format!("{head}{rows}"),
            };
            text = format!("{before}\n{shown}\n{after}");
        }
        fs::write(path, text)
    }
}

/// Returns the beginning of a report, which fits into a cell.
fn shortened(cause: &str) -> String {
    let cause = cause.replace('|', "\\|");
    match cause.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", cause.get(..end).unwrap_or_default()),
        None => cause,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_replaced_and_moves_between_the_tables() {
        let patch = Patch {
            name: "name".into(),
            file: "name.patch".into(),
            rule: "7".into(),
            reverts: "something".into(),
            undetected: None,
        };
        let mut report = Report::default();
        report.set(&patch, &Outcome::Undetected { seeds: 500 });
        let cause = "a | ".repeat(100);
        report.set(&patch, &Outcome::Detected { seeds: 3, cause });
        assert!(report.undetected.is_empty());
        let row = report.detected.get("name").unwrap();
        assert!(row.starts_with("| 7 | `name`: something | 3 | a \\| a"), "{row}");
        let text = format!("{DETECTED}{row}\n");
        assert_eq!(rows(&text), report.detected);
    }
}
