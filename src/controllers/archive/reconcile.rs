//! The reconciler of archives.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::json;

use super::act::{self, ActError, ArchiveOps};
use super::due::{call_older, turn};
use super::look::{self, Location, Observation};
use super::on_demand;
use super::plan::{Report, Step, plan};
use super::status::status;
use crate::api::archive::{NfsArchive, NfsArchiveStatus};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{ARCHIVE_FINALIZER, managers};
use crate::decide::archive_object::retention_terms;
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use export_store::ExportError;

/// An archive that is well is looked at this often: whether it is still there is for people to know, and ten thousand of
/// them are then three looks a second.
const SELDOM: Duration = Duration::from_secs(3600);
/// What waits for its backend, or for a volume, is looked at again after about a probe's time.
pub(crate) const WAITING: Duration = Duration::from_secs(15);
/// A step was done, or the object changed under it.
pub(crate) const SOON: Duration = Duration::from_millis(200);

/// Looks at an archive and does what is left to do.
pub async fn reconcile(object: Arc<NfsArchive>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    ensure_finalizer(&ctx, &object).await?;
    if !object.is_complete() {
        return on_demand::reconcile(&ctx, &object).await;
    }
    let look = look::look(&ctx, &object).await?;
    let (step, report) = plan(&look.situation);
    let told = write_status(&ctx, &object, &report).await?;
    if told {
        ctx.wake_restores(&object.name_any());
    }
    if step == Step::NoOp && !told {
        call_older(&ctx, &object);
    }
    match act(&ctx, &object, &look, step).await {
        // Once more when the cache has what was told: the older ones of its claim wait for that.
        Ok(Acted::Nothing) if told => Ok(Action::requeue(SOON)),
        Ok(Acted::Nothing) => Ok(Action::requeue(jittered(next(&object, step)))),
        Ok(Acted::Done) => Ok(Action::await_change()),
        Ok(Acted::LookAgain(after)) => Ok(Action::requeue(after)),
        Err(ActError::Write(error)) => Err(error),
        Err(ActError::Export(error)) => Ok(refused(&ctx, &object, &error)),
    }
}

/// The export did not do it: said once, and tried again.
fn refused(ctx: &Context, object: &NfsArchive, error: &ExportError) -> Action {
    let verdict = PlannedCondition::fails(Reason::from(error.kind()), error.to_string());
    tracing::warn!(archive = object.name_any(), reason = %verdict.reason, "{}", verdict.message);
    if ctx.last_reported.changed(&object.uid().unwrap_or_default(), &verdict) {
        act::event(ctx, object, Severity::Warning, verdict.reason, &verdict.message);
    }
    Action::requeue(jittered(WAITING))
}

/// A failed write: nothing was decided.
pub fn on_error(object: Arc<NfsArchive>, error: &WriteError, _: Arc<Context>) -> Action {
    tracing::warn!(archive = object.name_any(), "{error}");
    Action::requeue(writes::AFTER_ERROR)
}

/// What became of a step.
enum Acted {
    Nothing,
    Done,
    LookAgain(Duration),
}

async fn act(ctx: &Context, object: &NfsArchive, look: &Observation, step: Step) -> Result<Acted, ActError> {
    match (step, &look.home) {
        (Step::RemoveFinalizer, _) => {
            act::let_go(ctx, object).await?;
            ctx.last_reported.forget(&object.uid().unwrap_or_default());
            Ok(Acted::Done)
        }
        (Step::CancelPurge, Some(home)) => {
            home.export.cancel_purge(&home.which).await?;
            Ok(Acted::LookAgain(SOON))
        }
        (Step::Purge | Step::CompleteRestore, Some(home)) => act_for_good(ctx, object, home, step).await,
        (Step::NoOp | Step::Wait | Step::CancelPurge | Step::Purge | Step::CompleteRestore, _) => Ok(Acted::Nothing),
    }
}

/// What can't be taken back: decided anew by the object as it is now, whose word is told to the export first.
async fn act_for_good(ctx: &Context, object: &NfsArchive, home: &Location, step: Step) -> Result<Acted, ActError> {
    let over = step == Step::Purge && object.metadata.deletion_timestamp.is_none();
    if over && let Err(wait) = turn(ctx, &home.backend, object).await? {
        return Ok(Acted::LookAgain(wait));
    }
    let live = act::api(ctx).get_opt(&object.name_any()).await;
    let live = live.map_err(WriteError::of("read the archive before it goes"))?;
    let Some(live) = live.filter(|live| live.uid() == object.uid()) else {
        return Ok(Acted::Done);
    };
    home.export.save_retention(&home.which, &retention_terms(&live)).await?;
    let again = look::look(ctx, &live).await?;
    if plan(&again.situation).0 != step {
        return Ok(Acted::LookAgain(SOON));
    }
    let scene = ArchiveOps {
        ctx,
        backend: &home.backend,
        export: &home.export,
        object: &live,
        which: &home.which,
    };
    let done = match step {
        Step::Purge => scene.purge().await?,
        _ => scene.finish(&again.situation.sight).await?,
    };
    if done {
        ctx.last_reported.forget(&object.uid().unwrap_or_default());
        return Ok(Acted::Done);
    }
    Ok(Acted::LookAgain(jittered(WAITING)))
}

fn next(object: &NfsArchive, step: Step) -> Duration {
    if step == Step::Wait {
        return WAITING;
    }
    let expires = object.spec.expires_at.as_ref();
    let left = expires.map(|at| at.0.duration_since(Timestamp::now()));
    // What is in the past was judged just now.
    let left = left.and_then(|left| Duration::try_from(left).ok());
    left.map_or(SELDOM, |left| left.min(SELDOM))
}

async fn ensure_finalizer(ctx: &Context, object: &NfsArchive) -> Result<(), WriteError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let Some(finalizers) = writes::with_finalizer(&object.metadata, ARCHIVE_FINALIZER, true) else {
        return Ok(());
    };
    match writes::set_finalizers(&act::api(ctx), object, &finalizers).await {
        // Its next event tells.
        Err(WriteError::Conflict | WriteError::NotFound) => Ok(()),
        written => written,
    }
}

/// Answers whether there was news.
pub(crate) async fn write_status(ctx: &Context, object: &NfsArchive, report: &Report) -> Result<bool, WriteError> {
    let planned = status(object, report, Timestamp::now());
    let former = object
        .status
        .clone()
        .map(|status| NfsArchiveStatus { usage: None, ..status });
    if former.as_ref() == Some(&planned) {
        return Ok(false);
    }
    let fields = json!({ "status": planned });
    let (api, action) = (act::api(ctx), "write the archive's status");
    match writes::apply(&api, object, managers::STATUS, fields, true, action).await {
        Err(WriteError::NotFound) => Ok(false),
        written => written.map(|()| true),
    }
}
