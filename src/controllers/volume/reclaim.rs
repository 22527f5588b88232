//! From a released volume to the end of it: checked live → policy → volume deleted → finalizer dropped.
//!
//! Every step may be the last one of this process; run again, the data was dealt with once.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::reconcile::decide;
use super::report::Outcome;
use crate::api::backend::OnDelete;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{ACKNOWLEDGE_MISSING, RECLAIM_FINALIZER, VOLUME_BACKEND, VOLUME_NAMESPACE_UID};
use crate::background::archive_objects::{CreateError, ensure_object};
use crate::compat::nfs_subdir::location::alias_backend;
use crate::compat::nfs_subdir::volume::Inherited;
use crate::decide::policy::{Decision, ExpectedLocation, Refusal, locate, retention};
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::{Backend, ProbeSnapshot};
use crate::state::context::Context;
use export_store::{ArchiveMetadata, ClaimRef, ExportError, ExportStore, ReclaimRequest, Reclaimed};

/// Carries out the policy on a volume that looks released.
pub async fn reclaim(ctx: &Context, seen: &PersistentVolume) -> Result<Outcome, WriteError> {
    let name = match home(ctx, seen) {
        Ok(name) => name,
        Err(stop) => return Ok(Outcome::Failed(PlannedCondition::fails(stop.reason, stop.message))),
    };
    let Some(backend) = ctx.backends.get(&name) else {
        if ctx.stores.backends.get(&ObjectRef::new(&name)).is_some() {
            return Ok(Outcome::Waiting(PlannedCondition::fails(
                Reason::NotProbed,
                format!("backend {name} is not probed yet"),
            )));
        }
        return Ok(Outcome::Waiting(PlannedCondition::fails(
            Reason::ReclaimBackendMissing,
            format!(
                "backend {name:?} does not exist: create it again, or take the finalizer {RECLAIM_FINALIZER} off the volume and leave the data"
            ),
        )));
    };
    let known = backend.known();
    let Some(export) = known.export.clone() else {
        return Ok(Outcome::Waiting(known.ready.clone()));
    };
    let coming = ctx.volume_retries.coming(&seen.uid().unwrap_or_default());
    let reclaims = &backend.reclaims;
    let Some(_slot) = reclaims.enter(&ObjectRef::from_obj(seen), coming, &ctx.waiting_volumes) else {
        return Ok(Outcome::Queued);
    };
    let Some((volume, policy)) = released(ctx, seen).await? else {
        return Ok(Outcome::Changed);
    };
    let prepared = match alias_backend(&volume, &ctx.settings.aliases) {
        Some(alias) => Inherited::of(ctx, &volume, alias).prepare(&known, &export).await?,
        None => request(&volume, &backend, &known)
            .map(|request| (request, policy))
            .map_err(Refused::Verdict),
    };
    let (request, policy) = match prepared {
        Ok(prepared) => prepared,
        Err(Refused::Verdict(verdict)) => return Ok(Outcome::Failed(verdict)),
        Err(Refused::Export(error)) => return Ok(failure(ctx, &backend, &error)),
    };
    match carry_out(&export, policy, &request, acknowledged(&volume)).await {
        Ok(verdict) => {
            backend.trash.notify_one();
            // Before the volume goes: whoever dies here finds the volume, and the archive again.
            if verdict.reason == Reason::VolumeArchived
                && let Err(error) = ensure_object(ctx, &backend.name, &export, &request.volume).await
            {
                return match error {
                    CreateError::Write(error) => Err(error),
                    CreateError::NameTaken(verdict) => Ok(Outcome::Failed(verdict)),
                    error @ CreateError::Unsigned => Ok(Outcome::Failed(PlannedCondition::fails(
                        Reason::RecordUnusable,
                        error.to_string(),
                    ))),
                    CreateError::Export(error) => Ok(failure(ctx, &backend, &error)),
                };
            }
            remove(ctx, &volume).await?;
            if let Err(error) = export.forget_volume(&request.volume).await {
                tracing::debug!(volume = request.volume, "its record is left to the next start: {error}");
            }
            Ok(Outcome::Reclaimed(verdict))
        }
        Err(error) => Ok(failure(ctx, &backend, &error)),
    }
}

/// Why nothing is touched.
pub(crate) enum Refused {
    /// What Kubernetes knows of the volume does not fit.
    Verdict(PlannedCondition),
    /// What is on the export does not fit, or could not be seen.
    Export(ExportError),
}

/// The name of the backend that a volume is on.
fn home(ctx: &Context, volume: &PersistentVolume) -> Result<String, Refusal> {
    if let Some(alias) = alias_backend(volume, &ctx.settings.aliases) {
        return Inherited::of(ctx, volume, alias).locate().map(|_| alias.to_owned());
    }
    volume
        .annotations()
        .get(VOLUME_BACKEND)
        .cloned()
        .ok_or_else(|| Refusal {
            reason: Reason::ReclaimUnsafe,
            message: format!("annotation {VOLUME_BACKEND} is missing: restore it, or set the policy to Retain"),
        })
}

/// The volume read live, with its policy, if it is released and its claim is gone: what follows can't be taken back.
async fn released(ctx: &Context, seen: &PersistentVolume) -> Result<Option<(PersistentVolume, OnDelete)>, WriteError> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let read = WriteError::of("read the volume before its reclaim");
    let Some(volume) = volumes.get_opt(&seen.name_any()).await.map_err(read)? else {
        return Ok(None);
    };
    if volume.uid() != seen.uid() {
        return Ok(None);
    }
    let Decision::Reclaim(policy) = decide(&volume, ctx) else {
        return Ok(None);
    };
    let claim = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.clone())
        .unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(ctx.clients.calls.clone(), &claim.namespace.unwrap_or_default());
    let found = claims.get_opt(&claim.name.unwrap_or_default()).await.map_err(read)?;
    let gone = found.is_none_or(|found| found.uid() != claim.uid);
    Ok(gone.then_some((volume, policy)))
}

/// What is to be reclaimed, if all that the volume says of itself agrees with its backend.
pub(crate) fn request(
    volume: &PersistentVolume,
    backend: &Backend,
    known: &ProbeSnapshot,
) -> Result<ReclaimRequest, PlannedCondition> {
    let spec = &known.object.spec;
    let own = std::iter::once((&*spec.server, &*spec.path));
    let former = spec
        .former_addresses
        .iter()
        .map(|address| (&*address.server, &*address.path));
    let addresses: Vec<(&str, &str)> = own.chain(former).collect();
    let home = ExpectedLocation {
        backend: &backend.name,
        export_id: known.identity.as_ref().map(|identity| identity.id.as_str()),
        addresses: &addresses,
    };
    let located = locate(volume, &home).map_err(|stop| PlannedCondition::fails(stop.reason, stop.message))?;
    Ok(ReclaimRequest {
        claim: claim_of(volume),
        volume: volume.name_any(),
        directory: located.directory,
        file_id: Some(located.file_id),
        archive_metadata: archive_metadata(volume, known),
    })
}

/// What is said of the volume in the record of its archive. The retention is that of the time of deletion, as the policy is.
pub(crate) fn archive_metadata(volume: &PersistentVolume, known: &ProbeSnapshot) -> ArchiveMetadata {
    let spec = volume.spec.clone().unwrap_or_default();
    ArchiveMetadata {
        size: spec
            .capacity
            .and_then(|capacity| capacity.get("storage").map(|size| size.0.clone())),
        class: spec.storage_class_name.filter(|name| !name.is_empty()),
        retention: retention::seconds(&known.object.spec.archive_policy),
    }
}

/// The claim that a volume was made for.
pub(crate) fn claim_of(volume: &PersistentVolume) -> ClaimRef {
    let claim = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.clone())
        .unwrap_or_default();
    let namespace_uid = volume.annotations().get(VOLUME_NAMESPACE_UID);
    ClaimRef {
        namespace: claim.namespace.unwrap_or_default(),
        namespace_uid: namespace_uid.cloned().unwrap_or_default(),
        name: claim.name.unwrap_or_default(),
        uid: claim.uid.unwrap_or_default(),
    }
}

fn acknowledged(volume: &PersistentVolume) -> bool {
    volume
        .annotations()
        .get(ACKNOWLEDGE_MISSING)
        .is_some_and(|value| value == "true")
}

/// Does with the directory what the policy says.
async fn carry_out(
    export: &ExportStore,
    policy: OnDelete,
    request: &ReclaimRequest,
    acknowledged: bool,
) -> Result<PlannedCondition, ExportError> {
    let done = match policy {
        OnDelete::Archive => export.archive(request).await,
        OnDelete::Delete => export.delete(request).await,
        OnDelete::Retain => export.retain(request).await,
    };
    let directory = &request.directory;
    match done {
        Ok(Reclaimed::Archived { name, warnings }) => {
            let warnings: String = warnings.iter().map(|warning| format!("; warning: {warning}")).collect();
            Ok(PlannedCondition::holds(
                Reason::VolumeArchived,
                format!("directory {directory} is kept as {name}{warnings}"),
            ))
        }
        Ok(Reclaimed::EmptyRemoved) => Ok(PlannedCondition::holds(
            Reason::VolumeDeleted,
            format!("directory {directory} was empty: removed, there was nothing to keep"),
        )),
        Ok(Reclaimed::Deleted) => Ok(PlannedCondition::holds(
            Reason::VolumeDeleted,
            format!("directory {directory} is deleted"),
        )),
        Ok(Reclaimed::AlreadyGone) => Ok(PlannedCondition::holds(
            Reason::VolumeDeleted,
            format!("directory {directory} was gone already"),
        )),
        Ok(Reclaimed::Retained) => Ok(PlannedCondition::holds(
            Reason::VolumeRetained,
            format!("directory {directory} stays as it is"),
        )),
        Err(ExportError::DirectoryMissing { .. }) if acknowledged => {
            export.retain(request).await?;
            Ok(PlannedCondition::holds(
                Reason::VolumeDeleted,
                format!("directory {directory} is missing, as acknowledged"),
            ))
        }
        Err(error) => Err(error),
    }
}

fn failure(ctx: &Context, backend: &Backend, error: &ExportError) -> Outcome {
    let verdict = PlannedCondition::fails(Reason::from(error.kind()), error.to_string());
    if error.outcome_unknown() {
        ctx.request_probe(&backend.name);
        return Outcome::Unknown(verdict);
    }
    if Reason::from(error.kind()).is_connectivity() {
        ctx.request_probe(&backend.name);
        return Outcome::Waiting(verdict);
    }
    Outcome::Failed(verdict)
}

/// Deletes the volume object and drops our finalizer from it.
async fn remove(ctx: &Context, volume: &PersistentVolume) -> Result<(), WriteError> {
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: volume.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&volume.name_any(), &params).await {
        // 409: another object has the name now, so ours is gone.
        Err(error) if matches!(writes::http_status(&error), Some(404 | 409)) => return Ok(()),
        answered => answered.map_err(WriteError::of("delete the volume"))?,
    };
    writes::drop_finalizer(&api, volume, RECLAIM_FINALIZER).await
}
