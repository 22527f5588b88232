//! The fields of a claim that the watch cache keeps. Pure.
//!
//! Claims that wait are kept until they are served, and a tenant chooses their number and their content.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::expansion;
use crate::api::names::{
    BETA_STORAGE_CLASS, BETA_STORAGE_PROVISIONER, CLAIM_CONDITION, PLACED_ON, REQUESTED_BACKEND, RESTORE,
    SELECTED_NODE, SOURCE_SNAPSHOT, STORAGE_PROVISIONER,
};

/// Maximum size of the labels and annotations of a claim that is provisioned, in bytes. Their values can become part of
/// the directory's name, which is much shorter (docs/security.md, Budget).
pub const MAX_METADATA: usize = 16 << 10;
/// Maximum size of labels and annotations in the cache, in bytes. Larger ones are read from the API server once the claim
/// has a slot.
const MAX_CACHED: usize = 1 << 10;
/// Maximum length of a name in the cache: more than Kubernetes allows.
const MAX_NAME: usize = 300;
/// Annotation in the cache, in place of labels and annotations that are larger than [`MAX_METADATA`]. It is never written.
/// A claim that has it from its author is not provisioned either.
const OVERSIZED: &str = "nfs-operator.io/oversized-metadata";
/// Annotation in the cache, in place of labels and annotations that are larger than [`MAX_CACHED`], with a hash of them, by
/// which their changes are noticed. It is never written.
const INCOMPLETE: &str = "nfs-operator.io/incomplete-metadata";
/// Annotations that are read before the claim has a slot. All of them are names.
const READ_FROM_CACHE: [&str; 8] = [
    BETA_STORAGE_CLASS,
    BETA_STORAGE_PROVISIONER,
    PLACED_ON,
    REQUESTED_BACKEND,
    RESTORE,
    SELECTED_NODE,
    SOURCE_SNAPSHOT,
    STORAGE_PROVISIONER,
];

/// Annotation in which kubectl keeps a copy of the object. No directory can be named after it.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes what the reconciler does not read.
pub fn retain_cached_fields(claim: &mut PersistentVolumeClaim) {
    let metadata = &mut claim.metadata;
    metadata.managed_fields = None;
    metadata.owner_references = None;
    metadata.finalizers = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    retain_in_metadata(metadata);
    if let Some(spec) = &mut claim.spec {
        retain_in_spec(spec);
    }
    if let Some(status) = &mut claim.status {
        retain_in_status(status);
    }
}

fn retain_in_metadata(metadata: &mut ObjectMeta) {
    let size = size(metadata);
    if size <= MAX_CACHED {
        return;
    }
    let mut hasher = DefaultHasher::new();
    metadata.labels.take().hash(&mut hasher);
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.retain(|name, value| {
        let is_read = READ_FROM_CACHE.contains(&name.as_str());
        match is_read {
            true => shorten(value),
            false => (name, value).hash(&mut hasher),
        }
        is_read
    });
    annotations.insert(INCOMPLETE.to_owned(), hasher.finish().to_string());
    if size > MAX_METADATA {
        annotations.insert(OVERSIZED.to_owned(), String::new());
    }
}

/// Returns the size of labels and annotations in bytes.
fn size(metadata: &ObjectMeta) -> usize {
    let entries = metadata.labels.iter().chain(&metadata.annotations).flatten();
    entries.map(|(key, value)| key.len() + value.len()).sum()
}

/// Returns true if a claim has more labels and annotations than a claim that is provisioned may have.
pub fn is_oversized(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    size(metadata) > MAX_METADATA || annotations.is_some_and(|annotations| annotations.contains_key(OVERSIZED))
}

/// Returns true if the labels and annotations of a claim in the cache are incomplete.
pub fn is_incomplete(claim: &PersistentVolumeClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(INCOMPLETE))
}

fn retain_in_spec(spec: &mut PersistentVolumeClaimSpec) {
    if spec.selector.is_some() {
        // Only its presence is read.
        spec.selector = Some(LabelSelector::default());
    }
    let mut names: Vec<&mut String> = Vec::new();
    if let Some(source) = &mut spec.data_source {
        names.extend([&mut source.kind, &mut source.name]);
        names.extend(&mut source.api_group);
    }
    if let Some(source) = &mut spec.data_source_ref {
        names.extend([&mut source.kind, &mut source.name]);
        names.extend([&mut source.api_group, &mut source.namespace].into_iter().flatten());
    }
    names.extend(&mut spec.volume_name);
    names.into_iter().for_each(shorten);
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
    use std::collections::BTreeMap;

    use kube::ResourceExt;
    use serde_json::{Value, json};

    use super::super::change_fingerprint;
    use super::*;

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
        assert!(!is_oversized(&claim.metadata) && !is_incomplete(&claim));
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
    fn a_change_of_metadata_that_is_not_cached_is_noticed() {
        let large = |label: &str| {
            let annotations = json!({"text": "x".repeat(MAX_CACHED), STORAGE_PROVISIONER: "p"});
            cached(json!({"metadata": {"uid": "u", "labels": {"app": label}, "annotations": annotations}, "spec": {}}))
        };
        let claim = large("a");
        assert!(is_incomplete(&claim) && !is_oversized(&claim.metadata));
        assert_eq!(change_fingerprint(&claim), change_fingerprint(&large("a")));
        assert_ne!(change_fingerprint(&claim), change_fingerprint(&large("b")));
    }

    #[test]
    fn no_claim_costs_much_memory() {
        let many = |count: usize| -> BTreeMap<String, String> {
            (0..count).map(|n| (format!("key-{n}"), "x".repeat(63))).collect()
        };
        let own: BTreeMap<String, String> = (0..60)
            .map(|n| (format!("nfs-operator.io/{n}"), "x".repeat(4000)))
            .collect();
        let mut annotations = json!({
            "text": "x".repeat(20 << 10), STORAGE_PROVISIONER: "p", REQUESTED_BACKEND: "b", PLACED_ON: "y".repeat(5000),
        });
        let modes = vec!["ReadWriteOnce"; 10_000];
        let terms: Vec<_> = (0..1000)
            .map(|n| json!({"key": format!("k{n}"), "operator": "Exists"}))
            .collect();
        annotations
            .as_object_mut()
            .unwrap()
            .extend(own.into_iter().map(|(name, value)| (name, json!(value))));
        for metadata in [json!({"labels": many(10_000)}), json!({"annotations": annotations})] {
            let claim = cached(json!({
                "metadata": metadata,
                "spec": {
                    "accessModes": modes, "selector": {"matchExpressions": terms}, "volumeName": "ü".repeat(10_000),
                    "dataSource": {"kind": "x".repeat(10_000), "name": "x".repeat(10_000), "apiGroup": "x".repeat(10_000)},
                    "dataSourceRef": {
                        "kind": "x".repeat(10_000), "name": "x".repeat(10_000), "apiGroup": "x".repeat(10_000),
                        "namespace": "x".repeat(10_000),
                    },
                },
                "status": {"accessModes": modes},
            }));
            let size = serde_json::to_vec(&claim).unwrap().len();
            assert!(size < 4096, "{size} bytes");
            assert!(is_oversized(&claim.metadata) && is_incomplete(&claim));
            if metadata.get("annotations").is_some() {
                let names: Vec<_> = claim.annotations().keys().map(String::as_str).collect();
                assert_eq!(
                    names,
                    [REQUESTED_BACKEND, INCOMPLETE, OVERSIZED, PLACED_ON, STORAGE_PROVISIONER]
                );
            }
        }
    }
}
