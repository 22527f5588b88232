//! Gives a bound claim the size that it asks for.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::plan::{Plan, at_rest, plan, refused, settled};
use super::room::{Room, hold};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::runtime::events::Severity;
use crate::runtime::retry::jittered;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use crate::state::volume_indexer::index_volume;
use crate::state::volume_metadata;
use crate::state::waiting::Epoch;

/// Somebody else wrote meanwhile, or the backend is about to be probed: looked at again soon.
const SOON: Duration = Duration::from_secs(1);
/// A claim that found no room is woken by what makes some; this catches a change that was missed.
const WAITING: Duration = Duration::from_secs(300);

/// Looks at a claim's size and does what is left to do; none when there is nothing.
pub async fn reconcile(
    claim: &PersistentVolumeClaim,
    ctx: &Context,
    looked: Epoch,
) -> Result<Option<Action>, WriteError> {
    let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) else {
        return Ok(None);
    };
    if at_rest(claim) {
        ctx.capacity.settle(volume);
        return Ok(None);
    }
    // Boxed: few claims ever ask for more, and their look must not cost this future's size.
    let done = Box::pin(carry_out(claim, volume, ctx, looked)).await;
    match done {
        Ok(action) => Ok(Some(action)),
        Err(WriteError::Conflict) => Ok(Some(Action::requeue(SOON))),
        Err(WriteError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decides on what is there now, not on what the caches knew, and does it.
async fn carry_out(
    seen: &PersistentVolumeClaim,
    volume: &str,
    ctx: &Context,
    looked: Epoch,
) -> Result<Action, WriteError> {
    let (claims, volumes) = (
        claims(seen, ctx),
        Api::<PersistentVolume>::all(ctx.clients.calls.clone()),
    );
    let claim = live(&claims, &seen.name_any()).await?;
    // A successor of the same name is looked at when its own event comes.
    if claim.uid() != seen.uid() {
        return Err(WriteError::NotFound);
    }
    let volume = live(&volumes, volume).await?;
    let plan = plan(&claim, &volume, &ctx.settings);
    if !matches!(plan, Plan::Grow { .. }) {
        index_volume(&volume, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
        ctx.capacity.settle(&volume.name_any());
    }
    match plan {
        Plan::Nothing => {}
        Plan::Grow { size, bytes, backend } => match hold(ctx, &volume.name_any(), &backend, bytes) {
            Room::Held => {
                let capacity = json!({"spec": {"capacity": {"storage": size}}});
                // Counted until the watch tells that it has it.
                writes::patch_as_read(&volumes, &volume, capacity, false, "set the volume's capacity").await?;
                say(&claims, &claim, &size, ctx).await?;
                volume_metadata::save(ctx, &grown(volume, size)).await;
            }
            Room::Unknown => return Ok(Action::requeue(SOON)),
            Room::Refused(verdict) => {
                ctx.capacity.settle(&volume.name_any());
                return refuse(&claims, &claim, &verdict, ctx, looked).await;
            }
        },
        Plan::Say(size) => {
            say(&claims, &claim, &size, ctx).await?;
            volume_metadata::save(ctx, &volume).await;
        }
        Plan::Clear => write(&claims, &claim, settled(&claim, None)).await?,
    }
    Ok(Action::await_change())
}

/// The object as it is now.
async fn live<K>(api: &Api<K>, name: &str) -> Result<K, WriteError>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let found = api
        .get_opt(name)
        .await
        .map_err(WriteError::of("read a claim and its volume before an expansion"))?;
    found.ok_or(WriteError::NotFound)
}

/// The volume as it is by now.
fn grown(mut volume: PersistentVolume, size: Quantity) -> PersistentVolume {
    let capacity = volume.spec.get_or_insert_default().capacity.get_or_insert_default();
    capacity.insert("storage".to_owned(), size);
    volume
}

/// The volume has it; the claim says so, and an event.
async fn say(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    size: &Quantity,
    ctx: &Context,
) -> Result<(), WriteError> {
    write(claims, claim, settled(claim, Some(size))).await?;
    let note = format!("the volume has {} now", size.0);
    tracing::info!(claim = %ObjectRef::from_obj(claim), size = size.0, "expanded");
    event(ctx, claim, Severity::Normal, Reason::VolumeResizeSuccessful, &note);
    Ok(())
}

/// There is no room: the claim says so, and waits for some or for a smaller request.
async fn refuse(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    verdict: &PlannedCondition,
    ctx: &Context,
    looked: Epoch,
) -> Result<Action, WriteError> {
    if let Some(status) = refused(claim, verdict, Time(Timestamp::now())) {
        write(claims, claim, status).await?;
        let note = format!("{}: {}", verdict.reason, verdict.message);
        tracing::warn!(claim = %ObjectRef::from_obj(claim), reason = %verdict.reason, "not expanded: {}", verdict.message);
        event(ctx, claim, Severity::Warning, Reason::VolumeResizeFailed, &note);
    }
    let waits = ctx.waiting_claims.add(ObjectRef::from_obj(claim), looked);
    Ok(Action::requeue(if waits { jittered(WAITING) } else { Duration::ZERO }))
}

async fn write(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    status: Value,
) -> Result<(), WriteError> {
    writes::patch_as_read(claims, claim, status, true, "set the claim's status").await
}

fn claims(claim: &PersistentVolumeClaim, ctx: &Context) -> Api<PersistentVolumeClaim> {
    Api::namespaced(ctx.clients.calls.clone(), &claim.namespace().unwrap_or_default())
}

fn event(ctx: &Context, claim: &PersistentVolumeClaim, severity: Severity, reason: Reason, note: &str) {
    ctx.events
        .publish(claim.object_ref(&()), severity, reason, "Resize", note);
}
