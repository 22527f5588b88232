//! What was seen, row by row, and how it is printed.

use serde::Serialize;
use serde_json::json;

/// What a row came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// Not as it should be.
    Failed,
    /// As it should be, and something stays that somebody has to remove.
    Left,
}

#[derive(Debug, Serialize)]
struct Row {
    check: &'static str,
    result: Outcome,
    message: String,
}

/// All rows, in the order of the steps.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    left_behind: bool,
}

impl Report {
    /// A step that went well.
    pub fn passed(&mut self, check: &'static str, message: impl Into<String>) {
        self.push(check, Outcome::Ok, message.into());
    }

    /// A step that did not.
    pub fn failed(&mut self, check: &'static str, message: impl Into<String>) {
        self.push(check, Outcome::Failed, message.into());
    }

    /// A step after which something of ours stays because the class says so.
    pub fn left(&mut self, check: &'static str, message: impl Into<String>) {
        self.left_behind = true;
        self.push(check, Outcome::Left, message.into());
    }

    /// A step that failed to remove something of ours.
    pub fn stuck(&mut self, check: &'static str, message: impl Into<String>) {
        self.left_behind = true;
        self.failed(check, message);
    }

    fn push(&mut self, check: &'static str, result: Outcome, message: String) {
        self.rows.push(Row { check, result, message });
    }

    /// What the process ends with; told in `--help`.
    pub fn exit_code(&self) -> u8 {
        let passed = self.rows.iter().all(|row| row.result != Outcome::Failed);
        match (self.left_behind, passed) {
            (true, _) => 3,
            (false, true) => 0,
            (false, false) => 1,
        }
    }

    /// Columns: step, result, and what was seen.
    pub fn table(&self) -> String {
        let line = |check: &str, result: &str, detail: &str| format!("{check:<10} {result:<8} {detail}");
        let row = |row: &Row| {
            let word = match row.result {
                Outcome::Ok => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Left => "LEFT",
            };
            line(row.check, word, &row.message)
        };
        std::iter::once(line("STEP", "RESULT", "DETAIL"))
            .chain(self.rows.iter().map(row))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// One object: the class, the exit code, and the steps.
    pub fn json(&self, class: &str) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&json!({
            "storageClass": class,
            "exitCode": self.exit_code(),
            "steps": self.rows,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_what_failed_and_what_is_left_behind() {
        let mut report = Report::default();
        report.passed("claim", "");
        assert_eq!(report.exit_code(), 0);
        report.failed("bound", "");
        assert_eq!(report.exit_code(), 1);
        report.stuck("volume", "");
        assert_eq!(report.exit_code(), 3);
        let mut report = Report::default();
        report.left("volume", "");
        assert_eq!(report.exit_code(), 3);
    }
}
