//! Plan for a claim's size, and the status that reports it. Pure.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::conditions::PlannedCondition;
use crate::api::names::{PROVISIONED_BY, VOLUME_BACKEND};
use crate::decide::quantity::bytes;
use crate::state::context::Settings;

/// Condition that a resizer leaves on a claim that it cannot expand (core/v1 `PersistentVolumeClaimConditionType`).
const RESIZE_ERROR: &str = "ControllerResizeError";
/// Conditions that are removed when an expansion ends.
const RESIZE_CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "NodeResizeError", RESIZE_ERROR];
/// State of a resource that cannot be expanded as requested (core/v1 `ClaimResourceStatus`).
const INFEASIBLE: &str = "ControllerResizeInfeasible";

/// Plan for a claim's size.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpansionPlan {
    /// Do nothing: the volume does not belong to this operator, or has the requested size.
    Nothing,
    /// Expand the volume.
    Grow {
        /// The requested size, as written in the claim.
        size: Quantity,
        /// The size in bytes.
        bytes: u128,
        /// The backend whose capacity is used.
        backend: String,
    },
    /// Report this size: the volume is larger than the claim reports.
    ReportSize(Quantity),
    /// Clear the report of a failed expansion that the claim no longer requests.
    ClearFailure,
}

/// Returns the plan for a claim's size. Only a bound claim with a volume of this operator is expanded.
pub fn plan(claim: &PersistentVolumeClaim, volume: &PersistentVolume, settings: &Settings) -> ExpansionPlan {
    let Some(backend) = managed_backend(volume, settings) else {
        return ExpansionPlan::Nothing;
    };
    if claim.metadata.deletion_timestamp.is_some() || !is_bound(claim, volume) {
        return ExpansionPlan::Nothing;
    }
    let (Some(requested), Some(has)) = (requested(claim), capacity(volume)) else {
        return ExpansionPlan::Nothing;
    };
    let (Some(requested_bytes), Some(has_bytes)) = (bytes(&requested.0), bytes(&has.0)) else {
        return ExpansionPlan::Nothing;
    };
    if requested_bytes > has_bytes {
        return ExpansionPlan::Grow {
            size: requested.clone(),
            bytes: requested_bytes,
            backend: backend.to_owned(),
        };
    }
    if reported_bytes(claim) < has_bytes {
        return ExpansionPlan::ReportSize(has.clone());
    }
    if has_failed(claim) {
        ExpansionPlan::ClearFailure
    } else {
        ExpansionPlan::Nothing
    }
}

/// Returns true if there is nothing to do about a claim's size, whatever its volume: it requests no more than it has, and
/// reports no failed expansion.
pub fn is_settled(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
    if !bound || claim.metadata.deletion_timestamp.is_some() {
        return true;
    }
    let requested = requested(claim).and_then(|requested| bytes(&requested.0));
    requested.is_none_or(|requested| requested <= reported_bytes(claim)) && !has_failed(claim)
}

fn capacity(volume: &PersistentVolume) -> Option<&Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get("storage")
}

/// Returns the size of a volume, in bytes.
pub fn volume_bytes(volume: &PersistentVolume) -> Option<u128> {
    bytes(&capacity(volume)?.0)
}

/// Returns the size that a claim's status reports, in bytes.
pub fn reported_bytes(claim: &PersistentVolumeClaim) -> u128 {
    let status = claim.status.as_ref();
    let reported = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
    reported.and_then(|reported| bytes(&reported.0)).unwrap_or(0)
}

/// Returns the backend of a volume, if the volume belongs to this operator.
fn managed_backend<'a>(volume: &'a PersistentVolume, settings: &Settings) -> Option<&'a str> {
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

/// Returns true if the claim reports a failed expansion.
pub fn has_failed(claim: &PersistentVolumeClaim) -> bool {
    is_infeasible(claim) || conditions(claim).any(is_resize_error)
}

fn conditions(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &PersistentVolumeClaimCondition> {
    let status = claim.status.as_ref();
    status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
}

/// Returns the status of a claim without an expansion in progress. Without `size`, the size stays as it is.
pub fn settled_status(claim: &PersistentVolumeClaim, size: Option<&Quantity>) -> Value {
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

/// Returns the status of a claim that cannot be expanded. `None` if the claim already has it.
pub fn refused_status(claim: &PersistentVolumeClaim, condition: &PlannedCondition, now: Time) -> Option<Value> {
    let reason = condition.reason.to_string();
    let previous = conditions(claim).find(|condition| condition.type_ == RESIZE_ERROR && condition.status == "True");
    let same = previous.is_some_and(|previous| {
        previous.message.as_deref() == Some(&condition.message) && previous.reason.as_deref() == Some(&reason)
    });
    if same && is_infeasible(claim) {
        return None;
    }
    let since = previous
        .and_then(|previous| previous.last_transition_time.clone())
        .unwrap_or(now);
    let mut all: Vec<_> = conditions(claim)
        .filter(|condition| condition.type_ != RESIZE_ERROR && condition.type_ != "Resizing")
        .cloned()
        .collect();
    all.push(PersistentVolumeClaimCondition {
        type_: RESIZE_ERROR.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason),
        message: Some(condition.message.clone()),
        last_transition_time: Some(since),
        last_probe_time: None,
    });
    Some(json!({"status": {
        "conditions": all,
        "allocatedResourceStatuses": {"storage": INFEASIBLE},
    }}))
}

/// Returns true if the condition reports a failed expansion.
pub fn is_resize_error(condition: &PersistentVolumeClaimCondition) -> bool {
    condition.type_ == RESIZE_ERROR
}

fn is_infeasible(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let state = status.and_then(|status| status.allocated_resource_statuses.as_ref()?.get("storage"));
    state.is_some_and(|state| state == INFEASIBLE)
}

#[cfg(test)]
mod tests;
