//! Updates.

use serde_json::{Value, json};

use crate::requests::{Sequence, Step, delete, get, merge, post, put, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
    vec![
        sequence(
            "an update with the resource version that was read, and one with an older",
            [
                post(LEASES, lease("a")),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"},
                            "spec": {"holderIdentity": "other"}}),
                    ),
                ),
                put_lease(&json!({"resourceVersion": "$0.resourceVersion"})),
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
                put_lease(&json!({"resourceVersion": "$0.resourceVersion"})),
                put_lease(&json!({"resourceVersion": "$0.resourceVersion", "uid": "$0.uid"})),
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
                put_lease(&json!({"resourceVersion": "$0.resourceVersion"})),
                put_lease(&json!({"uid": "$0.uid", "resourceVersion": "$2.resourceVersion"})),
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
        sequence(
            "an update that changes nothing keeps the resource version",
            [
                post(LEASES, lease("a")),
                put_lease(&json!({"resourceVersion": "$0.resourceVersion"})),
                put_lease(&json!({"resourceVersion": "$0.resourceVersion"})),
                delete(
                    LEASE,
                    json!({"preconditions": {"resourceVersion": "$0.resourceVersion"}}),
                ),
            ],
        ),
        sequence(
            "an update removes what it does not name",
            [
                post(
                    LEASES,
                    with(
                        lease("a"),
                        &json!({"metadata": {"labels": {"x": "1"}, "annotations": {"y": "2"}}}),
                    ),
                ),
                put(
                    LEASE,
                    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": {"name": "a", "resourceVersion": "$0.resourceVersion"},
                        "spec": {"leaseDurationSeconds": 20}}),
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "a lease is taken over, renewed and released",
            [
                post(
                    LEASES,
                    with(
                        lease("a"),
                        &json!({"spec": {"acquireTime": "2026-01-01T00:00:00.000000Z", "leaseTransitions": 0,
                            "renewTime": "2026-01-01T00:00:00.000000Z"}}),
                    ),
                ),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"},
                            "spec": {"holderIdentity": "other", "acquireTime": "2026-01-01T00:01:00.000000Z",
                            "renewTime": "2026-01-01T00:01:00.000000Z", "leaseTransitions": 1}}),
                    ),
                ),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"},
                            "spec": {"renewTime": "2026-01-01T00:01:05.000000Z"}}),
                    ),
                ),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$1.resourceVersion"},
                            "spec": {"holderIdentity": "", "acquireTime": "2026-01-01T00:01:00.000000Z",
                            "renewTime": "2026-01-01T00:01:10.000000Z", "leaseTransitions": 1}}),
                    ),
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "an update creates no lease in a namespace that does not exist",
            [put(
                "/apis/coordination.k8s.io/v1/namespaces/missing/leases/a",
                lease("a"),
            )],
        ),
        sequence(
            "an update of a custom object counts as a generation if it changes the spec",
            [
                post(BACKENDS, backend()),
                put(
                    BACKEND,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"}, "spec": {"path": "/other"}}),
                    ),
                ),
                put(
                    BACKEND,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$1.resourceVersion", "labels": {"a": "b"}},
                            "spec": {"path": "/other"}}),
                    ),
                ),
                put(
                    BACKEND,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$2.resourceVersion", "labels": {"a": "b"},
                            "generation": 9}, "spec": {"path": "/other"}, "status": {"volumes": 1}}),
                    ),
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an update without the deletion of an object does not undo it",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                put(
                    BACKEND,
                    with(
                        kept_backend(),
                        &json!({"metadata": {"resourceVersion": "$1.resourceVersion", "labels": {"a": "b"}}}),
                    ),
                ),
                get(BACKEND),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
            ],
        ),
        sequence(
            "an update without finalizers ends a deletion",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                put(
                    BACKEND,
                    with(
                        backend(),
                        &json!({"metadata": {"resourceVersion": "$1.resourceVersion"}}),
                    ),
                ),
                get(BACKEND),
            ],
        ),
        sequence(
            "an update without the time of creation keeps it",
            [
                post(CLASSES, class()),
                put(
                    CLASS,
                    with(
                        class(),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion", "annotations": {"a": "b"}},
                            "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}),
                    ),
                ),
                delete(CLASS, json!({})),
            ],
        ),
        sequence(
            "an update of a built-in object needs no resource version",
            [
                post(CLASSES, class()),
                put(
                    CLASS,
                    with(
                        class(),
                        &json!({"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
                            "allowVolumeExpansion": true}),
                    ),
                ),
                put(
                    CLASS,
                    with(
                        class(),
                        &json!({"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}),
                    ),
                ),
                delete(CLASS, json!({})),
            ],
        ),
        sequence(
            "an update does not create a secret",
            [put(
                SECRET,
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"key": "YQ=="}}),
            )],
        ),
    ]
}

/// Writes a lease with this metadata besides its name.
fn put_lease(metadata: &Value) -> Step {
    put(LEASE, with(lease("a"), &json!({ "metadata": metadata })))
}
