//! Reclaim of a released volume: checked with the API server → volume deleted → policy applied → archive object created →
//! finalizer removed.
//!
//! The process may end after any step. If the reclaim is repeated, it applies the policy to the data once. If the
//! volume was bound to another claim in between, what was done for the first one is completed for it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::deletion::VolumeDeletion;
use super::plan::{RecordOwner, VolumePlan, plan_for};
use super::report::ReclaimOutcome;
use crate::api::backend::{ArchivePolicy, OnDelete};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{ACKNOWLEDGE_MISSING, RECLAIM_FINALIZER, VOLUME_BACKEND, VOLUME_EXPORT_ID, VOLUME_FILE_ID};
use crate::background::archive_objects::{CreateError, ensure_object};
use crate::compat::nfs_subdir::location::alias_backend;
use crate::compat::nfs_subdir::volume::{NfsSubdirVolume, PrepareError};
use crate::decide::reclaim::{escape_for_message, reclaim_policy};
use crate::decide::retention::{self, ReachedLimit};
use crate::decide::volume_directory::claim_ref;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::archives::reached_limit;
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use crate::state::quota::order_new_archive;
use export_store::text::counted;
use export_store::{ArchivePhase, ExportError, ExportStore, Reclaimed, RecordedArchive, VolumeDirectory};

/// Reclaims a volume that is released according to the watch cache, and whose record has this owner.
pub async fn reclaim(
    ctx: &Context,
    seen: &PersistentVolume,
    owner: &RecordOwner,
) -> Result<ReclaimOutcome, WriteError> {
    let uid = seen.uid().unwrap_or_default();
    if ctx.recently_reclaimed.contains(&uid) {
        return Ok(ReclaimOutcome::JustReclaimed);
    }
    let backend = match find_backend(ctx, seen) {
        Ok(backend) => backend,
        // Whatever was done is left alone.
        Err(outcome) if is_retained(seen) && !awaits_backend(&outcome) => {
            let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
            writes::drop_finalizer(&volumes, seen, RECLAIM_FINALIZER).await?;
            return Ok(ReclaimOutcome::Changed);
        }
        Err(outcome) => return Ok(outcome),
    };
    let snapshot = backend.last_probe();
    let Some(export) = snapshot.store.clone() else {
        return Ok(ReclaimOutcome::Waiting(snapshot.ready.clone()));
    };
    let priority = ctx.volume_retries.priority(&uid);
    let (reclaims, namespace) = (&backend.reclaims, claim_namespace(seen));
    let Some(_slot) = reclaims.enter(&ObjectRef::from_obj(seen), namespace, priority, &ctx.waiting_volumes) else {
        return Ok(ReclaimOutcome::Queued);
    };
    let Some(volume) = read_released(ctx, seen, owner).await? else {
        return Ok(ReclaimOutcome::Changed);
    };
    let Some(policy) = read_policy(ctx, &backend).await? else {
        return Ok(ReclaimOutcome::Waiting(PlannedCondition::fails(
            Reason::NotProbed,
            format!("backend {} was deleted or replaced meanwhile", backend.name),
        )));
    };
    let VolumePlan::Reclaim(on_delete) = plan_for(owner, &volume, &ctx.settings, policy.on_delete) else {
        return Ok(ReclaimOutcome::Changed);
    };
    let (mut directory, on_delete) = match prepare(ctx, &volume, on_delete, &snapshot, &export).await? {
        Ok(prepared) => for_owner(owner, prepared),
        Err(PrepareError::Condition(condition)) => return Ok(ReclaimOutcome::Failed(condition)),
        Err(PrepareError::Export(error)) => return Ok(export_failed(ctx, &backend, &error)),
    };
    if on_delete == OnDelete::Retain {
        match unfinished_restore(ctx, &export, &volume).await {
            Ok(None) => {}
            Ok(Some(condition)) => return Ok(ReclaimOutcome::Waiting(condition)),
            Err(error) => return Ok(export_failed(ctx, &backend, &error)),
        }
    }
    if on_delete == OnDelete::Archive
        // Otherwise there is no new archive.
        && *owner == RecordOwner::Claim
        && let Some(outcome) = check_archive_limit(ctx, &policy, &backend.name, &volume)
    {
        return Ok(outcome);
    }
    directory.archive_metadata.retention = retention::seconds(&policy);
    directory.archive_metadata.archived_at = Some(ctx.server_clock.now(&ctx.clients.calls).await?.as_second());
    let acknowledgement = volume.annotations().get(ACKNOWLEDGE_MISSING).cloned();
    let acknowledged = acknowledgement.as_deref() == Some(ACKNOWLEDGED);
    let deletion = VolumeDeletion::of(&ctx.clients.calls, volume, on_delete);
    let Applied {
        condition,
        has_warnings,
        archive,
    } = match apply_policy(&export, (on_delete, &directory), &deletion, acknowledged).await {
        Ok(applied) => applied,
        Err(error) => {
            return match deletion.take_failure().await {
                Some(error) => Err(error),
                None => Ok(with_wrong_acknowledgement(
                    export_failed(ctx, &backend, &error),
                    acknowledgement,
                )),
            };
        }
    };
    // Nothing of an archive or a retained directory is in the trash, which is listed for a purge.
    if condition.reason == Reason::VolumeDeleted {
        backend.purge_requested.notify_one();
    }
    // Before the volume is gone: if this process ends here, the next one finds the volume and the archive again.
    if condition.reason == Reason::VolumeArchived
        && let Err(error) = ensure_object(ctx, &backend.name, &export, &directory.volume, archive).await
    {
        return not_ensured(ctx, &backend, error);
    }
    // After that: an order that fails is made by the comparison of all orders, which knows only archives with an object.
    if condition.reason == Reason::VolumeArchived
        && let Some(bytes) = ctx.capacity.size_of(&directory.volume)
    {
        order_new_archive(&backend, &export, (&directory.volume, bytes)).await;
    }
    // Once the volume is gone, its watch event may have this forgotten.
    let had_problem = has_warnings || ctx.last_reported.has_reported(&uid);
    deletion.complete().await?;
    ctx.recently_reclaimed.insert(uid);
    // The record of an archive stays.
    if condition.reason != Reason::VolumeArchived
        && let Err(error) = export.forget_volume(&directory.volume).await
    {
        tracing::debug!(
            volume = directory.volume,
            "its record stays until the next start: {error}"
        );
    }
    Ok(ReclaimOutcome::Reclaimed { condition, had_problem })
}

/// Returns true if an administrator retains the volume, whose reclaim may have begun.
fn is_retained(volume: &PersistentVolume) -> bool {
    reclaim_policy(volume) == "Retain"
}

/// Returns true if the volume's backend exists.
fn awaits_backend(outcome: &ReclaimOutcome) -> bool {
    matches!(outcome, ReclaimOutcome::Waiting(condition) if condition.reason != Reason::ReclaimBackendMissing)
}

/// Returns the namespace of a volume's claim.
fn claim_namespace(volume: &PersistentVolume) -> &str {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.and_then(|claim| claim.namespace.as_deref()).unwrap_or_default()
}

/// Returns the backend of a volume, or the outcome if it cannot be used.
fn find_backend(ctx: &Context, volume: &PersistentVolume) -> Result<Arc<Backend>, ReclaimOutcome> {
    let name = match alias_backend(volume, &ctx.settings.served.aliases) {
        Some(alias) => match NfsSubdirVolume::new(ctx, volume, alias).locate() {
            Ok(_) => alias,
            Err(refusal) => return Err(failed(refusal.reason, refusal.message)),
        },
        None => volume.annotations().get(VOLUME_BACKEND).ok_or_else(|| {
            failed(
                Reason::ReclaimUnsafe,
                format!("annotation {VOLUME_BACKEND} is missing: restore it, or set the policy to Retain"),
            )
        })?,
    };
    ctx.registered_backend(name).map_err(|mut condition| {
        if condition.reason == Reason::ReclaimBackendMissing {
            let otherwise = "; or set the persistentVolumeReclaimPolicy of the volume to Retain to leave its data";
            condition.message.push_str(otherwise);
        }
        ReclaimOutcome::Waiting(condition)
    })
}

fn failed(reason: Reason, message: String) -> ReclaimOutcome {
    ReclaimOutcome::Failed(PlannedCondition::fails(reason, message))
}

/// Reads the volume and its claim from the API server, because the reclaim cannot be undone. Returns the volume, if it is
/// to be reclaimed and its claim is deleted.
async fn read_released(
    ctx: &Context,
    seen: &PersistentVolume,
    owner: &RecordOwner,
) -> Result<Option<PersistentVolume>, WriteError> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let read = WriteError::action("read the volume before its reclaim");
    let Some(volume) = reads::get_opt(&volumes, &seen.name_any()).await.map_err(read)? else {
        return Ok(None);
    };
    // The owner of the record was determined for the claim of the volume that was seen.
    if volume.uid() != seen.uid() || claim_ref(&volume) != claim_ref(seen) {
        return Ok(None);
    }
    // The backend's policy only selects how to reclaim.
    let VolumePlan::Reclaim(_) = plan_for(owner, &volume, &ctx.settings, OnDelete::Archive) else {
        return Ok(None);
    };
    let claim = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.clone())
        .unwrap_or_default();
    let (namespace, name) = (claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default());
    let found = reads::get_claim(&ctx.clients.calls, &namespace, &name)
        .await
        .map_err(read)?;
    Ok(is_unneeded(&volume, found.as_ref()).then_some(volume))
}

/// Reads the archive policy of a backend from the API server (data-safety rule 15), after the volume was read: an edit
/// before its release counts. Returns `None` if the backend was deleted or replaced.
async fn read_policy(ctx: &Context, backend: &Backend) -> Result<Option<ArchivePolicy>, WriteError> {
    let found = backend
        .live
        .read(&Api::all(ctx.clients.calls.clone()), &backend.name)
        .await?;
    let found = found.filter(|found| found.uid().as_ref() == Some(&backend.uid));
    Ok(found.map(|found| found.spec.archive_policy.clone()))
}

/// Returns true if no claim needs a released volume: its claim was deleted, or is bound to another volume. Pure. `named`
/// is the claim that has the name in the volume's `claimRef`.
fn is_unneeded(volume: &PersistentVolume, named: Option<&PersistentVolumeClaim>) -> bool {
    let uid = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
    let Some(claim) = named.filter(|claim| claim.uid() == uid) else {
        return true;
    };
    let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    bound_to.is_some_and(|name| !name.is_empty() && Some(name) != volume.metadata.name.as_deref())
}

/// Returns the volume's directory and the policy, if the volume, its backend and the export agree.
async fn prepare(
    ctx: &Context,
    volume: &PersistentVolume,
    on_delete: OnDelete,
    snapshot: &ProbeSnapshot,
    export: &ExportStore,
) -> Result<Result<(VolumeDirectory, OnDelete), PrepareError>, WriteError> {
    match alias_backend(volume, &ctx.settings.served.aliases) {
        Some(alias) => {
            let is_kept = is_retained(volume);
            let prepared = NfsSubdirVolume::new(ctx, volume, alias)
                .prepare(snapshot, export)
                .await?;
            // Its class decides, unless an administrator retains the volume.
            let policy_of = |policy| if is_kept { OnDelete::Retain } else { policy };
            Ok(prepared.map(|(directory, policy)| (directory, policy_of(policy))))
        }
        None => Ok(snapshot
            .volume_directory(volume)
            .map(|directory| (directory, on_delete))
            .map_err(PrepareError::Condition)),
    }
}

/// Changes a directory and its policy so that they are about the claim of the record. Pure.
fn for_owner(owner: &RecordOwner, (directory, on_delete): (VolumeDirectory, OnDelete)) -> (VolumeDirectory, OnDelete) {
    match owner {
        RecordOwner::Claim | RecordOwner::Nobody => (directory, on_delete),
        RecordOwner::FormerClaim(claim) => {
            let claim = claim.clone();
            let on_delete = match on_delete {
                // It completes what has begun, and deletes nothing that is at the volume's path again.
                OnDelete::Archive | OnDelete::Delete => OnDelete::Archive,
                OnDelete::Retain => OnDelete::Retain,
            };
            (VolumeDirectory { claim, ..directory }, on_delete)
        }
    }
}

/// Value of the annotation by which an administrator acknowledges that a directory is missing.
const ACKNOWLEDGED: &str = "true";

/// Adds to the report of a missing directory that the annotation which acknowledges it has another value. Pure.
fn with_wrong_acknowledgement(mut outcome: ReclaimOutcome, acknowledgement: Option<String>) -> ReclaimOutcome {
    if let (ReclaimOutcome::Failed(condition), Some(value)) = (&mut outcome, acknowledgement)
        && condition.reason == Reason::DirectoryMissing
    {
        let value = escape_for_message(&value);
        let ignored =
            format!(". Annotation {ACKNOWLEDGE_MISSING} is \"{value}\": only \"{ACKNOWLEDGED}\" acknowledges it");
        condition.message.push_str(&ignored);
    }
    outcome
}

/// Returns the outcome if there may be no more archives of the namespace of a volume, or on its backend. The volume stays,
/// and uses capacity.
fn check_archive_limit(
    ctx: &Context,
    policy: &ArchivePolicy,
    backend: &str,
    volume: &PersistentVolume,
) -> Option<ReclaimOutcome> {
    let namespace = claim_namespace(volume);
    let reached = match reached_limit(ctx, policy, backend, namespace, &volume.name_any())? {
        ReachedLimit::OfNamespace(limit) => format!(
            "namespace {namespace} has {} on backend {backend}, the maximum of archivePolicy.maxPerNamespace",
            counted(limit, "archive")
        ),
        ReachedLimit::OfBackend(limit) => {
            format!(
                "backend {backend} has {}, the maximum of archivePolicy.maxPerBackend",
                counted(limit, "archive")
            )
        }
    };
    Some(failed(
        Reason::ArchiveLimitReached,
        format!(
            "{reached}, so the volume is not archived: delete archives that are no longer needed (with deletionPolicy: \
             Delete), or raise the maximum"
        ),
    ))
}

/// Returns why a volume cannot be retained yet: the archive that was moved to it still has its record. Only the volume
/// shows that its restore succeeded, and without it the archive would be restoring forever.
async fn unfinished_restore(
    ctx: &Context,
    export: &ExportStore,
    volume: &PersistentVolume,
) -> Result<Option<PlannedCondition>, ExportError> {
    let Some(file_id) = volume.annotations().get(VOLUME_FILE_ID) else {
        return Ok(None);
    };
    for archive in ctx.stores.archives.state() {
        let (name, status) = (archive.name_any(), archive.observed());
        let is_same = status.file_id.as_ref().is_some_and(|found| found.0 == *file_id);
        if !is_same || volume.annotations().get(VOLUME_EXPORT_ID) != Some(&status.export_id) {
            continue;
        }
        let recorded = export.find_archive(&name).await?;
        if recorded.is_some_and(|recorded| is_moved_to(&recorded.phase, &volume.name_any())) {
            let message = format!("archive {name} was moved to this volume, and its object is removed first");
            return Ok(Some(PlannedCondition::fails(Reason::ArchiveRestoring, message)));
        }
    }
    Ok(None)
}

fn is_moved_to(phase: &ArchivePhase, volume: &str) -> bool {
    matches!(phase, ArchivePhase::Restoring(target) if target.volume == volume)
}

/// The result of a policy.
struct Applied {
    condition: PlannedCondition,
    has_warnings: bool,
    /// The archive, if this recorded one.
    archive: Option<Box<RecordedArchive>>,
}

/// Applies the policy to the directory.
async fn apply_policy(
    export: &ExportStore,
    (on_delete, directory): (OnDelete, &VolumeDirectory),
    deletion: &VolumeDeletion,
    acknowledged: bool,
) -> Result<Applied, ExportError> {
    let mut archive = None;
    let reclaimed = match on_delete {
        OnDelete::Archive => export.archive(directory, deletion).await,
        OnDelete::Delete => export.delete(directory, deletion).await,
        OnDelete::Retain => export.retain(directory, deletion).await,
    };
    let mut has_warnings = false;
    let (reason, what) = match reclaimed {
        Ok(Reclaimed::Archived {
            name,
            warnings,
            recorded,
        }) => {
            has_warnings = !warnings.is_empty();
            archive = recorded;
            let warnings: String = warnings.iter().map(|warning| format!("; warning: {warning}")).collect();
            (Reason::VolumeArchived, format!("is kept as {name}{warnings}"))
        }
        Ok(Reclaimed::EmptyRemoved) => (
            Reason::VolumeDeleted,
            "was empty: removed, there was nothing to keep".to_owned(),
        ),
        Ok(Reclaimed::Deleted) => (Reason::VolumeDeleted, "is deleted".to_owned()),
        Ok(Reclaimed::AlreadyGone) => (Reason::VolumeDeleted, "was already deleted".to_owned()),
        Ok(Reclaimed::Retained) => (Reason::VolumeRetained, "stays as it is".to_owned()),
        Err(ExportError::DirectoryMissing { .. }) if acknowledged => {
            export.retain(directory, deletion).await?;
            (Reason::VolumeDeleted, "is missing, as acknowledged".to_owned())
        }
        Err(error) => return Err(error),
    };
    let condition = PlannedCondition::holds(reason, format!("directory {} {what}", directory.directory));
    Ok(Applied {
        condition,
        has_warnings,
        archive,
    })
}

fn export_failed(ctx: &Context, backend: &Backend, error: &ExportError) -> ReclaimOutcome {
    let reason = Reason::from(error.kind());
    let condition = PlannedCondition::fails(reason, error.to_string());
    if error.outcome_unknown() {
        ctx.request_probe(&backend.name);
        return ReclaimOutcome::Unknown(condition);
    }
    if reason.is_connectivity() {
        ctx.request_probe(&backend.name);
        return ReclaimOutcome::Waiting(condition);
    }
    ReclaimOutcome::Failed(condition)
}

/// Returns the outcome if the directory is archived, but the archive has no object yet: the volume stays.
fn not_ensured(ctx: &Context, backend: &Backend, error: CreateError) -> Result<ReclaimOutcome, WriteError> {
    match error {
        CreateError::Write(error) => Err(error),
        CreateError::NameTaken(condition) => Ok(ReclaimOutcome::Failed(condition)),
        CreateError::Export(error) => Ok(export_failed(ctx, backend, &error)),
        error @ CreateError::Unsigned => Ok(failed(Reason::RecordUnusable, error.to_string())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;
    use export_store::naming::DirectoryPath;
    use export_store::{ArchiveMetadata, ClaimRef};

    #[test]
    fn a_released_volume_is_unneeded_if_its_claim_is_gone_or_bound_to_another_volume() {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": "pvc-u"},
            "spec": {"claimRef": {"namespace": "team", "name": "data", "uid": "u"}},
        }))
        .unwrap();
        let claim = |uid: &str, bound_to: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"name": "data", "uid": uid}, "spec": {"volumeName": bound_to}}))
                .unwrap()
        };
        for (what, named, expected) in [
            ("deleted", None, true),
            ("another claim of the name", Some(claim("v", "pvc-u")), true),
            ("bound to another volume", Some(claim("u", "pvc-other")), true),
            ("bound to this volume", Some(claim("u", "pvc-u")), false),
            ("not bound yet", Some(claim("u", "")), false),
        ] {
            assert_eq!(is_unneeded(&volume, named.as_ref()), expected, "{what}");
        }
    }

    #[test]
    fn only_the_report_of_a_missing_directory_names_a_wrong_acknowledgement() {
        let message = |reason, value: Option<&str>| {
            let failed = ReclaimOutcome::Failed(PlannedCondition::fails(reason, "it failed"));
            let reported = with_wrong_acknowledgement(failed, value.map(str::to_owned));
            assert!(matches!(reported, ReclaimOutcome::Failed(_)), "{reported:?}");
            match reported {
                ReclaimOutcome::Failed(condition) => condition.message,
                _ => String::new(),
            }
        };
        let wrong = message(Reason::DirectoryMissing, Some("yes"));
        assert!(
            wrong.contains("acknowledge-missing is \"yes\": only \"true\""),
            "{wrong}"
        );
        assert_eq!(message(Reason::DirectoryMissing, None), "it failed");
        assert_eq!(message(Reason::NoSpace, Some("yes")), "it failed");
    }

    #[test]
    fn what_has_begun_for_a_former_claim_is_completed_for_it_and_never_deleted() {
        let claim = |uid: &str, namespace: &str| ClaimRef {
            namespace: namespace.into(),
            uid: uid.into(),
            ..ClaimRef::default()
        };
        let directory = VolumeDirectory {
            claim: claim("b", "other"),
            volume: "pvc-a".into(),
            directory: DirectoryPath::parse("data").unwrap(),
            file_id: Some(1),
            archive_metadata: ArchiveMetadata::default(),
        };
        let former = RecordOwner::FormerClaim(claim("a", "team"));
        for (owner, on_delete, expected) in [
            (&RecordOwner::Claim, OnDelete::Delete, ("other", OnDelete::Delete)),
            (&RecordOwner::Nobody, OnDelete::Archive, ("other", OnDelete::Archive)),
            (&former, OnDelete::Archive, ("team", OnDelete::Archive)),
            (&former, OnDelete::Delete, ("team", OnDelete::Archive)),
            (&former, OnDelete::Retain, ("team", OnDelete::Retain)),
        ] {
            let (changed, applied) = for_owner(owner, (directory.clone(), on_delete));
            assert_eq!(
                (&*changed.claim.namespace, applied),
                expected,
                "{owner:?} {on_delete:?}"
            );
        }
    }
}
