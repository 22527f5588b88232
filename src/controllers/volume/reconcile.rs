//! The reconciler of volumes.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::reclaim::reclaim;
use super::report::{Outcome, report};
use super::{hand_over, note};
use crate::api::backend::OnDelete;
use crate::api::conditions::PlannedCondition;
use crate::api::names::{RECLAIM_FINALIZER, VOLUME_BACKEND};
use crate::decide::policy::{self, Decision};
use crate::runtime::writes::{self, WriteError};
use crate::state::context::{Context, Settings};

/// Looks at a volume and does what is left to do.
pub async fn reconcile(volume: Arc<PersistentVolume>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    let (started, looked) = (Instant::now(), ctx.waiting_volumes.moment());
    let outcome = match decide(&volume, &ctx) {
        // Before anything is done with it: until then the record is not its claim's.
        _ if hand_over::is_due(&volume) => Box::pin(hand_over::transfer_record(&ctx, &volume)).await?,
        Decision::Nothing => {
            note_end(&volume, &ctx).await;
            set_finalizers(&volume, &ctx, missing_finalizer(&volume, &ctx.settings)).await?
        }
        Decision::DropFinalizer => {
            // Whoever makes it again is to know that it is not to be reclaimed.
            note::keep(&ctx, &volume).await;
            let others = writes::with_finalizer(&volume.metadata, RECLAIM_FINALIZER, false);
            set_finalizers(&volume, &ctx, others).await?
        }
        Decision::Stop(stop) => Outcome::Failed(PlannedCondition::fails(stop.reason, stop.message)),
        // Boxed: most volumes in a cluster are bound, and their look must not cost this future's size.
        Decision::Reclaim(_) => Box::pin(reclaim(&ctx, &volume)).await?,
    };
    Ok(report(&ctx, &volume, &outcome, started, looked))
}

/// A failed write: nothing was decided.
pub fn on_error(volume: Arc<PersistentVolume>, error: &WriteError, ctx: Arc<Context>) -> Action {
    tracing::warn!(volume = volume.name_any(), "{error}");
    Action::requeue(writes::pause_after(
        error,
        &ctx.volume_retries,
        &volume.uid().unwrap_or_default(),
    ))
}

/// What becomes of a volume as it stands, by the policy that its backend has now.
pub fn decide(volume: &PersistentVolume, ctx: &Context) -> Decision {
    let backend = volume
        .annotations()
        .get(VOLUME_BACKEND)
        .and_then(|name| ctx.stores.backends.get(&ObjectRef::new(name)));
    // A backend that is gone stops the reclaim further on; until then the policy that keeps data stands in for its.
    let policy = backend.map_or(OnDelete::Archive, |backend| backend.spec.archive_policy.on_delete);
    // Whether the directory was adopted is in its record: the export archives it then.
    policy::decide(volume, &ctx.settings.provisioners(), policy, false)
}

/// Whether there is nothing to do about a volume until it changes.
pub fn settled(volume: &PersistentVolume, settings: &Settings) -> bool {
    // Whatever the backend's policy is: it only chooses between ways to reclaim.
    let decision = policy::decide(volume, &settings.provisioners(), OnDelete::Archive, false);
    decision == Decision::Nothing
        && missing_finalizer(volume, settings).is_none()
        && !note::is_kept_without_claim(volume)
        && !hand_over::is_due(volume)
}

/// A volume that is nobody's any more, and stays: whoever makes it again is to know.
async fn note_end(volume: &PersistentVolume, ctx: &Context) {
    if note::is_kept_without_claim(volume) {
        note::keep(ctx, volume).await;
    }
}

/// The finalizers that a volume should have, when ours is missing. A policy edited to Delete: the data is ours to
/// reclaim, so the volume must not vanish before.
fn missing_finalizer(volume: &PersistentVolume, settings: &Settings) -> Option<Vec<String>> {
    let needed = policy::needs_finalizer(volume, &settings.provisioners());
    needed.then(|| writes::with_finalizer(&volume.metadata, RECLAIM_FINALIZER, true))?
}

async fn set_finalizers(
    volume: &PersistentVolume,
    ctx: &Context,
    wanted: Option<Vec<String>>,
) -> Result<Outcome, WriteError> {
    let Some(finalizers) = wanted else {
        return Ok(Outcome::Nothing);
    };
    let api: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    match writes::set_finalizers(&api, volume, &finalizers).await {
        Err(WriteError::NotFound | WriteError::Conflict) => Ok(Outcome::Changed),
        Err(error) => Err(error),
        Ok(()) => Ok(Outcome::Nothing),
    }
}
