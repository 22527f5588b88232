//! The reconciler of claims.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::expansion;
use super::guard::{Eligibility, class_name, guard};
use super::provision::provision;
use super::report::{Outcome, condition, report};
use super::volume::{is_of_this_operator, located};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PLACED_ON, volume_name};
use crate::runtime::writes::{self, WriteError};
use crate::state::capacity::CapacityTracker;
use crate::state::context::{Context, Settings};

/// Looks at a claim and does what is left to do.
pub async fn reconcile(claim: Arc<PersistentVolumeClaim>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    let (started, looked) = (Instant::now(), ctx.waiting_claims.epoch());
    let class = class_name(&claim).and_then(|name| ctx.stores.classes.get(&ObjectRef::new(&name)));
    let outcome = match guard(&claim, class.as_deref(), &ctx.settings) {
        Eligibility::Ignore => Outcome::Nothing,
        Eligibility::Bound => bound(&claim, &ctx).await?,
        Eligibility::Lost => lost(&claim),
        Eligibility::Infeasible(verdict) => Outcome::Infeasible(verdict),
        // Boxed: most claims in a cluster are bound, and their look must not cost this future's size.
        Eligibility::Provision(request) => Box::pin(provision(&ctx, &claim, &request)).await?,
    };
    let action = report(&ctx, &claim, outcome, started, looked).await?;
    Ok(expansion::reconcile(&claim, &ctx, looked).await?.unwrap_or(action))
}

/// A claim was deleted: nothing of it is to be remembered.
pub fn gone(claim: &PersistentVolumeClaim, ctx: &Context) {
    let uid = claim.uid().unwrap_or_default();
    ctx.claim_retries.forget(&uid);
    ctx.reschedules.forget(&uid);
    ctx.copy_jobs.stop(&uid);
    ctx.capacity.settle(&volume_name(&uid));
}

/// A failed write: nothing was decided.
pub fn on_error(claim: Arc<PersistentVolumeClaim>, error: &WriteError, ctx: Arc<Context>) -> Action {
    tracing::warn!(claim = %ObjectRef::from_obj(claim.as_ref()), "{error}");
    Action::requeue(writes::pause_after(
        error,
        &ctx.claim_retries,
        &claim.uid().unwrap_or_default(),
    ))
}

/// Whether there is nothing to do about a claim until it changes: nobody asks us to provision it, or it has its volume,
/// says so, and has the size that it asks for. The binder may take minutes for a crowd of claims that have theirs.
pub fn settled(claim: &PersistentVolumeClaim, settings: &Settings, inventory: &CapacityTracker) -> bool {
    // The class decides only whether a claim without volume is provisioned.
    match guard(claim, None, settings) {
        Eligibility::Ignore => expansion::at_rest(claim),
        Eligibility::Bound => untold(claim).is_none() && expansion::at_rest(claim),
        Eligibility::Lost => is_told_lost(claim),
        Eligibility::Infeasible(_) | Eligibility::Provision(_) => {
            is_told_provisioned(claim) && inventory.is_saved(&volume_name(&claim.uid().unwrap_or_default()))
        }
    }
}

/// The claim is bound. If the volume is ours and this process or a former one ended before it said so, it is said now.
async fn bound(claim: &PersistentVolumeClaim, ctx: &Context) -> Result<Outcome, WriteError> {
    let Some(name) = untold(claim) else {
        return Ok(Outcome::Nothing);
    };
    // The cache has no volumes that there is nothing to do about.
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = volumes
        .get_opt(&name)
        .await
        .map_err(WriteError::of("read the claim's volume"))?;
    Ok(match volume {
        // It was here before this operator, and is left as it is.
        Some(volume) if !is_of_this_operator(&volume) && condition(claim).is_none() => Outcome::Nothing,
        // One that was made by hand, while it waited.
        Some(volume) if !is_of_this_operator(&volume) && volume.name_any() != own_name(claim) => Outcome::Nothing,
        Some(volume) => Outcome::Provisioned {
            verdict: PlannedCondition::holds(Reason::Provisioned, located(&volume)),
            now: false,
        },
        // The binder will say that the claim is lost.
        None => Outcome::Nothing,
    })
}

/// The volume of ours that a bound claim does not yet say that it has. Where nothing on the claim is by us, its volume is
/// not either: one that was here before this operator needs no look at it.
fn untold(claim: &PersistentVolumeClaim) -> Option<String> {
    let begun = condition(claim).is_some() || claim.annotations().contains_key(PLACED_ON);
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone())?;
    // One that was made again is named after the claim that it was made for first; who waited may have got that.
    let ours = name == own_name(claim) || is_told_to_wait(claim);
    (ours && begun && !is_told_provisioned(claim)).then_some(name)
}

/// The name of the volume that is made for a claim.
fn own_name(claim: &PersistentVolumeClaim) -> String {
    volume_name(&claim.uid().unwrap_or_default())
}

fn is_told_to_wait(claim: &PersistentVolumeClaim) -> bool {
    condition(claim).is_some_and(|condition| condition.status == "False")
}

fn is_told_provisioned(claim: &PersistentVolumeClaim) -> bool {
    condition(claim).is_some_and(|condition| condition.status == "True")
}

fn is_told_lost(claim: &PersistentVolumeClaim) -> bool {
    condition(claim).is_some_and(|condition| condition.reason.as_deref() == Some("VolumeLost"))
}

/// The volume object is gone: the data may still be there, and the last condition knew where.
fn lost(claim: &PersistentVolumeClaim) -> Outcome {
    if is_told_lost(claim) {
        return Outcome::Nothing;
    }
    let place = condition(claim)
        .and_then(|condition| condition.message.clone())
        .unwrap_or_default();
    let remedy =
        "its volume object is gone; its directory was left alone: create the volume again, or delete the claim";
    Outcome::Infeasible(PlannedCondition::fails(
        Reason::VolumeLost,
        format!("{remedy} (last known: {place})"),
    ))
}

#[cfg(test)]
mod tests;
