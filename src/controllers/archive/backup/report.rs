//! Reports the outcome of a reconciliation of a backup: condition, event and requeue.

use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::ops;
use crate::api::archive::{ArchiveSummary, NfsArchive};
use crate::api::conditions::{ArchiveCondition, PlannedCondition, Reason};
use crate::controllers::archive::plan::Report;
use crate::controllers::archive::reconcile::{NEXT_STEP_DELAY, WAIT_INTERVAL, write_status};
use crate::decide::retention::retained;
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::writes::WriteError;
use crate::state::context::Context;

/// Interval between reports of a copy's progress, each of which is a write. The end of a copy is reported at once.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// The outcome of one reconciliation.
#[derive(Debug)]
pub(super) enum BackupOutcome {
    /// The object was written, or has to be reconciled again.
    Changed,
    /// The object is deleted, or its finalizer is removed.
    Deleted,
    /// The copy is in progress.
    Copying(PlannedCondition),
    /// Something else has to change first.
    Waiting(PlannedCondition),
    /// The claim or the name has to change first: users decide when, and how many backups wait.
    Blocked(PlannedCondition),
    /// It failed; a retry may succeed.
    Failed(PlannedCondition),
}

pub(super) async fn report(ctx: &Context, object: &NfsArchive, outcome: BackupOutcome) -> Result<Action, WriteError> {
    let uid = object.uid().unwrap_or_default();
    let (state, severity, available, after) = match outcome {
        BackupOutcome::Changed => return Ok(Action::requeue(NEXT_STEP_DELAY)),
        BackupOutcome::Deleted => {
            ctx.archive_retries.reset(&uid);
            return Ok(Action::await_change());
        }
        BackupOutcome::Copying(condition) => (
            ArchiveSummary::Copying,
            Severity::Normal,
            condition,
            jittered(PROGRESS_INTERVAL),
        ),
        BackupOutcome::Waiting(condition) => (
            summary(&condition),
            Severity::Warning,
            condition,
            jittered(WAIT_INTERVAL),
        ),
        BackupOutcome::Blocked(condition) => {
            let retry = ctx.archive_retries.record_failure(&uid);
            (summary(&condition), Severity::Warning, condition, retry)
        }
        BackupOutcome::Failed(condition) => {
            let retry = ctx.archive_retries.record_failure(&uid);
            (ArchiveSummary::Pending, Severity::Warning, condition, retry)
        }
    };
    if !is_reported(object, &available) {
        tracing::info!(archive = object.name_any(), reason = %available.reason, "{}", available.message);
        ops::publish(ctx, object, severity, available.reason, &available.message);
    }
    let report = Report {
        state,
        available,
        retained: unobserved_retention(object),
    };
    write_status(ctx, object, &report).await?;
    Ok(Action::requeue(after))
}

fn summary(waiting: &PlannedCondition) -> ArchiveSummary {
    match (waiting.reason, waiting.status) {
        (Reason::ArchiveNameReserved, _) => ArchiveSummary::Missing,
        (_, None) => ArchiveSummary::Unknown,
        (_, Some(_)) => ArchiveSummary::Pending,
    }
}

/// Returns the condition Retained of an object whose data do not exist, or are not known.
pub(super) fn unobserved_retention(object: &NfsArchive) -> PlannedCondition {
    let expires = object.spec.expiration_time.as_ref().map(|at| at.0);
    retained(object, None, expires, None)
}

/// Reports whether the object has the condition's reason already. Numbers in the message may differ.
fn is_reported(object: &NfsArchive, planned: &PlannedCondition) -> bool {
    let conditions = &object.observed().conditions;
    let (type_, reason) = (ArchiveCondition::Available.to_string(), planned.reason.to_string());
    conditions
        .iter()
        .any(|condition| condition.type_ == type_ && condition.reason == reason)
}
