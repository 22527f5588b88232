//! The reconciler of volumes.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::plan::{VolumePlan, plan};
use super::reclaim::reclaim;
use super::report::{ReclaimOutcome, report};
use super::transfer_record::transfer_record;
use crate::api::backend::OnDelete;
use crate::api::conditions::PlannedCondition;
use crate::api::names::VOLUME_BACKEND;
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
        VolumePlan::TransferRecord => Box::pin(transfer_record(ctx, volume)).await?,
        VolumePlan::Keep {
            save_metadata,
            finalizers,
        } => keep(ctx, volume, save_metadata, finalizers).await?,
        VolumePlan::Refuse(refusal) => ReclaimOutcome::Failed(PlannedCondition::fails(refusal.reason, refusal.message)),
        VolumePlan::Reclaim(_) => Box::pin(reclaim(ctx, volume)).await?,
    };
    Ok(outcome)
}

/// Handles a failed write, after which nothing is decided.
pub fn on_error(volume: Arc<PersistentVolume>, error: &WriteError, ctx: Arc<Context>) -> Action {
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
