//! The reconciler of claims.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;

use super::guard::{Guard, class_name, guard};
use super::provision::provision;
use super::report::{Outcome, condition, report};
use super::volume::located;
use crate::api::conditions::{Reason, Verdict};
use crate::api::names::volume_name;
use crate::controllers::expansion;
use crate::operator::context::Context;
use crate::operator::writes::{self, WriteError};

/// Looks at a claim and does what is left to do.
pub async fn reconcile(claim: Arc<PersistentVolumeClaim>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.caught_up().await {
        return Ok(Action::await_change());
    }
    let (started, looked) = (Instant::now(), ctx.waiting.moment());
    let class = class_name(&claim).and_then(|name| ctx.stores.classes.get(&ObjectRef::new(&name)));
    let outcome = match guard(&claim, class.as_deref(), &ctx.settings) {
        Guard::Pass => Outcome::Nothing,
        Guard::Bound => bound(&claim, &ctx),
        Guard::Lost => lost(&claim),
        Guard::Infeasible(verdict) => Outcome::Infeasible(verdict),
        // Boxed: most claims in a cluster are bound, and their look must not cost this future's size.
        Guard::Provision(request) => Box::pin(provision(&ctx, &claim, &request)).await?,
    };
    let action = report(&ctx, &claim, outcome, started, looked).await?;
    Ok(expansion::reconcile(&claim, &ctx, looked).await?.unwrap_or(action))
}

/// A claim was deleted: nothing of it is to be remembered.
pub fn gone(claim: &PersistentVolumeClaim, ctx: &Context) {
    let uid = claim.uid().unwrap_or_default();
    ctx.claim_retries.forget(&uid);
    ctx.reschedules.forget(&uid);
    ctx.inventory.settle(&volume_name(&uid));
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

/// The claim is bound. If the volume is ours and this process or a former one ended before it said so, it is said now.
fn bound(claim: &PersistentVolumeClaim, ctx: &Context) -> Outcome {
    if condition(claim).is_some_and(|condition| condition.status == "True") {
        return Outcome::Nothing;
    }
    let name = volume_name(&claim.uid().unwrap_or_default());
    if claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()) != Some(&name) {
        return Outcome::Nothing;
    }
    match ctx.stores.volumes.get(&ObjectRef::new(&name)) {
        Some(volume) => Outcome::Provisioned {
            verdict: Verdict::yes(Reason::Provisioned, located(&volume)),
            now: false,
        },
        // The claim's event came before the volume's.
        None => Outcome::Queued,
    }
}

/// The volume object is gone: the data may still be there, and the last condition knew where.
fn lost(claim: &PersistentVolumeClaim) -> Outcome {
    if condition(claim).is_some_and(|condition| condition.reason.as_deref() == Some("VolumeLost")) {
        return Outcome::Nothing;
    }
    let place = condition(claim)
        .and_then(|condition| condition.message.clone())
        .unwrap_or_default();
    let remedy =
        "its volume object is gone; its directory was left alone: create the volume again, or delete the claim";
    Outcome::Infeasible(Verdict::no(
        Reason::VolumeLost,
        format!("{remedy} (last known: {place})"),
    ))
}
