//! What to make of a class, a claim and its volume. Without I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;
use nfs_operator::api::names::{CLAIM_CONDITION, SELECTED_NODE};

/// The claim's name: one that a role can name.
pub const CLAIM: &str = "nfs-operator-check";
/// As little as there is; nothing is written to it.
const SIZE: &str = "1Mi";

/// What a class means for the check.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// The annotation that a scheduler would set.
    pub node: Option<String>,
    /// Whether the volume goes with its claim.
    pub deletes: bool,
}

/// What to do for a class.
///
/// # Errors
/// Why nothing can be done, with the remedy.
pub fn plan(class: &StorageClass, node: Option<&str>) -> Result<Plan, String> {
    let late = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if late && node.is_none() {
        return Err("the class binds late: name the node that a pod would run on (--node)".to_owned());
    }
    Ok(Plan {
        node: node.filter(|_| late).map(str::to_owned),
        // The API server's own default.
        deletes: class.reclaim_policy.as_deref().unwrap_or("Delete") == "Delete",
    })
}

/// The claim to make.
pub fn claim(class: &str, plan: &Plan) -> PersistentVolumeClaim {
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

/// The volume of a claim that is Bound.
///
/// # Errors
/// What the claim says of why it is not.
pub fn bound(claim: &PersistentVolumeClaim) -> Result<String, String> {
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
    let Some(said) = conditions.find(|condition| condition.type_ == CLAIM_CONDITION) else {
        return Err(format!(
            "{}, and no operator has said anything of it: is one at work, and the class its?",
            phase.unwrap_or("Pending")
        ));
    };
    let reason = said.reason.as_deref().unwrap_or_default();
    Err(format!("{reason}: {}", said.message.as_deref().unwrap_or_default()))
}

/// Where a volume is.
///
/// # Errors
/// That it is none of the operator's kind.
pub fn place(volume: &PersistentVolume) -> Result<String, String> {
    let spec = volume.spec.as_ref();
    let nfs = spec.and_then(|spec| spec.nfs.as_ref());
    nfs.map(|nfs| format!("{}:{}", nfs.server, nfs.path))
        .ok_or_else(|| "it is no NFS volume: another provisioner serves the class".to_owned())
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

    fn said(status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"spec": {"volumeName": "pvc-1"}, "status": status})).unwrap()
    }

    #[test]
    fn a_class_that_binds_late_needs_a_node_and_any_other_is_given_none() {
        let late = class(json!({"volumeBindingMode": "WaitForFirstConsumer"}));
        assert!(plan(&late, None).unwrap_err().contains("--node"));
        let planned = plan(&late, Some("n1")).unwrap();
        let annotations = claim("nfs", &planned).metadata.annotations.unwrap();
        assert_eq!(annotations.get(SELECTED_NODE).map(String::as_str), Some("n1"));
        let planned = plan(&class(json!({"reclaimPolicy": "Retain"})), Some("n1")).unwrap();
        assert_eq!(
            planned,
            Plan {
                node: None,
                deletes: false
            }
        );
        assert_eq!(claim("nfs", &planned).metadata.annotations, None);
    }

    #[test]
    fn a_claim_that_waits_says_why_in_the_conditions_words() {
        assert_eq!(bound(&said(json!({"phase": "Bound"}))).unwrap(), "pvc-1");
        let condition = json!({"type": CLAIM_CONDITION, "status": "False", "reason": "NoSpace", "message": "full"});
        let waits = said(json!({"phase": "Pending", "conditions": [condition]}));
        assert_eq!(bound(&waits).unwrap_err(), "NoSpace: full");
        assert!(
            bound(&said(json!({"phase": "Pending"})))
                .unwrap_err()
                .contains("no operator")
        );
    }

    #[test]
    fn a_volume_that_is_not_nfs_is_anothers() {
        let volume = |spec: Value| serde_json::from_value(json!({"spec": spec})).unwrap();
        let ours = volume(json!({"nfs": {"server": "s", "path": "/p"}}));
        assert_eq!(place(&ours).unwrap(), "s:/p");
        assert!(place(&volume(json!({}))).unwrap_err().contains("another provisioner"));
    }
}
