//! The reconciler of claims.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::eligibility::{Eligibility, check_eligibility, class_name, requested_provisioner};
use super::expansion;
use super::placement::pending_backend;
use super::provision::{provision, release_unused};
use super::report::{ProvisionOutcome, is_reported_waiting, provisioned_condition, report};
use super::volume_object::is_of_this_operator;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{PLACED_ON, READOPT, qualified_name, volume_name};
use crate::decide::volume_directory::is_bound_to;
use crate::decide::volume_location::{backend_in, volume_location};
use crate::runtime::readiness::Cache;
use crate::runtime::reads;
use crate::runtime::waiting::Epoch;
use crate::runtime::writes::{self, WriteError};
use crate::state::cached_claim::CachedClaim;
use crate::state::capacity::CapacityTracker;
use crate::state::context::{Context, Settings};

/// Reconciles a claim.
pub async fn reconcile(claim: Arc<CachedClaim>, ctx: Arc<Context>) -> Result<Action, WriteError> {
    if !ctx.wait_for_sync().await {
        return Ok(Action::await_change());
    }
    // Boxed, and decoded here: after a start, any number of claims wait above.
    Box::pin(reconcile_synced(&claim, &ctx)).await
}

async fn reconcile_synced(cached: &CachedClaim, ctx: &Arc<Context>) -> Result<Action, WriteError> {
    let claim = cached.decode().map_err(kube::Error::SerdeError);
    let claim = claim.map_err(WriteError::action("decode the claim of the watch cache"))?;
    let own_ref = ObjectRef::from_obj(&claim);
    let (started, epoch) = (Instant::now(), ctx.waiting_claims.begin_check(&own_ref));
    let result = reconcile_now(&claim, ctx, started, epoch).await;
    ctx.release_claim_slots(&own_ref);
    result
}

async fn reconcile_now(
    claim: &PersistentVolumeClaim,
    ctx: &Arc<Context>,
    started: Instant,
    epoch: Epoch,
) -> Result<Action, WriteError> {
    let class = class_name(claim).and_then(|name| ctx.stores.classes.get(&ObjectRef::new(&name)));
    // Held until the outcome is reported.
    let mut slot = None;
    let outcome = match check_eligibility(claim, class.as_deref(), &ctx.settings.served) {
        Eligibility::Ignore => ProvisionOutcome::Nothing,
        Eligibility::Bound => match unreported_volume(claim, &ctx.settings, |volume| may_have_created(ctx, volume)) {
            None => ProvisionOutcome::Nothing,
            Some(volume) => {
                slot = ctx.report_slot(claim);
                match &slot {
                    None => ProvisionOutcome::Queued,
                    Some(_) => report_bound(claim, &volume, ctx).await?,
                }
            }
        },
        Eligibility::Lost => report_lost(claim, ctx).await?,
        Eligibility::Infeasible(condition) => ProvisionOutcome::Infeasible(condition),
        // Boxed: most claims are bound, and their futures must stay small.
        Eligibility::Provision(request) => Box::pin(provision(ctx, claim, &request)).await?,
    };
    let action = report(ctx, claim, outcome, started, epoch).await?;
    drop(slot);
    // The size comes after the report: otherwise, the action of an expansion would replace that of a report that has to
    // be repeated.
    if action != Action::await_change() {
        return Ok(action);
    }
    Ok(expansion::reconcile(claim, ctx, epoch).await?.unwrap_or(action))
}

/// Forgets a deleted claim.
pub fn forget(claim: &PersistentVolumeClaim, ctx: &Context) {
    let uid = claim.uid().unwrap_or_default();
    ctx.claim_retries.reset(&uid);
    ctx.reschedules.forget(&uid);
    ctx.last_written.forget(&uid);
    ctx.recovery_holds.forget_claim(&uid);
    ctx.copy_jobs.abort(&uid);
    // A copy that was only queued has no directory that garbage collection would find.
    release_unused(ctx, claim);
    ctx.capacity.finish_expansion(&volume_name(&uid));
}

/// Handles a change of the cache: a claim that left it waits for nothing, and a claim that is bound can be copied.
pub fn observe_cached(event: &watcher::Event<CachedClaim>, ctx: &Context) {
    let (watcher::Event::Apply(claim) | watcher::Event::Delete(claim)) = event else {
        return;
    };
    let own_ref = ObjectRef::new(&claim.name_any()).within(&claim.namespace().unwrap_or_default());
    if matches!(event, watcher::Event::Delete(_)) {
        ctx.forget_claim(&own_ref);
    }
    if claim.is_bound() {
        ctx.waiting_claims.wake_dependents(&own_ref);
    }
}

/// Handles a failed write, after which nothing is decided.
pub fn on_error(claim: Arc<CachedClaim>, error: &WriteError, ctx: Arc<Context>) -> Action {
    tracing::warn!(claim = qualified_name(claim.as_ref()), "{error}");
    Action::requeue(writes::pause_after(
        error,
        &ctx.claim_retries,
        &claim.uid().unwrap_or_default(),
    ))
}

/// Returns true if there is nothing to do about a claim until it changes: this operator does not provision it, or it
/// has its volume, reports that, and has the size that it requests. The binder may take minutes to bind many claims.
/// `may_have_created` is [`may_have_created`].
pub fn is_settled(
    claim: &PersistentVolumeClaim,
    settings: &Settings,
    capacity: &CapacityTracker,
    may_have_created: impl FnOnce(&str) -> bool,
) -> bool {
    // The class matters only for a claim without volume.
    match check_eligibility(claim, None, &settings.served) {
        Eligibility::Ignore => expansion::is_settled(claim),
        Eligibility::Bound => {
            unreported_volume(claim, settings, may_have_created).is_none() && expansion::is_settled(claim)
        }
        Eligibility::Lost => is_reported_lost(claim),
        Eligibility::Infeasible(_) | Eligibility::Provision(_) => {
            is_reported_provisioned(claim) && capacity.has_volume(&own_volume_name(claim))
        }
    }
}

/// Reports the volume of a bound claim, if this operator created it and the process that did so ended before it
/// reported that.
async fn report_bound(
    claim: &PersistentVolumeClaim,
    name: &str,
    ctx: &Context,
) -> Result<ProvisionOutcome, WriteError> {
    // The cache does not contain settled volumes.
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = reads::get_opt(&volumes, name)
        .await
        .map_err(WriteError::action("read the claim's volume"))?;
    Ok(match volume {
        // Its claim may name any volume; only its own may be revealed.
        Some(volume) if !is_bound_to(&volume, claim) => ProvisionOutcome::Nothing,
        // The volume existed before this operator.
        Some(volume) if !is_of_this_operator(&volume) && provisioned_condition(claim).is_none() => {
            ProvisionOutcome::Nothing
        }
        // The volume was created manually while the claim waited.
        Some(volume) if !is_of_this_operator(&volume) && volume.name_any() != own_volume_name(claim) => {
            ProvisionOutcome::Nothing
        }
        Some(volume) => ProvisionOutcome::Provisioned {
            condition: PlannedCondition::holds(Reason::Provisioned, volume_location(&volume, claim)),
            created_now: false,
        },
        // The binder is going to set the claim's phase to Lost.
        None => ProvisionOutcome::Nothing,
    })
}

/// Returns the volume of a bound claim that requested one, if the claim does not report it yet. A volume that existed
/// before this operator is not read: without the operator's annotation and condition, only a volume of the claim's own name
/// counts that the operator `may_have_created`.
fn unreported_volume(
    claim: &PersistentVolumeClaim,
    settings: &Settings,
    may_have_created: impl FnOnce(&str) -> bool,
) -> Option<String> {
    let name = named_volume(claim)?;
    // A recovered volume has the name of its previous claim; a claim that waited may be bound to it.
    let is_own = name == own_volume_name(claim);
    if is_reported_provisioned(claim) || !(is_own || is_reported_waiting(claim)) {
        return None;
    }
    // Claims under an alias have the annotation.
    let is_aliased = || requested_provisioner(claim).is_some_and(|name| settings.served.aliases.contains_key(name));
    let was_processed = provisioned_condition(claim).is_some()
        || claim.annotations().contains_key(PLACED_ON)
        || (!is_aliased() && may_have_created(name));
    was_processed.then(|| name.to_owned())
}

/// Returns true if the operator created the volume of this name, or may have done so: it began its directory, or the volumes
/// were not listed yet.
pub fn may_have_created(ctx: &Context, volume: &str) -> bool {
    match ctx.capacity.location_of(volume) {
        // A volume of nfs-subdir has none.
        Some((_, export_id)) => export_id.is_some(),
        None => !ctx.readiness.is_filled(Cache::Volumes) || pending_backend(ctx, volume).is_some(),
    }
}

/// Returns the name of the volume that a claim is, or is to be, bound to.
fn named_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref()
}

/// Returns the name of the volume that is provisioned for a claim.
fn own_volume_name(claim: &PersistentVolumeClaim) -> String {
    volume_name(&claim.uid().unwrap_or_default())
}

fn is_reported_provisioned(claim: &PersistentVolumeClaim) -> bool {
    provisioned_condition(claim).is_some_and(|condition| condition.status == "True")
}

fn is_reported_lost(claim: &PersistentVolumeClaim) -> bool {
    let reason = Reason::VolumeLost.to_string();
    provisioned_condition(claim).is_some_and(|condition| condition.reason.as_deref() == Some(&reason))
}

/// Reports that the volume object of a claim was deleted. The data may still exist, and the last condition has its
/// location.
///
/// A volume that exists was bound to another claim, by its populator or by an administrator. The binder reports that.
async fn report_lost(claim: &PersistentVolumeClaim, ctx: &Context) -> Result<ProvisionOutcome, WriteError> {
    if is_reported_lost(claim) {
        return Ok(ProvisionOutcome::Nothing);
    }
    // Released before the condition is written, which needs a slot, too.
    let Some(_slot) = ctx.report_slot(claim) else {
        return Ok(ProvisionOutcome::Queued);
    };
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = reads::get_opt(&volumes, named_volume(claim).unwrap_or_default()).await;
    let volume = volume.map_err(WriteError::action("read the volume of a lost claim"))?;
    Ok(match volume {
        Some(_) => ProvisionOutcome::Nothing,
        None => {
            let exists = |backend: &str| ctx.backends.get(backend).is_some();
            ProvisionOutcome::Infeasible(lost(claim, exists))
        }
    })
}

/// Returns the condition of a claim whose volume object was deleted. `exists` returns true for the name of a backend.
fn lost(claim: &PersistentVolumeClaim, exists: impl Fn(&str) -> bool) -> PlannedCondition {
    let location = provisioned_condition(claim)
        .and_then(|condition| condition.message.clone())
        .unwrap_or_default();
    let backend = backend_in(&location).filter(|name| exists(name)).unwrap_or("BACKEND");
    // The text behind the @ makes it a new request, if the volume was lost before.
    PlannedCondition::fails(
        Reason::VolumeLost,
        format!(
            "its volume object was deleted; its directory was left alone: recreate the volume from its record (kubectl \
             annotate --overwrite nfsb {backend} {READOPT}={}@$(date +%s)), or delete the claim (last known: {location})",
            named_volume(claim).unwrap_or_default()
        ),
    )
}

#[cfg(test)]
mod tests;
