//! Fingerprint of the parts of a claim that affect provisioning, without the operator's own writes. Pure.
//!
//! Without it, the condition that reports a failure would trigger another attempt.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::api::names::PLACED_ON;

/// Returns a hash of the parts of a claim that affect provisioning, without the operator's placement annotation and
/// condition. `None` if the spec cannot be serialized; such a claim always counts as changed.
pub fn change_fingerprint(claim: &PersistentVolumeClaim) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    claim.uid().hash(&mut hasher);
    claim.metadata.deletion_timestamp.is_some().hash(&mut hasher);
    claim.labels().hash(&mut hasher);
    claim
        .annotations()
        .iter()
        .filter(|(name, _)| *name != PLACED_ON)
        .for_each(|entry| entry.hash(&mut hasher));
    serde_json::to_string(&claim.spec).ok()?.hash(&mut hasher);
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_ref()).hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use serde_json::{Value, json};

    use super::*;

    fn claim(metadata: Value, status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn the_fingerprint_ignores_only_the_operators_own_writes() {
        let before = change_fingerprint(&claim(json!({"uid": "u"}), json!({"phase": "Pending"})));
        let written = claim(
            json!({"uid": "u", "resourceVersion": "2", "annotations": {PLACED_ON: "a"}}),
            json!({"phase": "Pending", "conditions": [{"type": "nfs-operator.io/Provisioned", "status": "False"}]}),
        );
        assert_eq!(change_fingerprint(&written), before);
        for other in [
            claim(json!({"uid": "v"}), json!({"phase": "Pending"})),
            claim(json!({"uid": "u", "labels": {"a": "b"}}), json!({"phase": "Pending"})),
            claim(
                json!({"uid": "u", "annotations": {"a": "b"}}),
                json!({"phase": "Pending"}),
            ),
            claim(
                json!({"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
                json!({"phase": "Pending"}),
            ),
            claim(json!({"uid": "u"}), json!({"phase": "Bound"})),
        ] {
            assert_ne!(change_fingerprint(&other), before);
        }
    }
}
