//! StorageClass, claim and volume of a check; no I/O.

use std::collections::BTreeMap;

use crate::api::Reason;
use crate::api::names::{CLAIM_CONDITION, SELECTED_NODE};
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;

/// Name of the claim. It is constant, so that a role can grant access to it by name.
pub const CLAIM: &str = "nfs-operator-check";
/// Requested storage: minimal, because nothing is written to the volume.
const SIZE: &str = "1Mi";

/// Properties of the StorageClass that the check depends on.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Node for the annotation that the scheduler sets for a pod; `None` if the class binds immediately.
    pub node: Option<String>,
    /// True if the volume is deleted after its claim.
    pub deletes_volume: bool,
}

/// Determines how to check a class.
///
/// # Errors
/// The class cannot be checked; the message contains the remedy.
pub fn plan(class: &StorageClass, node: Option<&str>) -> Result<Plan, String> {
    let is_delayed = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if is_delayed && node.is_none() {
        return Err(
            "the class has volumeBindingMode WaitForFirstConsumer: specify the node of a pod with --node".to_owned(),
        );
    }
    Ok(Plan {
        node: node.filter(|_| is_delayed).map(str::to_owned),
        // Delete is the default of the API server.
        deletes_volume: class.reclaim_policy.as_deref().unwrap_or("Delete") == "Delete",
    })
}

/// Returns the claim to create.
pub fn build_claim(class: &str, plan: &Plan) -> PersistentVolumeClaim {
    let annotations = plan.node.iter().map(|node| (SELECTED_NODE.to_owned(), node.clone()));
    let annotations: BTreeMap<String, String> = annotations.collect();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(CLAIM.to_owned()),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteMany".to_owned()]),
            storage_class_name: Some(class.to_owned()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), Quantity(SIZE.to_owned()))])),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// Reasons that only a change of the StorageClass resolves.
const PERMANENT: [Reason; 3] = [
    Reason::InvalidParameter,
    Reason::InvalidDirectoryName,
    Reason::TopologyMismatch,
];

/// Why a claim is not bound.
#[derive(Debug)]
pub struct NotBound {
    /// Reason and message of its condition.
    pub message: String,
    /// True if it cannot become bound without a change of its StorageClass.
    pub is_permanent: bool,
}

/// Returns the name of the volume of a bound claim.
///
/// # Errors
/// The claim is not bound.
pub fn bound_volume(claim: &PersistentVolumeClaim) -> Result<String, NotBound> {
    let status = claim.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    if let (Some("Bound"), Some(volume)) = (phase, volume) {
        return Ok(volume);
    }
    let mut conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    let Some(condition) = conditions.find(|condition| condition.type_ == CLAIM_CONDITION) else {
        let phase = phase.unwrap_or("Pending");
        return Err(NotBound {
            message: format!(
                "{phase}, and no operator has set a condition: check that one is running and serves this StorageClass"
            ),
            is_permanent: false,
        });
    };
    let reason = condition.reason.as_deref().unwrap_or_default();
    Err(NotBound {
        message: format!("{reason}: {}", condition.message.as_deref().unwrap_or_default()),
        is_permanent: PERMANENT.iter().any(|permanent| permanent.to_string() == reason),
    })
}

/// Returns server and path of a volume.
///
/// # Errors
/// It is not an NFS volume.
pub fn volume_address(volume: &PersistentVolume) -> Result<String, String> {
    let spec = volume.spec.as_ref();
    let nfs = spec.and_then(|spec| spec.nfs.as_ref());
    nfs.map(|nfs| format!("{}:{}", nfs.server, nfs.path))
        .ok_or_else(|| "it is not an NFS volume: another provisioner serves the class".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    fn class(fields: Value) -> StorageClass {
        let mut class = json!({"metadata": {"name": "nfs"}, "provisioner": "nfs-operator.io/nfs"});
        class
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        serde_json::from_value(class).unwrap()
    }

    fn claim_with(status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"spec": {"volumeName": "pvc-1"}, "status": status})).unwrap()
    }

    #[test]
    fn only_a_class_with_delayed_binding_needs_a_node() {
        let delayed = class(json!({"volumeBindingMode": "WaitForFirstConsumer"}));
        assert!(plan(&delayed, None).unwrap_err().contains("--node"));
        let planned = plan(&delayed, Some("n1")).unwrap();
        let annotations = build_claim("nfs", &planned).metadata.annotations.unwrap();
        assert_eq!(annotations.get(SELECTED_NODE).map(String::as_str), Some("n1"));
        let planned = plan(&class(json!({"reclaimPolicy": "Retain"})), Some("n1")).unwrap();
        assert_eq!(
            planned,
            Plan {
                node: None,
                deletes_volume: false
            }
        );
        assert_eq!(build_claim("nfs", &planned).metadata.annotations, None);
    }

    #[test]
    fn a_pending_claim_is_reported_with_the_message_of_its_condition() {
        assert_eq!(bound_volume(&claim_with(json!({"phase": "Bound"}))).unwrap(), "pvc-1");
        let condition = json!({"type": CLAIM_CONDITION, "status": "False", "reason": "NoSpace", "message": "full"});
        let pending = claim_with(json!({"phase": "Pending", "conditions": [condition]}));
        let waits = bound_volume(&pending).unwrap_err();
        assert_eq!((waits.message.as_str(), waits.is_permanent), ("NoSpace: full", false));
        let condition = json!({"type": CLAIM_CONDITION, "status": "False", "reason": "InvalidParameter"});
        let never = claim_with(json!({"phase": "Pending", "conditions": [condition]}));
        assert!(bound_volume(&never).unwrap_err().is_permanent);
        let unserved = bound_volume(&claim_with(json!({"phase": "Pending"}))).unwrap_err();
        assert!(unserved.message.contains("no operator") && !unserved.is_permanent);
    }

    #[test]
    fn a_volume_that_is_not_nfs_is_from_another_provisioner() {
        let volume = |spec: Value| serde_json::from_value(json!({"spec": spec})).unwrap();
        let ours = volume(json!({"nfs": {"server": "s", "path": "/p"}}));
        assert_eq!(volume_address(&ours).unwrap(), "s:/p");
        assert!(
            volume_address(&volume(json!({})))
                .unwrap_err()
                .contains("another provisioner")
        );
    }
}
