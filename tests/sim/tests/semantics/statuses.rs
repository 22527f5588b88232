//! The status subresource.

use serde_json::{Value, json};

use crate::requests::{Sequence, apply, delete, get, merge, post, put, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
    vec![
        sequence(
            "a status is read with its object",
            [
                post(BACKENDS, backend()),
                get(BACKEND_STATUS),
                delete(BACKEND, json!({})),
                get(BACKEND_STATUS),
            ],
        ),
        sequence(
            "a kind without a status refuses requests for it",
            [
                post(LEASES, lease("a")),
                get("/apis/coordination.k8s.io/v1/namespaces/default/leases/a/status"),
                merge(
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases/a/status",
                    json!({}),
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "a write to the status of a custom object changes no metadata and counts as no generation",
            [
                post(
                    BACKENDS,
                    with(kept_backend(), &json!({"metadata": {"labels": {"a": "1"}}})),
                ),
                merge(
                    BACKEND_STATUS,
                    json!({"metadata": {"labels": {"a": "2"}, "annotations": {"a": "b"}, "finalizers": null},
                        "spec": {"suspend": true}, "status": {"volumes": 1}}),
                ),
                apply(
                    BACKEND_STATUS_APPLY,
                    backend_with(&json!({"metadata": {"labels": {"a": "3"}, "annotations": {"c": "d"}},
                        "status": {"volumes": 2}})),
                ),
                merge(BACKEND_STATUS, json!({"metadata": {"labels": {"a": "4"}}})),
            ]
            .into_iter()
            .chain(forget_kept_backend()),
        ),
        sequence(
            "an update of a status leaves the spec alone",
            [
                post(BACKENDS, backend()),
                put(
                    BACKEND_STATUS,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion", "labels": {"a": "b"}},
                            "spec": {"path": "/other"}, "status": {"volumes": 1}}),
                    ),
                ),
                put(
                    BACKEND_STATUS,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"}, "status": {"volumes": 2}}),
                    ),
                ),
                put(
                    BACKEND_STATUS,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$1.resourceVersion", "uid": NO_UID},
                            "status": {"volumes": 3}}),
                    ),
                ),
                put(BACKEND_STATUS, with(backend(), &json!({"status": {"volumes": 4}}))),
                put(
                    BACKEND_STATUS,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$1.resourceVersion"}}),
                    ),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a status that is written again keeps the resource version",
            [
                post(BACKENDS, backend()),
                merge(BACKEND_STATUS, json!({"status": {"volumes": 1, "nfsVersion": "4.2"}})),
                merge(BACKEND_STATUS, json!({"status": {"volumes": 1}})),
                merge(BACKEND_STATUS, json!({"status": {"nfsVersion": null}})),
                delete(
                    BACKEND,
                    json!({"preconditions": {"resourceVersion": "$3.resourceVersion"}}),
                ),
            ],
        ),
        sequence(
            "a status gets the defaults of its schema",
            [
                post(BACKENDS, backend()),
                merge(
                    BACKEND_STATUS,
                    json!({"status": {"trash": {"lastError": "x"}, "orphans": {}}}),
                ),
                apply(
                    BACKEND_STATUS_APPLY,
                    backend_with(&json!({"status": {"usage": {"files": 1}}})),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a status patch of a custom object is refused for its resource version, but not for its UID",
            [
                post(BACKENDS, backend()),
                merge(BACKEND, json!({"spec": {"suspend": true}})),
                merge(
                    BACKEND_STATUS,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion"},
                        "status": {"volumes": 1}}),
                ),
                merge(
                    BACKEND_STATUS,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$1.resourceVersion"},
                        "status": {"volumes": 1}}),
                ),
                merge(
                    BACKEND_STATUS,
                    json!({"metadata": {"uid": NO_UID}, "status": {"volumes": 2}}),
                ),
                apply(
                    BACKEND_STATUS_APPLY,
                    backend_with(&json!({"metadata": {"resourceVersion": "$0.resourceVersion"},
                        "status": {"volumes": 3}})),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a write to the status of a claim can change its metadata",
            [
                post(CLAIMS, claim()),
                merge(
                    CLAIM_STATUS,
                    json!({"metadata": {"labels": {"a": "1"}, "finalizers": ["example.org/keep"]},
                        "spec": {"storageClassName": "other", "resources": {"requests": {"storage": "2Gi"}}},
                        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
                        "accessModes": ["ReadWriteMany"]}}),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&json!({"metadata": {"labels": {"b": "2"}}})),
                ),
                merge(CLAIM, json!({"status": {"phase": "Lost"}})),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply to the status removes the conditions that its manager no longer sets, and no others",
            [
                post(CLAIMS, claim()),
                merge(
                    CLAIM_STATUS,
                    json!({"status": {"conditions": [{"type": "X", "status": "True"}, {"type": "Y",
                        "status": "True"}]}}),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&json!({"status": {"conditions": [
                        {"type": "A", "status": "True", "reason": "R", "message": "text"},
                        {"type": "B", "status": "True"}]}})),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&json!({"status": {"conditions": [
                        {"type": "B", "status": "False"}, {"type": "C", "status": "True"}]}})),
                ),
                apply(CLAIM_STATUS_APPLY, claim_with(&json!({"status": {"conditions": []}}))),
                merge(CLAIM_STATUS, json!({"status": {"conditions": null}})),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an apply takes the condition of another over",
            [
                post(CLAIMS, claim()),
                merge(
                    CLAIM_STATUS,
                    json!({"status": {"conditions": [{"type": "A", "status": "True", "reason": "Old"}]}}),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&json!({"status": {"conditions": [{"type": "A", "status": "False",
                        "message": "text"}]}})),
                ),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&json!({"status": {"conditions": [{"type": "A", "status": "False"}]}})),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a status is applied again after the object was changed, without a conflict",
            [
                post(BACKENDS, backend()),
                apply(
                    BACKEND_STATUS_APPLY,
                    backend_with(&json!({"status": {"observedGeneration": 1, "conditions": [ready("True", 1)]}})),
                ),
                merge(BACKEND, json!({"spec": {"suspend": true}})),
                apply(
                    BACKEND_STATUS_APPLY,
                    backend_with(&json!({"status": {"observedGeneration": 2, "conditions": [ready("False", 2)]}})),
                ),
                apply(
                    BACKEND_STATUS_APPLY_N,
                    backend_with(&json!({"status": {"usage": {"files": 1, "volumes": 2}}})),
                ),
                apply(
                    BACKEND_STATUS_APPLY_N,
                    backend_with(&json!({"status": {"usage": {"files": 3}}})),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "only a write to the status changes the phase of a volume",
            [
                post(VOLUMES, volume()),
                merge(
                    VOLUME_STATUS,
                    json!({"status": {"phase": "Released", "message": "text"}}),
                ),
                merge(
                    VOLUME_STATUS,
                    json!({"spec": {"claimRef": null}, "metadata": {"labels": {"a": "b"}}}),
                ),
                merge(VOLUME, json!({"status": {"phase": "Failed"}})),
            ]
            .into_iter()
            .chain(forget_volume()),
        ),
    ]
}

const BACKEND_STATUS_APPLY_N: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends/b/status?fieldManager=n&force=true";

/// The condition of a backend.
fn ready(status: &str, generation: i64) -> Value {
    json!({"type": "Ready", "status": status, "reason": "R", "message": "", "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}
