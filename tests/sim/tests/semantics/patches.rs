//! Merge patches and JSON patches.

use serde_json::json;

use crate::requests::{Sequence, Step, apply, as_type, delete, get, json_patch, merge, post, sequence, strategic};
use crate::table::*;

/// Removes the finalizer at an index if it has this name.
fn remove_finalizer(index: usize, name: &str) -> Step {
    let path = format!("/metadata/finalizers/{index}");
    json_patch(
        BACKEND,
        json!([{"op": "test", "path": path, "value": name}, {"op": "remove", "path": path}]),
    )
}

pub fn sequences() -> Vec<Sequence> {
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
                merge(
                    CLAIM,
                    json!({"metadata": {"uid": "00000000-0000-4000-a000-000000000000"}}),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a patch of the object leaves the status alone, and the other way round",
            [
                post(BACKENDS, backend()),
                merge(BACKEND, json!({"status": {"volumes": 3}})),
                merge(
                    BACKEND_STATUS,
                    json!({"spec": {"path": "/other"}, "status": {"volumes": 4}}),
                ),
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
                    json!({"metadata": {"annotations": {"a": "b"}},
                        "status": {"conditions": [{"type": "A", "status": "True"}]}}),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a JSON patch whose test holds, and one whose test fails",
            [
                post(
                    LEASES,
                    with(lease("a"), &json!({"metadata": {"annotations": {"x": "1"}}})),
                ),
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
        sequence(
            "a JSON patch removes a finalizer where a test finds it, and the last one removes a deleted object",
            [
                post(
                    BACKENDS,
                    with(
                        backend(),
                        &json!({"metadata": {"finalizers": ["example.org/a", "example.org/b"]}}),
                    ),
                ),
                delete(BACKEND, json!({})),
                remove_finalizer(0, "example.org/b"),
                remove_finalizer(2, "example.org/b"),
                json_patch(
                    BACKEND,
                    json!([{"op": "test", "path": "/metadata/uid", "value": "00000000-0000-4000-a000-000000000000"},
                        {"op": "remove", "path": "/metadata/finalizers/0"}]),
                ),
                json_patch(
                    BACKEND,
                    json!([{"op": "test", "path": "/metadata/uid", "value": "$0.uid"},
                        {"op": "test", "path": "/metadata/finalizers/0", "value": "example.org/a"},
                        {"op": "remove", "path": "/metadata/finalizers/0"}]),
                ),
                remove_finalizer(0, "example.org/b"),
                remove_finalizer(0, "example.org/b"),
            ],
        ),
        sequence(
            "null in a merge patch removes a field, also one that does not exist",
            [
                post(
                    LEASES,
                    with(
                        lease("a"),
                        &json!({"metadata": {"annotations": {"x": "1", "y": "2"}, "labels": {"z": "3"}}}),
                    ),
                ),
                merge(LEASE, json!({"metadata": {"annotations": {"x": null, "other": null}}})),
                merge(LEASE, json!({"metadata": {"annotations": {"y": null}, "labels": null}})),
                merge(
                    LEASE,
                    json!({"metadata": {"annotations": {"y": null}}, "spec": {"holderIdentity": null}}),
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "a merge patch that changes nothing keeps the resource version",
            [
                post(
                    BACKENDS,
                    with(backend(), &json!({"metadata": {"annotations": {"x": "1"}}})),
                ),
                merge(BACKEND, json!({})),
                merge(BACKEND, json!({"metadata": {"annotations": {"x": "1"}}})),
                merge(BACKEND, json!({"metadata": {"labels": {"x": null}}})),
                merge(BACKEND, json!({"metadata": {"labels": {}}})),
                merge(BACKEND, json!({"spec": {"suspend": false}})),
                merge(BACKEND_STATUS, json!({"spec": {"suspend": true}})),
                delete(
                    BACKEND,
                    json!({"preconditions": {"resourceVersion": "$0.resourceVersion"}}),
                ),
            ],
        ),
        sequence(
            "a merge patch merges maps and replaces lists",
            [
                post(
                    BACKENDS,
                    with(
                        backend(),
                        &json!({"spec": {"mountOptions": ["hard", "ro"], "archivePolicy": {"keepLast": 3}}}),
                    ),
                ),
                merge(
                    BACKEND,
                    json!({"spec": {"mountOptions": ["soft"], "archivePolicy": {"onDelete": "Retain"}}}),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a field that a merge patch removes gets its default again",
            [
                post(
                    BACKENDS,
                    with(
                        backend(),
                        &json!({"spec": {"suspend": true, "archivePolicy": {"onDelete": "Delete",
                            "retention": "60s"}}}),
                    ),
                ),
                merge(
                    BACKEND,
                    json!({"spec": {"suspend": null, "archivePolicy": {"onDelete": null, "retention": null}}}),
                ),
                merge(BACKEND, json!({"spec": {"archivePolicy": null}})),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "the generation counts changes of the spec, and no changes of the metadata",
            [
                post(BACKENDS, backend()),
                merge(
                    BACKEND,
                    json!({"metadata": {"annotations": {"a": "b"}, "labels": {"a": "b"}}}),
                ),
                merge(BACKEND, json!({"metadata": {"finalizers": ["example.org/a"]}})),
                merge(BACKEND, json!({"spec": {"suspend": true}})),
                merge(
                    BACKEND,
                    json!({"spec": {"suspend": true}, "metadata": {"generation": 7}}),
                ),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a merge patch with a UID and a resource version applies only to the object as it was read",
            [
                post(VOLUMES, volume()),
                merge(
                    VOLUME,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion",
                        "annotations": {"example.org/a": null, "example.org/b": "2"}}}),
                ),
                merge(
                    VOLUME,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion",
                        "annotations": {"example.org/b": "3"}}}),
                ),
                merge(
                    VOLUME,
                    json!({"metadata": {"uid": NO_UID, "resourceVersion": "$1.resourceVersion",
                        "annotations": {"example.org/b": "4"}}}),
                ),
            ]
            .into_iter()
            .chain(forget_volume()),
        ),
        sequence(
            "a merge patch of an object that was read does not apply to the one that replaced it",
            [
                post(BACKENDS, backend()),
                delete(BACKEND, json!({})),
                merge(
                    BACKEND,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion",
                        "labels": {"a": "b"}}}),
                ),
                post(BACKENDS, backend()),
                merge(
                    BACKEND,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion",
                        "labels": {"a": "b"}}}),
                ),
                merge(BACKEND, json!({"metadata": {"uid": "$0.uid", "labels": {"a": "b"}}})),
                get(BACKEND),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a merge patch that was made before a deletion is refused, and one that was made after it is not",
            [
                post(CLAIMS, claim()),
                delete(CLAIM, json!({})),
                merge(
                    CLAIM,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion",
                        "annotations": {"a": "b"}}}),
                ),
                merge(
                    CLAIM,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$1.resourceVersion",
                        "annotations": {"a": "b"}}}),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a strategic merge patch merges the conditions of a claim by their type",
            [
                post(CLAIMS, claim()),
                strategic(
                    CLAIM_STATUS_OF_M,
                    conditions(json!([{"type": "A", "status": "True", "reason": "R"}])),
                ),
                strategic(CLAIM_STATUS_OF_M, conditions(json!([{"type": "B", "status": "False"}]))),
                strategic(
                    CLAIM_STATUS_OF_M,
                    conditions(json!([{"type": "A", "status": "False", "message": "m"}])),
                ),
                strategic(
                    CLAIM_STATUS_OF_M,
                    conditions(json!([{"type": "A", "status": "False", "message": "m"}])),
                ),
                strategic(
                    CLAIM_STATUS_OF_M,
                    conditions(json!([{"$patch": "delete", "type": "C"}])),
                ),
                strategic(
                    CLAIM_STATUS_OF_M,
                    conditions(json!([{"$patch": "delete", "type": "A"}])),
                ),
                strategic(
                    CLAIM_STATUS_OF_M,
                    conditions(json!([{"$patch": "delete", "type": "B"}])),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "conditions that were applied are merged and removed by a strategic merge patch of the same manager",
            [
                post(CLAIMS, claim()),
                apply(
                    CLAIM_STATUS_APPLY,
                    claim_with(&conditions(
                        json!([{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]),
                    )),
                ),
                strategic(CLAIM_STATUS_OF_M, conditions(json!([{"type": "A", "status": "False"}]))),
                strategic(
                    CLAIM_STATUS_OF_M,
                    conditions(json!([{"$patch": "delete", "type": "B"}])),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a strategic merge patch of a status applies only to the claim with its UID, as it was read",
            [
                strategic(CLAIM_STATUS_OF_M, conditions(json!([{"type": "A", "status": "True"}]))),
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"metadata": {"labels": {"a": "b"}}})),
                strategic(
                    CLAIM_STATUS_OF_M,
                    with(
                        json!({"metadata": {"uid": "$1.uid", "resourceVersion": "$1.resourceVersion"}}),
                        &conditions(json!([{"type": "A", "status": "True"}])),
                    ),
                ),
                strategic(
                    CLAIM_STATUS_OF_M,
                    with(
                        json!({"metadata": {"uid": NO_UID}}),
                        &conditions(json!([{"type": "A", "status": "True"}])),
                    ),
                ),
                strategic(
                    CLAIM_STATUS_OF_M,
                    with(
                        json!({"metadata": {"uid": "$1.uid", "resourceVersion": "$2.resourceVersion"}}),
                        &conditions(json!([{"type": "A", "status": "True"}])),
                    ),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a custom object takes no strategic merge patch",
            [
                post(BACKENDS, backend()),
                strategic(BACKEND_STATUS, json!({"status": {"volumes": 1}})),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a status patch of a claim applies only to the claim as it was read",
            [
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"metadata": {"labels": {"a": "b"}}})),
                merge(
                    CLAIM_STATUS,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion"},
                        "status": {"capacity": {"storage": "2Gi"}}}),
                ),
                merge(
                    CLAIM_STATUS,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$1.resourceVersion"},
                        "status": {"capacity": {"storage": "2Gi"}}}),
                ),
                merge(
                    CLAIM_STATUS,
                    json!({"metadata": {"uid": NO_UID}, "status": {"capacity": {"storage": "3Gi"}}}),
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a JSON patch removes the annotation of an object with this UID",
            [
                post(
                    BACKENDS,
                    with(
                        backend(),
                        &json!({"metadata": {"annotations": {"example.org/scan-now": "1"}}}),
                    ),
                ),
                json_patch(
                    BACKEND,
                    json!([{"op": "test", "path": "/metadata/uid", "value": NO_UID},
                        {"op": "test", "path": "/metadata/annotations/example.org~1scan-now", "value": "1"},
                        {"op": "remove", "path": "/metadata/annotations/example.org~1scan-now"}]),
                ),
                json_patch(
                    BACKEND,
                    json!([{"op": "test", "path": "/metadata/uid", "value": "$0.uid"},
                        {"op": "test", "path": "/metadata/annotations/example.org~1scan-now", "value": "1"},
                        {"op": "remove", "path": "/metadata/annotations/example.org~1scan-now"}]),
                ),
                json_patch(
                    BACKEND,
                    json!([{"op": "test", "path": "/metadata/uid", "value": "$0.uid"},
                        {"op": "test", "path": "/metadata/annotations/example.org~1scan-now", "value": "1"},
                        {"op": "remove", "path": "/metadata/annotations/example.org~1scan-now"}]),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a JSON patch of an annotation that does not exist is refused",
            [
                post(
                    LEASES,
                    with(lease("a"), &json!({"metadata": {"annotations": {"x": "1"}}})),
                ),
                json_patch(
                    LEASE,
                    json!([{"op": "test", "path": "/metadata/annotations/y", "value": "1"}]),
                ),
                json_patch(LEASE, json!([{"op": "remove", "path": "/metadata/annotations/y"}])),
                get(LEASE),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "a JSON patch of an object that does not exist is refused",
            [json_patch(
                BACKEND,
                json!([{"op": "test", "path": "/metadata/uid", "value": NO_UID},
                    {"op": "remove", "path": "/metadata/annotations/x"}]),
            )],
        ),
        sequence(
            "a JSON patch adds and replaces, and one that changes nothing keeps the resource version",
            [
                post(
                    BACKENDS,
                    with(backend(), &json!({"metadata": {"finalizers": ["example.org/a"]}})),
                ),
                json_patch(
                    BACKEND,
                    json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "example.org/b"},
                        {"op": "replace", "path": "/spec/path", "value": "/other"}]),
                ),
                json_patch(
                    BACKEND,
                    json!([{"op": "replace", "path": "/spec/path", "value": "/other"}]),
                ),
                json_patch(
                    BACKEND,
                    json!([{"op": "test", "path": "/spec/path", "value": "/other"}]),
                ),
                json_patch(BACKEND, json!([{"op": "remove", "path": "/metadata/finalizers"}])),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a patch of an unknown form is refused",
            [
                post(BACKENDS, backend()),
                as_type("application/json", merge(BACKEND, json!({"spec": {"suspend": true}}))),
                as_type(
                    "application/strategic-merge-patch+json",
                    merge(BACKEND, json!({"spec": {"suspend": true}})),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
    ]
}
