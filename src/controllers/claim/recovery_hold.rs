//! Claims that must not be provisioned, because their volume may be recovered.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use super::eligibility::ClaimRequest;
use super::placement::class_for_placement;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::READOPT;
use crate::api::{NfsBackend, RecoveryRequest};
use crate::decide::placement;
use crate::state::context::Context;
use crate::state::recovery::{BackendRevision, ClaimName};
use export_store::text::format_bytes;

/// Returns the condition of a claim that must wait for the recovery of volumes.
pub(crate) fn recovery_hold(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
) -> Option<PlannedCondition> {
    let name = (claim.namespace().unwrap_or_default(), claim.name_any());
    reserved_volume(ctx, &name, claim, request).or_else(|| {
        let backends = ctx.stores.backends.state();
        backends
            .iter()
            .find_map(|backend| pending_recovery(ctx, backend, &name, request, namespace))
    })
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
            format_bytes(request.bytes),
            format_bytes(size)
        )
    } else {
        "Kubernetes binds it if class and access modes match".to_owned()
    };
    Some(PlannedCondition::fails(
        Reason::VolumeReserved,
        format!(
            "volume {volume} has this claim's data and is reserved for it. It has {}; {binding}. To have the claim \
             provisioned instead, set that volume's persistentVolumeReclaimPolicy to Retain and delete it",
            format_bytes(size)
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
    let backend = object.name_any();
    let running = ctx
        .backends
        .get(&backend)
        .filter(|running| Some(&running.uid) == object.metadata.uid.as_ref());
    // The result of a recovery applies only to the request that it is for.
    match running.and_then(|running| running.recovery.outcome(&BackendRevision::of(object))) {
        Some(outcome) => outcome.claims.get(name).map(|volume| {
            PlannedCondition::fails(
                Reason::VolumeLeftOut,
                format!(
                    "volume {volume} of a claim of this name is recorded on backend {backend} and was not recovered; the \
                     backend's condition Readopted has the reason. An administrator must fix the cause, or remove the \
                     backend's annotation {READOPT} to have the claim provisioned"
                ),
            )
        }),
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
    class_for_placement(ctx, request)
        .is_ok_and(|class| placement::class_permits(&class, &backend.name_any(), backend.labels()))
        && allowed
            .is_none_or(|allowed| placement::is_namespace_allowed(allowed, &namespace.name_any(), namespace.labels()))
}
