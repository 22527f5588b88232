//! Reads and creates.

use serde_json::{Value, json};

use crate::requests::{Sequence, delete, get, merge, metadata_of, post, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
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
        sequence(
            "an object that exists is not created again with other fields",
            [
                post(BACKENDS, backend()),
                post(BACKENDS, with(backend(), &json!({"spec": {"path": "/other"}}))),
                get(BACKEND),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "the name of an object that is being deleted is not free yet",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                post(BACKENDS, backend()),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
                post(BACKENDS, backend()),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a create ignores the metadata that only the server sets",
            [
                post(
                    BACKENDS,
                    with(
                        backend(),
                        &json!({"metadata": {"uid": NO_UID, "generation": 7,
                            "creationTimestamp": "2020-01-01T00:00:00Z",
                            "deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5}}),
                    ),
                ),
                get(BACKEND),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "an object that was created again has another UID",
            [
                post(LEASES, lease("a")),
                delete(LEASE, json!({})),
                post(LEASES, lease("a")),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "a create without metadata is refused",
            [post(
                LEASES,
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}}),
            )],
        ),
        sequence(
            "claims and events are not created in a namespace that does not exist",
            [
                post("/api/v1/namespaces/missing/persistentvolumeclaims", claim()),
                post("/apis/events.k8s.io/v1/namespaces/missing/events", event()),
            ],
        ),
        sequence(
            "a claim is created without the status of the request, and with the finalizer that protects it",
            [post(
                CLAIMS,
                with(
                    claim(),
                    &json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}),
                ),
            )]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "the data source of a claim is copied to the other field",
            [post(
                CLAIMS,
                with(
                    claim(),
                    &json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}}),
                ),
            )]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a data source of another group is copied from its reference",
            [post(
                CLAIMS,
                with(
                    claim(),
                    &json!({"spec": {"dataSourceRef": {"apiGroup": "nfs-operator.io", "kind": "NfsArchive",
                        "name": "a"}}}),
                ),
            )]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a create that is only checked creates nothing",
            [
                post(
                    "/api/v1/namespaces/default/secrets?dryRun=All",
                    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "immutable": true,
                        "data": {"key": "YQ=="}}),
                ),
                get(SECRET),
            ],
        ),
        sequence(
            "a create that is only checked is refused as the real one would be",
            [
                post(LEASES, lease("a")),
                post(
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases?dryRun=All",
                    lease("a"),
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "an event is created once",
            [
                post("/apis/events.k8s.io/v1/namespaces/default/events", event()),
                post("/apis/events.k8s.io/v1/namespaces/default/events", event()),
                delete("/apis/events.k8s.io/v1/namespaces/default/events/e", json!({})),
            ],
        ),
        sequence(
            "the metadata of an object can be read alone",
            [
                post(LEASES, with(lease("a"), &json!({"metadata": {"labels": {"a": "b"}}}))),
                metadata_of(get(LEASE)),
                delete(LEASE, json!({})),
                metadata_of(get(LEASE)),
                metadata_of(get(BACKEND)),
            ],
        ),
        sequence(
            "a write can be answered with the metadata alone",
            [
                metadata_of(post(
                    NODES,
                    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"zone": "a"}}}),
                )),
                metadata_of(merge(NODE, json!({"metadata": {"labels": {"zone": "b", "disk": "c"}}}))),
                metadata_of(merge(NODE, json!({"metadata": {"labels": {"zone": null}}}))),
                delete(NODE, json!({})),
            ],
        ),
        // Without the controller that empties namespaces, this one remains.
        sequence(
            "a namespace that is being deleted accepts no new objects",
            [
                post(
                    NAMESPACES,
                    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ending"}}),
                ),
                post(ENDING_LEASES, lease("a")),
                delete("/api/v1/namespaces/ending", json!({})),
                post(ENDING_LEASES, lease("b")),
                get("/apis/coordination.k8s.io/v1/namespaces/ending/leases/a"),
                delete("/apis/coordination.k8s.io/v1/namespaces/ending/leases/a", json!({})),
                delete("/api/v1/namespaces/ending", json!({})),
                get("/api/v1/namespaces/ending"),
            ],
        ),
    ]
}

const ENDING_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ending/leases";

/// An event as the operator sends it, with the fields that the API shows in any case.
fn event() -> Value {
    json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Provision", "reason": "Provisioning", "type": "Normal",
        "note": "text", "reportingController": "example.org/c", "reportingInstance": "i",
        "regarding": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"},
        "deprecatedSource": {}, "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null})
}
