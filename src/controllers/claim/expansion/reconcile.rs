//! Expands a bound claim to the size that it requests.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::super::report::{AWAITING_LIMIT, QUEUED};
use super::limit::{self, Limit};
use super::plan::{ExpansionPlan, has_failed, is_settled, plan, refused_status, settled_status};
use super::reserve::{Reservation, reserve};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::qualified_name;
use crate::decide::volume_directory::is_bound_to;
use crate::runtime::concurrency_limiter::{Priority, Slot};
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::retry::jittered;
use crate::runtime::waiting::{Blockers, CapacityDemand, ClaimRef, Epoch};
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::volume_indexer::index_volume;
use crate::state::volume_metadata;

/// Delay if another writer was faster, or if the backend is about to be probed.
const SOON: Duration = Duration::from_secs(1);
/// Time until a claim that waits for capacity is checked again. Freed capacity wakes the claims that wait for it; this
/// catches a missed change.
const WAITING: Duration = Duration::from_secs(300);

/// Reconciles a claim's size. `None` if there is nothing to do.
pub async fn reconcile(
    claim: &PersistentVolumeClaim,
    ctx: &Context,
    epoch: Epoch,
) -> Result<Option<Action>, WriteError> {
    let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) else {
        return Ok(None);
    };
    if is_settled(claim) && !ctx.capacity.is_expanding(volume) {
        return Ok(None);
    }
    // The claim and its volume are read, and its record and its limit are written: at most a few at a time, in turns by
    // namespace.
    let priority = match has_failed(claim) {
        true => Priority::Retry,
        false => Priority::New,
    };
    let backend = ctx.capacity.backend_of(volume).and_then(|name| ctx.backends.get(&name));
    let queued = Ok(Some(Action::requeue(jittered(QUEUED))));
    let Some(_slot) = ctx.work_slot(claim, backend.as_deref(), priority) else {
        return queued;
    };
    // Without a backend, the slot is one for reports already.
    let reading = match &backend {
        Some(_) => match ctx.report_slot(claim) {
            Some(slot) => Some(slot),
            None => return queued,
        },
        None => None,
    };
    // Boxed: few claims are ever expanded, and the futures of the others must stay small.
    let done = Box::pin(expand(claim, volume, ctx, reading, epoch)).await;
    match done {
        Ok(action) => Ok(Some(action)),
        Err(WriteError::Conflict) => Ok(Some(Action::requeue(SOON))),
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Plans with objects read from the API server, not from the caches, and applies the plan. Holds the slot for `reading` until
/// they are read, because the backend may not respond.
async fn expand(
    seen: &PersistentVolumeClaim,
    volume: &str,
    ctx: &Context,
    reading: Option<Slot<'_, ClaimRef>>,
    epoch: Epoch,
) -> Result<Action, WriteError> {
    let claims = claims(seen, ctx);
    let volumes = Api::<PersistentVolume>::all(ctx.clients.calls.clone());
    let volume = read_live(&volumes, volume).await?;
    // The claim may name any volume.
    if !is_bound_to(&volume, seen) {
        return Ok(Action::await_change());
    }
    let claim = match read_live(&claims, &seen.name_any()).await {
        Err(WriteError::NotFound) => None,
        // A recreated claim with the same name has its own event.
        found => Some(found?).filter(|claim| claim.uid() == seen.uid()),
    };
    let Some(claim) = claim else {
        finish(ctx, &volume);
        return Ok(Action::await_change());
    };
    drop(reading);
    let plan = plan(&claim, &volume, &ctx.settings);
    let was_expanding = ctx.capacity.is_expanding(&volume.name_any());
    if !matches!(plan, ExpansionPlan::Grow { .. }) {
        finish(ctx, &volume);
    }
    match plan {
        // The order may be that of a larger size, if the expansion was given up, or of the former one, if all orders were
        // compared meanwhile.
        ExpansionPlan::Nothing if was_expanding && claim.metadata.deletion_timestamp.is_none() => {
            limit::order_current(ctx, &volume).await;
        }
        ExpansionPlan::Nothing => {}
        ExpansionPlan::Grow { size, bytes, backend } => match reserve(ctx, &volume.name_any(), &backend, bytes) {
            Reservation::Reserved => {
                match limit::order(ctx, &backend, (&volume, bytes)).await {
                    Limit::Settled => {}
                    Limit::Pending => return Ok(Action::requeue(jittered(AWAITING_LIMIT))),
                    Limit::Failed(condition) => {
                        return report_failed_limit(&claims, &claim, &condition, ctx).await;
                    }
                }
                let capacity = json!({"spec": {"capacity": {"storage": size}}});
                // The capacity stays reserved until the watch delivers the change.
                writes::patch_as_read(&volumes, &volume, capacity, false, "set the volume's capacity").await?;
                report_size(&claims, &claim, &size, ctx).await?;
                volume_metadata::save(ctx, &with_size(volume, size)).await;
            }
            Reservation::Unknown => return Ok(Action::requeue(SOON)),
            Reservation::Refused { condition, missing } => {
                ctx.capacity.finish_expansion(&volume.name_any());
                let demand = CapacityDemand {
                    namespace: claim.namespace().unwrap_or_default(),
                    backends: [backend.clone()].into(),
                    bytes: missing,
                };
                let blockers = Blockers {
                    capacity: Some(demand),
                    backend: Some(backend.into()),
                    ..Blockers::default()
                };
                return report_refusal(&claims, &claim, &condition, blockers, ctx, epoch).await;
            }
        },
        ExpansionPlan::ReportSize(size) => {
            report_size(&claims, &claim, &size, ctx).await?;
            volume_metadata::save(ctx, &volume).await;
        }
        ExpansionPlan::ClearFailure => match limit::order_current(ctx, &volume).await {
            Limit::Settled => write(&claims, &claim, settled_status(&claim, None)).await?,
            Limit::Pending => return Ok(Action::requeue(jittered(AWAITING_LIMIT))),
            Limit::Failed(condition) => return report_failed_limit(&claims, &claim, &condition, ctx).await,
        },
    }
    Ok(Action::await_change())
}

/// Ends the expansion of a volume that was read: the watch may not have delivered its size yet.
fn finish(ctx: &Context, volume: &PersistentVolume) {
    index_volume(volume, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
    ctx.capacity.finish_expansion(&volume.name_any());
}

/// Reads the current object from the API server.
async fn read_live<K>(api: &Api<K>, name: &str) -> Result<K, WriteError>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let found = reads::get_opt(api, name)
        .await
        .map_err(WriteError::action("read a claim and its volume before an expansion"))?;
    found.ok_or(WriteError::NotFound)
}

/// Returns the volume with its new size.
fn with_size(mut volume: PersistentVolume, size: Quantity) -> PersistentVolume {
    let capacity = volume.spec.get_or_insert_default().capacity.get_or_insert_default();
    capacity.insert("storage".to_owned(), size);
    volume
}

/// Reports the volume's size in the claim's status and in an event.
async fn report_size(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    size: &Quantity,
    ctx: &Context,
) -> Result<(), WriteError> {
    write(claims, claim, settled_status(claim, Some(size))).await?;
    let note = format!("the volume now has {}", size.0);
    tracing::info!(claim = qualified_name(claim), size = size.0, "expanded");
    event(ctx, claim, Severity::Normal, Reason::VolumeResizeSuccessful, &note);
    Ok(())
}

/// Reports that the capacity is not available. The claim waits for capacity or for a smaller request.
async fn report_refusal(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    condition: &PlannedCondition,
    blockers: Blockers<ClaimRef>,
    ctx: &Context,
    epoch: Epoch,
) -> Result<Action, WriteError> {
    write_refusal(claims, claim, condition, ctx).await?;
    let waits = ctx.waiting_claims.add(ObjectRef::from_obj(claim), blockers, epoch);
    Ok(Action::requeue(if waits { jittered(WAITING) } else { Duration::ZERO }))
}

/// Reports that the limit of the new size cannot be set. The report of the quota agent wakes the claim.
async fn report_failed_limit(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    condition: &PlannedCondition,
    ctx: &Context,
) -> Result<Action, WriteError> {
    write_refusal(claims, claim, condition, ctx).await?;
    Ok(Action::requeue(jittered(AWAITING_LIMIT)))
}

async fn write_refusal(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    condition: &PlannedCondition,
    ctx: &Context,
) -> Result<(), WriteError> {
    if let Some(status) = refused_status(claim, condition, Time(ctx.clock.now())) {
        write(claims, claim, status).await?;
        let note = format!("{}: {}", condition.reason, condition.message);
        tracing::warn!(claim = qualified_name(claim), reason = %condition.reason, "cannot expand: {}", condition.message);
        event(ctx, claim, Severity::Warning, Reason::VolumeResizeFailed, &note);
    }
    Ok(())
}

async fn write(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    status: Value,
) -> Result<(), WriteError> {
    let patched = writes::patch_as_read(claims, claim, status, true, "set the claim's status").await;
    patched.map(drop)
}

fn claims(claim: &PersistentVolumeClaim, ctx: &Context) -> Api<PersistentVolumeClaim> {
    Api::namespaced(ctx.clients.calls.clone(), &claim.namespace().unwrap_or_default())
}

fn event(ctx: &Context, claim: &PersistentVolumeClaim, severity: Severity, reason: Reason, note: &str) {
    ctx.events
        .publish(claim.object_ref(&()), severity, reason, "Resize", note);
}
