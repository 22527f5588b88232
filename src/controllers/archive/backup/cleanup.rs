//! Deletion of an object whose backup is not complete: moves the incomplete copy into the trash.

use kube::ResourceExt;

use super::copy::describe_copy;
use super::report::BackupOutcome;
use super::{confirmed_export, export_failed, ops};
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::writes::WriteError;
use crate::state::confirmed_export::ConfirmedExport;
use crate::state::context::Context;
use crate::state::copy_jobs::job::CopyJob;
use export_store::{DiscardOutcome, RequestedArchive};

/// Removes the finalizer of an object that is being deleted once nothing is left of its incomplete copy.
pub(super) async fn clean_up(ctx: &Context, object: &NfsArchive) -> Result<BackupOutcome, WriteError> {
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    CopyJob::of(ctx, object).abort().await;
    // If the CustomResourceDefinition is being deleted, so are all objects, and garbage collection discards the copy.
    if object.observed().backend_name.is_empty() || ops::is_crd_deleting(ctx).await? {
        return remove_finalizer(ctx, object).await;
    }
    let ConfirmedExport { backend, export } = match confirmed_export(ctx, object) {
        Ok(confirmed) => confirmed,
        // The backend does not exist, and its export stays unchanged; or it uses another export now, which contains nothing
        // of this object.
        Err(condition)
            if matches!(
                condition.reason,
                Reason::ReclaimBackendMissing | Reason::IdentityMismatch
            ) =>
        {
            return remove_finalizer(ctx, object).await;
        }
        Err(PlannedCondition { reason, message, .. }) => {
            let message = format!("the incomplete copy cannot be removed now: {message}");
            return Ok(BackupOutcome::Waiting(PlannedCondition::fails(reason, message)));
        }
    };
    match export.discard_requested_archive(&name, &uid).await {
        Ok(DiscardOutcome::Gone) => {
            backend.purge_requested.notify_one();
            remove_finalizer(ctx, object).await
        }
        // The copy is complete, so it is deleted as an archive.
        Ok(DiscardOutcome::Complete) => match export.requested_archive(&name, &uid).await {
            Ok(RequestedArchive::Done(recorded)) => describe_copy(ctx, object, (&backend, &export), &recorded).await,
            Ok(RequestedArchive::Unfinished | RequestedArchive::Taken(_)) => remove_finalizer(ctx, object).await,
            Err(error) => Ok(export_failed(ctx, &backend, &error)),
        },
        Err(error) => Ok(export_failed(ctx, &backend, &error)),
    }
}

async fn remove_finalizer(ctx: &Context, object: &NfsArchive) -> Result<BackupOutcome, WriteError> {
    ops::remove_finalizer(ctx, object).await?;
    ctx.last_written.forget(&object.uid().unwrap_or_default());
    Ok(BackupOutcome::Deleted)
}
