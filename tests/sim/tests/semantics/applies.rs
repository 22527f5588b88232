//! Server-side applies.

use serde_json::{Value, json};

use crate::requests::{Sequence, apply, delete, get, merge, post, put, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
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
        sequence(
            "an apply that changes nothing keeps the resource version, except for the first of a manager",
            [
                post(BACKENDS, backend()),
                apply(BACKEND_APPLY, backend()),
                apply(BACKEND_APPLY, backend()),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"volumes": 1}}))),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"volumes": 1}}))),
                apply(BACKEND_APPLY, backend()),
                delete(
                    BACKEND,
                    json!({"preconditions": {"resourceVersion": "$3.resourceVersion"}}),
                ),
            ],
        ),
        sequence(
            "an apply with the UID of the object changes only what it names",
            [
                post(CLAIMS, claim()),
                apply(
                    CLAIM_APPLY,
                    claim_with(
                        &json!({"metadata": {"uid": "$0.uid", "annotations": {"example.org/placed-on": "main"}}}),
                    ),
                ),
                apply(
                    CLAIM_APPLY,
                    claim_with(
                        &json!({"metadata": {"uid": "$0.uid", "annotations": {"example.org/placed-on": "other"}}}),
                    ),
                ),
                apply(CLAIM_APPLY, claim_with(&json!({"metadata": {"uid": "$0.uid"}}))),
                apply(CLAIM_APPLY, claim_with(&json!({"metadata": {"uid": "$0.uid"}}))),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply with the UID of an object that was deleted is refused and creates nothing",
            [
                post(BACKENDS, backend()),
                delete(BACKEND, json!({})),
                apply(BACKEND_APPLY, with(backend(), &json!({"metadata": {"uid": "$0.uid"}}))),
                apply(
                    BACKEND_STATUS_APPLY,
                    backend_with(&json!({"metadata": {"uid": "$0.uid"}, "status": {"volumes": 1}})),
                ),
                get(BACKEND),
            ],
        ),
        sequence(
            "an apply with a resource version creates an object that does not exist",
            [
                apply(
                    BACKEND_APPLY,
                    with(backend(), &json!({"metadata": {"resourceVersion": "5"}})),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an apply with the resource version that was read is refused once it was written",
            [
                post(CLAIMS, claim()),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(
                        &json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion"},
                        "status": {"conditions": [{"type": "A", "status": "True"}]}}),
                    ),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(
                        &json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion"},
                        "status": {"conditions": [{"type": "A", "status": "False"}]}}),
                    ),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply that creates an object ignores its status",
            [
                apply(BACKEND_APPLY, with(backend(), &json!({"status": {"volumes": 3}}))),
                apply(BACKEND_APPLY, with(backend(), &json!({"status": {"volumes": 4}}))),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an apply to what an apply created leaves the defaults alone",
            [
                apply(
                    CLAIM_APPLY,
                    with(claim(), &json!({"metadata": {"annotations": {"a": "1"}}})),
                ),
                apply(CLAIM_APPLY, claim()),
                apply(CLAIM_APPLY, claim()),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply with force takes a field over, which its former owner then no longer removes",
            [
                post(CLAIMS, claim()),
                apply(CLAIM_APPLY, annotated("1")),
                apply(CLAIM_APPLY_N, annotated("2")),
                apply(CLAIM_APPLY, claim_with(&json!({}))),
                apply(CLAIM_APPLY_N, claim_with(&json!({}))),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a field of two managers is removed with the second of them",
            [
                post(CLAIMS, claim()),
                apply(CLAIM_APPLY, annotated("1")),
                apply(
                    "/api/v1/namespaces/default/persistentvolumeclaims/c?fieldManager=n",
                    annotated("1"),
                ),
                apply(CLAIM_APPLY, claim_with(&json!({}))),
                apply(CLAIM_APPLY_N, claim_with(&json!({}))),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply without force conflicts with the value of another apply",
            [
                apply(BACKEND_APPLY, backend()),
                apply(
                    "/apis/nfs-operator.io/v1alpha1/nfsbackends/b?fieldManager=n",
                    backend_with(&json!({"spec": {"path": "/other", "server": "nfs.example.org"}})),
                ),
                apply(
                    "/apis/nfs-operator.io/v1alpha1/nfsbackends/b?fieldManager=n",
                    backend_with(&json!({"spec": {"path": "/export", "server": "nfs.example.org"}})),
                ),
                get(BACKEND),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a merge patch takes a field over, and the next apply with force takes it back",
            [
                post(CLAIMS, claim()),
                apply(CLAIM_APPLY, annotated("1")),
                merge(CLAIM, json!({"metadata": {"annotations": {"a": "2"}}})),
                apply(
                    "/api/v1/namespaces/default/persistentvolumeclaims/c?fieldManager=m",
                    annotated("3"),
                ),
                apply(CLAIM_APPLY, annotated("3")),
                apply(CLAIM_APPLY, claim_with(&json!({}))),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a merge patch removes what was applied, and the next apply sets it again",
            [
                post(CLAIMS, claim()),
                apply(CLAIM_APPLY, annotated("1")),
                merge(CLAIM, json!({"metadata": {"annotations": {"a": null}}})),
                apply(CLAIM_APPLY, annotated("1")),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an update takes the fields over that it changes, and leaves the others to those who applied them",
            [
                apply(
                    BACKEND_APPLY,
                    with(backend(), &json!({"spec": {"suspend": true, "mountOptions": ["hard"]}})),
                ),
                put(
                    BACKEND,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"},
                            "spec": {"suspend": true, "mountOptions": ["soft"]}}),
                    ),
                ),
                apply(BACKEND_APPLY, backend()),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "what a manager applied to the status is not removed by what it applies to the object",
            [
                post(BACKENDS, backend()),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"volumes": 1}}))),
                apply(
                    BACKEND_APPLY,
                    backend_with(&json!({"metadata": {"labels": {"a": "b"}}})),
                ),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"archives": 2}}))),
                apply(BACKEND_APPLY, backend_with(&json!({}))),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a field that an apply removes gets its default again",
            [
                post(BACKENDS, backend()),
                apply(
                    BACKEND_APPLY,
                    backend_with(&json!({"spec": {"suspend": true, "probeInterval": "60s"}})),
                ),
                apply(BACKEND_APPLY, backend_with(&json!({"spec": {"suspend": true}}))),
                apply(BACKEND_APPLY, backend_with(&json!({}))),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an apply replaces a list as a whole",
            [
                post(
                    BACKENDS,
                    with(backend(), &json!({"spec": {"mountOptions": ["hard", "ro"]}})),
                ),
                apply(
                    BACKEND_APPLY,
                    backend_with(&json!({"spec": {"mountOptions": ["soft"]}})),
                ),
                apply(
                    BACKEND_APPLY,
                    backend_with(&json!({"spec": {"mountOptions": ["soft", "ro"]}})),
                ),
                apply(BACKEND_APPLY, backend_with(&json!({}))),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an apply merges the finalizers of several managers",
            [
                post(BACKENDS, kept_backend()),
                apply(
                    BACKEND_APPLY,
                    backend_with(&json!({"metadata": {"finalizers": ["example.org/m"]}})),
                ),
                apply(BACKEND_APPLY, backend_with(&json!({}))),
            ]
            .into_iter()
            .chain(forget_kept_backend()),
        ),
        sequence(
            "an apply to an object that is being deleted changes it",
            [
                post(CLAIMS, claim()),
                delete(CLAIM, json!({})),
                apply(CLAIM_APPLY, annotated("1")),
                merge(CLAIM, json!({"metadata": {"finalizers": null}})),
                apply(
                    CLAIM_APPLY,
                    with(annotated("1"), &json!({"metadata": {"uid": "$0.uid"}})),
                ),
            ],
        ),
        sequence(
            "an apply can name its namespace, or null",
            [
                post(CLAIMS, claim()),
                post(BACKENDS, backend()),
                apply(
                    "/api/v1/namespaces/default/persistentvolumeclaims/c?&force=true&fieldManager=m",
                    with(
                        annotated("1"),
                        &json!({"metadata": {"namespace": "default", "uid": "$0.uid"}}),
                    ),
                ),
                apply(
                    "/apis/nfs-operator.io/v1alpha1/nfsbackends/b/status?&force=true&fieldManager=m",
                    backend_with(&json!({"metadata": {"namespace": null, "uid": "$1.uid"}, "status": {"volumes": 1}})),
                ),
                delete(BACKEND, json!({})),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply of a volume's annotations removes those that are no longer counted",
            [
                post(VOLUMES, volume()),
                apply(
                    VOLUME_APPLY,
                    volume_with(&json!({"example.org/bytes": "1", "example.org/unread": "2"})),
                ),
                apply(VOLUME_APPLY, volume_with(&json!({"example.org/bytes": "3"}))),
                apply(VOLUME_APPLY, volume_with(&json!({}))),
            ]
            .into_iter()
            .chain(forget_volume()),
        ),
    ]
}

const CLAIM_APPLY_N: &str = "/api/v1/namespaces/default/persistentvolumeclaims/c?fieldManager=n&force=true";
const VOLUME_APPLY: &str = "/api/v1/persistentvolumes/v?fieldManager=m&force=true";

/// Applies an annotation of the claim.
fn annotated(value: &str) -> Value {
    claim_with(&json!({"metadata": {"annotations": {"a": value}}}))
}

/// Applies the annotations of the volume.
fn volume_with(annotations: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "v", "uid": "$0.uid", "annotations": annotations}})
}
