#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::json;

use super::*;
use crate::api::conditions::Reason;

fn settings() -> Settings {
    Settings::for_tests("nfs-operator.io/nfs", &[])
}

fn claim(requested: &str, reported: &str) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {"volumeName": "pvc-u", "resources": {"requests": {"storage": requested}}},
        "status": {"phase": "Bound", "capacity": {"storage": reported}},
    }))
    .unwrap()
}

fn volume(has: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {"name": "pvc-u", "annotations": {
            PROVISIONED_BY: "nfs-operator.io/nfs", VOLUME_BACKEND: "main"}},
        "spec": {"capacity": {"storage": has}, "claimRef": {"uid": "u"}},
    }))
    .unwrap()
}

fn status(claim: &PersistentVolumeClaim, patch: Value) -> PersistentVolumeClaim {
    let mut claim = serde_json::to_value(claim).unwrap();
    let status = claim["status"].as_object_mut().unwrap();
    status.extend(patch.as_object().unwrap().clone());
    serde_json::from_value(claim).unwrap()
}

fn condition(message: &str) -> PlannedCondition {
    PlannedCondition::fails(Reason::CapacityExceeded, message)
}

fn time(text: &str) -> Time {
    Time(text.parse().unwrap())
}

#[test]
fn a_claim_is_settled_if_it_requests_no_more_than_it_reports() {
    assert!(is_settled(&claim("1Gi", "1024Mi")));
    assert!(is_settled(&claim("1Gi", "2Gi")));
    assert!(!is_settled(&claim("2Gi", "1Gi")));
    let refused = json!({"allocatedResourceStatuses": {"storage": INFEASIBLE}});
    assert!(
        !is_settled(&status(&claim("1Gi", "1Gi"), refused)),
        "that is to be cleared"
    );
    assert!(is_settled(&status(&claim("2Gi", "1Gi"), json!({"phase": "Pending"}))));
}

#[test]
fn a_volume_is_expanded_before_its_claim_reports_it_and_never_shrinks() {
    let grow = |size: &str, bytes| ExpansionPlan::Grow {
        size: Quantity(size.into()),
        bytes,
        backend: "main".into(),
    };
    let report = |size: &str| ExpansionPlan::ReportSize(Quantity(size.into()));
    for (what, requested, has, reported, expected) in [
        ("nothing requested", "1Gi", "1Gi", "1Gi", ExpansionPlan::Nothing),
        (
            "the same in other units",
            "1024Mi",
            "1Gi",
            "1073741824",
            ExpansionPlan::Nothing,
        ),
        ("more is requested", "2Gi", "1Gi", "1Gi", grow("2Gi", 2 << 30)),
        ("ended after the first write", "2Gi", "2Gi", "1Gi", report("2Gi")),
        (
            "ended, and then more was requested",
            "3Gi",
            "2Gi",
            "1Gi",
            grow("3Gi", 3 << 30),
        ),
        ("ended, and then less was requested", "1Gi", "2Gi", "1Gi", report("2Gi")),
        (
            "the volume is larger than requested",
            "1Gi",
            "2Gi",
            "2Gi",
            ExpansionPlan::Nothing,
        ),
        (
            "the claim reports more than the volume has",
            "1Gi",
            "1Gi",
            "2Gi",
            ExpansionPlan::Nothing,
        ),
        ("no quantity", "much", "1Gi", "1Gi", ExpansionPlan::Nothing),
    ] {
        assert_eq!(
            plan(&claim(requested, reported), &volume(has), &settings()),
            expected,
            "{what}"
        );
    }
}

#[test]
fn only_a_bound_claim_with_a_volume_of_this_operator_is_expanded() {
    let expanding = claim("2Gi", "1Gi");
    let changed = |change: &dyn Fn(&mut PersistentVolumeClaim)| {
        let mut claim = expanding.clone();
        change(&mut claim);
        plan(&claim, &volume("1Gi"), &settings())
    };
    assert!(matches!(changed(&|_| ()), ExpansionPlan::Grow { .. }));
    for (what, found) in [
        (
            "another claim of that name",
            changed(&|claim| claim.metadata.uid = Some("v".into())),
        ),
        ("no uid", changed(&|claim| claim.metadata.uid = None)),
        (
            "bound to another volume",
            changed(&|claim| claim.spec.as_mut().unwrap().volume_name = Some("x".into())),
        ),
        (
            "lost",
            changed(&|claim| claim.status.as_mut().unwrap().phase = Some("Lost".into())),
        ),
        (
            "being deleted",
            changed(&|claim| claim.metadata.deletion_timestamp = Some(time("2026-01-01T00:00:00Z"))),
        ),
    ] {
        assert_eq!(found, ExpansionPlan::Nothing, "{what}");
    }
    for (annotation, value) in [
        (PROVISIONED_BY, Some("other/nfs")),
        (PROVISIONED_BY, None),
        (VOLUME_BACKEND, None),
    ] {
        let mut volume = volume("1Gi");
        let annotations = volume.metadata.annotations.as_mut().unwrap();
        annotations.remove(annotation);
        annotations.extend(value.map(|value| (annotation.to_owned(), value.to_owned())));
        assert_eq!(
            plan(&expanding, &volume, &settings()),
            ExpansionPlan::Nothing,
            "{annotation} {value:?}"
        );
    }
}

#[test]
fn a_reported_failure_is_cleared_once_it_is_no_longer_requested() {
    let now = time("2026-01-01T00:00:00Z");
    let other = json!({"conditions": [{"type": "nfs-operator.io/Provisioned", "status": "True"}]});
    let expanding = status(&claim("9Gi", "1Gi"), other);
    let patch = refused_status(&expanding, &condition("full"), now.clone()).unwrap();
    assert_eq!(patch["status"]["allocatedResourceStatuses"]["storage"], INFEASIBLE);
    let failed = status(&expanding, patch["status"].clone());
    assert_eq!(conditions(&failed).count(), 2, "the other condition stays");
    assert!(matches!(
        plan(&failed, &volume("1Gi"), &settings()),
        ExpansionPlan::Grow { .. }
    ));
    // An identical condition is not written again. A different message is written with the same transition time.
    assert_eq!(
        refused_status(&failed, &condition("full"), time("2026-01-02T00:00:00Z")),
        None
    );
    let later = refused_status(&failed, &condition("fuller"), time("2026-01-02T00:00:00Z")).unwrap();
    assert_eq!(
        later["status"]["conditions"][1]["lastTransitionTime"],
        "2026-01-01T00:00:00Z"
    );
    // The request is lowered to the current size.
    let mut lowered = failed.clone();
    lowered.spec = claim("1Gi", "1Gi").spec;
    assert_eq!(plan(&lowered, &volume("1Gi"), &settings()), ExpansionPlan::ClearFailure);
    let patch = settled_status(&lowered, None);
    assert_eq!(patch["status"]["allocatedResourceStatuses"], json!({"storage": null}));
    assert_eq!(
        patch["status"]["conditions"].as_array().unwrap().len(),
        1,
        "{}",
        patch["status"]
    );
    assert_eq!(patch["status"].get("capacity"), None);
    // The expansion succeeds: size, quota and conditions are in one write.
    let patch = settled_status(&failed, Some(&Quantity("9Gi".into())));
    for field in ["capacity", "allocatedResources"] {
        assert_eq!(patch["status"][field], json!({"storage": "9Gi"}), "{field}");
    }
}

#[test]
fn the_conditions_of_an_expansion_are_removed_when_it_ends() {
    let all = RESIZE_CONDITIONS
        .iter()
        .chain(&["nfs-operator.io/Provisioned"])
        .map(|kind| json!({"type": kind, "status": "True"}));
    let expanding = status(&claim("2Gi", "1Gi"), json!({"conditions": all.collect::<Vec<_>>()}));
    let left = settled_status(&expanding, Some(&Quantity("2Gi".into())))["status"]["conditions"].clone();
    assert_eq!(left[0]["type"], "nfs-operator.io/Provisioned");
    assert_eq!(left.as_array().unwrap().len(), 1);
    let error = refused_status(&expanding, &condition("full"), time("2026-01-01T00:00:00Z")).unwrap();
    let kinds: Vec<_> = error["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| condition["type"].as_str().unwrap())
        .collect();
    assert!(
        !kinds.contains(&"Resizing") && kinds.contains(&RESIZE_ERROR),
        "{kinds:?}"
    );
}
