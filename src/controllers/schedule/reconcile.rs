//! The reconciler of schedules.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};

use super::prune::prune;
use super::run::request_backups;
use super::status::{Report, status};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{managers, qualified_name};
use crate::api::schedule::NfsBackupSchedule;
use crate::decide::schedule::{Due, ParsedSchedule, handled};
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::last_written::Cached;
use crate::state::schedules;

/// Maximum time until a schedule is checked again, which costs no request: the clock may be corrected meanwhile.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// Minimum time until a schedule is checked again: the clock of the API server has whole seconds.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// Requests the backups that are due, or reports when the next ones are and deletes those beyond the number to keep.
pub async fn reconcile(schedule: Arc<NfsBackupSchedule>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await || schedule.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    // Namespaces take turns, because a tenant can create any number of schedules.
    let _slot = ctx
        .backup_slots
        .acquire(&schedule.namespace().unwrap_or_default())
        .await;
    let parsed = match check(&ctx, &schedule) {
        Ok(parsed) => parsed,
        Err(condition) => return refuse(&ctx, &schedule, condition).await,
    };
    let now = ctx.clock.now();
    match parsed.due(handled(&schedule, now), now) {
        Due::Run(_) | Due::Missed(_) => run(&ctx, &schedule, &parsed).await,
        Due::Later(next) => {
            let action = report(&ctx, &schedule, &parsed, Report::waiting(next), now).await?;
            prune(&ctx, &schedule).await?;
            Ok(action)
        }
        Due::Never => refuse(&ctx, &schedule, never()).await,
    }
}

/// Returns the parsed spec of a schedule that may request backups.
fn check(ctx: &Context, schedule: &NfsBackupSchedule) -> Result<ParsedSchedule, PlannedCondition> {
    schedules::check_number(ctx, schedule)?;
    let parsed = ParsedSchedule::of(schedule)?;
    if schedule.spec.suspend {
        return Err(PlannedCondition::fails(
            Reason::Suspended,
            "spec.suspend is true, so no backups are requested or deleted: set it to false to resume",
        ));
    }
    Ok(parsed)
}

/// Handles the scheduled time that has passed, if it has by the API server's clock, which does not depend on which replica is
/// the leader.
async fn run(ctx: &Context, schedule: &NfsBackupSchedule, parsed: &ParsedSchedule) -> Result<Action, WriteError> {
    let now = ctx.server_clock.now(&ctx.clients.calls).await?;
    let handled = match parsed.due(handled(schedule, now), now) {
        Due::Run(at) => {
            let ready = request_backups(ctx, schedule, parsed, at).await?.condition(at);
            tracing::info!(schedule = qualified_name(schedule), "{}", ready.message);
            Report::requested(at, ready)
        }
        Due::Missed(at) => {
            let ready = missed(at);
            tracing::warn!(schedule = qualified_name(schedule), "{}", ready.message);
            Report::missed(at, ready)
        }
        Due::Later(next) => return Ok(Action::requeue(wait(parsed, next, now))),
        Due::Never => return refuse(ctx, schedule, never()).await,
    };
    match parsed.due(now, now) {
        Due::Later(next) => report(ctx, schedule, parsed, handled.with_next(next), now).await,
        _ => refuse(ctx, schedule, never()).await,
    }
}

/// Writes the report, and waits for the next scheduled time.
async fn report(
    ctx: &Context,
    schedule: &NfsBackupSchedule,
    parsed: &ParsedSchedule,
    report: Report,
    now: Timestamp,
) -> Result<Action, WriteError> {
    write_status(ctx, schedule, &report).await?;
    ctx.backup_retries.reset(&schedule.uid().unwrap_or_default());
    let next = report.next.unwrap_or(Timestamp::MAX);
    Ok(Action::requeue(wait(parsed, next, now)))
}

/// Reports why nothing is requested.
async fn refuse(ctx: &Context, schedule: &NfsBackupSchedule, ready: PlannedCondition) -> Result<Action, WriteError> {
    write_status(ctx, schedule, &Report::refused(ready)).await?;
    Ok(Action::requeue(MAX_WAIT))
}

fn missed(at: Timestamp) -> PlannedCondition {
    let message = format!(
        "no backups were requested at {at}: the operator did not run, or the schedule was suspended or refused, until \
         spec.startingDeadline had passed; the next time is not affected"
    );
    PlannedCondition::fails(Reason::ScheduleMissed, message)
}

fn never() -> PlannedCondition {
    let message = "spec.schedule matches no date, so no backups are requested: correct it";
    PlannedCondition::fails(Reason::InvalidSpec, message)
}

fn wait(parsed: &ParsedSchedule, next: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(parsed.start(next).duration_since(now)).unwrap_or_default();
    left.clamp(MIN_WAIT, MAX_WAIT)
}

/// Handles a failed request.
pub fn on_error(schedule: Arc<NfsBackupSchedule>, error: &WriteError, ctx: Arc<Context>) -> Action {
    if matches!(error, WriteError::Conflict) {
        return Action::requeue(writes::AFTER_CONFLICT);
    }
    tracing::warn!(schedule = qualified_name(schedule.as_ref()), "{error}");
    let uid = schedule.uid().unwrap_or_default();
    Action::requeue(writes::pause_after(error, &ctx.backup_retries, &uid))
}

async fn write_status(ctx: &Context, schedule: &NfsBackupSchedule, report: &Report) -> Result<(), WriteError> {
    let planned = status(schedule, report, ctx.clock.now());
    let namespace = schedule.namespace().unwrap_or_default();
    let api: Api<NfsBackupSchedule> = Api::namespaced(ctx.clients.calls.clone(), &namespace);
    let (version, action) = (schedule.resource_version(), "write the status of the schedule");
    let write = writes::apply_status(&api, schedule, managers::STATUS, &planned, version, action);
    let cached = Cached::new(&schedule.metadata, managers::STATUS, schedule.status.as_ref());
    match ctx.last_written.write_unless_current(&cached, &planned, write).await {
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(()),
        written => written.map(drop),
    }
}
