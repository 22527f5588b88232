#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use super::*;
use crate::api::names::STORAGE_PROVISIONER;

fn settings() -> Settings {
    Settings::for_tests("nfs-operator.io/nfs", &[("old/nfs", "default")])
}

/// Returns a bound claim as the binder leaves it, with the requested size.
fn bound(provisioner: &str, requested: &str, placed: bool, condition: Option<(&str, &str)>) -> Value {
    let mut annotations = json!({STORAGE_PROVISIONER: provisioner});
    if placed {
        annotations[PLACED_ON] = json!("default");
    }
    let conditions = condition
        .iter()
        .map(|(status, reason)| json!({"type": "nfs-operator.io/Provisioned", "status": status, "reason": reason}));
    json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "u", "annotations": annotations},
        "spec": {"volumeName": "pvc-u", "resources": {"requests": {"storage": requested}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": conditions.collect::<Vec<_>>()},
    })
}

#[test]
fn a_claim_is_settled_if_nothing_is_left_to_do_without_reading_its_volume() {
    let reported = Some(("True", "Provisioned"));
    let with = |mut claim: Value, path: &str, value: Value| {
        *claim.pointer_mut(path).unwrap() = value;
        claim
    };
    let own = bound("nfs-operator.io/nfs", "1Gi", true, reported);
    for (what, claim, expected) in [
        ("reported", own.clone(), true),
        (
            "requests more",
            bound("nfs-operator.io/nfs", "2Gi", true, reported),
            false,
        ),
        (
            "provisioned and not reported",
            bound("nfs-operator.io/nfs", "1Gi", true, None),
            false,
        ),
        (
            "reported as waiting, its placement removed by its user",
            bound("nfs-operator.io/nfs", "1Gi", false, Some(("False", "NoSpace"))),
            false,
        ),
        (
            "its volume was recreated",
            bound("nfs-operator.io/nfs", "1Gi", true, Some(("False", "VolumeLost"))),
            false,
        ),
        (
            "it waited, and was bound to a volume of another name, perhaps a recovered one",
            with(
                bound("nfs-operator.io/nfs", "1Gi", false, Some(("False", "NoBackend"))),
                "/spec/volumeName",
                json!("pvc-previous"),
            ),
            false,
        ),
        (
            "a volume that existed before anything was reported",
            with(
                bound("nfs-operator.io/nfs", "1Gi", true, None),
                "/spec/volumeName",
                json!("pvc-previous"),
            ),
            true,
        ),
        ("provisioned by nfs-subdir", bound("old/nfs", "1Gi", false, None), true),
        (
            "started here, provisioned by nfs-subdir",
            bound("old/nfs", "1Gi", true, None),
            false,
        ),
        ("lost", with(own.clone(), "/status/phase", json!("Lost")), false),
        (
            "lost and reported as lost",
            with(
                bound("nfs-operator.io/nfs", "1Gi", true, Some(("False", "VolumeLost"))),
                "/status/phase",
                json!("Lost"),
            ),
            true,
        ),
        ("no volume yet", with(own, "/spec/volumeName", Value::Null), false),
        ("another's", bound("other", "1Gi", false, None), true),
    ] {
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        let is_settled = is_settled(&claim, &settings(), &CapacityTracker::default(), |_| false);
        assert_eq!(is_settled, expected, "{what}");
    }
}

#[test]
fn a_claim_without_placement_is_unreported_only_if_its_own_volume_may_have_been_created_here() {
    let condition = Some(("True", "Provisioned"));
    for (what, provisioner, name, condition, may_have_created, expected) in [
        ("created here", "nfs-operator.io/nfs", "pvc-u", None, true, true),
        ("existed before", "nfs-operator.io/nfs", "pvc-u", None, false, false),
        (
            "of another name",
            "nfs-operator.io/nfs",
            "pvc-previous",
            None,
            true,
            false,
        ),
        ("reported", "nfs-operator.io/nfs", "pvc-u", condition, true, false),
        ("under an alias", "old/nfs", "pvc-u", None, true, false),
    ] {
        let mut claim = bound(provisioner, "1Gi", false, condition);
        claim["spec"]["volumeName"] = json!(name);
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        let unreported = unreported_volume(&claim, &settings(), |_| may_have_created);
        assert_eq!(unreported.is_some(), expected, "{what}");
        let is_settled = super::is_settled(&claim, &settings(), &CapacityTracker::default(), |_| may_have_created);
        assert_eq!(is_settled, !expected, "{what}");
    }
}

#[test]
fn a_claim_that_waits_only_for_the_binder_is_settled_while_its_volume_exists() {
    let pending = |reported| {
        let mut claim = bound("nfs-operator.io/nfs", "1Gi", true, reported);
        claim["spec"]["volumeName"] = Value::Null;
        claim["status"]["phase"] = json!("Pending");
        serde_json::from_value(claim).unwrap()
    };
    let (reported, waits) = (
        pending(Some(("True", "Provisioned"))),
        pending(Some(("False", "NoSpace"))),
    );
    let capacity = CapacityTracker::default();
    let is_settled = |claim| super::is_settled(claim, &settings(), &capacity, |_| false);
    assert!(!is_settled(&reported), "its volume is not known: it may be deleted");
    capacity.reserve("pvc-u", 1, |_| (Some("default".to_owned()), ()));
    assert!(!is_settled(&reported), "its volume was not created yet");
    capacity.record_volume("pvc-u", "default", 1, None);
    assert!(is_settled(&reported));
    assert!(!is_settled(&waits), "its volume is not reported yet");
    capacity.remove("pvc-u");
    assert!(!is_settled(&reported));
}

#[test]
fn a_volume_of_another_claim_is_not_the_claims_own() {
    let claim: PersistentVolumeClaim = serde_json::from_value(bound("p", "1Gi", true, None)).unwrap();
    let volume = |claim_ref: Value| -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "pvc-u"}, "spec": {"claimRef": claim_ref}})).unwrap()
    };
    for (claim_ref, expected) in [
        (json!({"namespace": "n", "name": "c", "uid": "u"}), true),
        (json!({"namespace": "n", "name": "c", "uid": "another"}), false),
        // Reserved by an administrator for a claim of this name, and not bound yet.
        (json!({"namespace": "n", "name": "c"}), false),
        (Value::Null, false),
    ] {
        assert_eq!(is_bound_to(&volume(claim_ref.clone()), &claim), expected, "{claim_ref}");
    }
    let mut without_uid = claim;
    without_uid.metadata.uid = None;
    assert!(!is_bound_to(
        &volume(json!({"namespace": "n", "name": "c"})),
        &without_uid
    ));
}

#[test]
fn the_condition_of_a_lost_volume_has_the_command_that_recreates_it() {
    let mut claim = bound("nfs-operator.io/nfs", "1Gi", true, Some(("True", "Provisioned")));
    claim["status"]["conditions"][0]["message"] =
        json!("volume pvc-u is nfs:/export/d on backend main, with the data of claim x");
    // The claim got the volume of an earlier claim.
    claim["spec"]["volumeName"] = json!("pvc-earlier");
    let claim = serde_json::from_value(claim).unwrap();
    for (known, backend) in [("main", "main"), ("other", "BACKEND")] {
        let condition = lost(&claim, |name| name == known);
        let command =
            format!("(kubectl annotate --overwrite nfsb {backend} nfs-operator.io/readopt=pvc-earlier@$(date +%s))");
        assert_eq!(condition.reason, Reason::VolumeLost);
        assert!(condition.message.contains(&command), "{}", condition.message);
    }
}
