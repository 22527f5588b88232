//! Watches. Each ends by itself; bookmarks are not compared, because each server sends them when it likes.

use serde_json::json;

use crate::requests::{Sequence, apply, delete, get, merge, metadata_of, post, put, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
    vec![
        sequence(
            "a watch from a resource version shows what was changed and deleted since",
            [
                post(LEASES, lease("a")),
                merge(LEASE, json!({"spec": {"holderIdentity": "other"}})),
                delete(LEASE, json!({})),
                get(
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases?watch=true&timeoutSeconds=60\
                     &allowWatchBookmarks=true&resourceVersion=$0.resourceVersion",
                ),
                get(
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases?watch=true&timeoutSeconds=60\
                     &allowWatchBookmarks=true&resourceVersion=$1.resourceVersion",
                ),
            ],
        ),
        sequence(
            "a watch from a list shows what was created since",
            [
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=500"),
                post(BACKENDS, backend()),
                get(WATCH_FROM_0),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=500"),
                get(
                    "/apis/nfs-operator.io/v1alpha1/nfsbackends?watch=true&timeoutSeconds=60\
                     &allowWatchBookmarks=true&resourceVersion=$3.resourceVersion",
                ),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a watch without a resource version, or from 0, begins with what exists",
            [
                post(BACKENDS, backend()),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?watch=true&timeoutSeconds=60"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?watch=true&timeoutSeconds=60&resourceVersion=0"),
                delete(BACKEND, json!({})),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?watch=true&timeoutSeconds=60"),
            ],
        ),
        sequence(
            "a watch from a resource version that is too old ends with an error",
            [get(
                "/apis/nfs-operator.io/v1alpha1/nfsbackends?watch=true&timeoutSeconds=60&resourceVersion=1",
            )],
        ),
        sequence(
            "a watch shows the beginning and the end of a deletion, and the last state with its finalizers",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                delete(BACKEND, json!({})),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
                get(WATCH_FROM_0),
            ],
        ),
        sequence(
            "a watch shows no writes that changed nothing",
            [
                post(BACKENDS, backend()),
                merge(BACKEND, json!({"spec": {"suspend": false}})),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"volumes": 1}}))),
                apply(BACKEND_STATUS_APPLY, backend_with(&json!({"status": {"volumes": 1}}))),
                merge(BACKEND_STATUS, json!({"status": {"volumes": 1}})),
                merge(
                    BACKEND,
                    json!({"metadata": {"resourceVersion": "$0.resourceVersion", "labels": {"a": "b"}}}),
                ),
                get(WATCH_FROM_0),
                delete(BACKEND, json!({})),
            ],
        ),
        sequence(
            "a watch shows an object that was created again as another one",
            [
                post(CLAIMS, claim()),
                merge(CLAIM, json!({"metadata": {"finalizers": null}})),
                delete(CLAIM, json!({})),
                post(CLAIMS, claim()),
                get(
                    "/api/v1/persistentvolumeclaims?watch=true&timeoutSeconds=60&allowWatchBookmarks=true\
                     &resourceVersion=$0.resourceVersion",
                ),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a watch of one name shows no others",
            [
                post(LEASES, lease("a")),
                post(LEASES, lease("b")),
                put(
                    LEASE,
                    with(
                        lease("a"),
                        &json!({"metadata": {"resourceVersion": "$0.resourceVersion"},
                            "spec": {"holderIdentity": "x"}}),
                    ),
                ),
                delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/b", json!({})),
                get(
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases?watch=true&timeoutSeconds=60\
                     &fieldSelector=metadata.name%3Da&resourceVersion=$0.resourceVersion",
                ),
                get(
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases?watch=true&timeoutSeconds=60\
                     &fieldSelector=metadata.name%3Da",
                ),
                delete(LEASE, json!({})),
            ],
        ),
        sequence(
            "a watch can show the metadata alone",
            [
                metadata_of(post(
                    NODES,
                    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"zone": "a"}}}),
                )),
                metadata_of(merge(NODE, json!({"metadata": {"labels": {"zone": "b"}}}))),
                delete(NODE, json!({})),
                metadata_of(get(
                    "/api/v1/nodes?watch=true&timeoutSeconds=60&allowWatchBookmarks=true\
                     &resourceVersion=$0.resourceVersion",
                )),
                metadata_of(get(
                    "/apis/nfs-operator.io/v1alpha1/nfsbackends?watch=true&timeoutSeconds=60&resourceVersion=1",
                )),
            ],
        ),
        sequence(
            "a watch of volumes shows changes of their status",
            [
                post(VOLUMES, volume()),
                merge(VOLUME_STATUS, json!({"status": {"phase": "Bound"}})),
                merge(VOLUME, json!({"spec": {"capacity": {"storage": "2Gi"}}})),
                get(
                    "/api/v1/persistentvolumes?watch=true&timeoutSeconds=60&allowWatchBookmarks=true\
                     &resourceVersion=$0.resourceVersion",
                ),
            ]
            .into_iter()
            .chain(forget_volume()),
        ),
    ]
}

const WATCH_FROM_0: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends?watch=true&timeoutSeconds=60\
                            &allowWatchBookmarks=true&resourceVersion=$0.resourceVersion";
