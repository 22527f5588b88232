//! The steps of a backup: describe the source in the object, copy it in the background, and describe the copy in the object.

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::checks::{check_copy, check_unchanged};
use super::report::BackupOutcome;
use super::source::{BackupSource, find_source};
use super::{confirmed_export, ops, source_claim};
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::background::archive_objects::publish_archived_event;
use crate::decide::archive_object::{archive_object, retention_terms};
use crate::decide::terms;
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::confirmed_export::ConfirmedExport;
use crate::state::context::Context;
use crate::state::copy_jobs::job::{CopyJob, CopyTask};
use export_store::{ArchiveRequest, DiscardOutcome, RecordedArchive};

/// Describes the source in the object before anything is created, so that a deletion of the object finds what to remove.
pub(super) async fn describe_source(ctx: &Context, object: &NfsArchive) -> Result<BackupOutcome, WriteError> {
    let subject = match find_source(ctx, object).await? {
        Ok(source) => source.subject,
        Err(condition) => return Ok(BackupOutcome::Waiting(condition)),
    };
    let spec = json!({
        "backend": subject.backend,
        "exportID": subject.export_id,
        "volume": subject.volume,
        "claim": {"uid": subject.claim.uid, "namespaceUID": subject.claim.namespace_uid},
    });
    after_write(patch_spec(ctx, object, spec, "describe in the archive what is copied").await)
}

/// Starts the copy if the source still matches the object.
pub(super) async fn start_copy(ctx: &Context, object: &NfsArchive) -> Result<BackupOutcome, WriteError> {
    let source = match find_source(ctx, object).await? {
        Ok(source) => source,
        Err(condition) => return Ok(BackupOutcome::Waiting(condition)),
    };
    if let Err(condition) = check_unchanged(&object.spec, &source.subject) {
        return Ok(BackupOutcome::Waiting(condition));
    }
    let live = reads::get_opt(&ops::api(ctx), &object.name_any()).await;
    let live = live.map_err(WriteError::action("read the archive before the copy starts"))?;
    let Some(live) = live.filter(|live| live.uid() == object.uid() && live.metadata.deletion_timestamp.is_none())
    else {
        return Ok(BackupOutcome::Deleted);
    };
    let BackupSource { subject, mut data } = source;
    let now = ctx.server_clock.now(&ctx.clients.calls).await?;
    data.request.archive_metadata.archived_at = Some(now.as_second());
    let task = CopyTask::ToArchive {
        export: data.export,
        request: ArchiveRequest {
            name: live.name_any(),
            requested_by: live.uid().unwrap_or_default(),
            claim: subject.claim,
            of: data.request,
            terms: retention_terms(&live),
            revision: terms::revision(&live),
        },
    };
    // If the copy has already ended, it has requeued the object.
    let copying = CopyJob::of(ctx, &live).start_or_progress(task, source_claim(&live));
    Ok(copying.map_or(BackupOutcome::Changed, BackupOutcome::Copying))
}

/// Handles a failed copy: moves what was copied into the trash, because it uses space.
pub(super) async fn handle_failed_copy(
    ctx: &Context,
    object: &NfsArchive,
    condition: PlannedCondition,
) -> BackupOutcome {
    if condition.reason.is_connectivity() {
        return BackupOutcome::Waiting(condition);
    }
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    if let Ok(ConfirmedExport { backend, export }) = confirmed_export(ctx, object) {
        match export.discard_requested_archive(&name, &uid).await {
            // The copy is complete; only a reply was lost.
            Ok(DiscardOutcome::Complete) => return BackupOutcome::Changed,
            Ok(DiscardOutcome::Gone) => backend.purge_requested.notify_one(),
            Err(error) => tracing::warn!(
                archive = name,
                "failed to discard an incomplete copy; the next attempt retries: {error}"
            ),
        }
    }
    BackupOutcome::Failed(condition)
}

/// Describes the finished copy in the object, which from then on is an archive like any other.
pub(super) async fn describe_copy(
    ctx: &Context,
    object: &NfsArchive,
    backend: &Backend,
    recorded: &RecordedArchive,
) -> Result<BackupOutcome, WriteError> {
    if let Err(condition) = check_copy(object, recorded) {
        return Ok(BackupOutcome::Waiting(condition));
    }
    backend.purge_requested.notify_one();
    let described = archive_object(recorded, &backend.name);
    let spec = json!({
        "directory": described.spec.directory,
        "fileID": described.spec.file_id,
        "size": described.spec.size,
        "storageClassName": described.spec.storage_class_name,
        "volumeCreatedAt": described.spec.volume_created_at,
        "archivedAt": described.spec.archived_at,
    });
    let written = patch_spec(ctx, object, spec, "describe in the archive where it is").await;
    if written.is_ok() {
        let result = recorded.archive.copy.as_ref().and_then(|copy| copy.outcome.as_deref());
        let claim = &recorded.claim;
        let note = format!(
            "copied claim {}/{} to {}: {}",
            claim.namespace,
            claim.name,
            recorded.archive.target,
            result.unwrap_or_default()
        );
        let regarding = object.object_ref(&());
        ctx.events
            .publish(regarding, Severity::Normal, Reason::Archived, "Archive", &note);
        publish_archived_event(ctx, &described);
    }
    after_write(written)
}

async fn patch_spec(ctx: &Context, object: &NfsArchive, spec: Value, action: &'static str) -> Result<(), WriteError> {
    writes::patch_as_read(&ops::api(ctx), object, json!({ "spec": spec }), false, action).await
}

/// Returns the outcome of a write to the object. After a conflict, the next reconciliation continues with the changed
/// object.
fn after_write(written: Result<(), WriteError>) -> Result<BackupOutcome, WriteError> {
    match written {
        Ok(()) | Err(WriteError::Conflict) => Ok(BackupOutcome::Changed),
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(BackupOutcome::Deleted),
        Err(error) => Err(error),
    }
}
