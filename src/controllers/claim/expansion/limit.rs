//! The limit of a volume whose size changes. With `enforce: Required`, an expansion is complete only once the new limit is in
//! force; otherwise, a program would see the new size and could not use it.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::super::limit::order_size;
use super::plan::{reported_bytes, volume_bytes};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::VOLUME_BACKEND;
use crate::state::context::Context;

/// State of the limit of a volume whose size changes.
pub(super) enum Limit {
    /// It is in force, or nobody waits for it.
    Settled,
    /// It was ordered, and its claim is woken once it is in force.
    Pending,
    /// It cannot be set.
    Failed(PlannedCondition),
}

/// Orders the limit for a volume of `bytes`.
pub(super) async fn order(ctx: &Context, backend: &str, (volume, bytes): (&PersistentVolume, u128)) -> Limit {
    let Some(backend) = ctx.backends.get(backend) else {
        return Limit::Settled;
    };
    let known = backend.last_probe();
    let Some(settings) = &known.object.spec.quota else {
        return Limit::Settled;
    };
    let Some(export) = &known.store else {
        // The next probe that finds the export does not wake the claim, so it is checked again soon.
        return if settings.is_required() {
            Limit::Pending
        } else {
            Limit::Settled
        };
    };
    let name = volume.name_any();
    match order_size(&backend, export, settings, (&name, bytes)).await {
        Ok(None) => Limit::Settled,
        Ok(Some(condition)) if condition.reason == Reason::LimitFailed => Limit::Failed(condition),
        Ok(Some(_)) => Limit::Pending,
        Err(error) => {
            tracing::warn!(
                backend = backend.name,
                volume = name,
                "failed to order the limit of an expansion: {error}"
            );
            ctx.request_probe(&backend.name);
            match settings.is_required() {
                true => Limit::Pending,
                // The next comparison of all orders repeats it.
                false => Limit::Settled,
            }
        }
    }
}

/// Orders the limit for the size that a volume has.
pub(super) async fn order_current(ctx: &Context, volume: &PersistentVolume) -> Limit {
    match (volume.annotations().get(VOLUME_BACKEND), volume_bytes(volume)) {
        (Some(backend), Some(bytes)) => order(ctx, backend, (volume, bytes)).await,
        _ => Limit::Settled,
    }
}

/// Orders the size that a volume has, after an expansion was given up before it succeeded.
pub(super) async fn restore(claim: &PersistentVolumeClaim, volume: &str, ctx: &Context) {
    let Some(bytes) = ctx.capacity.size_of(volume) else {
        return;
    };
    let Some(backend) = ctx.capacity.backend_of(volume).and_then(|name| ctx.backends.get(&name)) else {
        return;
    };
    // The expansion succeeded, and the watch has not delivered the larger volume yet. A comparison may have ordered the
    // former size meanwhile.
    if reported_bytes(claim) > bytes {
        backend.quota.sync_requested.notify_one();
        return;
    }
    let known = backend.last_probe();
    if let (Some(settings), Some(export)) = (&known.object.spec.quota, &known.store)
        && let Err(error) = order_size(&backend, export, settings, (volume, bytes)).await
    {
        tracing::warn!(
            backend = backend.name,
            volume,
            "failed to order the former limit: {error}"
        );
        backend.quota.sync_requested.notify_one();
    }
}
