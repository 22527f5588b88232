//! The steps of a backup: describe the source in the object, copy it in the background, and describe the copy in the object.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{Resource, ResourceExt};

use super::checks::{Subject, check_copy, check_unchanged};
use super::report::{BackupOutcome, unobserved_retention};
use super::source::{BackupSource, find_source};
use super::{confirmed_export, ops, source_claim};
use crate::api::archive::{ArchiveSummary, NfsArchive, NfsArchiveStatus};
use crate::api::backend::Duration;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::consistency::Consistency;
use crate::controllers::archive::import::recovered_export;
use crate::controllers::archive::plan::{Report, data_present, state_of_kept};
use crate::controllers::archive::reconcile::write_status;
use crate::decide::archive_object::{described, retention_terms};
use crate::decide::backup_base::base_candidates;
use crate::decide::backup_destination::destination_name;
use crate::decide::self_service::allowed;
use crate::decide::volume_limit::{Excess, archive_limit};
use crate::decide::{quantity, terms};
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::archives::archived_bytes;
use crate::state::backends::Backend;
use crate::state::backup_admissions::admit_backup;
use crate::state::confirmed_export::ConfirmedExport;
use crate::state::context::Context;
use crate::state::copy_jobs::job::{CopyFailure, CopyJob, CopyTask};
use crate::state::copy_jobs::source::ClaimSource;
use crate::state::quota::{accounted_volume, order_new_archive};
use export_store::text::format_amount;
use export_store::{
    ArchiveMetadata, ArchiveRequest, CopyError, DiscardOutcome, ExportStore, RecordedArchive, SnapshotSelector,
    SnapshotUse, StagedLimit,
};

/// Describes the source in the object before anything is created, so that a deletion of the object finds what to remove.
pub(super) async fn describe_source(ctx: &Context, object: &NfsArchive) -> Result<BackupOutcome, WriteError> {
    if is_abandoned(ctx, object).await? {
        let destination = destination_name(object).unwrap_or_default();
        return match recovered_export(ctx, destination) {
            Some((_, export)) if !export.has_archive(&object.name_any()) => {
                ops::delete_incomplete(ctx, object).await?;
                Ok(BackupOutcome::Changed)
            }
            // It may have been complete, and restored without its status.
            _ => Ok(BackupOutcome::Waiting(abandoned(object, destination))),
        };
    }
    let source = match find_source(ctx, object).await? {
        Ok(source) => source,
        Err(outcome) => return Ok(outcome),
    };
    // An administrator's own archive may have a name like that of a tenant's.
    if object.spec.backup_ref.is_some()
        && let Err(condition) = admit(ctx, object, &source).await?
    {
        // It was admitted before, so few wait here.
        return Ok(BackupOutcome::Waiting(condition));
    }
    let BackupSource { subject, data, .. } = source;
    let described = with_source(object, subject, data.directory.archive_metadata);
    match ops::annotate_location(ctx, &described).await {
        Ok(false) => {}
        changed => return after_write(changed),
    }
    let report = Report {
        state: ArchiveSummary::Copying,
        available: PlannedCondition::fails(Reason::Copying, "the copy is about to start"),
        retained: unobserved_retention(object),
    };
    let written = write_status(ctx, &described, &report).await;
    if matches!(written, Ok(true)) {
        let note = format!(
            "copying volume {} for {}",
            described.observed().volume_name,
            source_claim(object)
        );
        ops::publish(ctx, object, Severity::Normal, Reason::Copying, &note);
    }
    after_write(written)
}

/// Counts a tenant's backup with the size that the object describes from then on.
async fn admit(
    ctx: &Context,
    object: &NfsArchive,
    BackupSource {
        subject, data, labels, ..
    }: &BackupSource,
) -> Result<Result<(), PlannedCondition>, WriteError> {
    let namespace = &object.spec.claim_ref.namespace;
    Ok(data.live_backend(ctx).await?.and_then(|backend| {
        let settings = allowed(&backend, namespace, labels)?;
        admit_backup(ctx, &object.name_any(), (namespace, settings), data, &subject.backend)
    }))
}

/// Returns true if the NfsBackup that requested the archive no longer exists: it was deleted while the archive was created, or
/// its finalizer was removed by force.
async fn is_abandoned(ctx: &Context, object: &NfsArchive) -> Result<bool, WriteError> {
    let Some(reference) = &object.spec.backup_ref else {
        return Ok(false);
    };
    let namespace = &object.spec.claim_ref.namespace;
    let backup = reads::get_backup(&ctx.clients.calls, namespace, &reference.name).await;
    let backup = backup.map_err(WriteError::action("read the NfsBackup that requested the archive"))?;
    Ok(backup.is_none_or(|backup| backup.uid().as_ref() != Some(&reference.uid)))
}

/// Returns the condition of an abandoned object that may have data.
fn abandoned(object: &NfsArchive, destination: &str) -> PlannedCondition {
    let requested_by = object.spec.backup_ref.as_ref().map(|reference| reference.name.as_str());
    let message = format!(
        "the NfsBackup {}/{} that requested it does not exist, and the records of backend {destination}, which may have its \
         data, were not read yet: if the backend does not exist any more, delete this object",
        object.spec.claim_ref.namespace,
        requested_by.unwrap_or_default()
    );
    PlannedCondition::unknown(Reason::NotProbed, message)
}

/// Returns the object with a status that describes its source.
fn with_source(object: &NfsArchive, subject: Subject, metadata: ArchiveMetadata) -> NfsArchive {
    let status = NfsArchiveStatus {
        backend_name: subject.backend,
        export_id: subject.export_id,
        volume_name: subject.volume,
        claim_uid: subject.claim.uid,
        namespace_uid: subject.claim.namespace_uid,
        requested_size: metadata.size.map(Quantity),
        storage_class_name: metadata.class,
        observed_generation: None,
        ..object.observed().clone()
    };
    NfsArchive {
        status: Some(status),
        ..object.clone()
    }
}

/// Starts the copy if the source still matches the object.
pub(super) async fn start_copy(ctx: &Context, object: &NfsArchive) -> Result<BackupOutcome, WriteError> {
    let source = match find_source(ctx, object).await? {
        Ok(source) => source,
        Err(outcome) => return Ok(outcome),
    };
    if let Err(condition) = check_unchanged(object.observed(), &source.subject) {
        return Ok(BackupOutcome::Blocked(condition));
    }
    let live = reads::get_opt(&ops::api(ctx), &object.name_any()).await;
    let live = live.map_err(WriteError::action("read the archive before the copy starts"))?;
    let Some(live) = live.filter(|live| live.uid() == object.uid() && live.metadata.deletion_timestamp.is_none())
    else {
        return Ok(BackupOutcome::Deleted);
    };
    let BackupSource {
        subject,
        mut data,
        destination,
        ..
    } = source;
    let snapshot = match snapshot_use(ctx, &live, &data).await? {
        Ok(snapshot) => snapshot,
        Err(condition) => return Ok(BackupOutcome::Waiting(condition)),
    };
    let now = ctx.server_clock.now(&ctx.clients.calls).await?;
    let metadata = &mut data.directory.archive_metadata;
    metadata.archived_at = Some(now.as_second());
    let size = metadata.size.as_deref().and_then(quantity::bytes);
    let settings = destination.snapshot.object.spec.quota.as_ref();
    let limit = settings.zip(size).map(|(settings, size)| StagedLimit {
        limit: archive_limit(settings, size),
        required: settings.is_required(),
    });
    // What a snapshot holds, nobody knows before it is copied.
    if let Some(staged) = limit.filter(|_| snapshot.is_none())
        && let Some(used) = accounted_volume(&data.backend, &data.export, &data.directory.volume).await
        && let Some(excess) = Excess::of(used, staged.limit)
    {
        return Ok(BackupOutcome::Failed(exceeds_limit(&live, &subject.backend, excess)));
    }
    let task = CopyTask::ToArchive {
        tenant_limit: live.is_self_service().then(|| tenant_limit(&live)),
        limit,
        origin: data.export,
        export: destination.export,
        request: Box::new(ArchiveRequest {
            name: live.name_any(),
            requested_by: live.uid().unwrap_or_default(),
            claim: subject.claim,
            of: data.directory,
            terms: retention_terms(&live),
            revision: terms::revision(&live),
            bases: base_candidates(ctx.stores.archives.state(), object),
            snapshot,
        }),
    };
    // If the copy has already ended, it has requeued the object.
    let copying = CopyJob::of(ctx, &live).start_or_progress(task, source_claim(&live));
    Ok(copying.map_or(BackupOutcome::Changed, BackupOutcome::Copying))
}

/// Returns how the backup uses the snapshots of the server. Whether it creates one is up to the backend of the claim.
async fn snapshot_use(
    ctx: &Context,
    object: &NfsArchive,
    data: &ClaimSource,
) -> Result<Result<Option<SnapshotUse>, PlannedCondition>, WriteError> {
    let Some(consistency) = object.spec.consistency else {
        return Ok(Ok(None));
    };
    let max_age = object.spec.max_snapshot_age.as_ref().and_then(Duration::get);
    Ok(data.live_backend(ctx).await?.map(|backend| {
        Some(SnapshotUse {
            required: consistency == Consistency::Required,
            create: backend.spec.snapshots.as_ref().is_some_and(|settings| settings.create),
            selector: SnapshotSelector::Newest { max_age },
        })
    }))
}

/// Returns the maximum content of a backup that a tenant requested, in bytes: what its claim requested, which is what it
/// counts toward the quota.
fn tenant_limit(object: &NfsArchive) -> u64 {
    u64::try_from(archived_bytes(object)).unwrap_or(u64::MAX)
}

/// Returns the condition of a tenant's backup of a claim that contains more than it requests.
fn too_large(object: &NfsArchive) -> PlannedCondition {
    let message = format!(
        "{} contains more than {}, which is what it requested when this backup was admitted, and what the backup may have: remove \
         files, or expand the claim, delete this backup and create another one",
        source_claim(object),
        format_amount(archived_bytes(object))
    );
    PlannedCondition::fails(Reason::CopySourceUnsuitable, message)
}

/// Returns the condition of a backup that the limit of archives could not hold: volumes keep what they held before they had a
/// limit. Pure.
fn exceeds_limit(object: &NfsArchive, backend: &str, excess: Excess) -> PlannedCondition {
    let source = source_claim(object);
    let (limit, remedy) = match excess {
        Excess::Bytes { limit, .. } => (format_amount(u128::from(limit)), "expand the claim, remove files"),
        Excess::Inodes { limit, .. } => (limit.to_string(), "remove files, raise spec.quota.inodes"),
    };
    let message = format!(
        "{source} {excess}, and an archive of it on backend {backend} may have {limit}: {remedy}, or set spec.quota.archives of \
         the backend to Lift"
    );
    PlannedCondition::fails(Reason::CopySourceUnsuitable, message)
}

/// Handles a failed copy: moves what was copied into the trash, because it uses space.
pub(super) async fn handle_failed_copy(ctx: &Context, object: &NfsArchive, failure: CopyFailure) -> BackupOutcome {
    let condition = match failure.error {
        CopyError::TooLarge { .. } => too_large(object),
        _ => failure.condition,
    };
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
    (backend, export): (&Backend, &ExportStore),
    recorded: &RecordedArchive,
) -> Result<BackupOutcome, WriteError> {
    if let Err(condition) = check_copy(object, recorded) {
        return Ok(BackupOutcome::Blocked(condition));
    }
    backend.purge_requested.notify_one();
    let archive = described(object, recorded, &backend.name);
    // The order still names the staged copy.
    order_new_archive(backend, export, (&object.name_any(), archived_bytes(&archive))).await;
    let report = Report {
        state: state_of_kept(object.spec.legal_hold, false),
        available: data_present("the data exists", recorded.archive.copy.as_ref()),
        retained: unobserved_retention(object),
    };
    let written = write_status(ctx, &archive, &report).await;
    if matches!(written, Ok(true)) {
        ctx.archive_retries.reset(&object.uid().unwrap_or_default());
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
        publish_about_claim(ctx, &archive);
    }
    after_write(written)
}

/// Publishes an event about a new backup on its claim, which may be the only object that its users can see.
fn publish_about_claim(ctx: &Context, object: &NfsArchive) {
    let claim = &object.spec.claim_ref;
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        uid: Some(object.observed().claim_uid.clone()),
        ..ObjectReference::default()
    };
    let until = object
        .spec
        .expiration_time
        .as_ref()
        .map_or_else(String::new, |at| format!(" until {}", at.0));
    let note = format!(
        "a copy of the data of claim {} is kept{until} as NfsArchive {}",
        claim.name,
        object.name_any()
    );
    ctx.events
        .publish(regarding, Severity::Normal, Reason::Archived, "Archive", &note);
}

/// Returns the outcome of a write to the object.
fn after_write(written: Result<bool, WriteError>) -> Result<BackupOutcome, WriteError> {
    match written {
        Ok(_) => Ok(BackupOutcome::Changed),
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(BackupOutcome::Deleted),
        Err(error) => Err(error),
    }
}
