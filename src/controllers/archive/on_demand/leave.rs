//! Copies that nobody asks for any more: what there is of them goes into the trash, unless they are complete.

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::super::{act, look};
use super::begin::complete;
use super::refused;
use super::report::Outcome;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::writes::WriteError;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{Asked, Discarded, ExportStore};

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

/// Clears out a backend's copies whose objects are gone without our leave, or were made anew.
pub async fn clear_out(ctx: &Context, backend: &Backend, export: &ExportStore) {
    for (name, uid) in export.unfinished_archives() {
        let cached = ctx.stores.archives.get(&ObjectRef::new(&name));
        if cached.is_some_and(|object| object.uid().as_ref() == Some(&uid)) {
            continue;
        }
        // Read live, for what follows removes things.
        match act::api(ctx).get_opt(&name).await {
            Ok(Some(object)) if object.uid().as_ref() == Some(&uid) => continue,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(archive = name, "cannot look whether its copy is still wanted: {error}");
                continue;
            }
        }
        ctx.copy_jobs.end(&uid).await;
        match export.discard_asked(&name, &uid).await {
            Ok(done) => {
                tracing::info!(
                    archive = name,
                    backend = backend.name,
                    ?done,
                    "nobody asks for its copy any more"
                );
                backend.trash.notify_one();
            }
            Err(error) => tracing::warn!(archive = name, reason = ?error.kind(), "its copy stays: {error}"),
        }
    }
}
