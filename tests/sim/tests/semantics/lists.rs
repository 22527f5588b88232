//! Lists.

use serde_json::{Value, json};

use crate::requests::{Sequence, Step, delete, forget_history, get, merge, metadata_of_all, post, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
    vec![
        sequence(
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
        ),
        sequence(
            "a list of nothing is empty",
            [
                get(BACKENDS),
                get("/apis/nfs-operator.io/v1alpha1/nfsarchives"),
                get("/api/v1/persistentvolumeclaims"),
                get(CLAIMS),
                get(VOLUMES),
                get(LEASES),
                get("/api/v1/namespaces/missing/persistentvolumeclaims"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=500"),
            ],
        ),
        sequence(
            "a list is ordered by name, and ends with a page that is full or not",
            [
                post(BACKENDS, named("b2")),
                post(BACKENDS, named("b1")),
                get(BACKENDS),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=3"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=2"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=0"),
            ]
            .into_iter()
            .chain(forget_backends()),
        ),
        sequence(
            "a list in three pages shows neither what is created nor what is changed between them",
            [
                post(LEASES, lease("a")),
                post(LEASES, lease("b")),
                post(LEASES, lease("c")),
                get("/apis/coordination.k8s.io/v1/namespaces/default/leases?limit=1"),
                post(LEASES, lease("bb")),
                delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/c", json!({})),
                get("/apis/coordination.k8s.io/v1/namespaces/default/leases?limit=1&continue=$3.continue"),
                delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/b", json!({})),
                get("/apis/coordination.k8s.io/v1/namespaces/default/leases?limit=1&continue=$6.continue"),
                get(LEASES),
                delete(LEASE, json!({})),
                delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/bb", json!({})),
            ],
        ),
        sequence(
            "a page can be read again, also with fewer objects",
            [
                post(BACKENDS, named("b1")),
                post(BACKENDS, named("b2")),
                post(BACKENDS, named("b3")),
                post(BACKENDS, named("b4")),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=1"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=2&continue=$4.continue"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=1&continue=$4.continue"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=500&continue=$6.continue"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?continue=$5.continue"),
                delete("/apis/nfs-operator.io/v1alpha1/nfsbackends/b3", json!({})),
                delete("/apis/nfs-operator.io/v1alpha1/nfsbackends/b4", json!({})),
            ]
            .into_iter()
            .chain(forget_backends()),
        ),
        sequence(
            "a list can be restricted to one name",
            [
                post(BACKENDS, named("b1")),
                post(BACKENDS, named("b2")),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?fieldSelector=metadata.name%3Db2"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?fieldSelector=metadata.name=b2&limit=500"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?fieldSelector=metadata.name=b"),
            ]
            .into_iter()
            .chain(forget_backends()),
        ),
        // Without the controller that empties namespaces, this one remains.
        sequence(
            "a list of all namespaces is ordered by namespace",
            [
                post(
                    NAMESPACES,
                    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}),
                ),
                post(CLAIMS, claim()),
                post(ELSEWHERE_CLAIMS, claim()),
                post(ELSEWHERE_CLAIMS, with(claim(), &json!({"metadata": {"name": "a"}}))),
                get("/api/v1/persistentvolumeclaims"),
                get(CLAIMS),
                get(ELSEWHERE_CLAIMS),
                get("/api/v1/persistentvolumeclaims?limit=2"),
                get("/api/v1/persistentvolumeclaims?limit=2&continue=$7.continue"),
                merge(
                    "/api/v1/namespaces/elsewhere/persistentvolumeclaims/a",
                    json!({"metadata": {"finalizers": null}}),
                ),
                delete("/api/v1/namespaces/elsewhere/persistentvolumeclaims/a", json!({})),
                merge(
                    "/api/v1/namespaces/elsewhere/persistentvolumeclaims/c",
                    json!({"metadata": {"finalizers": null}}),
                ),
                delete("/api/v1/namespaces/elsewhere/persistentvolumeclaims/c", json!({})),
                get("/api/v1/persistentvolumeclaims"),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a list can show the metadata alone",
            [
                post(BACKENDS, named("b1")),
                post(BACKENDS, named("b2")),
                metadata_of_all(get(BACKENDS)),
                metadata_of_all(get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=1")),
                metadata_of_all(get(
                    "/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=1&continue=$3.continue",
                )),
                metadata_of_all(get(NODES)),
            ]
            .into_iter()
            .chain(forget_backends()),
        ),
        sequence(
            "an object that is being deleted is listed until it is gone",
            [
                post(BACKENDS, kept_backend()),
                delete(BACKEND, json!({})),
                get(BACKENDS),
                merge(BACKEND, json!({"metadata": {"finalizers": null}})),
                get(BACKENDS),
            ],
        ),
        sequence(
            "neither a list nor a watch continues once the history is forgotten",
            [
                post(BACKENDS, named("b1")),
                post(BACKENDS, named("b2")),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=1"),
                merge(
                    "/apis/nfs-operator.io/v1alpha1/nfsbackends/b1",
                    json!({"metadata": {"labels": {"a": "b"}}}),
                ),
                forget_history(),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=1&continue=$2.continue"),
                get(
                    "/apis/nfs-operator.io/v1alpha1/nfsbackends?watch=true&timeoutSeconds=60\
                     &resourceVersion=$2.resourceVersion",
                ),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=1"),
                get("/apis/nfs-operator.io/v1alpha1/nfsbackends?limit=1&continue=$7.continue"),
            ]
            .into_iter()
            .chain(forget_backends()),
        ),
    ]
}

const ELSEWHERE_CLAIMS: &str = "/api/v1/namespaces/elsewhere/persistentvolumeclaims";

fn named(name: &str) -> Value {
    with(backend(), &json!({"metadata": {"name": name}}))
}

/// Removes two backends.
fn forget_backends() -> [Step; 2] {
    [
        delete("/apis/nfs-operator.io/v1alpha1/nfsbackends/b1", json!({})),
        delete("/apis/nfs-operator.io/v1alpha1/nfsbackends/b2", json!({})),
    ]
}
