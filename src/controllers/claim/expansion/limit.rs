//! The limit of a volume whose size changes. With `enforce: Required`, an expansion is complete only once the new limit is in
//! force; otherwise, a program would see the new size and could not use it.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use super::super::limit::order_size;
use super::plan::volume_bytes;
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
            // Nobody else repeats it if the expansion has ended or does not wait for the limit.
            backend.quota.sync_requested.notify_one();
            match settings.is_required() {
                true => Limit::Pending,
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
