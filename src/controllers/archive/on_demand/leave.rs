//! Copies that nobody asks for any more: what there is of them goes into the trash, unless they are complete.

use kube::ResourceExt;

use super::super::{act, look};
use super::begin::complete;
use super::refused;
use super::report::Outcome;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::writes::WriteError;
use crate::state::context::Context;
use export_store::{Asked, Discarded};

/// The object is being deleted before its copy is complete: it goes when nothing is left of that.
pub(crate) async fn cleanup(ctx: &Context, object: &NfsArchive) -> Result<Outcome, WriteError> {
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    ctx.copy_jobs.end(&uid).await;
    // With the kind all its objects go, and the sweep clears out; a backend that is gone has its own way of being left.
    let nowhere = object.spec.backend.is_empty() || ctx.backends.get(&object.spec.backend).is_none();
    if nowhere || act::crd_deleting(ctx).await? {
        return let_go(ctx, object).await;
    }
    let (backend, export) = match look::place(ctx, object) {
        Ok(place) => place,
        // Another export has the backend's place: on that one nothing is this object's.
        Err(verdict) if verdict.reason == Reason::IdentityMismatch => return let_go(ctx, object).await,
        Err(verdict) => return Ok(Outcome::Waiting(still_there(&verdict))),
    };
    match export.discard_asked(&name, &uid).await {
        Ok(Discarded::Gone) => {
            backend.trash.notify_one();
            let_go(ctx, object).await
        }
        // Then it is an archive, and goes as those go.
        Ok(Discarded::Complete) => match export.archive_asked(&name, &uid).await {
            Ok(Asked::Done(kept)) => complete(ctx, object, &backend, &kept).await,
            Ok(Asked::Unfinished | Asked::Taken(_)) => let_go(ctx, object).await,
            Err(error) => Ok(refused(ctx, &backend, &error)),
        },
        Err(error) => Ok(refused(ctx, &backend, &error)),
    }
}

fn still_there(verdict: &PlannedCondition) -> PlannedCondition {
    PlannedCondition::fails(
        verdict.reason,
        format!("what was copied can't be removed now: {}", verdict.message),
    )
}

async fn let_go(ctx: &Context, object: &NfsArchive) -> Result<Outcome, WriteError> {
    act::let_go(ctx, object).await?;
    Ok(Outcome::Gone)
}
