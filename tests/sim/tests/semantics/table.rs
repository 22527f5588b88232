//! The sequences of requests.

use serde_json::{Value, json};

const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const PLAIN: &str = "application/json";

/// A request.
pub struct Step {
    pub method: &'static str,
    /// Path and query; `$N.uid` and the like stand for values in the answer to request `N`.
    pub path: &'static str,
    pub content_type: &'static str,
    pub body: Value,
}

/// Requests that are sent one after the other.
pub struct Sequence {
    pub name: &'static str,
    pub steps: Vec<Step>,
}

fn step(method: &'static str, path: &'static str, content_type: &'static str, body: Value) -> Step {
    Step {
        method,
        path,
        content_type,
        body,
    }
}

fn get(path: &'static str) -> Step {
    step("GET", path, "", Value::Null)
}

fn post(path: &'static str, body: Value) -> Step {
    step("POST", path, PLAIN, body)
}

fn put(path: &'static str, body: Value) -> Step {
    step("PUT", path, PLAIN, body)
}

fn merge(path: &'static str, body: Value) -> Step {
    step("PATCH", path, MERGE, body)
}

fn json_patch(path: &'static str, body: Value) -> Step {
    step("PATCH", path, JSON, body)
}

fn apply(path: &'static str, body: Value) -> Step {
    step("PATCH", path, APPLY, body)
}

fn delete(path: &'static str, body: Value) -> Step {
    step("DELETE", path, PLAIN, body)
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/a";
const BACKENDS: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends";
const BACKEND: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b";
const BACKEND_STATUS: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b/status";
const BACKEND_APPLY: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b?fieldManager=m&force=true";
const BACKEND_STATUS_APPLY: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b/status?fieldManager=m&force=true";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c";
const CLAIM_STATUS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c/status";
const CLAIM_APPLY: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c?fieldManager=m&force=true";
const CLAIM_STATUS_APPLY: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c/status?fieldManager=m&force=true";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SECRET: &str = "/api/v1/namespaces/default/secrets/s";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/k";

fn lease(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}})
}

fn backend() -> Value {
    json!({"apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsBackend", "metadata": {"name": "b"},
        "spec": {"server": "nfs.example.org", "path": "/export"}})
}

/// A claim whose class does not exist, so that no controller touches it. Its finalizer keeps it while it is deleted.
fn claim() -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c", "finalizers": ["example.org/keep"]},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}}}})
}

fn class() -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "k"},
        "provisioner": "example.org/p", "parameters": {"a": "b"}})
}

/// Identity of an object in an apply.
fn identity(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
}

/// Returns the object with more fields.
fn with(mut object: Value, fields: &Value) -> Value {
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

fn claim_with(fields: &Value) -> Value {
    with(identity("v1", "PersistentVolumeClaim", "c"), fields)
}

fn backend_with(fields: &Value) -> Value {
    with(identity("nfs-operator.io/v1alpha1", "NfsBackend", "b"), fields)
}

/// Removes the claim of a sequence.
fn forget_claim() -> [Step; 2] {
    [
        delete(CLAIM, json!({})),
        merge(CLAIM, json!({"metadata": {"finalizers": null}})),
    ]
}

fn sequence(name: &'static str, steps: impl IntoIterator<Item = Step>) -> Sequence {
    Sequence {
        name,
        steps: steps.into_iter().collect(),
    }
}

/// Returns all sequences. Each removes what it creates.
pub fn sequences() -> Vec<Sequence> {
    let mut all = reads_and_creates();
    all.extend(updates());
    all.extend(deletes());
    all.extend(merge_and_json_patches());
    all.extend(applies());
    all.extend(lists());
    all
}

fn reads_and_creates() -> Vec<Sequence> {
    vec![
        sequence("an object that does not exist", [get(LEASE), get(BACKEND), get(CLAIM)]),
        sequence(
            "a path that does not exist",
            [get("/apis/nfs-operator.io/v1alpha1/nonsense")],
        ),
        sequence(
            "a create and a second one",
            [
                post(LEASES, lease("a")),
                post(LEASES, lease("a")),
                get(LEASE),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "a create without a name",
            [post(LEASES, with(lease("a"), &json!({"metadata": {"name": ""}})))],
        ),
        sequence(
            "a create with a resource version",
            [post(
                LEASES,
                with(lease("a"), &json!({"metadata": {"resourceVersion": "5"}})),
            )],
        ),
        sequence(
            "a create in a namespace that does not exist",
            [post(
                "/apis/coordination.k8s.io/v1/namespaces/missing/leases",
                lease("a"),
            )],
        ),
        sequence(
            "a custom object gets the defaults of its schema and no status",
            [
                post(BACKENDS, with(backend(), &json!({"status": {"volumes": 3}}))),
                get(BACKEND),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a class gets its defaults",
            [post(CLASSES, class()), delete(CLASS, json!({}))],
        ),
    ]
}

fn updates() -> Vec<Sequence> {
    vec![
        sequence(
            "an update with the resource version that was read, and one with an older",
            [
                post(LEASES, lease("a")),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"}, "spec": {"holderIdentity": "other"}}),
                    ),
                ),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"}}),
                    ),
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "an update of a lease that does not exist creates it",
            [put(LEASE, lease("a")), delete(LEASE, json!({}))],
        ),
        sequence(
            "an update of a lease that was deleted since it was read",
            [
                post(LEASES, lease("a")),
                delete(LEASE, json!({})),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"}}),
                    ),
                ),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion", "uid": "$0.uid"}}),
                    ),
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "an update of a custom object that does not exist",
            [put(
                BACKEND,
                with(backend(), &json!({"metadata": {"resourceVersion": "5"}})),
            )],
        ),
        sequence(
            "a lease that was deleted and created again since it was read",
            [
                post(LEASES, lease("a")),
                delete(LEASE, json!({})),
                post(LEASES, lease("a")),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"}}),
                    ),
                ),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$2.resourceVersion"}}),
                    ),
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "a request of a claim that is not bound",
            [
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an update of a custom object without a resource version",
            [
                post(BACKENDS, backend()),
                put(BACKEND, backend()),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "the fields of a claim that may not change",
            [
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"spec": {"storageClassName": "other"}})),
                merge(CLAIM, json!({"spec": {"accessModes": ["ReadWriteOnce"]}})),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an immutable secret",
            [
                post(
                    SECRETS,
                    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "immutable": true,
                        "data": {"key": "YQ=="}}),
                ),
                merge(SECRET, json!({"metadata": {"labels": {"a": "b"}}})),
                delete(SECRET, json!({})),
            ],
        ),
    ]
}

fn deletes() -> Vec<Sequence> {
    vec![
        sequence("a delete of an object that does not exist", [delete(LEASE, json!({}))]),
        sequence(
            "a delete with the UID of another",
            [
                post(LEASES, lease("a")),
                delete(
                    LEASE,
                    json!({"preconditions": {"uid": "00000000-0000-4000-a000-000000000000"}}),
                ),
                delete(LEASE, json!({"preconditions": {"uid": "$0.uid"}})),
                get(LEASE),
            ],
        ),
        sequence(
            "a delete with an older resource version",
            [
                post(LEASES, lease("a")),
                merge(LEASE, json!({"spec": {"holderIdentity": "other"}})),
                delete(
                    LEASE,
                    json!({"preconditions": {"resourceVersion": "$0.resourceVersion"}}),
                ),
                delete(
                    LEASE,
                    json!({"preconditions": {"resourceVersion": "$1.resourceVersion"}}),
                ),
            ],
        ),
        sequence(
            "a finalizer keeps an object until it is removed",
            [
                post(
                    BACKENDS,
                    with(backend(), &json!({"metadata": {"finalizers": ["example.org/keep"]}})),
                ),
                delete(BACKEND, json!({})),
                delete(BACKEND, json!({})),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
                get(BACKEND),
            ],
        ),
        sequence(
            "a finalizer of a claim",
            [post(CLAIMS, claim())].into_iter().chain(forget_claim()),
        ),
    ]
}

fn merge_and_json_patches() -> Vec<Sequence> {
    vec![
        sequence(
            "a merge patch with the resource version that was read, and one with an older",
            [
                post(BACKENDS, backend()),
                merge(
                    BACKEND,
                    json!({"metadata": {"resourceVersion": "$0.resourceVersion", "finalizers": ["example.org/a"]}}),
                ),
                merge(
                    BACKEND,
                    json!({"metadata": {"resourceVersion": "$0.resourceVersion", "finalizers": null}}),
                ),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a merge patch of an object that does not exist",
            [merge(BACKEND, json!({})), merge(CLAIM_STATUS, json!({}))],
        ),
        sequence(
            "a merge patch with the UID of another",
            [
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"metadata": {"uid": "00000000-0000-4000-a000-000000000000"}})),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a patch of the object leaves the status alone, and the other way round",
            [
                post(BACKENDS, backend()),
                merge(BACKEND, json!({"status": {"volumes": 3}})),
                merge(BACKEND_STATUS, json!({"spec": {"path": "/other"}, "status": {"volumes": 4}})),
                merge(BACKEND, json!({"spec": {"suspend": true}})),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a status patch of a claim leaves the spec alone",
            [
                post(CLAIMS, claim()),
                merge(
                    CLAIM_STATUS,
                    json!({"metadata": {"annotations": {"a": "b"}}, "status": {"conditions": [{"type": "A", "status": "True"}]}}),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a JSON patch whose test holds, and one whose test fails",
            [
                post(LEASES, with(lease("a"), &json!({"metadata": {"annotations": {"x": "1"}}}))),
                json_patch(
                    LEASE,
                    json!([{"op": "test", "path": "/metadata/annotations/x", "value": "2"},
                        {"op": "remove", "path": "/metadata/annotations/x"}]),
                ),
                json_patch(
                    LEASE,
                    json!([{"op": "test", "path": "/metadata/annotations/x", "value": "1"},
                        {"op": "remove", "path": "/metadata/annotations/x"}]),
                ),
                delete(LEASE, json!({})),
            ],
        ),
    ]
}

fn applies() -> Vec<Sequence> {
    let annotated = |value: &str| claim_with(&json!({"metadata": {"annotations": {"a": value}}}));
    let condition =
        |kind: &str, status: &str| claim_with(&json!({"status": {"conditions": [{"type": kind, "status": status}]}}));
    vec![
        sequence(
            "an apply removes what the manager applied before",
            [
                post(CLAIMS, claim()),
                apply(CLAIM_APPLY, annotated("1")),
                apply(
                    CLAIM_APPLY,
                    claim_with(&json!({"metadata": {"annotations": {"b": "2"}}})),
                ),
                apply(CLAIM_APPLY, claim_with(&json!({}))),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply does not remove what others own",
            [
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"metadata": {"annotations": {"a": "1"}}})),
                apply(CLAIM_APPLY, annotated("1")),
                apply(CLAIM_APPLY, claim_with(&json!({}))),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "two managers and their conditions",
            [
                post(CLAIMS, claim()),
                apply(CLAIM_STATUS_APPLY, condition("A", "True")),
                apply(
                    "/api/v1/namespaces/default/persistentvolumeclaims/c/status?fieldManager=n&force=true",
                    condition("B", "True"),
                ),
                apply(CLAIM_STATUS_APPLY, condition("A", "False")),
                apply(CLAIM_STATUS_APPLY, claim_with(&json!({}))),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply with the UID of an object that does not exist",
            [apply(
                CLAIM_APPLY,
                claim_with(&json!({"metadata": {"uid": "00000000-0000-4000-a000-000000000000"}})),
            )],
        ),
        sequence(
            "an apply with the UID of another",
            [
                post(CLAIMS, claim()),
                apply(
                    CLAIM_APPLY,
                    claim_with(&json!({"metadata": {"uid": "00000000-0000-4000-a000-000000000000",
                        "annotations": {"a": "b"}}})),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&json!({"metadata": {"uid": "00000000-0000-4000-a000-000000000000"},
                        "status": {"conditions": [{"type": "A", "status": "True"}]}})),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply to a custom object with the UID of another",
            [
                post(BACKENDS, backend()),
                apply(
                    BACKEND_APPLY,
                    backend_with(&json!({"metadata": {"uid": "00000000-0000-4000-a000-000000000000"},
                        "spec": {"suspend": true}})),
                ),
                apply(
                    BACKEND_STATUS_APPLY,
                    backend_with(&json!({"metadata": {"uid": "00000000-0000-4000-a000-000000000000"},
                        "status": {"volumes": 1}})),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an apply to a status that does not exist",
            [apply(
                BACKEND_STATUS_APPLY,
                backend_with(&json!({"status": {"volumes": 1}})),
            )],
        ),
        sequence(
            "an apply creates an object, and its change counts as a generation",
            [
                apply(BACKEND_APPLY, backend()),
                apply(BACKEND_APPLY, with(backend(), &json!({"spec": {"suspend": true}}))),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"volumes": 1}}))),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an apply with an older resource version",
            [
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"metadata": {"labels": {"a": "b"}}})),
                apply(
                    CLAIM_APPLY,
                    claim_with(
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion", "annotations": {"a": "b"}}}),
                    ),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&json!({"metadata": {"resourceVersion": "$0.resourceVersion"},
                        "status": {"conditions": [{"type": "A", "status": "True"}]}})),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&json!({"metadata": {"uid": "$0.uid"},
                        "status": {"conditions": [{"type": "A", "status": "True"}]}})),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply of what is there changes nothing",
            [
                post(BACKENDS, backend()),
                apply(BACKEND_APPLY, backend()),
                apply(
                    BACKEND_STATUS_APPLY,
                    backend_with(&json!({"status": {"volumes": 1, "conditions": [
                    {"type": "Ready", "status": "True", "reason": "R", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})),
                ),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"volumes": 2}}))),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an apply to an object that is being deleted",
            [
                post(CLAIMS, claim()),
                delete(CLAIM, json!({})),
                merge(CLAIM, json!({"metadata": {"finalizers": null}})),
                apply(CLAIM_STATUS_APPLY, condition("A", "True")),
            ],
        ),
        sequence(
            "a finalizer on an object that is being deleted",
            [
                post(
                    BACKENDS,
                    with(backend(), &json!({"metadata": {"finalizers": ["example.org/keep"]}})),
                ),
                delete(BACKEND, json!({})),
                merge(
                    BACKEND,
                    json!({"metadata": {"finalizers": ["example.org/keep", "example.org/more"]}}),
                ),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
            ],
        ),
        sequence(
            "an apply without force conflicts with another owner",
            [
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"metadata": {"annotations": {"a": "1"}}})),
                apply(
                    "/api/v1/namespaces/default/persistentvolumeclaims/c?fieldManager=m",
                    annotated("2"),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
    ]
}

fn lists() -> Vec<Sequence> {
    vec![sequence(
        "a list in pages shows the objects at the time of its first page",
        [
            post(BACKENDS, with(backend(), &json!({"metadata": {"name": "b1"}}))),
            post(BACKENDS, with(backend(), &json!({"metadata": {"name": "b2"}}))),
            post(BACKENDS, with(backend(), &json!({"metadata": {"name": "b3"}}))),
            get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=2"),
            delete("/apis/nfs-operator.io/v1alpha1/nfsbackends/b3", json!({})),
            get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=2&continue=$3.continue"),
            delete("/apis/nfs-operator.io/v1alpha1/nfsbackends/b1", json!({})),
            delete("/apis/nfs-operator.io/v1alpha1/nfsbackends/b2", json!({})),
            get(BACKENDS),
        ],
    )]
}
