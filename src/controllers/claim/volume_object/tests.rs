#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;
use crate::api::backend::{Existing, OnDelete};
use crate::api::parameters::ClassParameters;
use crate::decide::volume_location::volume_location;
use export_store::naming::DirectoryPath;

/// Returns the volume of a claim whose class has this reclaim policy.
fn volume_with(
    policy: &str,
    annotations: Value,
    affinity: Option<VolumeNodeAffinity>,
    on_delete: Option<OnDelete>,
) -> PersistentVolume {
    let claim = json!({
        "metadata": {"name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7", "annotations": annotations},
        "spec": {"storageClassName": "fast", "accessModes": ["ReadOnlyMany", "ReadWriteOnce"],
            "resources": {"requests": {"storage": "1500M"}}},
    });
    let settings = VolumeSettings {
        on_delete,
        ..settings()
    };
    volume_of(claim, policy, affinity, &settings)
}

fn settings() -> VolumeSettings {
    VolumeSettings {
        mode: 0o777,
        mode_requested: false,
        adopted_mode: None,
        uid: None,
        gid: None,
        gid_range: None,
        existing: Existing::Refuse,
        on_delete: None,
        mount_options: Vec::new(),
    }
}

/// Returns the volume of a claim with these settings.
fn volume_of(
    claim: Value,
    policy: &str,
    affinity: Option<VolumeNodeAffinity>,
    settings: &VolumeSettings,
) -> PersistentVolume {
    volume_in(claim, policy, affinity, settings, false)
}

/// Returns the volume of a claim whose directory is shared or not.
fn volume_in(
    claim: Value,
    policy: &str,
    affinity: Option<VolumeNodeAffinity>,
    settings: &VolumeSettings,
    shared: bool,
) -> PersistentVolume {
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let backend: NfsBackend = serde_json::from_value(json!({
        "metadata": {"name": "main"},
        "spec": {"server": "nfs", "path": "/export", "mountOptions": ["hard"]},
    }))
    .unwrap();
    volume_object(&VolumeParts {
        claim: &claim,
        namespace_uid: "nu",
        request: &ClaimRequest {
            source: None,
            snapshot: None,
            provisioner: "old/nfs".into(),
            parameters: ClassParameters::default(),
            mount_options: vec!["soft".into()],
            reclaim_policy: policy.into(),
            bytes: 1_500_000_000,
            topologies: Vec::new(),
            restore: None,
            node: None,
        },
        settings,
        backend: &backend,
        export_id: "id",
        protocol: Protocol::V4_1,
        peer: "192.0.2.1:2049".parse().unwrap(),
        node_affinity: affinity,
        directory: &ProvisionedDirectory {
            directory: DirectoryPath::parse("shop-data").unwrap(),
            file_id: 42,
            adopted: false,
            shared,
            mode_not_kept: None,
            group: settings.gid,
        },
    })
}

#[test]
fn a_volume_names_its_claim_provisioner_and_directory() {
    let volume = volume_with("Delete", json!({}), None, None);
    let seen = serde_json::to_value(&volume).unwrap();
    for (pointer, expected) in [
        ("/metadata/name", json!("pvc-u")),
        (
            "/metadata/annotations/pv.kubernetes.io~1provisioned-by",
            json!("old/nfs"),
        ),
        ("/metadata/annotations/nfs-operator.io~1backend", json!("main")),
        ("/metadata/annotations/nfs-operator.io~1directory", json!("shop-data")),
        ("/metadata/annotations/nfs-operator.io~1file-id", json!("42")),
        ("/spec/claimRef/uid", json!("u")),
        ("/spec/claimRef/namespace", json!("shop")),
        ("/spec/claimRef/resourceVersion", json!("7")),
        ("/spec/storageClassName", json!("fast")),
        ("/spec/accessModes", json!(["ReadOnlyMany", "ReadWriteOnce"])),
        ("/spec/capacity/storage", json!("1500M")),
        ("/spec/nfs/path", json!("/export/shop-data")),
        ("/spec/mountOptions", json!(["soft", "nfsvers=4"])),
    ] {
        assert_eq!(seen.pointer(pointer), Some(&expected), "{pointer}");
    }
    assert!(is_for(
        &volume,
        &serde_json::from_value(json!({"metadata": {"uid": "u"}})).unwrap(),
        "old/nfs"
    ));
}

#[test]
fn a_volume_of_a_shared_directory_says_so_and_is_retained_whatever_the_policy_is() {
    for on_delete in [None, Some(OnDelete::Delete)] {
        let settings = VolumeSettings {
            on_delete,
            ..settings()
        };
        let volume = |shared| volume_in(json!({}), "Delete", None, &settings, shared);
        let annotation = |volume: &PersistentVolume, name| volume.annotations().get(name).cloned();
        let shared = volume(true);
        assert_eq!(annotation(&shared, names::VOLUME_EXISTING).as_deref(), Some("Share"));
        assert_eq!(annotation(&shared, names::VOLUME_ON_DELETE).as_deref(), Some("retain"));
        let claim = PersistentVolumeClaim::default();
        assert!(
            volume_location(&shared, &claim).contains("share"),
            "{}",
            volume_location(&shared, &claim)
        );
        let alone = volume(false);
        assert_eq!(annotation(&alone, names::VOLUME_EXISTING), None);
        assert!(
            !volume_location(&alone, &claim).contains("share"),
            "{}",
            volume_location(&alone, &claim)
        );
    }
}

#[test]
fn the_location_of_restored_data_names_the_archive_unless_the_volume_existed_before() {
    let claim = |uid, source: Value| {
        let claim = json!({"metadata": {"uid": uid}, "spec": {"dataSourceRef": source}});
        serde_json::from_value(claim).unwrap()
    };
    let source = |kind| json!({"apiGroup": "nfs-operator.io", "kind": kind, "name": "pvc-7"});
    let volume = volume_with("Delete", json!({}), None, None);
    for (uid, source, expected) in [
        ("u", source("NfsArchive"), ", with the data of NfsArchive pvc-7"),
        ("u", source("NfsBackup"), ", with the data of NfsBackup pvc-7"),
        ("u", Value::Null, ""),
        ("another", source("NfsArchive"), ""),
    ] {
        let location = volume_location(&volume, &claim(uid, source));
        assert!(location.ends_with(&format!(" on backend main{expected}")), "{location}");
    }
}

#[test]
fn pods_get_the_group_of_the_directory_unless_it_is_that_of_root() {
    for (gid, expected) in [(Some(2000), Some("2000")), (Some(0), None), (None, None)] {
        let settings = VolumeSettings { gid, ..settings() };
        let volume = volume_of(json!({}), "Delete", None, &settings);
        let group = volume.annotations().get("pv.beta.kubernetes.io/gid");
        assert_eq!(group.map(String::as_str), expected);
    }
}

#[test]
fn a_claim_that_only_reads_is_mounted_read_only() {
    for (modes, expected) in [
        (json!(["ReadOnlyMany"]), true),
        (json!(["ReadOnlyMany", "ReadWriteMany"]), false),
        (json!(["ReadWriteOncePod"]), false),
        (json!([]), false),
    ] {
        let volume = volume_of(json!({"spec": {"accessModes": modes}}), "Delete", None, &settings());
        let options = volume.spec.unwrap().mount_options.unwrap();
        assert_eq!(options.contains(&"ro".to_owned()), expected, "{modes}");
    }
}

#[test]
fn volumes_are_selected_by_the_label_of_their_backend() {
    let volume = volume_with("Delete", json!({}), None, None);
    let labels = serde_json::to_value(volume.labels()).unwrap();
    let managed = "app.kubernetes.io/managed-by";
    assert_eq!(
        labels,
        json!({"nfs-operator.io/backend": "main", managed: "nfs-operator"})
    );
    // A name that is too long for a label is only in the annotation.
    assert_eq!(
        names::volume_labels(&"b".repeat(64)).keys().collect::<Vec<_>>(),
        [managed]
    );
}

#[test]
fn the_reclaim_policy_is_that_of_the_class_and_only_delete_adds_the_finalizer() {
    for (policy, expected) in [
        ("Delete", Some(vec![names::RECLAIM_FINALIZER.to_owned()])),
        ("Retain", None),
    ] {
        let volume = volume_with(policy, json!({}), None, None);
        assert_eq!(volume.metadata.finalizers, expected, "{policy}");
        let spec = volume.spec.unwrap();
        assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some(policy));
    }
}

#[test]
fn the_beta_annotation_names_the_class_and_on_delete_is_set_only_if_requested() {
    let volume = volume_with(
        "Delete",
        json!({names::BETA_STORAGE_CLASS: "older"}),
        None,
        Some(OnDelete::Retain),
    );
    assert_eq!(volume.annotations().get(names::VOLUME_ON_DELETE).unwrap(), "retain");
    assert_eq!(volume.spec.unwrap().storage_class_name.as_deref(), Some("older"));
    let plain = volume_with("Delete", json!({}), None, None);
    assert_eq!(plain.annotations().get(names::VOLUME_ON_DELETE), None);
    assert_eq!(plain.spec.unwrap().node_affinity, None);
    let affinity = Some(VolumeNodeAffinity::default());
    assert_eq!(
        volume_with("Delete", json!({}), affinity.clone(), None)
            .spec
            .unwrap()
            .node_affinity,
        affinity
    );
}
