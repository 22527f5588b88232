//! `nfs-operator archives --verify`: compares backups with their checksums.

use std::fmt::Write as _;

use export_store::{ExportError, ExportListing, ExportStore, ListedDirectory, RecordsKey, VerifyReport};
use serde_json::{Value, json};

use super::print::plain;
use crate::cli::connection::message_of;
use export_store::text::counted;

/// A backup, and the result of verifying it.
pub struct Verified {
    cluster: String,
    name: String,
    result: Result<VerifyReport, ExportError>,
}

/// Verifies the backups in the listing that have a manifest, one after the other: only those with these `names`, unless there
/// are none.
pub async fn verify(
    store: &ExportStore,
    listing: &ExportListing,
    names: &[String],
    key: Option<&RecordsKey>,
) -> Vec<Verified> {
    let mut verified = Vec::new();
    let is_selected = |row: &&ListedDirectory| {
        let is_archive = matches!(row.state, "Archived" | "Released");
        is_archive && !row.cluster.is_empty() && (names.is_empty() || names.contains(&row.volume))
    };
    for row in listing.rows.iter().filter(is_selected) {
        let result = store.verify_backup((&row.cluster, &row.volume), key).await;
        let Some(result) = result.transpose() else { continue };
        verified.push(Verified {
            cluster: row.cluster.clone(),
            name: row.volume.clone(),
            result,
        });
    }
    verified
}

/// Returns the lines of all backups, and one with their number.
pub fn text(verified: &[Verified]) -> String {
    let lines: String = verified.iter().map(Verified::text).collect();
    let reports = || verified.iter().filter_map(|verified| verified.result.as_ref().ok());
    let unverified = verified.len() - reports().count();
    let failed = match unverified {
        0 => String::new(),
        failed => format!("; {} could not be verified", counted(failed, "backup")),
    };
    let sum = |amount: fn(&VerifyReport) -> u64| reports().map(amount).fold(0, u64::saturating_add);
    format!(
        "{lines}verified {} with a manifest: {}, {}{failed}",
        counted(reports().count(), "backup"),
        counted(sum(|report| report.files), "file"),
        counted(sum(|report| report.problem_count), "problem"),
    )
}

impl Verified {
    /// Reports whether the backup has this name.
    pub fn is_of(&self, name: &str) -> bool {
        self.name == name
    }

    /// Reports whether the backup is not what was written.
    pub fn needs_attention(&self) -> bool {
        self.result.as_ref().map_or(true, |report| report.problem_count > 0)
    }

    /// Returns a line about the backup, and one for each problem.
    fn text(&self) -> String {
        let name = plain(&self.name);
        let report = match &self.result {
            Ok(report) => report,
            Err(error) => return format!("{name}: {}\n", plain(&message_of(error))),
        };
        let mut text = format!(
            "{name}: {} verified by checksum, {}",
            counted(report.files, "file"),
            counted(report.bytes, "byte")
        );
        if report.without_checksum > 0 {
            let _ = write!(text, "; {} without checksum", counted(report.without_checksum, "file"));
        }
        let _ = writeln!(text, "; {}", counted(report.problem_count, "problem"));
        for problem in &report.problems {
            let _ = writeln!(text, "  {}", plain(&problem.to_string()));
        }
        let unnamed = report.problem_count.saturating_sub(report.problems.len() as u64);
        if unnamed > 0 {
            let _ = writeln!(text, "  and {unnamed} more");
        }
        text
    }

    /// Returns the result as a JSON object.
    pub fn json(&self) -> Value {
        let (report, error) = match &self.result {
            Ok(report) => (report.clone(), None),
            Err(error) => (VerifyReport::default(), Some(message_of(error))),
        };
        let problem = |path: &str, what: &str| json!({"path": path, "what": what});
        let problems: Vec<Value> = report
            .problems
            .iter()
            .map(|found| problem(&found.path, &found.what))
            .collect();
        json!({
            "cluster": self.cluster,
            "name": self.name,
            "files": report.files,
            "bytes": report.bytes,
            "withoutChecksum": report.without_checksum,
            "problemCount": report.problem_count,
            "problems": problems,
            "error": error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_the_backups() {
        assert_eq!(text(&[]), "verified 0 backups with a manifest: 0 files, 0 problems");
        let verified = |name: &str, files, problem_count| Verified {
            cluster: "cluster".into(),
            name: name.into(),
            result: Ok(VerifyReport {
                files,
                problem_count,
                ..VerifyReport::default()
            }),
        };
        let text = text(&[verified("a", 3, 0), verified("b", 1, 2)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines
                .first()
                .is_some_and(|line| line.starts_with("a: 3 files verified")),
            "{text}"
        );
        let last = "verified 2 backups with a manifest: 4 files, 2 problems";
        assert_eq!(lines.last(), Some(&last));
    }
}
