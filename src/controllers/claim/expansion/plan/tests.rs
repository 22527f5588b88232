#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::json;

use super::*;
use crate::api::conditions::Reason;

fn settings() -> Settings {
    Settings::for_tests("nfs-operator.io/nfs", &[])
}

fn claim(asked: &str, said: &str) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {"volumeName": "pvc-u", "resources": {"requests": {"storage": asked}}},
        "status": {"phase": "Bound", "capacity": {"storage": said}},
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
fn a_claim_is_at_rest_when_it_asks_for_no_more_than_it_says_that_it_has() {
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
fn a_volume_grows_before_its_claim_says_so_and_never_shrinks() {
    let grow = |size: &str, bytes| Plan::Grow {
        size: Quantity(size.into()),
        bytes,
        backend: "main".into(),
    };
    let say = |size: &str| Plan::ReportSize(Quantity(size.into()));
    for (what, asked, has, said, expected) in [
        ("content", "1Gi", "1Gi", "1Gi", Plan::Nothing),
        ("the same in other words", "1024Mi", "1Gi", "1073741824", Plan::Nothing),
        ("more is asked for", "2Gi", "1Gi", "1Gi", grow("2Gi", 2 << 30)),
        ("died after the first write", "2Gi", "2Gi", "1Gi", say("2Gi")),
        (
            "and more was asked for since",
            "3Gi",
            "2Gi",
            "1Gi",
            grow("3Gi", 3 << 30),
        ),
        ("and less was asked for since", "1Gi", "2Gi", "1Gi", say("2Gi")),
        ("the volume has more than asked", "1Gi", "2Gi", "2Gi", Plan::Nothing),
        ("the claim says more than there is", "1Gi", "1Gi", "2Gi", Plan::Nothing),
        ("no quantity", "much", "1Gi", "1Gi", Plan::Nothing),
    ] {
        assert_eq!(plan(&claim(asked, said), &volume(has), &settings()), expected, "{what}");
    }
}

#[test]
fn only_the_bound_pair_of_a_volume_of_ours_is_expanded() {
    let asks = claim("2Gi", "1Gi");
    let changed = |change: &dyn Fn(&mut PersistentVolumeClaim)| {
        let mut claim = asks.clone();
        change(&mut claim);
        plan(&claim, &volume("1Gi"), &settings())
    };
    assert!(matches!(changed(&|_| ()), Plan::Grow { .. }));
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
        assert_eq!(found, Plan::Nothing, "{what}");
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
            plan(&asks, &volume, &settings()),
            Plan::Nothing,
            "{annotation} {value:?}"
        );
    }
}

#[test]
fn what_was_said_of_a_refusal_goes_when_it_is_no_longer_asked_for() {
    let now = time("2026-01-01T00:00:00Z");
    let other = json!({"conditions": [{"type": "nfs-operator.io/Provisioned", "status": "True"}]});
    let asks = status(&claim("9Gi", "1Gi"), other);
    let patch = refused_status(&asks, &condition("full"), now.clone()).unwrap();
    assert_eq!(patch["status"]["allocatedResourceStatuses"]["storage"], INFEASIBLE);
    let marked = status(&asks, patch["status"].clone());
    assert_eq!(conditions(&marked).count(), 2, "the other condition stays");
    assert!(matches!(plan(&marked, &volume("1Gi"), &settings()), Plan::Grow { .. }));
    // The same again is not written; another text is, and the condition is as old as before.
    assert_eq!(
        refused_status(&marked, &condition("full"), time("2026-01-02T00:00:00Z")),
        None
    );
    let later = refused_status(&marked, &condition("fuller"), time("2026-01-02T00:00:00Z")).unwrap();
    assert_eq!(
        later["status"]["conditions"][1]["lastTransitionTime"],
        "2026-01-01T00:00:00Z"
    );
    // Lowered to what it has.
    let mut content = marked.clone();
    content.spec = claim("1Gi", "1Gi").spec;
    assert_eq!(plan(&content, &volume("1Gi"), &settings()), Plan::ClearFailure);
    let patch = settled_status(&content, None);
    assert_eq!(patch["status"]["allocatedResourceStatuses"], json!({"storage": null}));
    assert_eq!(
        patch["status"]["conditions"].as_array().unwrap().len(),
        1,
        "{}",
        patch["status"]
    );
    assert_eq!(patch["status"].get("capacity"), None);
    // Served after all: size, quota and conditions in one write.
    let patch = settled_status(&marked, Some(&Quantity("9Gi".into())));
    for field in ["capacity", "allocatedResources"] {
        assert_eq!(patch["status"][field], json!({"storage": "9Gi"}), "{field}");
    }
}

#[test]
fn conditions_of_an_expansion_end_with_it() {
    let all = RESIZE_CONDITIONS
        .iter()
        .chain(&["nfs-operator.io/Provisioned"])
        .map(|kind| json!({"type": kind, "status": "True"}));
    let asks = status(&claim("2Gi", "1Gi"), json!({"conditions": all.collect::<Vec<_>>()}));
    let left = settled_status(&asks, Some(&Quantity("2Gi".into())))["status"]["conditions"].clone();
    assert_eq!(left[0]["type"], "nfs-operator.io/Provisioned");
    assert_eq!(left.as_array().unwrap().len(), 1);
    let error = refused_status(&asks, &condition("full"), time("2026-01-01T00:00:00Z")).unwrap();
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
