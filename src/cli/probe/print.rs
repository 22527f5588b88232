//! The findings as a table, or as JSON.

use nfs_client::address::ExportAddress;
use serde_json::json;

use super::finding::{Finding, Findings, Outcome};

/// Columns: check, result, and what was seen.
pub fn table(findings: &Findings) -> String {
    let row = |finding: &Finding| {
        let reason = finding.reason.as_ref().map(|reason| format!("{reason}: "));
        line(
            finding.check,
            word(finding.result),
            &format!("{}{}", reason.unwrap_or_default(), finding.message),
        )
    };
    std::iter::once(line("CHECK", "RESULT", "DETAIL"))
        .chain(findings.rows().iter().map(row))
        .collect::<Vec<_>>()
        .join("\n")
}

fn line(check: &str, result: &str, detail: &str) -> String {
    format!("{check:<13} {result:<8} {detail}")
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        Outcome::Failed => "FAILED",
        Outcome::Skipped => "-",
    }
}

/// One object: the export, whether a backend would be Ready, and the checks.
pub fn json(export: &ExportAddress, findings: &Findings) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&json!({
        "export": export.to_string(),
        "ready": findings.ready(),
        "exitCode": findings.exit_code(),
        "checks": findings.rows(),
    }))
}
