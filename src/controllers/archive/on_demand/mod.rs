//! Archives that somebody asks for: an object that names a claim, of whose data a copy is made.
//!
//! The object first says what is copied, then the copy is made in the background, then the object says where it lies; from
//! then on it is an archive as any other. Whoever dies between two steps goes on by what object and record say.

mod begin;
mod find;
mod judge;
mod leave;
mod report;

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;

use self::begin::{begin, bind, complete, not_copied};
use self::report::{Outcome, report};
use super::look::place;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::writes::WriteError;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{Asked, ExportError, ExportStore};

/// Looks at an object whose copy is not complete, and does what is left to do.
pub(crate) async fn reconcile(ctx: &Context, object: &NfsArchive) -> Result<Action, WriteError> {
    let outcome = if object.metadata.deletion_timestamp.is_some() {
        leave::cleanup(ctx, object).await?
    } else {
        attempt(ctx, object).await?
    };
    report(ctx, object, outcome).await
}

async fn attempt(ctx: &Context, object: &NfsArchive) -> Result<Outcome, WriteError> {
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    if let Some((Err(error), _)) = ctx.copy_jobs.take(&uid) {
        return Ok(not_copied(ctx, object, &error).await);
    }
    if let Some(verdict) = judge::progress(&object.spec.claim, &ctx.copy_jobs.progress(&uid)) {
        return Ok(Outcome::Copying(verdict));
    }
    if object.spec.backend.is_empty() {
        return bind(ctx, object).await;
    }
    let (backend, export) = match place(ctx, object) {
        Ok(place) => place,
        Err(verdict) => return Ok(Outcome::Waiting(verdict)),
    };
    match asked(&backend, &export, &name, &uid).await {
        Ok(Asked::Done(kept)) => complete(ctx, object, &backend, &kept).await,
        Ok(Asked::Unfinished) => begin(ctx, object).await,
        Ok(Asked::Taken(state)) => Ok(Outcome::Waiting(judge::taken(&name, state))),
        Err(error) => Ok(refused(ctx, &backend, &error)),
    }
}

async fn asked(backend: &Backend, export: &Arc<ExportStore>, name: &str, uid: &str) -> Result<Asked, ExportError> {
    // Bounded for each backend: one that hangs holds up only its own archives.
    let _slot = backend.archives.acquire().await;
    export.archive_asked(name, uid).await
}

/// The export could not be looked at, or not be changed.
fn refused(ctx: &Context, backend: &Backend, error: &ExportError) -> Outcome {
    let verdict = PlannedCondition::fails(Reason::from(error.kind()), format!("backend {}: {error}", backend.name));
    if Reason::from(error.kind()).is_backend_wide() || error.outcome_unknown() {
        ctx.request_probe(&backend.name);
        return Outcome::Waiting(verdict);
    }
    Outcome::Failed(verdict)
}
