#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;
use crate::state::volume_metadata::volume_metadata;
use export_store::naming::DirectoryPath;
use export_store::{ClaimRef, Record, State, VolumeMetadata};

/// Returns a volume as provisioning creates it.
fn made() -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {
            "name": "pvc-u", "finalizers": [names::RECLAIM_FINALIZER],
            "annotations": {
                names::PROVISIONED_BY: "p", names::VOLUME_BACKEND: "main", names::VOLUME_EXPORT_ID: "id",
                names::VOLUME_DIRECTORY: "team/data", names::VOLUME_FILE_ID: "42", names::VOLUME_NAMESPACE_UID: "ns",
                names::VOLUME_ON_DELETE: "delete", names::VOLUME_RECREATED: "true", names::POD_GROUP: "2000",
            },
            "labels": {names::VOLUME_BACKEND: "main", names::MANAGED_BY: names::OPERATOR_NAME},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1500M"}, "mountOptions": ["nfsvers=4"],
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "team", "name": "data", "uid": "u"},
            "nfs": {"server": "nfs", "path": "/export/team/data"}, "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast", "volumeMode": "Filesystem",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["a"]}]}]}},
        },
    }))
    .unwrap()
}

fn backend() -> NfsBackend {
    serde_json::from_value(json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/export"}})).unwrap()
}

fn recorded() -> RecordedVolume {
    let metadata = volume_metadata(&made(), "old").unwrap();
    RecordedVolume {
        record: Record {
            volume: "pvc-u".into(),
            backend: "main".into(),
            claim: ClaimRef {
                namespace: "team".into(),
                namespace_uid: "ns".into(),
                name: "data".into(),
                uid: "u".into(),
            },
            directory: DirectoryPath::parse("team/data").unwrap(),
            file_id: Some(42),
            handle: None,
            adopted: false,
            shared: false,
            restores: None,
            group: None,
            metadata: Some(metadata.clone()),
            state: State::Live,
        },
        metadata,
        file_id: 42,
        export_id: "id".into(),
    }
}

#[test]
fn a_volume_made_again_is_what_it_was() {
    assert_eq!(
        volume_object(&recorded(), &Ownership::ClaimUid, &backend()).unwrap(),
        made()
    );
    let mut named = volume_object(&recorded(), &Ownership::ClaimName, &backend()).unwrap();
    let annotations = named.metadata.annotations.as_mut().unwrap();
    assert_eq!(annotations.remove(names::VOLUME_READOPTED).as_deref(), Some("u"));
    let claim = named.spec.as_mut().unwrap().claim_ref.as_mut().unwrap();
    assert_eq!(claim.uid, None, "the claim of that name has another UID now");
    claim.uid = Some("u".into());
    assert_eq!(named, made());
}

#[test]
fn a_volume_of_a_shared_directory_is_shared_again() {
    let mut recorded = recorded();
    recorded.record.shared = true;
    let volume = volume_object(&recorded, &Ownership::ClaimUid, &backend()).unwrap();
    assert!(names::is_shared(&volume) && !names::is_shared(&made()));
}

#[test]
fn a_volume_that_was_nobodys_comes_back_for_nobody_and_is_never_reclaimed() {
    let volume = volume_object(&recorded(), &Ownership::Released, &backend()).unwrap();
    let spec = volume.spec.unwrap();
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Retain"));
    assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u"));
    assert_eq!(volume.metadata.finalizers, None);
}

fn claim(uid: &str, volume: Option<&str>) -> PersistentVolumeClaim {
    let spec = json!({"volumeName": volume});
    serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).unwrap()
}

#[test]
fn whose_a_volume_becomes_hangs_on_the_cluster_that_its_claim_was_in() {
    let (bound, pending, other) = (claim("u", Some("pvc-u")), claim("u", None), claim("v", None));
    let rebuilt = ClusterView {
        cluster_uid: "new",
        namespace_uid: Some("anew"),
        namespace_allowed: true,
        provisioner_served: true,
        ..ClusterView::default()
    };
    let same = ClusterView {
        cluster_uid: "old",
        namespace_uid: Some("ns"),
        namespace_allowed: false,
        ..rebuilt
    };
    let with = |claim| ClusterView {
        claim: Some(claim),
        ..same
    };
    let (other_namespace, deleted) = (
        SkipReason::OtherNamespace("team".into()),
        SkipReason::ClaimNotFound("team".into(), "data".into()),
    );
    for (view, expected) in [
        (rebuilt, Ok(Ownership::ClaimName)),
        (
            ClusterView {
                provisioner_served: false,
                ..rebuilt
            },
            Err(SkipReason::NotServed("p".into())),
        ),
        // The request does not apply to a namespace that is created later.
        (
            ClusterView {
                namespace_uid: None,
                ..rebuilt
            },
            Err(SkipReason::NoNamespace("team".into())),
        ),
        (
            ClusterView {
                namespace_allowed: false,
                ..rebuilt
            },
            Err(SkipReason::NamespaceNotAllowed("team".into())),
        ),
        (with(&bound), Ok(Ownership::ClaimUid)),
        (with(&pending), Ok(Ownership::Provisioning)),
        // The claim was deleted in this cluster, and perhaps recreated: a later claim does not get the data.
        (with(&other), Err(deleted.clone())),
        (same, Err(deleted)),
        (
            ClusterView {
                namespace_uid: Some("another"),
                ..with(&bound)
            },
            Err(other_namespace.clone()),
        ),
        (
            ClusterView {
                namespace_uid: None,
                ..with(&bound)
            },
            Err(other_namespace),
        ),
    ] {
        assert_eq!(ownership(&recorded(), &view), expected, "{view:?}");
    }
    // An administrator who names the volume confirms the names: the cluster may have been restored from a backup.
    let named = ClusterView {
        requested_by_name: true,
        namespace_allowed: true,
        ..same
    };
    for (view, expected) in [
        (named, Ok(Ownership::ClaimName)),
        (
            ClusterView {
                namespace_uid: Some("another"),
                claim: Some(&other),
                ..named
            },
            Ok(Ownership::ClaimName),
        ),
        (
            ClusterView {
                claim: Some(&bound),
                ..named
            },
            Ok(Ownership::ClaimUid),
        ),
        (
            ClusterView {
                namespace_uid: None,
                ..named
            },
            Err(SkipReason::NoNamespace("team".into())),
        ),
        (
            ClusterView {
                namespace_allowed: false,
                ..named
            },
            Err(SkipReason::NamespaceNotAllowed("team".into())),
        ),
    ] {
        assert_eq!(ownership(&recorded(), &view), expected, "{view:?}");
    }
    let released = RecordedVolume {
        metadata: VolumeMetadata {
            released: true,
            ..recorded().metadata
        },
        ..recorded()
    };
    assert_eq!(ownership(&released, &rebuilt), Ok(Ownership::Released));
}

#[test]
fn another_volume_of_the_name_is_not_taken_for_it() {
    let wanted = volume_object(&recorded(), &Ownership::ClaimName, &backend()).unwrap();
    assert!(is_same_volume(&made(), &wanted));
    for (name, value) in [
        (names::VOLUME_DIRECTORY, "other"),
        (names::VOLUME_FILE_ID, "7"),
        (names::VOLUME_EXPORT_ID, "x"),
    ] {
        let mut object = serde_json::to_value(made()).unwrap();
        object["metadata"]["annotations"][name] = Value::from(value);
        assert!(
            !is_same_volume(&serde_json::from_value(object).unwrap(), &wanted),
            "{name}"
        );
    }
}
