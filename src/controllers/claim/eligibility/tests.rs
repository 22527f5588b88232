#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use super::*;
use crate::state::context::Settings;

fn served() -> Provisioners {
    Settings::for_tests("nfs-operator.io/nfs,nfs.nfs-operator.io", &[("old/nfs", "a")]).served
}

/// Returns a claim as the binder leaves it when it requests a volume from this operator, with `change` applied.
fn claim(change: Value) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "u",
            "annotations": {STORAGE_PROVISIONER: "nfs-operator.io/nfs"}},
        "spec": {"storageClassName": "s", "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    json_patch(&mut claim, change);
    serde_json::from_value(claim).unwrap()
}

fn class(change: Value) -> StorageClass {
    let mut class = json!({"metadata": {"name": "s"}, "provisioner": "nfs-operator.io/nfs"});
    json_patch(&mut class, change);
    serde_json::from_value(class).unwrap()
}

/// Applies a merge patch (RFC 7396).
fn json_patch(into: &mut Value, change: Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                if value.is_null() {
                    into.remove(&key);
                    continue;
                }
                json_patch(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change,
    }
}

fn infeasible(claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Reason {
    match check_eligibility(claim, class, &served()) {
        Eligibility::Infeasible(condition) => condition.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_that_the_binder_assigned_to_this_operator_is_provisioned() {
    let Eligibility::Provision(request) = check_eligibility(&claim(json!({})), Some(&class(json!({}))), &served())
    else {
        panic!()
    };
    assert_eq!(request.bytes, 1 << 30);
    assert_eq!(request.reclaim_policy, "Delete");
}

#[test]
fn a_claim_that_the_binder_did_not_assign_is_ignored_whatever_its_class() {
    let without = claim(json!({"metadata": {"annotations": {STORAGE_PROVISIONER: null}}}));
    assert!(matches!(
        check_eligibility(&without, Some(&class(json!({}))), &served()),
        Eligibility::Ignore
    ));
    let other = claim(json!({"metadata": {"annotations": {STORAGE_PROVISIONER: "other/nfs"}}}));
    assert!(matches!(
        check_eligibility(&other, Some(&class(json!({}))), &served()),
        Eligibility::Ignore
    ));
    let other = class(json!({"provisioner": "other/nfs"}));
    assert!(matches!(
        check_eligibility(&claim(json!({})), Some(&other), &served()),
        Eligibility::Ignore
    ));
}

#[test]
fn the_beta_annotations_and_aliases_count() {
    let beta = claim(json!({"metadata": {"annotations": {STORAGE_PROVISIONER: null,
        BETA_STORAGE_PROVISIONER: "old/nfs", BETA_STORAGE_CLASS: "older"}}}));
    assert_eq!(class_name(&beta).unwrap(), "older");
    let alias = class(json!({"provisioner": "old/nfs"}));
    assert!(matches!(
        check_eligibility(&beta, Some(&alias), &served()),
        Eligibility::Provision(_)
    ));
}

#[test]
fn deleted_bound_and_lost_claims_are_not_provisioned() {
    let class = class(json!({}));
    let deleted = claim(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert!(matches!(
        check_eligibility(&deleted, Some(&class), &served()),
        Eligibility::Ignore
    ));
    let bound = claim(json!({"spec": {"volumeName": "pvc-u"}}));
    assert!(matches!(
        check_eligibility(&bound, Some(&class), &served()),
        Eligibility::Bound
    ));
    let lost = claim(json!({"spec": {"volumeName": "pvc-u"}, "status": {"phase": "Lost"}}));
    assert!(matches!(
        check_eligibility(&lost, Some(&class), &served()),
        Eligibility::Lost
    ));
}

#[test]
fn late_binding_waits_for_the_scheduler() {
    let late = class(json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    assert!(matches!(
        check_eligibility(&claim(json!({})), Some(&late), &served()),
        Eligibility::Ignore
    ));
    let chosen = claim(json!({"metadata": {"annotations": {SELECTED_NODE: "node"}}}));
    assert!(matches!(
        check_eligibility(&chosen, Some(&late), &served()),
        Eligibility::Provision(_)
    ));
}

#[test]
fn each_unsupported_request_is_refused_with_its_own_reason() {
    let class = class(json!({}));
    for (change, reason) in [
        (json!({"volumeMode": "Block"}), Reason::BlockVolumeUnsupported),
        (
            json!({"accessModes": ["ReadWriteSomewhere"]}),
            Reason::AccessModeUnsupported,
        ),
        (
            json!({"selector": {"matchLabels": {"a": "b"}}}),
            Reason::SelectorUnsupported,
        ),
        (
            json!({"volumeAttributesClassName": "gold"}),
            Reason::AttributesClassUnsupported,
        ),
        (
            json!({"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x"}}),
            Reason::DataSourceUnsupported,
        ),
        (
            json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "x", "namespace": "other"}}),
            Reason::DataSourceUnsupported,
        ),
        (
            json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "c"}}),
            Reason::DataSourceUnsupported,
        ),
        (
            json!({"dataSource": {"apiGroup": "other.io", "kind": "PersistentVolumeClaim", "name": "x"}}),
            Reason::DataSourceUnsupported,
        ),
        (
            json!({"resources": {"requests": {"storage": "much"}}}),
            Reason::LimitExceeded,
        ),
    ] {
        assert_eq!(
            infeasible(&claim(json!({"spec": change.clone()})), Some(&class)),
            reason,
            "{change}"
        );
    }
}

#[test]
fn a_claim_of_the_same_namespace_may_be_copied_by_either_field() {
    let class = class(json!({}));
    for change in [
        json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "old"}}),
        json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old"}}),
        json!({"dataSourceRef": {"apiGroup": "", "kind": "PersistentVolumeClaim", "name": "old", "namespace": "n"}}),
        json!({
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "old"},
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old"},
        }),
    ] {
        let claim = claim(json!({"spec": change.clone()}));
        let Eligibility::Provision(request) = check_eligibility(&claim, Some(&class), &served()) else {
            panic!("{change}");
        };
        assert_eq!(request.source.as_deref(), Some("old"), "{change}");
    }
}

#[test]
fn a_claim_is_left_to_the_populator_of_its_data_source() {
    let late = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    for (source, expected) in [
        (
            json!({"apiGroup": "hello.example.com", "kind": "Hello", "name": "x"}),
            "ignore",
        ),
        (
            json!({"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "x"}),
            "ignore",
        ),
        (
            json!({"apiGroup": "other.io", "kind": "PersistentVolumeClaim", "name": "x", "namespace": "other"}),
            "ignore",
        ),
        (
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "Other", "name": "x"}),
            "ignore",
        ),
        (
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x"}),
            "never",
        ),
        (json!({"apiGroup": GROUP, "kind": "NfsBackend", "name": "x"}), "never"),
        (
            json!({"apiGroup": GROUP, "kind": "NfsArchive", "name": "x"}),
            "provision",
        ),
        (json!({"kind": "PersistentVolumeClaim", "name": "x"}), "provision"),
        (json!({"kind": "ConfigMap", "name": "x"}), "never"),
    ] {
        let claim_of = |volume: Value, node: Value| {
            claim(json!({
                "metadata": {"annotations": {SELECTED_NODE: node}},
                "spec": {"dataSourceRef": source.clone(), "volumeName": volume},
            }))
        };
        let claim = claim_of(Value::Null, json!("n1"));
        assert_eq!(word(&claim, Some(&class(json!({})))), expected, "{source}");
        assert_eq!(word(&claim, Some(&class(late.clone()))), expected, "late: {source}");
        let filled = claim_of(json!("pvc-prime"), Value::Null);
        assert_eq!(word(&filled, None), "bound", "{source}");
    }
}

#[test]
fn only_a_copy_of_a_claim_is_made_from_a_snapshot_and_only_of_a_valid_name() {
    let source =
        |kind: &str| json!({"kind": kind, "name": "x", "apiGroup": (kind != "PersistentVolumeClaim").then_some(GROUP)});
    let decided = |name: &str, source: Value| {
        let claim = claim(json!({
            "metadata": {"annotations": {SOURCE_SNAPSHOT: name}},
            "spec": {"dataSourceRef": source},
        }));
        match check_eligibility(&claim, Some(&class(json!({}))), &served()) {
            Eligibility::Provision(request) => Ok((request.source, request.snapshot)),
            Eligibility::Infeasible(condition) => Err(condition.reason),
            other => panic!("{other:?}"),
        }
    };
    let of_claim = || source("PersistentVolumeClaim");
    let expected = (Some("x".to_owned()), Some("daily-1".to_owned()));
    assert_eq!(decided("daily-1", of_claim()), Ok(expected));
    for name in ["", "..", "a/b", ".zfs", "a b"] {
        assert_eq!(decided(name, of_claim()), Err(Reason::DataSourceUnsupported), "{name}");
    }
    for other in [Value::Null, source("NfsArchive"), source("NfsBackup")] {
        assert_eq!(decided("daily-1", other), Err(Reason::DataSourceUnsupported));
    }
}

#[test]
fn a_missing_or_invalid_class_is_named() {
    assert_eq!(infeasible(&claim(json!({})), None), Reason::StorageClassNotFound);
    let typo = class(json!({"parameters": {"archiveOnDelte": "true"}}));
    assert_eq!(infeasible(&claim(json!({})), Some(&typo)), Reason::InvalidParameter);
}

/// Returns the eligibility of a claim as one word.
fn word(claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> &'static str {
    match check_eligibility(claim, class, &served()) {
        Eligibility::Ignore => "ignore",
        Eligibility::Bound => "bound",
        Eligibility::Lost => "lost",
        Eligibility::Infeasible(_) => "never",
        Eligibility::Provision(_) => "provision",
    }
}

fn annotated(annotations: Value) -> PersistentVolumeClaim {
    claim(json!({"metadata": {"annotations": annotations}}))
}

#[test]
fn the_annotations_the_class_and_the_selected_node_decide_about_provisioning() {
    let own = json!({"provisioner": "nfs-operator.io/nfs"});
    let second = json!({"provisioner": "nfs.nfs-operator.io"});
    let alias = json!({"provisioner": "old/nfs"});
    let others = json!({"provisioner": "other/nfs"});
    let late = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let at_once = json!({"volumeBindingMode": "Immediate"});
    let node = |name: &str| json!({SELECTED_NODE: name});
    for (what, annotations, class_is, expected) in [
        ("own name", json!({}), &own, "provision"),
        ("an alias", json!({STORAGE_PROVISIONER: "old/nfs"}), &alias, "provision"),
        (
            "another own name",
            json!({STORAGE_PROVISIONER: "nfs.nfs-operator.io"}),
            &second,
            "provision",
        ),
        ("the class now has another own name", json!({}), &second, "provision"),
        (
            "the beta annotation",
            json!({STORAGE_PROVISIONER: null, BETA_STORAGE_PROVISIONER: "nfs-operator.io/nfs"}),
            &own,
            "provision",
        ),
        (
            "another in the beta annotation only",
            json!({STORAGE_PROVISIONER: null, BETA_STORAGE_PROVISIONER: "other/nfs"}),
            &own,
            "ignore",
        ),
        (
            "both annotations: the newer one counts",
            json!({STORAGE_PROVISIONER: "other/nfs", BETA_STORAGE_PROVISIONER: "nfs-operator.io/nfs"}),
            &own,
            "ignore",
        ),
        (
            "another provisioner",
            json!({STORAGE_PROVISIONER: "other/nfs"}),
            &others,
            "ignore",
        ),
        (
            "no provisioner is requested",
            json!({STORAGE_PROVISIONER: null}),
            &own,
            "ignore",
        ),
        ("an empty provisioner", json!({STORAGE_PROVISIONER: ""}), &own, "ignore"),
        ("the class has another provisioner", json!({}), &others, "ignore"),
        ("late binding, no node yet", json!({}), &late, "ignore"),
        ("late binding, the node was released", node(""), &late, "ignore"),
        ("late binding, with a node", node("n1"), &late, "provision"),
        (
            "late binding, with a node, by the beta annotation",
            json!({STORAGE_PROVISIONER: null, BETA_STORAGE_PROVISIONER: "nfs-operator.io/nfs", SELECTED_NODE: "n1"}),
            &late,
            "provision",
        ),
        ("immediate, no node", json!({}), &at_once, "provision"),
        ("immediate, with a node", node("n1"), &at_once, "provision"),
    ] {
        let class = class(class_is.clone());
        assert_eq!(word(&annotated(annotations), Some(&class)), expected, "{what}");
    }
    assert_eq!(word(&claim(json!({})), None), "never", "no class: it waits for one");
    let bound = claim(json!({"spec": {"volumeName": "v"}}));
    assert_eq!(word(&bound, None), "bound", "bound, whatever became of its class");
}

#[test]
fn the_request_has_the_selected_node_for_late_binding_only_and_the_topologies() {
    let topologies = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]);
    for (mode, node, topologies, expected) in [
        ("WaitForFirstConsumer", "n1", json!([]), (Some("n1"), 0)),
        ("WaitForFirstConsumer", "n1", topologies.clone(), (Some("n1"), 1)),
        ("Immediate", "n1", topologies, (None, 1)),
    ] {
        let class = class(json!({"volumeBindingMode": mode, "allowedTopologies": topologies}));
        let claim = annotated(json!({SELECTED_NODE: node}));
        let Eligibility::Provision(request) = check_eligibility(&claim, Some(&class), &served()) else {
            panic!("{mode}")
        };
        assert_eq!((request.node.as_deref(), request.topologies.len()), expected, "{mode}");
    }
}

#[test]
fn volume_and_access_modes_must_be_supported_by_nfs() {
    let class = class(json!({}));
    for (spec, expected) in [
        (json!({}), "provision"),
        (json!({"volumeMode": "Filesystem"}), "provision"),
        (json!({"volumeMode": "Block"}), "never"),
        (json!({"accessModes": ["ReadWriteOnce"]}), "provision"),
        (json!({"accessModes": ["ReadOnlyMany", "ReadWriteMany"]}), "provision"),
        (json!({"accessModes": ["ReadWriteOncePod"]}), "provision"),
        (json!({"accessModes": ["ReadWriteMany", "ReadWriteSomewhere"]}), "never"),
        (json!({"volumeAttributesClassName": ""}), "provision"),
    ] {
        let claim = claim(json!({"spec": spec.clone()}));
        assert_eq!(word(&claim, Some(&class)), expected, "{spec}");
    }
}
