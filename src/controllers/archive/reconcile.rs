//! The reconciler of archives.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::backup;
use super::expiry::{acquire_purge_slot, read_retention, requeue_expired_siblings};
use super::import::{self, FoundRecord};
use super::observe::{Location, Observation, Purpose, observe};
use super::ops::{self, ArchiveOps, OpsError};
use super::plan::{ArchiveStep, Report, plan};
use super::status::status;
use crate::api::archive::{NfsArchive, NfsArchiveStatus};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{ARCHIVE_FINALIZER, managers};
use crate::background::backup_views::ensure_view;
use crate::decide::archive_object::described;
use crate::runtime::reads;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::last_written::Cached;
use export_store::ExportError;

/// Interval between checks of an available archive. The check of its directory only informs users. Ten thousand
/// archives cause three checks per second.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Interval between checks of an archive that waits for its backend or for a volume: about a probe interval.
pub(super) const WAIT_INTERVAL: Duration = Duration::from_secs(15);
/// Delay after a step was carried out or the object changed.
pub(super) const NEXT_STEP_DELAY: Duration = Duration::from_millis(200);

/// Observes an archive, reports its state and carries out the next step.
pub async fn reconcile(object: Arc<NfsArchive>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    let is_deleting = object.metadata.deletion_timestamp.is_some();
    if !is_deleting && writes::with_finalizer(&object.metadata, ARCHIVE_FINALIZER, true).is_some() {
        writes::add_finalizer(&ops::api(&ctx), &*object, ARCHIVE_FINALIZER).await?;
        // The changed object is reconciled: a status of this one would be refused.
        return Ok(Action::requeue(NEXT_STEP_DELAY));
    }
    match describe(&ctx, &object).await {
        Described::Archive(described) => {
            if !object.is_complete() && ops::annotate_location(&ctx, &described).await? {
                return Ok(Action::requeue(NEXT_STEP_DELAY));
            }
            reconcile_archive(&ctx, described).await
        }
        Described::Backup => backup::reconcile(&ctx, &object).await,
        Described::Unknown(condition) => backup::wait(&ctx, &object, condition).await,
        Described::Refused(condition) => backup::refuse(&ctx, &object, condition).await,
    }
}

/// What an object is.
enum Described {
    /// An archive. The status in memory describes it; that of the object may not, yet.
    Archive(Arc<NfsArchive>),
    /// A requested backup that is not complete.
    Backup,
    /// An archive whose record cannot be read now.
    Unknown(PlannedCondition),
    /// Neither: the reason.
    Refused(PlannedCondition),
}

/// Returns what an object is. Searches the record of an object without a status.
async fn describe(ctx: &Context, object: &Arc<NfsArchive>) -> Described {
    if object.is_complete() {
        return Described::Archive(Arc::clone(object));
    }
    if !object.observed().backend_name.is_empty() {
        return Described::Backup;
    }
    match import::find_record(ctx, object).await {
        FoundRecord::Archive(recorded, backend) => {
            if recorded.archive.released && object.metadata.deletion_timestamp.is_none() {
                let note = format!("imported {} of backend {backend}", recorded.archive.target);
                let imported = PlannedCondition::holds(Reason::ArchiveImported, note);
                ops::inform_once(ctx, object, &imported);
            }
            Described::Archive(Arc::new(described(object, &recorded, &backend)))
        }
        FoundRecord::None => Described::Backup,
        FoundRecord::Unreadable(condition) => Described::Unknown(condition),
        FoundRecord::Refused(condition) => Described::Refused(condition),
    }
}

/// Reconciles an archive whose data exist, or existed.
async fn reconcile_archive(ctx: &Context, object: Arc<NfsArchive>) -> Result<Action, WriteError> {
    let observation = observe(ctx, &object, Purpose::Report).await?;
    if let Some(terms) = &observation.stricter_terms {
        ops::restore_terms(ctx, &object, terms).await?;
        return Ok(Action::requeue(NEXT_STEP_DELAY));
    }
    let (step, report) = plan(&observation.observed);
    if step != ArchiveStep::Purge
        && let Some(location) = &observation.location
    {
        location.backend.forget_purge(&object.name_any());
    }
    let status_changed = write_status(ctx, &object, &report).await?;
    if status_changed && matches!(step, ArchiveStep::Release | ArchiveStep::RemoveFinalizer) {
        // The finalizer is only removed from the object as it was read.
        return Ok(Action::requeue(NEXT_STEP_DELAY));
    }
    if !status_changed && step == ArchiveStep::NoOp {
        requeue_expired_siblings(ctx, &object);
        ensure_view(ctx, &object).await?;
    }
    let executed = execute(ctx, &object, &observation, step).await;
    if executed.is_ok() {
        ctx.archive_retries.reset(&object.uid().unwrap_or_default());
    }
    match executed {
        // Older archives of the claim are requeued once the cache has the new status.
        Ok(Executed::Nothing) if status_changed => Ok(Action::requeue(NEXT_STEP_DELAY)),
        Ok(Executed::Nothing) => Ok(Action::requeue(jittered(next_check(
            observation.expires,
            step,
            ctx.clock.now(),
        )))),
        Ok(Executed::Finished) => Ok(Action::await_change()),
        Ok(Executed::Requeue(after)) => Ok(Action::requeue(after)),
        Err(OpsError::Write(error)) => Err(error),
        Err(OpsError::Export(error)) => Ok(report_failure(ctx, &object, &error)),
    }
}

/// Handles a failed write.
pub fn on_error(object: Arc<NfsArchive>, error: &WriteError, ctx: Arc<Context>) -> Action {
    if matches!(error, WriteError::Conflict) {
        return Action::requeue(writes::AFTER_CONFLICT);
    }
    tracing::warn!(archive = object.name_any(), "{error}");
    let uid = object.uid().unwrap_or_default();
    Action::requeue(writes::pause_after(error, &ctx.archive_retries, &uid))
}

/// Publishes an event if the failure differs from the last one, and retries later.
fn report_failure(ctx: &Context, object: &NfsArchive, error: &ExportError) -> Action {
    let condition = PlannedCondition::fails(Reason::from(error.kind()), error.to_string());
    ops::warn_once(ctx, object, &condition);
    Action::requeue(jittered(WAIT_INTERVAL))
}

/// Result of the execution of a step.
enum Executed {
    /// There was nothing to do.
    Nothing,
    /// The object is deleted, or about to be.
    Finished,
    /// Reconcile again after this time.
    Requeue(Duration),
}

async fn execute(
    ctx: &Context,
    object: &NfsArchive,
    observation: &Observation,
    step: ArchiveStep,
) -> Result<Executed, OpsError> {
    match (step, &observation.location) {
        (ArchiveStep::RemoveFinalizer, _) => {
            ops::remove_finalizer_as_read(ctx, object).await?;
            forget(ctx, object);
            Ok(Executed::Finished)
        }
        (ArchiveStep::Release, Some(location)) => {
            ops::release(ctx, object, &location.export, &location.archive).await?;
            forget(ctx, object);
            Ok(Executed::Finished)
        }
        (ArchiveStep::Wait, _) if observation.observed.deleting && observation.observed.held => {
            let held = PlannedCondition::fails(Reason::ArchiveHeld, &observation.observed.retained.message);
            ops::warn_once(ctx, object, &held);
            Ok(Executed::Nothing)
        }
        (ArchiveStep::CancelPurge, Some(location)) => {
            location.export.cancel_purge(&location.archive).await?;
            Ok(Executed::Requeue(NEXT_STEP_DELAY))
        }
        (ArchiveStep::Purge | ArchiveStep::CompleteRestore, Some(location)) => {
            execute_irreversible(ctx, object, location, step).await
        }
        (
            ArchiveStep::NoOp
            | ArchiveStep::Wait
            | ArchiveStep::Release
            | ArchiveStep::CancelPurge
            | ArchiveStep::Purge
            | ArchiveStep::CompleteRestore,
            _,
        ) => Ok(Executed::Nothing),
    }
}

/// Carries out an irreversible step if a plan made from the current objects, read from the API server, is the same. The
/// object's retention is saved on the export first.
async fn execute_irreversible(
    ctx: &Context,
    object: &NfsArchive,
    location: &Location,
    step: ArchiveStep,
) -> Result<Executed, OpsError> {
    let expired = step == ArchiveStep::Purge && object.metadata.deletion_timestamp.is_none();
    let now = match expired {
        true => match acquire_purge_slot(ctx, &location.backend, object).await? {
            Ok(now) => Some(now),
            Err(wait) => return Ok(Executed::Requeue(wait)),
        },
        false => None,
    };
    let live = reads::get_opt(&ops::api(ctx), &object.name_any()).await;
    let live = live.map_err(WriteError::action("read the archive before it is removed"))?;
    let Some(live) = live.filter(|live| live.uid() == object.uid()) else {
        return Ok(Executed::Finished);
    };
    let retention = match now {
        Some(now) => match read_retention(ctx, location, &live, now).await? {
            Some(retention) => Some(retention),
            None => return Ok(Executed::Requeue(WAIT_INTERVAL)),
        },
        None => None,
    };
    let Observation {
        observed,
        stricter_terms,
        ..
    } = observe(ctx, &live, Purpose::Decision(retention)).await?;
    if stricter_terms.is_some() || plan(&observed).0 != step {
        return Ok(Executed::Requeue(NEXT_STEP_DELAY));
    }
    let archive_ops = ArchiveOps {
        ctx,
        backend: &location.backend,
        export: &location.export,
        object: &live,
        archive: &location.archive,
    };
    let done = match step {
        ArchiveStep::Purge => archive_ops.purge().await?,
        _ => archive_ops.complete_restore(&observed.export).await?,
    };
    if done {
        forget(ctx, object);
        return Ok(Executed::Finished);
    }
    Ok(Executed::Requeue(jittered(WAIT_INTERVAL)))
}

/// Forgets what was reported about an archive whose object is gone, or about to be.
fn forget(ctx: &Context, object: &NfsArchive) {
    let uid = object.uid().unwrap_or_default();
    ctx.archive_retries.reset(&uid);
    ctx.last_reported.forget(&uid);
    ctx.last_written.forget(&uid);
}

/// Returns the time until the next check of an archive for which there is nothing to do.
fn next_check(expires: Option<Timestamp>, step: ArchiveStep, now: Timestamp) -> Duration {
    if step == ArchiveStep::Wait {
        return WAIT_INTERVAL;
    }
    let left = expires.map(|at| at.duration_since(now));
    // The plan has already handled a time in the past.
    let left = left.and_then(|left| Duration::try_from(left).ok());
    left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL))
}

/// Writes the status unless the object has it. Returns true if it was written. Fails if the object changed since it was
/// read, because the status describes the archive: an older description must not replace a newer one.
pub(super) async fn write_status(ctx: &Context, object: &NfsArchive, report: &Report) -> Result<bool, WriteError> {
    let planned = status(object, report, ctx.clock.now());
    let previous = object
        .status
        .clone()
        .map(|status| NfsArchiveStatus { usage: None, ..status });
    let version = object.resource_version();
    let (api, action) = (ops::api(ctx), "write the archive's status");
    let write = writes::apply_status(&api, object, managers::STATUS, &planned, version, action);
    let cached = Cached::new(&object.metadata, managers::STATUS, previous.as_ref());
    let written = ctx.last_written.write_unless_current(&cached, &planned, write);
    match written.await {
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(false),
        written => written,
    }
}
