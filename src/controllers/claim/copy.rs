//! A claim that requests a copy of another claim's or an archive's data: the source, the copy in the background, and its
//! result.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::create_volume::create_volume;
use super::plan::ProvisionPlan;
use super::provision::{BackendOutcome, ProvisionAttempt, Target};
use super::report::ProvisionOutcome;
use super::restore::ArchiveSource;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::quantity::bytes;
use crate::runtime::writes::WriteError;
use crate::state::claim_source;
use crate::state::context::Context;
use crate::state::copy_jobs::{CopyLabels, CopyResult};
use export_store::text::format_bytes;
use export_store::{ArchiveRef, CopyError, CopySource, DirectoryRequest, ExportStore, RollbackOutcome, copy_volume};

/// The data that is copied to a claim's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DataSource {
    /// A claim of the same namespace.
    Claim(String),
    /// An archive that the claim is allowed to restore.
    Archive(ArchiveSource),
}

impl DataSource {
    /// Returns the archive, if the source is one.
    pub(crate) fn archive(&self) -> Option<&ArchiveRef> {
        match self {
            Self::Archive(source) => Some(&source.archive),
            Self::Claim(_) => None,
        }
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(name) => write!(f, "claim {name}"),
            Self::Archive(source) => source.fmt(f),
        }
    }
}

/// The location of the data to copy.
struct CopyOrigin {
    export: Arc<ExportStore>,
    source: CopySource,
}

/// Returns the condition of a claim whose copy is queued or running.
pub(crate) fn progress(ctx: &Context, claim: &PersistentVolumeClaim, source: &DataSource) -> Option<PlannedCondition> {
    let progress = ctx.copy_jobs.progress(&claim.uid().unwrap_or_default());
    progress.condition(source)
}

/// Stops the copy of a claim that is no longer allowed to have it, and rolls back what was copied. Everything that may
/// be in use remains: a directory that has its volume, one that was moved, and one whose backend cannot be reached.
pub(crate) async fn abandon(ctx: &Context, claim: &PersistentVolumeClaim, volume: &str) -> Result<(), WriteError> {
    let uid = claim.uid().unwrap_or_default();
    ctx.copy_jobs.abort_and_wait(&uid).await;
    let backends = ctx.backends.all();
    let Some(backend) = backends.iter().find(|backend| backend.has_pending(volume)) else {
        return Ok(());
    };
    let Some(export) = backend.last_probe().store.clone() else {
        return Ok(());
    };
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let created = volumes
        .get_metadata_opt(volume)
        .await
        .map_err(WriteError::action("check whether the claim has its volume"))?;
    if created.is_some() || backend.is_move(volume) || backend.is_in_work(volume) {
        return Ok(());
    }
    match export.rollback(volume, &uid).await {
        Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept) => {
            backend.remove_pending(volume);
            ctx.capacity.release(volume);
            backend.purge_requested.notify_one();
        }
        Ok(RollbackOutcome::NotEmpty) => {}
        Err(error) => tracing::warn!(
            backend = backend.name,
            volume,
            "failed to roll back the copy for a claim that may not have it: {error}"
        ),
    }
    Ok(())
}

/// Checks that the volume to copy is not larger than the size requested. Pure.
fn check_size(volume: &PersistentVolume, name: &str, requested: u128) -> Result<(), PlannedCondition> {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    let size = capacity
        .and_then(|capacity| bytes(&capacity.get("storage")?.0))
        .unwrap_or_default();
    if size <= requested {
        return Ok(());
    }
    Err(claim_source::unsuitable(
        name,
        &format!(
            "it has {}, and this claim requests {}: request at least as much",
            format_bytes(size),
            format_bytes(requested)
        ),
    ))
}

/// Creates the volume if its copy is complete; otherwise starts the copy.
pub(super) async fn copy(
    attempt: &ProvisionAttempt<'_>,
    target: &Target,
    plan: ProvisionPlan,
    source: &DataSource,
    after_refusal: bool,
) -> Result<BackendOutcome, WriteError> {
    let ended = attempt
        .ctx
        .copy_jobs
        .take_result(&attempt.claim.uid().unwrap_or_default());
    if ended.is_some() {
        attempt.requeue_archive();
    }
    match ended {
        Some((Ok(CopyResult::Directory(directory)), tally)) => {
            let Some(_pending) = target.backend.begin_work(&attempt.volume, &plan.directory.claim) else {
                return Ok(BackendOutcome::Ended(ProvisionOutcome::Queued));
            };
            let mut outcome = create_volume(attempt, target, &plan, &directory).await;
            if let ProvisionOutcome::Provisioned {
                condition,
                created_now: true,
            } = &mut outcome
            {
                target.backend.remove_pending(&attempt.volume);
                condition.message = format!("{}, a copy of {source} ({tally})", condition.message);
            }
            // The staging folder is in the trash.
            target.backend.purge_requested.notify_one();
            Ok(BackendOutcome::Ended(outcome))
        }
        Some((Err(error), _)) => Ok(copy_failed(attempt, target, &error).await),
        // An archive is never the result of a claim's copy.
        Some((Ok(CopyResult::Archive), _)) | None => {
            start(attempt, target, plan.directory, source, after_refusal).await
        }
    }
}

/// Starts the copy, if its source is ready.
async fn start(
    attempt: &ProvisionAttempt<'_>,
    target: &Target,
    request: DirectoryRequest,
    source: &DataSource,
    after_refusal: bool,
) -> Result<BackendOutcome, WriteError> {
    let origin = match source {
        DataSource::Claim(name) => locate_claim(attempt, name).await?,
        DataSource::Archive(source) => locate_archive(attempt.ctx, source),
    };
    let origin = match origin {
        Ok(origin) => origin,
        Err(outcome) => {
            // Part of a copy by a previous process may exist: its capacity stays reserved.
            if !target.backend.has_pending(&attempt.volume) {
                attempt.ctx.capacity.release(&attempt.volume);
            }
            return Ok(BackendOutcome::Ended(outcome));
        }
    };
    if let Some(deleted) = attempt.set_placed_on(&target.backend, after_refusal).await? {
        return Ok(BackendOutcome::Ended(deleted));
    }
    start_job(attempt, target, request, origin);
    let condition = progress(attempt.ctx, attempt.claim, source);
    Ok(BackendOutcome::Ended(
        condition.map_or(ProvisionOutcome::Queued, ProvisionOutcome::Copying),
    ))
}

fn start_job(attempt: &ProvisionAttempt<'_>, target: &Target, request: DirectoryRequest, origin: CopyOrigin) {
    let labels = CopyLabels {
        uid: request.claim.uid.clone(),
        namespace: request.claim.namespace.clone(),
        claim: request.claim.name.clone(),
        archive: String::new(),
    };
    let (backend, export) = (Arc::clone(&target.backend), Arc::clone(&target.export));
    let volume = attempt.volume.clone();
    let (waiting, claim) = (
        Arc::clone(&attempt.ctx.waiting_claims),
        ObjectRef::from_obj(attempt.claim),
    );
    attempt.ctx.copy_jobs.start(
        labels,
        |budget, tally| async move {
            // Garbage collection does not touch the directory while this is held.
            let Some(_pending) = backend.begin_work(&volume, &request.claim) else {
                return Err(CopyError::ExportChanged);
            };
            let copied = copy_volume((&origin.export, &origin.source), (&export, &request), &budget, &tally);
            copied.await.map(CopyResult::Directory)
        },
        move || waiting.wake(claim),
    );
}

/// Locates the data of a claim. Claim and volume are read from the API server, and the volume must agree with its
/// backend.
async fn locate_claim(
    attempt: &ProvisionAttempt<'_>,
    name: &str,
) -> Result<Result<CopyOrigin, ProvisionOutcome>, WriteError> {
    let namespace = attempt.claim.namespace().unwrap_or_default();
    let (claim, volume) = match claim_source::read_bound_claim(attempt.ctx, &namespace, name).await? {
        Ok(bound) => bound,
        Err(condition) => return Ok(Err(ProvisionOutcome::Copying(condition))),
    };
    let suitable = claim_source::check_ownership(&volume, &claim, &attempt.ctx.settings.provisioners());
    if let Err(condition) = suitable.and_then(|()| check_size(&volume, name, attempt.request.bytes)) {
        return Ok(Err(ProvisionOutcome::Infeasible(condition)));
    }
    let located = claim_source::locate(attempt.ctx, name, &volume);
    Ok(located.map_err(ProvisionOutcome::Copying).map(|located| CopyOrigin {
        export: located.export,
        source: CopySource::Volume(located.request),
    }))
}

/// Locates an archive that the claim is allowed to restore. Its record is compared when the archive is opened.
fn locate_archive(ctx: &Context, source: &ArchiveSource) -> Result<CopyOrigin, ProvisionOutcome> {
    let not_ready = |why: String| {
        let message = format!("{source} to copy is on backend {}: {why}", source.backend);
        ProvisionOutcome::Copying(PlannedCondition::fails(Reason::CopySourceNotReady, message))
    };
    let registered = ctx.registered_backend(&source.backend);
    let backend = registered.map_err(|condition| not_ready(condition.message))?;
    let snapshot = backend.last_probe();
    let Some(export) = snapshot.store.clone() else {
        return Err(not_ready(snapshot.ready.message.clone()));
    };
    if snapshot.export_id() != Some(&source.export_id) {
        return Err(not_ready(
            "the backend is now on another export than the archive".into(),
        ));
    }
    Ok(CopyOrigin {
        export,
        source: CopySource::Archive(source.archive.clone()),
    })
}

/// Handles a failed copy. It is rolled back if another backend may succeed.
async fn copy_failed(attempt: &ProvisionAttempt<'_>, target: &Target, error: &CopyError) -> BackendOutcome {
    let Target { backend, export, .. } = target;
    let reason = Reason::from(error.kind());
    if reason.is_backend_wide() {
        attempt.ctx.request_probe(&backend.name);
    }
    let condition = PlannedCondition::fails(reason, format!("backend {}: {error}", backend.name));
    if !error.is_of_the_target() {
        return BackendOutcome::Ended(if reason.is_connectivity() {
            ProvisionOutcome::Waiting(condition)
        } else {
            ProvisionOutcome::Failed(condition)
        });
    }
    let uid = attempt.claim.uid().unwrap_or_default();
    match export.rollback(&attempt.volume, &uid).await {
        Ok(RollbackOutcome::Gone | RollbackOutcome::DirectoryKept) => {
            attempt.ctx.capacity.release(&attempt.volume);
            backend.remove_pending(&attempt.volume);
            backend.purge_requested.notify_one();
            BackendOutcome::Refused {
                condition: PlannedCondition::fails(reason, error.to_string()),
                permanent: false,
            }
        }
        _ => BackendOutcome::Ended(ProvisionOutcome::Failed(condition)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_volume_that_is_not_larger_is_copied_to_a_claim() {
        let volume = json!({"metadata": {"name": "pvc-u1"}, "spec": {"capacity": {"storage": "1Gi"}}});
        let volume = serde_json::from_value(volume).unwrap();
        let result = |requested: u128| check_size(&volume, "old", requested).map_err(|condition| condition.reason);
        assert_eq!(result(1 << 30), Ok(()));
        assert_eq!(result((1 << 30) - 1), Err(Reason::CopySourceUnsuitable));
    }
}
