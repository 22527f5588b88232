//! The reconciler of volumes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::plan::{RecordOwner, VolumePlan, plan, plan_without_transfer};
use super::reclaim::reclaim;
use super::report::{ReclaimOutcome, report};
use super::transfer_record::{TransferOutcome, transfer_record};
use crate::api::backend::OnDelete;
use crate::api::conditions::PlannedCondition;
use crate::api::names::VOLUME_BACKEND;
use crate::decide::reclaim::{Refusal, is_released};
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::volume_metadata;

/// Reconciles a volume.
pub async fn reconcile(volume: Arc<PersistentVolume>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    let own_ref = ObjectRef::from_obj(volume.as_ref());
    let (started, epoch) = (Instant::now(), ctx.waiting_volumes.begin_check(&own_ref));
    let outcome = reconcile_now(&volume, &ctx).await;
    ctx.release_volume_slots(&own_ref);
    Ok(report(&ctx, &volume, &outcome?, started, epoch))
}

async fn reconcile_now(volume: &PersistentVolume, ctx: &Context) -> Result<ReclaimOutcome, WriteError> {
    let outcome = match plan(volume, &ctx.settings, backend_policy(volume, ctx)) {
        // Boxed, like the reclaim: most volumes are bound, and their futures must stay small.
        VolumePlan::TransferRecord => Box::pin(transfer(ctx, volume)).await?,
        VolumePlan::Keep {
            save_metadata,
            finalizers,
        } => keep(ctx, volume, save_metadata, finalizers).await?,
        VolumePlan::Refuse(refusal) => refused(refusal),
        VolumePlan::Reclaim(_) => Box::pin(reclaim(ctx, volume, &RecordOwner::Claim)).await?,
    };
    Ok(outcome)
}

fn refused(refusal: Refusal) -> ReclaimOutcome {
    ReclaimOutcome::Failed(PlannedCondition::fails(refusal.reason, refusal.message))
}

/// Transfers the record of a volume to its claim. If that is not possible, does what else there is to do.
async fn transfer(ctx: &Context, volume: &PersistentVolume) -> Result<ReclaimOutcome, WriteError> {
    let (owner, condition) = match transfer_record(ctx, volume).await? {
        TransferOutcome::Transferred => return Ok(ReclaimOutcome::Nothing),
        TransferOutcome::Changed => return Ok(ReclaimOutcome::Changed),
        TransferOutcome::NotTransferable(owner, condition) => (Some(owner), condition),
        TransferOutcome::NotNow(condition) => (None, condition),
    };
    let rest = plan_without_transfer(volume, &ctx.settings, backend_policy(volume, ctx));
    match (rest, owner) {
        // They depend on the reclaim policy only. The record is not about the claim, so no metadata is saved in it.
        (
            VolumePlan::Keep {
                finalizers: Some(finalizers),
                ..
            },
            _,
        ) => keep(ctx, volume, false, Some(finalizers)).await,
        (VolumePlan::Refuse(refusal), Some(_)) => Ok(refused(refusal)),
        (VolumePlan::Reclaim(_), Some(owner)) => Box::pin(reclaim(ctx, volume, &owner)).await,
        // While the claim exists, nothing waits for the transfer. The reclaim does.
        (_, None) if is_released(volume) => Ok(ReclaimOutcome::Waiting(condition)),
        _ => Ok(ReclaimOutcome::Postponed(condition)),
    }
}

/// Handles a failed write, after which nothing is decided.
pub fn on_error(volume: Arc<PersistentVolume>, error: &WriteError, ctx: Arc<Context>) -> Action {
    // Somebody changed the volume, or deleted it, since it was read.
    if matches!(
        error,
        WriteError::Conflict | WriteError::NotFound | WriteError::Replaced
    ) {
        return Action::requeue(writes::AFTER_CONFLICT);
    }
    tracing::warn!(volume = volume.name_any(), "{error}");
    Action::requeue(writes::pause_after(
        error,
        &ctx.volume_retries,
        &volume.uid().unwrap_or_default(),
    ))
}

/// Returns the policy of a volume's backend in the watch cache. Before a reclaim, it is read from the API server.
fn backend_policy(volume: &PersistentVolume, ctx: &Context) -> OnDelete {
    let backend = volume
        .annotations()
        .get(VOLUME_BACKEND)
        .and_then(|name| ctx.stores.backends.get(&ObjectRef::new(name)));
    // Without its backend, the volume is not reclaimed. Until that is checked, the policy that keeps data is used.
    backend.map_or(OnDelete::Archive, |backend| backend.spec.archive_policy.on_delete)
}

/// Saves the metadata of a volume that is not reclaimed and sets its finalizers, each where needed.
async fn keep(
    ctx: &Context,
    volume: &PersistentVolume,
    save_metadata: bool,
    finalizers: Option<Vec<String>>,
) -> Result<ReclaimOutcome, WriteError> {
    if save_metadata {
        volume_metadata::save(ctx, volume).await;
    }
    let Some(finalizers) = finalizers else {
        return Ok(ReclaimOutcome::Nothing);
    };
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    match writes::set_finalizers(&api, volume, &finalizers).await {
        Ok(()) => Ok(ReclaimOutcome::Nothing),
        Err(WriteError::NotFound | WriteError::Replaced | WriteError::Conflict) => Ok(ReclaimOutcome::Changed),
        Err(error) => Err(error),
    }
}
