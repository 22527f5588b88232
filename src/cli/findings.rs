//! Findings of `probe` and `check`: one row per step.

use export_store::ExportError;
use serde::Serialize;
use serde_json::{Map, Value};

use super::connection::message_of;
use crate::api::Reason;

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StepResult {
    /// The step succeeded.
    Ok,
    /// The step succeeded, but some requests of a StorageClass would fail.
    Warning,
    /// The step failed.
    Failed,
    /// The step was skipped.
    Skipped,
    /// The step succeeded, but something is left that must be removed manually.
    Left,
}

impl StepResult {
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "FAILED",
            Self::Skipped => "-",
            Self::Left => "LEFT",
        }
    }
}

/// Result of a step, and what was found.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Name of the step: one word, the same in every release.
    check: &'static str,
    result: StepResult,
    /// Reason that the condition of a backend would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Description of the result, and the remedy.
    message: String,
    /// Machine-readable details.
    #[serde(skip_serializing_if = "Map::is_empty")]
    seen: Map<String, Value>,
}

/// Findings of all steps, in order.
#[derive(Debug, Default)]
pub struct Findings {
    rows: Vec<Finding>,
    left_behind: bool,
}

impl Findings {
    /// Returns the rows.
    pub fn rows(&self) -> &[Finding] {
        &self.rows
    }

    /// Adds a row without a reason.
    pub fn add(&mut self, check: &'static str, result: StepResult, message: impl Into<String>, seen: Value) {
        self.push(check, result, None, message.into(), seen);
    }

    /// Adds a successful step without details.
    pub fn passed(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, StepResult::Ok, message, Value::Null);
    }

    /// Adds a failed step without a reason.
    pub fn failed(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, StepResult::Failed, message, Value::Null);
    }

    /// Adds a problem with the reason that the condition of a backend would have.
    pub fn problem(
        &mut self,
        check: &'static str,
        result: StepResult,
        reason: impl ToString,
        message: impl Into<String>,
    ) {
        self.push(check, result, Some(reason.to_string()), message.into(), Value::Null);
    }

    /// Adds an error, with the reason and the message that the condition of a backend would have.
    pub fn error(&mut self, check: &'static str, result: StepResult, error: &ExportError) {
        self.problem(check, result, Reason::from(error.kind()), message_of(error));
    }

    /// Returns true if a step was successful.
    pub fn has_passed(&self, check: &str) -> bool {
        self.rows
            .iter()
            .any(|row| row.check == check && row.result == StepResult::Ok)
    }

    /// Records that something could not be removed.
    pub fn set_left_behind(&mut self) {
        self.left_behind = true;
    }

    fn push(&mut self, check: &'static str, result: StepResult, reason: Option<String>, message: String, seen: Value) {
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

    /// Returns true if no step failed.
    pub fn succeeded(&self) -> bool {
        self.rows.iter().all(|row| row.result != StepResult::Failed)
    }

    /// Returns the exit code, which `--help` documents.
    pub fn exit_code(&self) -> u8 {
        match (self.left_behind, self.succeeded()) {
            (true, _) => 3,
            (false, true) => 0,
            (false, false) => 1,
        }
    }

    /// Returns a table with the columns step, result and detail. `heading` and `width` are those of the first column.
    pub fn table(&self, heading: &str, width: usize) -> String {
        std::iter::once(table_line(width, heading, "RESULT", "DETAIL"))
            .chain(self.table_rows(width))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Returns the rows of [`Self::table`], without its heading.
    pub fn table_rows(&self, width: usize) -> impl Iterator<Item = String> {
        self.rows.iter().map(move |row| {
            let reason = row.reason.as_ref().map(|reason| format!("{reason}: "));
            let detail = format!("{}{}", reason.unwrap_or_default(), row.message);
            table_line(width, row.check, row.result.text(), &detail)
        })
    }
}

fn table_line(width: usize, check: &str, result: &str, detail: &str) -> String {
    format!("{check:<width$} {result:<8} {detail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_reports_success_failure_and_what_is_left_behind() {
        let mut findings = Findings::default();
        findings.add("connect", StepResult::Ok, "", Value::Null);
        findings.problem("owner", StepResult::Warning, "RootSquashed", "");
        findings.add("remove", StepResult::Skipped, "", Value::Null);
        assert_eq!(findings.exit_code(), 0);
        findings.problem("make", StepResult::Failed, "ReadOnly", "");
        assert_eq!(findings.exit_code(), 1);
        findings.set_left_behind();
        assert_eq!(findings.exit_code(), 3);
    }

    #[test]
    fn the_exit_code_of_a_check_reports_failure_and_what_is_left_behind() {
        let mut findings = Findings::default();
        findings.passed("claim", "");
        assert_eq!(findings.exit_code(), 0);
        findings.failed("bound", "");
        assert_eq!(findings.exit_code(), 1);
        findings.set_left_behind();
        findings.failed("volume", "");
        assert_eq!(findings.exit_code(), 3);
        let mut findings = Findings::default();
        findings.set_left_behind();
        findings.add("volume", StepResult::Left, "", Value::Null);
        assert_eq!(findings.exit_code(), 3);
    }
}
