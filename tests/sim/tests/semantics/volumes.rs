//! Claims, volumes and classes: what the server validates.

use serde_json::{Value, json};

use crate::requests::{Sequence, Step, delete, get, merge, post, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
    vec![
        sequence(
            "a volume gets its defaults",
            [post(
                VOLUMES,
                json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
                    "spec": {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"},
                        "nfs": {"server": "nfs.example.org", "path": "/export/v"}},
                    "status": {"phase": "Bound"}}),
            )]
            .into_iter()
            .chain(forget_volume()),
        ),
        sequence(
            "a volume is created once, whatever its claim",
            [
                post(VOLUMES, volume()),
                post(
                    VOLUMES,
                    with(volume(), &json!({"spec": {"claimRef": {"name": "other"}}})),
                ),
                get(VOLUME),
            ]
            .into_iter()
            .chain(forget_volume()),
        ),
        sequence(
            "the source and the mode of a volume may not change",
            [
                post(VOLUMES, volume()),
                merge(VOLUME, json!({"spec": {"nfs": {"path": "/export/other"}}})),
                merge(VOLUME, json!({"spec": {"nfs": {"server": "other.example.org"}}})),
                merge(VOLUME, json!({"spec": {"volumeMode": "Block"}})),
                get(VOLUME),
            ]
            .into_iter()
            .chain(forget_volume()),
        ),
        sequence(
            "the capacity, claim, class, reclaim policy and mount options of a volume may change",
            [
                post(VOLUMES, volume()),
                merge(VOLUME, json!({"spec": {"capacity": {"storage": "2Gi"}}})),
                merge(VOLUME, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})),
                merge(VOLUME, json!({"spec": {"mountOptions": ["hard"]}})),
                merge(VOLUME, json!({"spec": {"storageClassName": "other"}})),
                merge(VOLUME, json!({"spec": {"claimRef": null}})),
                merge(
                    VOLUME,
                    json!({"spec": {"claimRef": {"namespace": "default", "name": "other", "uid": NO_UID}}}),
                ),
            ]
            .into_iter()
            .chain(forget_volume()),
        ),
        sequence(
            "the UID of a volume's claim may change",
            [
                post(VOLUMES, volume()),
                merge(
                    VOLUME,
                    json!({"spec": {"claimRef": {"uid": "00000000-0000-4000-a000-000000000001"}}}),
                ),
            ]
            .into_iter()
            .chain(forget_volume()),
        ),
        sequence(
            "a claim is bound once",
            [
                post(CLAIMS, claim()),
                merge(
                    CLAIM,
                    json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                        "spec": {"volumeName": "v"}}),
                ),
                merge(CLAIM, json!({"spec": {"volumeName": "other"}})),
                merge(CLAIM, json!({"spec": {"volumeName": null}})),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a claim without a class keeps its data source",
            [
                post(
                    CLAIMS,
                    with(
                        claim(),
                        &json!({"spec": {"storageClassName": "",
                        "dataSource": {"kind": "PersistentVolumeClaim",
                        "name": "other"}}}),
                    ),
                ),
                merge(CLAIM, json!({"spec": {"dataSource": null, "dataSourceRef": null}})),
                get(CLAIM),
            ]
            .into_iter()
            .chain(forget_claim()),
        ),
        sequence(
            "a bound claim can request more, and its metadata can change",
            [
                post(CLASSES, with(class(), &json!({"allowVolumeExpansion": true}))),
                post(CLAIMS, with(claim(), &json!({"spec": {"storageClassName": "k"}}))),
                merge(CLAIM, json!({"spec": {"volumeName": "v"}})),
                merge(
                    CLAIM_STATUS,
                    json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
                        "accessModes": ["ReadWriteMany"]}}),
                ),
                merge(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}})),
                merge(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
                merge(CLAIM, json!({"spec": {"accessModes": ["ReadWriteOnce"]}})),
                merge(CLAIM, json!({"metadata": {"labels": {"a": "b"}}})),
                merge(
                    CLAIM_STATUS,
                    json!({"status": {"capacity": {"storage": "2Gi"},
                        "conditions": [{"type": "Resizing", "status": "True"}]}}),
                ),
                merge(CLAIM_STATUS, json!({"status": {"phase": "Lost"}})),
            ]
            .into_iter()
            .chain(forget_claim())
            .chain([delete(CLASS, json!({}))]),
        ),
        sequence(
            "a bound claim cannot request less than it has",
            [
                post_expandable_class(),
                post_expandable_claim(),
                merge(
                    CLAIM_STATUS,
                    json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
                        "accessModes": ["ReadWriteMany"]}}),
                ),
                merge(
                    CLAIM,
                    json!({"spec": {"resources": {"requests": {"storage": "512Mi"}}}}),
                ),
                merge(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
                merge(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}})),
                merge(
                    CLAIM,
                    json!({"spec": {"resources": {"requests": {"storage": "1500Mi"}}}}),
                ),
            ]
            .into_iter()
            .chain(forget_claim())
            .chain([delete(CLASS, json!({}))]),
        ),
        sequence(
            "an expansion that is refused, and one that is done, are reported as the claim was read",
            [
                post_expandable_class(),
                post_expandable_claim(),
                merge(
                    CLAIM_STATUS,
                    json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
                        "accessModes": ["ReadWriteMany"],
                        "conditions": [{"type": "Provisioned", "status": "True"}]}}),
                ),
                merge(CLAIM, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})),
                merge(
                    CLAIM_STATUS,
                    json!({"metadata": {"uid": "$1.uid", "resourceVersion": "$3.resourceVersion"},
                        "status": {"allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
                        "conditions": [
                            {"type": "Provisioned", "status": "True"},
                            {"type": "ControllerResizeError", "status": "True", "reason": "R", "message": "text",
                                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
                ),
                merge(
                    CLAIM_STATUS,
                    json!({"metadata": {"uid": "$1.uid", "resourceVersion": "$4.resourceVersion"},
                        "status": {"conditions": [{"type": "Provisioned", "status": "True"}],
                            "allocatedResourceStatuses": {"storage": null}}}),
                ),
                merge(
                    CLAIM_STATUS,
                    json!({"metadata": {"uid": "$1.uid", "resourceVersion": "$5.resourceVersion"},
                        "status": {"conditions": [], "allocatedResourceStatuses": {"storage": null},
                            "capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}}),
                ),
                merge(
                    CLAIM_STATUS,
                    json!({"status": {"conditions": [], "allocatedResourceStatuses": {"storage": null},
                        "capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}}),
                ),
            ]
            .into_iter()
            .chain(forget_claim())
            .chain([delete(CLASS, json!({}))]),
        ),
        sequence(
            "what a class says about new volumes may not change, but the rest may",
            [
                post(CLASSES, class()),
                merge(CLASS, json!({"provisioner": "example.org/other"})),
                merge(CLASS, json!({"parameters": {"a": "c"}})),
                merge(CLASS, json!({"parameters": {"d": "e"}})),
                merge(CLASS, json!({"parameters": null})),
                merge(CLASS, json!({"reclaimPolicy": "Retain"})),
                merge(CLASS, json!({"volumeBindingMode": "WaitForFirstConsumer"})),
                merge(CLASS, json!({"allowVolumeExpansion": true})),
                merge(CLASS, json!({"metadata": {"annotations": {"a": "b"}}})),
                merge(CLASS, json!({"mountOptions": ["hard"]})),
                delete(CLASS, json!({})),
            ],
        ),
        sequence(
            "a claim that is being deleted can be bound",
            [
                post(CLAIMS, claim()),
                delete(CLAIM, json!({})),
                merge(CLAIM, json!({"spec": {"volumeName": "v"}})),
                merge(CLAIM, json!({"metadata": {"finalizers": ["example.org/keep"]}})),
                merge(CLAIM, json!({"metadata": {"finalizers": null}})),
                get(CLAIM),
            ],
        ),
        sequence(
            "an immutable secret keeps its data",
            [
                post(SECRETS, secret(true)),
                merge(SECRET, json!({"data": {"key": "Yg=="}})),
                merge(SECRET, json!({"data": {"other": "YQ=="}})),
                merge(SECRET, json!({"immutable": false})),
                merge(SECRET, json!({"metadata": {"annotations": {"a": "b"}}})),
                delete(SECRET, json!({})),
            ],
        ),
        sequence(
            "a secret that is not immutable gets other data",
            [
                post(SECRETS, secret(false)),
                merge(SECRET, json!({"data": {"key": "Yg==", "previous": "YQ=="}})),
                merge(SECRET, json!({"immutable": true})),
                merge(SECRET, json!({"data": {"key": "YQ=="}})),
                delete(SECRET, json!({})),
            ],
        ),
    ]
}

fn secret(immutable: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "immutable": immutable,
        "data": {"key": "YQ=="}})
}

fn post_expandable_class() -> Step {
    post(CLASSES, with(class(), &json!({"allowVolumeExpansion": true})))
}

/// Creates a claim of that class, with a volume.
fn post_expandable_claim() -> Step {
    let spec = json!({"storageClassName": "k", "volumeName": "v"});
    post(CLAIMS, with(claim(), &json!({ "spec": spec })))
}
