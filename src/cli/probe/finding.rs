//! What was seen, row by row.

use export_store::ExportError;
use nfs_operator::api::Reason;
use serde::Serialize;
use serde_json::{Map, Value};

/// What a row came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// A backend would be Ready; some of what classes can ask for would fail.
    Warning,
    /// A backend would not be Ready.
    Failed,
    /// Not looked at.
    Skipped,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// What: one word, the same in every release.
    pub check: &'static str,
    /// How it was.
    pub result: Outcome,
    /// The reason that a backend's condition would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was seen, and the remedy if something is wrong.
    pub message: String,
    /// The same for machines.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub seen: Map<String, Value>,
}

/// All rows, in the order in which they were looked at.
#[derive(Debug, Default)]
pub struct Findings {
    rows: Vec<Finding>,
    left_behind: bool,
}

impl Findings {
    /// The rows.
    pub fn rows(&self) -> &[Finding] {
        &self.rows
    }

    /// Adds a row without a reason.
    pub fn add(&mut self, check: &'static str, result: Outcome, message: impl Into<String>, seen: Value) {
        self.push(check, result, None, message.into(), seen);
    }

    /// Adds a row that something is wrong in, with the reason that a condition would have.
    pub fn wrong(&mut self, check: &'static str, result: Outcome, reason: impl ToString, message: impl Into<String>) {
        self.push(check, result, Some(reason.to_string()), message.into(), Value::Null);
    }

    /// Adds a failure in a condition's words.
    pub fn failed(&mut self, check: &'static str, error: &ExportError) {
        self.wrong(check, Outcome::Failed, Reason::from(error.kind()), error.to_string());
    }

    /// Something could not be removed.
    pub fn leave_behind(&mut self) {
        self.left_behind = true;
    }

    fn push(&mut self, check: &'static str, result: Outcome, reason: Option<String>, message: String, seen: Value) {
        let seen = match seen {
            Value::Object(seen) => seen,
            _ => Map::new(),
        };
        self.rows.push(Finding {
            check,
            result,
            reason,
            message,
            seen,
        });
    }

    /// Whether a backend would be Ready, as far as was looked.
    pub fn ready(&self) -> bool {
        self.rows.iter().all(|row| row.result != Outcome::Failed)
    }

    /// What the process ends with; told in `--help`.
    pub fn exit_code(&self) -> u8 {
        match (self.left_behind, self.ready()) {
            (true, _) => 3,
            (false, true) => 0,
            (false, false) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_ready_from_not_and_from_what_was_left_behind() {
        let mut findings = Findings::default();
        findings.add("connect", Outcome::Ok, "", Value::Null);
        findings.wrong("owner", Outcome::Warning, "RootSquashed", "");
        findings.add("remove", Outcome::Skipped, "", Value::Null);
        assert_eq!(findings.exit_code(), 0);
        findings.wrong("make", Outcome::Failed, "ReadOnly", "");
        assert_eq!(findings.exit_code(), 1);
        findings.leave_behind();
        assert_eq!(findings.exit_code(), 3);
    }
}
