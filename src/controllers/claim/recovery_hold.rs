//! Claims that must not be provisioned, because their volume may be recovered.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;

use super::eligibility::ClaimRequest;
use super::placement::class_for_placement;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{ABANDON_LOST_VOLUMES, READOPT};
use crate::api::{AbandonedVolumes, NfsBackend, RecoveryRequest};
use crate::decide::placement;
use crate::state::backends::unread;
use crate::state::context::Context;
use crate::state::recovery::{BackendRevision, ClaimName, LostVolume};
use export_store::text::format_amount;

/// Returns the condition of a claim that must wait for the recovery of volumes.
pub(crate) async fn recovery_hold(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
) -> Option<PlannedCondition> {
    let name = (claim.namespace().unwrap_or_default(), claim.name_any());
    if let Some(condition) = reserved_volume(ctx, &name, claim, request) {
        return Some(condition);
    }
    let backends = ctx.stores.backends.state();
    if let Some(condition) = backends.iter().find_map(|backend| {
        pending_recovery(ctx, backend, &name, request, namespace)
            .or_else(|| unread_records(ctx, backend, request, namespace))
    }) {
        return Some(condition);
    }
    for lost in ctx.recovery_holds.lost_of(&name, &claim.uid().unwrap_or_default()) {
        if is_lost(ctx, &lost).await && !is_given_up(ctx, &lost) {
            return Some(lost_volume(&lost));
        }
    }
    None
}

/// Returns the condition of a claim that a backend could serve whose records have to be read first: one of them may show
/// that this claim's volume was lost, and another backend would give the claim an empty one. A backend that an
/// administrator gave up has no such effect.
fn unread_records(
    ctx: &Context,
    object: &NfsBackend,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
) -> Option<PlannedCondition> {
    let running = ctx.backends.get(object.metadata.name.as_deref().unwrap_or_default());
    let unread = match running.filter(|running| Some(&running.uid) == object.metadata.uid.as_ref()) {
        Some(backend) => backend.unread_records()?,
        None => unread(
            PlannedCondition::unknown(Reason::NotProbed, "not probed yet"),
            &object.uid().unwrap_or_default(),
        ),
    };
    let holds = !AbandonedVolumes::of(object).all() && could_serve(ctx, object, request, namespace);
    holds.then(|| {
        let backend = object.name_any();
        let message = format!("backend {backend}: {}", unread.message);
        PlannedCondition::fails(unread.reason, message)
    })
}

/// Reports whether a volume is still lost. Reads its record again, because the volume may have been recovered or reclaimed
/// since.
async fn is_lost(ctx: &Context, lost: &LostVolume) -> bool {
    let export = ctx
        .backends
        .get(&lost.backend)
        .and_then(|backend| backend.last_probe().store.clone());
    let Some(export) = export else { return true };
    match export.claim_in_use(&lost.volume).await {
        Ok(claim) if claim.as_ref().is_some_and(|claim| claim.uid == lost.claim_uid) => true,
        Ok(_) => {
            ctx.recovery_holds.forget_lost(&lost.volume);
            false
        }
        Err(error) => {
            tracing::warn!(
                backend = &*lost.backend,
                volume = lost.volume,
                "failed to read the record of a lost volume; its claim waits: {error}"
            );
            true
        }
    }
}

fn is_given_up(ctx: &Context, lost: &LostVolume) -> bool {
    let object = ctx.stores.backends.get(&ObjectRef::new(&lost.backend));
    object.is_some_and(|object| AbandonedVolumes::of(&object).includes(&lost.volume))
}

/// Returns the condition of a claim whose name is that of a lost volume's claim.
fn lost_volume(lost: &LostVolume) -> PlannedCondition {
    let LostVolume { volume, backend, .. } = lost;
    PlannedCondition::fails(
        Reason::RecordedVolumeMissing,
        format!(
            "the record of volume {volume} on backend {backend} shows that a claim of this name uses it, but there is no \
             such PersistentVolume; a new volume would be empty. If the data is this claim's, an administrator recreates the \
             volume (kubectl annotate --overwrite nfsb {backend} {READOPT}={volume}@$(date +%s)); with \
             {ABANDON_LOST_VOLUMES}={volume}, claims of this name get new volumes"
        ),
    )
}

/// Returns the condition of a claim for which a recovered volume is reserved. Kubernetes binds it, if it matches the
/// claim.
fn reserved_volume(
    ctx: &Context,
    name: &ClaimName,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
) -> Option<PlannedCondition> {
    let volume = ctx.recovery_holds.held_for(name, &claim.uid().unwrap_or_default())?;
    let size = ctx.capacity.size_of(&volume).unwrap_or_default();
    let binding = if size < request.bytes {
        format!(
            "this claim requests {}: recreate it with at most {}, and expand it later",
            format_amount(request.bytes),
            format_amount(size)
        )
    } else {
        "Kubernetes binds it if class and access modes match".to_owned()
    };
    Some(PlannedCondition::fails(
        Reason::VolumeReserved,
        format!(
            "volume {volume} has this claim's data and is reserved for it. It has {}; {binding}. To have the claim \
             provisioned instead, set that volume's persistentVolumeReclaimPolicy to Retain, delete it, and annotate its \
             backend with {ABANDON_LOST_VOLUMES}={volume}",
            format_amount(size)
        ),
    ))
}

/// Returns the condition of a claim whose volume may be recovered from a backend.
fn pending_recovery(
    ctx: &Context,
    object: &NfsBackend,
    name: &ClaimName,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
) -> Option<PlannedCondition> {
    RecoveryRequest::of(object)?;
    let abandoned = AbandonedVolumes::of(object);
    let backend = object.name_any();
    let running = ctx
        .backends
        .get(&backend)
        .filter(|running| Some(&running.uid) == object.metadata.uid.as_ref());
    // The result of a recovery applies only to the request that it is for.
    match running.and_then(|running| running.recovery.outcome(&BackendRevision::of(object))) {
        Some(outcome) => outcome.claims.get(name).filter(|volume| !abandoned.includes(volume)).map(|volume| {
            PlannedCondition::fails(
                Reason::VolumeLeftOut,
                format!(
                    "volume {volume} of a claim of this name is recorded on backend {backend} and was not recovered; the \
                     backend's condition Readopted has the reason. An administrator must fix the cause, or annotate \
                     the backend with {ABANDON_LOST_VOLUMES}={volume} to have the claim provisioned"
                ),
            )
        }),
        None if abandoned.all() => None,
        None => could_serve(ctx, object, request, namespace).then(|| {
            PlannedCondition::fails(
                Reason::Readopting,
                format!("backend {backend} is recovering its volumes, and this claim's volume may be among them"),
            )
        }),
    }
}

/// Returns true if a claim could have a volume on a backend, whatever the backend's current state.
fn could_serve(
    ctx: &Context,
    backend: &NfsBackend,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
) -> bool {
    let allowed = backend.spec.allowed_namespaces.as_ref();
    // Placement reports an invalid class.
    class_for_placement(ctx, request, None)
        .is_ok_and(|class| placement::class_permits(&class, &backend.name_any(), backend.labels()))
        && allowed
            .is_none_or(|allowed| placement::is_namespace_allowed(allowed, &namespace.name_any(), namespace.labels()))
}
