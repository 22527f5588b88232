//! Deletions and finalizers.

use serde_json::{Value, json};

use crate::requests::{Sequence, apply, delete, get, json_patch, merge, post, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
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
                post(BACKENDS, backend_with_finalizers(&json!(["example.org/keep"]))),
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
        sequence(
            "a finalizer on an object that is being deleted",
            [
                post(BACKENDS, backend_with_finalizers(&json!(["example.org/keep"]))),
                delete(BACKEND, json!({})),
                merge(
                    BACKEND,
                    json!({"metadata": {"finalizers": ["example.org/keep", "example.org/more"]}}),
                ),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
            ],
        ),
        sequence(
            "an object that was deleted is not deleted again",
            [
                post(LEASES, lease("a")),
                delete(LEASE, json!({})),
                delete(LEASE, json!({})),
                delete(LEASE, json!({"preconditions": {"uid": "$0.uid"}})),
            ],
        ),
        sequence(
            "an object of any kind that does not exist is not deleted",
            [
                delete(BACKEND, json!({})),
                delete(CLAIM, json!({})),
                delete(VOLUME, json!({"preconditions": {"uid": NO_UID}})),
                delete(CLASS, json!({})),
                delete(SECRET, json!({})),
            ],
        ),
        sequence(
            "a delete needs no body",
            [post(LEASES, lease("a")), delete(LEASE, Value::Null), get(LEASE)],
        ),
        sequence(
            "a delete in the background is a delete",
            [
                post(CLASSES, class()),
                delete(CLASS, json!({"propagationPolicy": "Background"})),
                get(CLASS),
            ],
        ),
        sequence(
            "a delete is refused unless both the UID and the resource version are right",
            [
                post(BACKENDS, backend()),
                merge(BACKEND, json!({"metadata": {"labels": {"a": "b"}}})),
                delete(
                    BACKEND,
                    json!({"preconditions": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion"}}),
                ),
                delete(
                    BACKEND,
                    json!({"preconditions": {"uid": NO_UID, "resourceVersion": "$1.resourceVersion"}}),
                ),
                delete(
                    BACKEND,
                    json!({"preconditions": {"uid": "$0.uid", "resourceVersion": "$1.resourceVersion"}}),
                ),
                get(BACKEND),
            ],
        ),
        sequence(
            "the object that replaced another is not deleted with the UID of that",
            [
                post(CLAIMS, claim()),
                delete(CLAIM, json!({})),
                merge(CLAIM, json!({"metadata": {"finalizers": null}})),
                post(CLAIMS, claim()),
                delete(CLAIM, json!({"preconditions": {"uid": "$0.uid"}})),
                get(CLAIM),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "an object is marked as deleted once",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                delete(BACKEND, json!({})),
                delete(BACKEND, json!({"preconditions": {"uid": "$0.uid"}})),
                delete(BACKEND, json!({"preconditions": {"uid": NO_UID}})),
                delete(
                    BACKEND,
                    json!({"preconditions": {"resourceVersion": "$0.resourceVersion"}}),
                ),
                get(BACKEND),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
            ],
        ),
        sequence(
            "an object is gone with the last of its finalizers",
            [
                post(
                    BACKENDS,
                    backend_with_finalizers(&json!(["example.org/a", "example.org/b"])),
                ),
                delete(BACKEND, json!({})),
                merge(BACKEND, json!({"metadata": {"finalizers": ["example.org/b"]}})),
                get(BACKEND),
                merge(
                    BACKEND,
                    json!({"metadata": {"finalizers": [], "uid": "$0.uid", "resourceVersion": "$2.resourceVersion"}}),
                ),
                get(BACKEND),
                merge(BACKEND, json!({"metadata": {"finalizers": []}})),
            ],
        ),
        sequence(
            "a finalizer is not removed with an older resource version",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                merge(
                    BACKEND,
                    json!({"metadata": {"finalizers": [], "uid": "$0.uid", "resourceVersion": "$0.resourceVersion"}}),
                ),
                get(BACKEND),
                merge(
                    BACKEND,
                    json!({"metadata": {"finalizers": [], "uid": "$0.uid", "resourceVersion": "$1.resourceVersion"}}),
                ),
                get(BACKEND),
            ],
        ),
        sequence(
            "finalizers are removed before a deletion, which then is immediate",
            [
                post(BACKENDS, kept_backend()),
                merge(BACKEND, json!({"metadata": {"finalizers": []}})),
                delete(BACKEND, json!({})),
                get(BACKEND),
            ],
        ),
        sequence(
            "a JSON patch removes the last finalizer of a deleted object",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                json_patch(
                    BACKEND,
                    json!([{"op": "test", "path": "/metadata/finalizers/0", "value": "example.org/keep"},
                        {"op": "remove", "path": "/metadata/finalizers/0"}]),
                ),
                get(BACKEND),
            ],
        ),
        sequence(
            "an apply removes the last finalizer of a deleted object",
            [
                apply(BACKEND_APPLY, kept_backend()),
                delete(BACKEND, json!({})),
                apply(BACKEND_APPLY, backend()),
                get(BACKEND),
            ],
        ),
        sequence(
            "an object that is being deleted keeps some finalizers, but gets no others",
            [
                post(
                    BACKENDS,
                    backend_with_finalizers(&json!(["example.org/a", "example.org/b"])),
                ),
                delete(BACKEND, json!({})),
                merge(BACKEND, json!({"metadata": {"finalizers": ["example.org/c"]}})),
                merge(
                    BACKEND,
                    json!({"metadata": {"finalizers": ["example.org/b", "example.org/a"]}}),
                ),
                apply(
                    BACKEND_APPLY,
                    backend_with(&json!({"metadata": {"finalizers": ["example.org/d"]}})),
                ),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
            ],
        ),
        sequence(
            "a claim and a volume that are being deleted get no more finalizers",
            [
                post(CLAIMS, claim()),
                post(VOLUMES, volume()),
                delete(CLAIM, json!({})),
                delete(VOLUME, json!({})),
                merge(
                    CLAIM,
                    json!({"metadata": {"finalizers": ["example.org/keep", "example.org/more"]}}),
                ),
                merge(
                    VOLUME,
                    json!({"metadata": {"finalizers": ["example.org/keep", "example.org/more"]}}),
                ),
            ]
            .into_iter()
            .chain(forget_claim())
            .chain(forget_volume()),
        ),
        sequence(
            "an object that is being deleted can be changed",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                merge(BACKEND, json!({"spec": {"suspend": true}})),
                merge(BACKEND, json!({"metadata": {"annotations": {"a": "b"}}})),
                merge(BACKEND_STATUS, json!({"status": {"volumes": 1}})),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"volumes": 2}}))),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
                merge(BACKEND_STATUS, json!({"status": {"volumes": 3}})),
            ],
        ),
        sequence(
            "the deletion of an object cannot be undone",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                merge(
                    BACKEND,
                    json!({"metadata": {"deletionTimestamp": null, "deletionGracePeriodSeconds": null}}),
                ),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
                get(BACKEND),
            ],
        ),
        sequence(
            "the deletion of a volume shows the volume, and that of a secret a status",
            [
                post(VOLUMES, volume()),
                post(
                    SECRETS,
                    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"key": "YQ=="}}),
                ),
                merge(VOLUME, json!({"metadata": {"finalizers": null}})),
                delete(VOLUME, json!({"preconditions": {"uid": "$0.uid"}})),
                delete(SECRET, json!({})),
                get(VOLUME),
            ],
        ),
    ]
}
