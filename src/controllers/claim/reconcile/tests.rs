#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use super::*;
use crate::api::names::STORAGE_PROVISIONER;

fn settings() -> Settings {
    Settings::for_tests("nfs-operator.io/nfs", &[("old/nfs", "default")])
}

/// A bound claim as the binder leaves it, with that much asked for.
fn bound(provisioner: &str, asked: &str, placed: bool, condition: Option<(&str, &str)>) -> Value {
    let mut annotations = json!({STORAGE_PROVISIONER: provisioner});
    if placed {
        annotations[PLACED_ON] = json!("default");
    }
    let conditions = condition
        .iter()
        .map(|(status, reason)| json!({"type": "nfs-operator.io/Provisioned", "status": status, "reason": reason}));
    json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "u", "annotations": annotations},
        "spec": {"volumeName": "pvc-u", "resources": {"requests": {"storage": asked}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": conditions.collect::<Vec<_>>()},
    })
}

#[test]
fn a_claim_is_settled_when_nothing_is_left_to_do_and_its_volume_need_not_be_read_for_that() {
    let told = Some(("True", "Provisioned"));
    let with = |mut claim: Value, path: &str, value: Value| {
        *claim.pointer_mut(path).unwrap() = value;
        claim
    };
    let ours = bound("nfs-operator.io/nfs", "1Gi", true, told);
    for (what, claim, is_settled) in [
        ("told", ours.clone(), true),
        ("asks for more", bound("nfs-operator.io/nfs", "2Gi", true, told), false),
        (
            "begun and not told",
            bound("nfs-operator.io/nfs", "1Gi", true, None),
            false,
        ),
        (
            "told that it waits, its placement taken off by its user",
            bound("nfs-operator.io/nfs", "1Gi", false, Some(("False", "NoSpace"))),
            false,
        ),
        (
            "its volume is back",
            bound("nfs-operator.io/nfs", "1Gi", true, Some(("False", "VolumeLost"))),
            false,
        ),
        (
            "it waited, and a volume of another name came, perhaps one that was made again",
            with(
                bound("nfs-operator.io/nfs", "1Gi", false, Some(("False", "NoBackend"))),
                "/spec/volumeName",
                json!("pvc-former"),
            ),
            false,
        ),
        (
            "a volume that was there before anything was said",
            with(
                bound("nfs-operator.io/nfs", "1Gi", true, None),
                "/spec/volumeName",
                json!("pvc-former"),
            ),
            true,
        ),
        ("inherited", bound("old/nfs", "1Gi", false, None), true),
        (
            "begun here, made by nfs-subdir",
            bound("old/nfs", "1Gi", true, None),
            false,
        ),
        ("lost", with(ours.clone(), "/status/phase", json!("Lost")), false),
        (
            "lost and told so",
            with(
                bound("nfs-operator.io/nfs", "1Gi", true, Some(("False", "VolumeLost"))),
                "/status/phase",
                json!("Lost"),
            ),
            true,
        ),
        ("no volume yet", with(ours, "/spec/volumeName", Value::Null), false),
        ("another's", bound("other", "1Gi", false, None), true),
    ] {
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        assert_eq!(
            settled(&claim, &settings(), &CapacityTracker::default()),
            is_settled,
            "{what}"
        );
    }
}

#[test]
fn a_claim_that_waits_for_the_binder_alone_is_settled_while_its_volume_is_there() {
    let pending = |told| {
        let mut claim = bound("nfs-operator.io/nfs", "1Gi", true, told);
        claim["spec"]["volumeName"] = Value::Null;
        claim["status"]["phase"] = json!("Pending");
        serde_json::from_value(claim).unwrap()
    };
    let (told, waits) = (
        pending(Some(("True", "Provisioned"))),
        pending(Some(("False", "NoSpace"))),
    );
    let inventory = CapacityTracker::default();
    let is_settled = |claim| settled(claim, &settings(), &inventory);
    assert!(!is_settled(&told), "its volume is not known: it may be gone");
    inventory.promise("pvc-u", 1, |_| (Some("default".to_owned()), ()));
    assert!(!is_settled(&told), "its volume was not saved yet");
    inventory.saved("pvc-u", "default", 1, None);
    assert!(is_settled(&told));
    assert!(!is_settled(&waits), "that its volume is there is not said yet");
    inventory.gone("pvc-u");
    assert!(!is_settled(&told));
}
