//! Backups on request: an object that names a claim gets a copy of the claim's data.
//!
//! The status first describes the source, then the copy runs in the background, then the status describes the copy; from
//! then on the object is an archive like any other. After a crash between two steps, status and record show where to
//! continue.

mod checks;
mod cleanup;
mod copy;
mod report;
mod source;

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;

use self::copy::{describe_copy, describe_source, handle_failed_copy, start_copy};
use self::report::{BackupOutcome, report};
use super::observe::confirmed_export;
use super::ops;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::writes::WriteError;
use crate::state::backends::Backend;
use crate::state::confirmed_export::ConfirmedExport;
use crate::state::context::Context;
use crate::state::copy_jobs::job::CopyJob;
use export_store::{ExportError, ExportStore, RequestedArchive};

/// Carries out the next step of a backup that is not complete, and reports it.
pub(super) async fn reconcile(ctx: &Context, object: &NfsArchive) -> Result<Action, WriteError> {
    let outcome = if object.metadata.deletion_timestamp.is_some() {
        cleanup::clean_up(ctx, object).await?
    } else {
        next_step(ctx, object).await?
    };
    report(ctx, object, outcome).await
}

/// Reports what an object waits for that may be an archive or a backup.
pub(super) async fn wait(
    ctx: &Context,
    object: &NfsArchive,
    condition: PlannedCondition,
) -> Result<Action, WriteError> {
    // All objects are deleted with their kind. The data stay.
    let is_released = object.metadata.deletion_timestamp.is_some() && ops::is_crd_deleting(ctx).await?;
    wait_unless(is_released, ctx, object, condition).await
}

/// Reports why an object is neither an archive nor a backup. If it is being deleted, releases it: it describes nothing.
pub(super) async fn refuse(
    ctx: &Context,
    object: &NfsArchive,
    condition: PlannedCondition,
) -> Result<Action, WriteError> {
    let is_released = object.metadata.deletion_timestamp.is_some();
    wait_unless(is_released, ctx, object, condition).await
}

/// Reports what an object waits for, or cleans up after one that is released.
async fn wait_unless(
    is_released: bool,
    ctx: &Context,
    object: &NfsArchive,
    condition: PlannedCondition,
) -> Result<Action, WriteError> {
    let outcome = match is_released {
        true => cleanup::clean_up(ctx, object).await?,
        false => BackupOutcome::Waiting(condition),
    };
    report(ctx, object, outcome).await
}

async fn next_step(ctx: &Context, object: &NfsArchive) -> Result<BackupOutcome, WriteError> {
    let name = object.name_any();
    let job = CopyJob::of(ctx, object);
    if let Some(Err(failure)) = job.take_result(&object.observed().backend_name) {
        return Ok(handle_failed_copy(ctx, object, failure).await);
    }
    if let Some(condition) = job.progress(source_claim(object)) {
        return Ok(BackupOutcome::Copying(condition));
    }
    if object.observed().backend_name.is_empty() {
        return describe_source(ctx, object).await;
    }
    let ConfirmedExport { backend, export } = match confirmed_export(ctx, object) {
        Ok(confirmed) => confirmed,
        Err(condition) => return Ok(BackupOutcome::Waiting(condition)),
    };
    match find_backup(&backend, &export, object).await {
        Ok(RequestedArchive::Done(recorded)) => describe_copy(ctx, object, (&backend, &export), &recorded).await,
        Ok(RequestedArchive::Unfinished) if has_ended(ctx, object).await? => {
            ops::delete_incomplete(ctx, object).await?;
            Ok(BackupOutcome::Changed)
        }
        Ok(RequestedArchive::Unfinished) => start_copy(ctx, object).await,
        Ok(RequestedArchive::Taken(state)) => Ok(BackupOutcome::Blocked(checks::name_taken(&name, state))),
        Err(error) => Ok(export_failed(ctx, &backend, &error)),
    }
}

/// Returns true if the retention of a tenant's backup ended while its copy waited: the data would be deleted as soon as they were
/// copied.
async fn has_ended(ctx: &Context, object: &NfsArchive) -> Result<bool, WriteError> {
    let ends = object.spec.expiration_time.as_ref().map(|time| time.0);
    let ends = ends.filter(|_| object.is_self_service() && !object.spec.legal_hold);
    match ends {
        // The clock of this node may be ahead.
        Some(ends) if ends <= ctx.clock.now() => Ok(ends <= ctx.server_clock.now(&ctx.clients.calls).await?),
        _ => Ok(false),
    }
}

/// Describes the claim that is copied.
fn source_claim(object: &NfsArchive) -> String {
    let claim = &object.spec.claim_ref;
    format!("claim {}/{}", claim.namespace, claim.name)
}

async fn find_backup(
    backend: &Backend,
    export: &Arc<ExportStore>,
    object: &NfsArchive,
) -> Result<RequestedArchive, ExportError> {
    // Limited for each backend: one that does not respond delays only its own archives.
    let _slot = backend.archives.acquire(&object.spec.claim_ref.namespace).await;
    export
        .requested_archive(&object.name_any(), &object.uid().unwrap_or_default())
        .await
}

/// Returns the outcome of a failed call on the export.
fn export_failed(ctx: &Context, backend: &Backend, error: &ExportError) -> BackupOutcome {
    let condition = PlannedCondition::fails(Reason::from(error.kind()), format!("backend {}: {error}", backend.name));
    if Reason::needs_probe(error) {
        ctx.request_probe(&backend.name);
        return BackupOutcome::Waiting(condition);
    }
    BackupOutcome::Failed(condition)
}
