//! `kubectl nfs schedules`: when backups are made, and what the last time skipped.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::missing::note_namespace;
use super::names::{age, condition, until};
use crate::api::NfsBackupSchedule;
use crate::api::conditions::Reason;
use crate::api::schedule::ScheduledClaims;
use crate::cli::cluster::{ClusterArguments, CommandError, all};
use crate::cli::output::{OutputFormat, Table, Tone, print, print_colored, print_json};

/// Arguments of `kubectl nfs schedules`.
#[derive(Args)]
#[command(after_help = "\
Exit code:
  0  all schedules that are not suspended are Ready
  1  a schedule missed a time, skipped claims, or is invalid
  2  invalid arguments, or no access to the cluster")]
pub struct SchedulesArguments {
    /// Namespace of the schedules. If unset, that of the context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// List the schedules of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Prints the schedules.
pub async fn run(arguments: SchedulesArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace());
    let api: Api<NfsBackupSchedule> = match arguments.all_namespaces {
        true => Api::all(client.clone()),
        false => Api::namespaced(client.clone(), namespace),
    };
    let schedules = all(&api, "NfsBackupSchedules").await?;
    match arguments.output {
        OutputFormat::Json => print_json(&json!({"schedules": schedules.iter().map(as_json).collect::<Vec<_>>()}))?,
        OutputFormat::Table if schedules.is_empty() => {
            let note = match arguments.all_namespaces {
                true => String::new(),
                false => note_namespace(&client, namespace).await?,
            };
            print(&format!("no schedules{note}"))?;
        }
        OutputFormat::Table => print_colored(&table(&schedules, Timestamp::now()).render())?,
    }
    Ok(match schedules.iter().any(|schedule| tone(schedule) == Tone::Problem) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn ready(schedule: &NfsBackupSchedule) -> Option<&Condition> {
    condition(&schedule.status.as_ref()?.conditions, "Ready")
}

fn tone(schedule: &NfsBackupSchedule) -> Tone {
    match ready(schedule) {
        Some(ready) if ready.status == "True" => Tone::Plain,
        Some(ready) if ready.reason != Reason::Suspended.to_string() => Tone::Problem,
        _ => Tone::Warning,
    }
}

fn as_json(schedule: &NfsBackupSchedule) -> Value {
    json!({
        "namespace": schedule.namespace(),
        "name": schedule.name_any(),
        "spec": schedule.spec,
        "status": schedule.status,
    })
}

fn table(schedules: &[NfsBackupSchedule], now: Timestamp) -> Table {
    let mut table = Table::new(&[
        "NAMESPACE",
        "NAME",
        "CLAIMS",
        "SCHEDULE",
        "LAST",
        "NEXT",
        "REASON",
        "MESSAGE",
    ]);
    for schedule in schedules {
        let (spec, status) = (&schedule.spec, schedule.status.clone().unwrap_or_default());
        let times = match &spec.time_zone {
            Some(zone) => format!("{} {zone}", spec.schedule),
            None => spec.schedule.clone(),
        };
        let last = status.last_schedule_time.map(|time| format!("{} ago", age(&time, now)));
        let next = status.next_schedule_time.map(|time| until(&time, now));
        let (reason, message) = match ready(schedule) {
            Some(ready) => (ready.reason.as_str(), ready.message.as_str()),
            None => ("", "the operator has not seen it yet"),
        };
        let cells = [
            &schedule.namespace().unwrap_or_default(),
            &schedule.name_any(),
            &claims(&spec.claims),
            &times,
            &last.unwrap_or_default(),
            &next.unwrap_or_default(),
            reason,
            message,
        ];
        table.row(tone(schedule), cells);
    }
    table
}

/// Returns the selection of claims: names, then labels as kubectl writes them.
fn claims(selected: &ScheduledClaims) -> String {
    let mut parts = selected.match_names.clone();
    if let Some(selector) = &selected.selector {
        let labels = selector.match_labels.iter().flatten();
        parts.extend(labels.map(|(key, value)| format!("{key}={value}")));
        parts.extend(selector.match_expressions.iter().flatten().map(|rule| {
            let values = rule.values.as_deref().unwrap_or_default().join(",");
            match values.as_str() {
                "" => format!("{} {}", rule.key, rule.operator),
                _ => format!("{} {} ({values})", rule.key, rule.operator),
            }
        }));
        if parts.len() == selected.match_names.len() {
            return "all".to_owned();
        }
    }
    parts.join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn schedule(claims: &Value, ready: &Value) -> NfsBackupSchedule {
        let spec = json!({"schedule": "30 2 * * *", "timeZone": "Europe/Berlin", "claims": claims});
        let status = json!({
            "lastScheduleTime": "2026-01-01T00:00:00Z", "nextScheduleTime": "2026-01-02T00:00:00Z", "conditions": [ready],
        });
        let metadata = json!({"name": "nightly", "namespace": "team"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn ready(status: &str, reason: &str) -> Value {
        let time = "2026-01-01T00:00:00Z";
        json!({"type": "Ready", "status": status, "reason": reason, "message": "why", "lastTransitionTime": time})
    }

    #[test]
    fn a_row_shows_the_claims_the_times_and_what_is_wrong() {
        let all = json!({"selector": {}});
        let shown = table(
            &[schedule(&all, &ready("False", "ClaimsSkipped"))],
            "2026-01-01T03:00:00Z".parse().unwrap(),
        );
        let text = shown.render();
        for part in [
            "team",
            "nightly",
            "all",
            "30 2 * * * Europe/Berlin",
            "3h ago",
            "in 21h",
            "ClaimsSkipped",
            "why",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let tone_of = |status, reason| tone(&schedule(&all, &ready(status, reason)));
        assert_eq!(tone_of("True", "Scheduled"), Tone::Plain);
        assert_eq!(tone_of("False", "Suspended"), Tone::Warning);
        assert_eq!(tone_of("False", "ScheduleMissed"), Tone::Problem);
    }

    #[test]
    fn the_selection_is_shown_as_kubectl_writes_it() {
        let claims_of = |value: &Value| claims(&serde_json::from_value(value.clone()).unwrap());
        assert_eq!(claims_of(&json!({"matchNames": ["a", "b"]})), "a, b");
        let labels = json!({"matchLabels": {"backup": "yes"}, "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["x", "y"]}, {"key": "old", "operator": "DoesNotExist"},
        ]});
        assert_eq!(
            claims_of(&json!({"matchNames": ["a"], "selector": labels})),
            "a, backup=yes, tier In (x,y), old DoesNotExist"
        );
        assert_eq!(claims_of(&json!({"matchNames": ["a"], "selector": {}})), "all");
    }
}
