//! What a claim's size asks for, and what its status is to say. Pure.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::conditions::PlannedCondition;
use crate::api::names::{PROVISIONED_BY, VOLUME_BACKEND};
use crate::decide::placement::quantity::bytes;
use crate::state::context::Settings;

/// The condition that a resizer leaves on a claim that it cannot expand (core/v1 `PersistentVolumeClaimConditionType`).
const RESIZE_ERROR: &str = "ControllerResizeError";
/// The conditions that end with an expansion.
const RESIZE_CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "NodeResizeError", RESIZE_ERROR];
/// The state of a resource that cannot be expanded as asked (core/v1 `ClaimResourceStatus`).
const INFEASIBLE: &str = "ControllerResizeInfeasible";

/// What is to be done about a claim's size.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// Nothing: not ours, or it has what it asks for.
    Nothing,
    /// The volume is to have this much.
    Grow {
        /// The claim's own text.
        size: Quantity,
        /// The same in bytes.
        bytes: u128,
        /// Where the room is to come from.
        backend: String,
    },
    /// The volume has more than the claim says: it is to say this.
    Say(Quantity),
    /// It asks no more for what could not be had: what was said of that is to go.
    Clear,
}

/// Decides it. Only a Bound claim and the volume that is bound to it count, and only volumes that we made.
pub fn plan(claim: &PersistentVolumeClaim, volume: &PersistentVolume, settings: &Settings) -> Plan {
    let Some(backend) = ours(volume, settings) else {
        return Plan::Nothing;
    };
    if claim.metadata.deletion_timestamp.is_some() || !is_bound(claim, volume) {
        return Plan::Nothing;
    }
    let has = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    let (Some(asked), Some(has)) = (requested(claim), has) else {
        return Plan::Nothing;
    };
    let (Some(asked_bytes), Some(has_bytes)) = (bytes(&asked.0), bytes(&has.0)) else {
        return Plan::Nothing;
    };
    if asked_bytes > has_bytes {
        return Plan::Grow {
            size: asked.clone(),
            bytes: asked_bytes,
            backend: backend.to_owned(),
        };
    }
    if said_bytes(claim) < has_bytes {
        return Plan::Say(has.clone());
    }
    if is_marked(claim) { Plan::Clear } else { Plan::Nothing }
}

/// Whether there is nothing to do about a claim's size, whatever its volume is: it asks for no more than it has, and says
/// nothing of having asked.
pub fn at_rest(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
    if !bound || claim.metadata.deletion_timestamp.is_some() {
        return true;
    }
    let asked = requested(claim).and_then(|asked| bytes(&asked.0));
    asked.is_none_or(|asked| asked <= said_bytes(claim)) && !is_marked(claim)
}

/// What a claim says that it has, in bytes.
fn said_bytes(claim: &PersistentVolumeClaim) -> u128 {
    let status = claim.status.as_ref();
    let said = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
    said.and_then(|said| bytes(&said.0)).unwrap_or(0)
}

/// The backend of a volume of ours.
fn ours<'a>(volume: &'a PersistentVolume, settings: &Settings) -> Option<&'a str> {
    let annotations = volume.annotations();
    annotations.get(PROVISIONED_BY).filter(|by| settings.serves(by))?;
    annotations.get(VOLUME_BACKEND).map(String::as_str)
}

fn is_bound(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    phase == Some("Bound")
        && named == volume.metadata.name.as_deref()
        && claim.uid().is_some()
        && holder.is_some_and(|holder| holder.uid == claim.uid())
}

fn requested(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref()?.get("storage")
}

/// Whether the claim still says that an expansion failed.
fn is_marked(claim: &PersistentVolumeClaim) -> bool {
    is_infeasible(claim) || conditions(claim).any(|condition| condition.type_ == RESIZE_ERROR)
}

fn conditions(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &PersistentVolumeClaimCondition> {
    let status = claim.status.as_ref();
    status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
}

/// The status of a claim whose expansion is over: what it has, and nothing of the way there. `Clear` leaves the size.
pub fn settled(claim: &PersistentVolumeClaim, size: Option<&Quantity>) -> Value {
    let others: Vec<_> = conditions(claim)
        .filter(|condition| !RESIZE_CONDITIONS.contains(&condition.type_.as_str()))
        .collect();
    let mut status = json!({
        "conditions": others,
        "allocatedResourceStatuses": {"storage": null},
    });
    if let (Some(size), Some(status)) = (size, status.as_object_mut()) {
        status.insert("capacity".to_owned(), json!({"storage": size}));
        // Quota counts the larger of this and the request.
        status.insert("allocatedResources".to_owned(), json!({"storage": size}));
    }
    json!({ "status": status })
}

/// The status of a claim that cannot have what it asks for; none when it says so already.
pub fn refused(claim: &PersistentVolumeClaim, verdict: &PlannedCondition, now: Time) -> Option<Value> {
    let reason = verdict.reason.to_string();
    let former = conditions(claim).find(|condition| condition.type_ == RESIZE_ERROR && condition.status == "True");
    let same = former.is_some_and(|former| {
        former.message.as_deref() == Some(&verdict.message) && former.reason.as_deref() == Some(&reason)
    });
    if same && is_infeasible(claim) {
        return None;
    }
    let since = former
        .and_then(|former| former.last_transition_time.clone())
        .unwrap_or(now);
    let mut all: Vec<_> = conditions(claim)
        .filter(|condition| condition.type_ != RESIZE_ERROR && condition.type_ != "Resizing")
        .cloned()
        .collect();
    all.push(PersistentVolumeClaimCondition {
        type_: RESIZE_ERROR.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason),
        message: Some(verdict.message.clone()),
        last_transition_time: Some(since),
        last_probe_time: None,
    });
    Some(json!({"status": {
        "conditions": all,
        "allocatedResourceStatuses": {"storage": INFEASIBLE},
    }}))
}

fn is_infeasible(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let state = status.and_then(|status| status.allocated_resource_statuses.as_ref()?.get("storage"));
    state.is_some_and(|state| state == INFEASIBLE)
}

#[cfg(test)]
mod tests;
