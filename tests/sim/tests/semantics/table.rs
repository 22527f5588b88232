//! The table: paths and objects of the sequences, and all sequences by subject.

use serde_json::{Value, json};

use crate::requests::{Sequence, Step, delete, merge};
use crate::{applies, archives, creates, deletes, lists, patches, statuses, updates, volumes, watches};

pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
pub const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/a";
pub const BACKENDS: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends";
pub const BACKEND: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b";
pub const BACKEND_STATUS: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b/status";
pub const BACKEND_APPLY: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b?fieldManager=m&force=true";
pub const BACKEND_STATUS_APPLY: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b/status?fieldManager=m&force=true";
pub const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
pub const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c";
pub const CLAIM_STATUS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c/status";
pub const CLAIM_APPLY: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c?fieldManager=m&force=true";
pub const CLAIM_STATUS_APPLY: &str =
    "/api/v1/namespaces/default/persistentvolumeclaims/c/status?fieldManager=m&force=true";
pub const CLAIM_STATUS_OF_M: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c/status?fieldManager=m";
pub const VOLUMES: &str = "/api/v1/persistentvolumes";
pub const VOLUME: &str = "/api/v1/persistentvolumes/v";
pub const VOLUME_STATUS: &str = "/api/v1/persistentvolumes/v/status";
pub const SECRETS: &str = "/api/v1/namespaces/default/secrets";
pub const SECRET: &str = "/api/v1/namespaces/default/secrets/s";
pub const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
pub const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/k";
pub const NAMESPACES: &str = "/api/v1/namespaces";
pub const NODES: &str = "/api/v1/nodes";
pub const NODE: &str = "/api/v1/nodes/n";
/// A UID that no object has.
pub const NO_UID: &str = "00000000-0000-4000-a000-000000000000";

pub fn lease(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}})
}

pub fn backend() -> Value {
    json!({"apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsBackend", "metadata": {"name": "b"},
        "spec": {"server": "nfs.example.org", "path": "/export"}})
}

/// A backend with these finalizers.
pub fn backend_with_finalizers(finalizers: &Value) -> Value {
    with(backend(), &json!({"metadata": {"finalizers": finalizers}}))
}

/// A backend with a finalizer, which keeps it while it is deleted.
pub fn kept_backend() -> Value {
    backend_with_finalizers(&json!(["example.org/keep"]))
}

/// A claim whose finalizer keeps it while it is deleted.
pub fn claim() -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "finalizers": ["example.org/keep"]},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}}}})
}

/// A volume as the operator creates it: its claim is known, and a finalizer keeps it while it is deleted.
pub fn volume() -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "v", "finalizers": ["example.org/keep"], "annotations": {"example.org/a": "1"}},
        "spec": {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": "none",
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "c",
                "uid": NO_UID},
            "nfs": {"server": "nfs.example.org", "path": "/export/v"}}})
}

pub fn class() -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "k"},
        "provisioner": "example.org/p", "parameters": {"a": "b"}})
}

/// Identity of an object in an apply.
fn identity(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
}

/// Returns the object with more fields.
pub fn with(mut object: Value, fields: &Value) -> Value {
    fn add(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (name, value) in from {
                    add(into.entry(name.clone()).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from.clone(),
        }
    }
    add(&mut object, fields);
    object
}

pub fn claim_with(fields: &Value) -> Value {
    with(identity("v1", "PersistentVolumeClaim", "c"), fields)
}

pub fn backend_with(fields: &Value) -> Value {
    with(identity("nfs-operator.io/v1alpha1", "NfsBackend", "b"), fields)
}

/// A change of conditions.
pub fn conditions(changes: Value) -> Value {
    json!({"status": {"conditions": changes}})
}

/// Removes the claim of a sequence.
pub fn forget_claim() -> [Step; 2] {
    [
        delete(CLAIM, json!({})),
        merge(CLAIM, json!({"metadata": {"finalizers": null}})),
    ]
}

/// Removes the volume of a sequence.
pub fn forget_volume() -> [Step; 2] {
    [
        delete(VOLUME, json!({})),
        merge(VOLUME, json!({"metadata": {"finalizers": null}})),
    ]
}

/// Removes the backend of a sequence that has a finalizer.
pub fn forget_kept_backend() -> [Step; 2] {
    [
        delete(BACKEND, json!({})),
        merge(BACKEND, json!({"metadata": {"finalizers": null}})),
    ]
}

/// Returns all sequences. Each removes what it creates, unless it says otherwise.
pub fn sequences() -> Vec<Sequence> {
    let subjects = [
        creates::sequences(),
        updates::sequences(),
        deletes::sequences(),
        patches::sequences(),
        applies::sequences(),
        statuses::sequences(),
        volumes::sequences(),
        archives::sequences(),
        lists::sequences(),
        watches::sequences(),
    ];
    subjects.into_iter().flatten().collect()
}
