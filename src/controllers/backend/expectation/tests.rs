#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;

fn backend(annotations: Value, spec: Value, status: Value) -> NfsBackend {
    let mut whole = json!({"server": "s", "path": "/p"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsBackend",
        "metadata": {"name": "b", "annotations": annotations}, "spec": whole, "status": status,
    }))
    .unwrap()
}

fn ids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn an_identity_is_made_only_where_nobody_knows_one() {
    let fresh = backend(json!({}), json!({}), json!({}));
    assert!(expected(&fresh, &ids(&[])).unwrap().may_create);
    let known_to_a_volume = expected(&fresh, &ids(&["one"])).unwrap();
    assert_eq!(
        (known_to_a_volume.may_create, known_to_a_volume.export_id.as_deref()),
        (false, Some("one"))
    );
    let known_to_the_status = backend(json!({}), json!({}), json!({"exportID": "one", "rootFileID": "7"}));
    let expectation = expected(&known_to_the_status, &ids(&[])).unwrap();
    assert_eq!((expectation.may_create, expectation.root_file_id), (false, Some(7)));
    let pinned = backend(json!({}), json!({"exportID": "pinned-id"}), json!({}));
    assert!(!expected(&pinned, &ids(&[])).unwrap().may_create);
}

#[test]
fn volumes_that_know_two_identities_stop_the_backend() {
    let fresh = backend(json!({}), json!({}), json!({}));
    assert_eq!(
        expected(&fresh, &ids(&["one", "two"])).unwrap_err().reason,
        Reason::IdentityMismatch
    );
}

#[test]
fn an_administrators_pin_wins_and_an_acceptance_wins_over_all() {
    let status = json!({"exportID": "one", "rootFileID": "7"});
    let pinned = backend(json!({}), json!({"exportID": "pinned-id"}), status.clone());
    let expectation = expected(&pinned, &ids(&["one"])).unwrap();
    assert_eq!(
        (expectation.export_id.as_deref(), expectation.root_file_id),
        (Some("pinned-id"), None)
    );
    let accepted = backend(json!({ACCEPT_IDENTITY: "two"}), json!({}), status);
    let expectation = expected(&accepted, &ids(&["one"])).unwrap();
    assert_eq!(
        (expectation.export_id.as_deref(), expectation.accepted),
        (Some("two"), true)
    );
}
