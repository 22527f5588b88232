//! Claims that must not be provisioned anew, because their volume may be about to come back.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use super::guard::ClaimRequest;
use super::place::class_under;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::READOPT;
use crate::api::{NfsBackend, RecoveryRequest};
use crate::decide::placement;
use crate::state::context::Context;
use crate::state::recovery::{ClaimName, Word};
use export_store::text::format_bytes;

/// What a claim waits for, if it has to.
pub(crate) fn recovery_hold(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
) -> Option<PlannedCondition> {
    let name = (claim.namespace().unwrap_or_default(), claim.name_any());
    reserved(ctx, &name, claim, request).or_else(|| {
        let backends = ctx.stores.backends.state();
        backends
            .iter()
            .find_map(|backend| coming(ctx, backend, &name, request, namespace))
    })
}

/// A volume that was made again is there for it: what is missing is the control plane's to do, if it can.
fn reserved(
    ctx: &Context,
    name: &ClaimName,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
) -> Option<PlannedCondition> {
    let volume = ctx.recovery_holds.of(name, &claim.uid().unwrap_or_default())?;
    let size = ctx.capacity.size_of(&volume).unwrap_or_default();
    let too_small = if size < request.bytes {
        format!(
            ": this claim asks for {}, so create it anew with {} at most, and expand it later",
            format_bytes(request.bytes),
            format_bytes(size)
        )
    } else {
        " where class and access modes agree".to_owned()
    };
    Some(PlannedCondition::fails(
        Reason::VolumeReserved,
        format!(
            "volume {volume} has this claim's data and is kept for it. It has {}, and is bound by Kubernetes{too_small}. To \
             have the claim provisioned anew, set that volume's persistentVolumeReclaimPolicy to Retain and delete it",
            format_bytes(size)
        ),
    ))
}

/// What a backend that is asked to re-adopt means for a claim.
fn coming(
    ctx: &Context,
    object: &NfsBackend,
    name: &ClaimName,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
) -> Option<PlannedCondition> {
    RecoveryRequest::of(object)?;
    let backend = object.name_any();
    let known = ctx
        .backends
        .get(&backend)
        .filter(|known| Some(&known.uid) == object.metadata.uid.as_ref());
    // What a pass came to counts for the word that it was asked by.
    match known.and_then(|known| known.readoption.outcome(&Word::of(object))) {
        Some(outcome) => outcome.claims.get(name).map(|volume| {
            PlannedCondition::fails(
                Reason::VolumeLeftOut,
                format!(
                    "volume {volume} of a claim of this name is recorded on backend {backend} and was not made again; the \
                     backend's condition Readopted says why. An administrator puts that right, or removes the backend's \
                     annotation {READOPT} to have the claim provisioned anew"
                ),
            )
        }),
        None => could_serve(ctx, object, request, namespace).then(|| {
            PlannedCondition::fails(
                Reason::Readopting,
                format!("backend {backend} is making its volumes again, and this claim's may be among them"),
            )
        }),
    }
}

/// Whether a claim could have a volume on a backend, however that is now.
fn could_serve(
    ctx: &Context,
    backend: &NfsBackend,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
) -> bool {
    let allowed = backend.spec.allowed_namespaces.as_ref();
    // A class that makes no sense is told so where it is placed.
    class_under(ctx, request).is_ok_and(|class| placement::class_permits(&class, &backend.name_any(), backend.labels()))
        && allowed.is_none_or(|allowed| placement::admits(allowed, &namespace.name_any(), namespace.labels()))
}
