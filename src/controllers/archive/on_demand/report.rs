//! What an archive that somebody asks for is told: condition, event, and when to look again.

use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::super::act;
use super::super::plan::Report;
use super::super::reconcile::{SOON, WAITING, write_status};
use crate::api::archive::NfsArchive;
use crate::api::conditions::{ArchiveCondition, PlannedCondition};
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::writes::WriteError;
use crate::state::context::Context;

/// How often an archive says how far its copy is, each time with a write. Its end is told at once.
const COPYING: Duration = Duration::from_secs(15);

/// What became of an attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The object was written to, or is to be looked at once more.
    Changed,
    /// It is gone, or may go.
    Gone,
    /// The copy is under way.
    Copying(PlannedCondition),
    /// It waits for something else to change.
    Waiting(PlannedCondition),
    /// It failed, and may succeed later.
    Failed(PlannedCondition),
}

pub(crate) async fn report(ctx: &Context, object: &NfsArchive, outcome: Outcome) -> Result<Action, WriteError> {
    let uid = object.uid().unwrap_or_default();
    let (state, severity, verdict, after) = match outcome {
        Outcome::Changed => return Ok(Action::requeue(SOON)),
        Outcome::Gone => {
            ctx.archive_retries.forget(&uid);
            return Ok(Action::await_change());
        }
        Outcome::Copying(verdict) => ("Copying", Severity::Normal, verdict, jittered(COPYING)),
        Outcome::Waiting(verdict) => ("Pending", Severity::Warning, verdict, jittered(WAITING)),
        Outcome::Failed(verdict) => ("Pending", Severity::Warning, verdict, ctx.archive_retries.failed(&uid)),
    };
    if !told(object, &verdict) {
        tracing::info!(archive = object.name_any(), reason = %verdict.reason, "{}", verdict.message);
        act::event(ctx, object, severity, verdict.reason, &verdict.message);
    }
    let report = Report {
        state,
        available: verdict,
        others: Vec::new(),
    };
    write_status(ctx, object, &report).await?;
    Ok(Action::requeue(after))
}

/// Whether the object says so already, whatever the figures in it are.
fn told(object: &NfsArchive, verdict: &PlannedCondition) -> bool {
    let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let (type_, reason) = (ArchiveCondition::Available.to_string(), verdict.reason.to_string());
    conditions
        .iter()
        .any(|condition| condition.type_ == type_ && condition.reason == reason)
}
