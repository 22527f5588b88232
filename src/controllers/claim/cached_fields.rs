//! The fields of a claim that the watch cache keeps. Pure.
//!
//! Claims that wait are kept until they are served, and a tenant chooses their number and their content.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::expansion;
use crate::api::names::{
    BETA_STORAGE_CLASS, BETA_STORAGE_PROVISIONER, CLAIM_CONDITION, GROUP, SELECTED_NODE, STORAGE_PROVISIONER,
};

/// Maximum size of the labels and annotations of a claim that is provisioned, in bytes. Their values can become part of
/// the directory's name, which is much shorter (docs/security.md, Budget).
pub const MAX_METADATA: usize = 16 << 10;
/// Maximum length of the value of an annotation that the operator reads itself: more than a path on a server.
const MAX_VALUE: usize = 4097;
/// Maximum length of a name in the cache: more than Kubernetes allows.
const MAX_NAME: usize = 300;
/// Annotation in the cache, in place of labels and annotations that are too large. It is never written. A claim that has
/// it from its author is not provisioned either.
const OVERSIZED: &str = "nfs-operator.io/oversized-metadata";

/// Annotation in which kubectl keeps a copy of the object. No directory can be named after it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes what the reconciler does not read.
pub fn retain_cached_fields(claim: &mut PersistentVolumeClaim) {
    let metadata = &mut claim.metadata;
    metadata.managed_fields = None;
    metadata.owner_references = None;
    metadata.finalizers = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    let size = |entries: &Option<BTreeMap<String, String>>| -> usize {
        let entries = entries.iter().flatten();
        entries.map(|(key, value)| key.len() + value.len()).sum()
    };
    if size(&metadata.labels) + size(&metadata.annotations) > MAX_METADATA {
        metadata.labels = None;
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.retain(|name, value| is_read(name) && value.len() < MAX_VALUE);
        annotations.insert(OVERSIZED.to_owned(), String::new());
    }
    if let Some(spec) = &mut claim.spec {
        retain_in_spec(spec);
    }
    if let Some(status) = &mut claim.status {
        retain_in_status(status);
    }
}

/// Returns true if the labels and annotations of a claim in the cache are incomplete, because they are too large.
pub fn is_oversized(claim: &PersistentVolumeClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(OVERSIZED))
}

/// Returns true for annotations that the operator reads, whatever the pattern of the directory.
fn is_read(annotation: &str) -> bool {
    let own = annotation.split_once('/').is_some_and(|(prefix, _)| prefix == GROUP);
    own || [
        BETA_STORAGE_CLASS,
        BETA_STORAGE_PROVISIONER,
        SELECTED_NODE,
        STORAGE_PROVISIONER,
    ]
    .contains(&annotation)
}

fn retain_in_spec(spec: &mut PersistentVolumeClaimSpec) {
    if spec.selector.is_some() {
        // Only its presence is read.
        spec.selector = Some(LabelSelector::default());
    }
    let source = spec
        .data_source
        .as_mut()
        .map(|source| (&mut source.kind, &mut source.name));
    let source_ref = spec
        .data_source_ref
        .as_mut()
        .map(|source| (&mut source.kind, &mut source.name));
    for (kind, name) in source.into_iter().chain(source_ref) {
        shorten(kind);
        shorten(name);
    }
    if let Some(name) = &mut spec.volume_name {
        shorten(name);
    }
    if let Some(modes) = &mut spec.access_modes {
        let mut seen = Vec::new();
        modes.retain(|mode| {
            let is_new = !seen.contains(mode);
            if is_new {
                seen.push(mode.clone());
            }
            is_new
        });
    }
    if let Some(resources) = &mut spec.resources {
        resources.limits = None;
        if let Some(requests) = &mut resources.requests {
            requests.retain(|resource, _| resource == "storage");
        }
    }
}

/// Truncates text that is no valid name, because it is too long, so that it stays invalid.
fn shorten(name: &mut String) {
    name.truncate(name.floor_char_boundary(MAX_NAME));
}

fn retain_in_status(status: &mut PersistentVolumeClaimStatus) {
    status.access_modes = None;
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ == CLAIM_CONDITION || expansion::is_resize_error(condition));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use kube::ResourceExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::names::{PLACED_ON, REQUESTED_BACKEND};

    fn cached(claim: Value) -> PersistentVolumeClaim {
        let mut claim = serde_json::from_value(claim).unwrap();
        retain_cached_fields(&mut claim);
        claim
    }

    #[test]
    fn a_claim_of_usual_size_keeps_all_that_is_read() {
        let claim = cached(json!({
            "metadata": {
                "name": "data", "uid": "u", "labels": {"app": "a"}, "finalizers": ["f"],
                "annotations": {"team": "red", LAST_APPLIED: "x".repeat(MAX_METADATA)},
            },
            "spec": {
                "storageClassName": "c", "accessModes": ["ReadWriteOnce"], "selector": {"matchLabels": {"a": "b"}},
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Pending", "conditions": [
                {"type": "other", "status": "True"}, {"type": CLAIM_CONDITION, "status": "False"},
                {"type": "ControllerResizeError", "status": "True"},
            ]},
        }));
        assert!(!is_oversized(&claim));
        assert_eq!(
            serde_json::to_value(claim).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "uid": "u", "labels": {"app": "a"}, "annotations": {"team": "red"}},
                "spec": {
                    "storageClassName": "c", "accessModes": ["ReadWriteOnce"], "selector": {},
                    "resources": {"requests": {"storage": "1Gi"}},
                },
                "status": {"phase": "Pending", "conditions": [
                    {"type": CLAIM_CONDITION, "status": "False"}, {"type": "ControllerResizeError", "status": "True"},
                ]},
            })
        );
    }

    #[test]
    fn no_claim_costs_much_memory() {
        let many = |count: usize| -> BTreeMap<String, String> {
            (0..count).map(|n| (format!("key-{n}"), "x".repeat(63))).collect()
        };
        let annotations = json!({
            "text": "x".repeat(256 << 10), STORAGE_PROVISIONER: "p", REQUESTED_BACKEND: "b", PLACED_ON: "y".repeat(5000),
        });
        let modes = vec!["ReadWriteOnce"; 10_000];
        let terms: Vec<_> = (0..1000)
            .map(|n| json!({"key": format!("k{n}"), "operator": "Exists"}))
            .collect();
        for metadata in [json!({"labels": many(10_000)}), json!({"annotations": annotations})] {
            let claim = cached(json!({
                "metadata": metadata,
                "spec": {
                    "accessModes": modes, "selector": {"matchExpressions": terms}, "volumeName": "ü".repeat(10_000),
                    "dataSource": {"kind": "x".repeat(10_000), "name": "x".repeat(10_000)},
                    "dataSourceRef": {"kind": "x".repeat(10_000), "name": "x".repeat(10_000)},
                },
                "status": {"accessModes": modes},
            }));
            let size = serde_json::to_vec(&claim).unwrap().len();
            assert!(size < MAX_METADATA + 2048, "{size} bytes");
            assert!(is_oversized(&claim));
            if metadata.get("annotations").is_some() {
                let names: Vec<_> = claim.annotations().keys().map(String::as_str).collect();
                assert_eq!(names, [REQUESTED_BACKEND, OVERSIZED, STORAGE_PROVISIONER]);
            }
        }
    }
}
