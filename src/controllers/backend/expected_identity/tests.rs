#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use nfs_client::FsId;

fn backend(annotations: Value, spec: Value, status: Value) -> NfsBackend {
    let mut whole = json!({"server": "s", "path": "/p"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsBackend",
        "metadata": {"name": "b", "annotations": annotations}, "spec": whole, "status": status,
    }))
    .unwrap()
}

const OWN: OwnCluster<'_> = OwnCluster {
    id: "own",
    has_data: &|| true,
};

fn ids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn volumes(names: &[&str]) -> RecordedIds {
    RecordedIds {
        volumes: ids(names),
        ..RecordedIds::default()
    }
}

fn archives(names: &[&str]) -> RecordedIds {
    RecordedIds {
        archives: ids(names),
        ..RecordedIds::default()
    }
}

#[test]
fn an_identity_is_created_only_if_none_is_known() {
    let fresh = backend(json!({}), json!({}), json!({}));
    assert!(
        expected_identity(&fresh, None, None, || volumes(&[]), OWN)
            .unwrap()
            .may_create
    );
    // The status was written and the watch lags behind, or it could not be written yet.
    let confirmed = Identity {
        id: "one".to_owned(),
        root_file_id: 7,
        own_file_ids: export_store::OwnFileIds {
            identity: 8,
            cluster: 9,
        },
        fsid: FsId { major: 1, minor: 2 },
        created: true,
        warnings: Vec::new(),
    };
    let known_to_us = expected_identity(&fresh, None, Some(&confirmed), || volumes(&[]), OWN).unwrap();
    assert_eq!(
        (
            known_to_us.may_create,
            known_to_us.export_id.as_deref(),
            known_to_us.root_file_id
        ),
        (false, Some("one"), Some(7))
    );
    let known_to_a_volume = expected_identity(&fresh, None, None, || volumes(&["one"]), OWN).unwrap();
    assert_eq!(
        (known_to_a_volume.may_create, known_to_a_volume.export_id.as_deref()),
        (false, Some("one"))
    );
    let known_to_an_archive = expected_identity(&fresh, None, None, || archives(&["one"]), OWN).unwrap();
    assert_eq!(
        (known_to_an_archive.may_create, known_to_an_archive.export_id.as_deref()),
        (false, Some("one"))
    );
    let known_to_the_status = backend(
        json!({}),
        json!({}),
        json!({"export": {"id": "one", "rootFileID": "7"}}),
    );
    let expectation = expected_identity(&known_to_the_status, None, None, || volumes(&[]), OWN).unwrap();
    assert_eq!((expectation.may_create, expectation.root_file_id), (false, Some(7)));
    let pinned = backend(json!({}), json!({"exportID": "pinned-id"}), json!({}));
    assert!(
        !expected_identity(&pinned, None, None, || volumes(&[]), OWN)
            .unwrap()
            .may_create
    );
}

#[test]
fn volumes_or_archives_with_different_identities_block_the_backend() {
    let fresh = backend(json!({}), json!({}), json!({}));
    for (recorded, what) in [
        (
            volumes(&["one", "two"]),
            "volumes of this backend are on exports one and two",
        ),
        (
            archives(&["one", "two"]),
            "archives of this backend are on exports one and two",
        ),
    ] {
        let refused = expected_identity(&fresh, None, None, || recorded.clone(), OWN).unwrap_err();
        assert_eq!(refused.planned.reason, Reason::IdentityMismatch);
        assert!(refused.planned.message.contains(what), "{}", refused.planned.message);
    }
    // Archives may be on a former export.
    let moved = RecordedIds {
        volumes: ids(&["two"]),
        archives: ids(&["one", "two"]),
    };
    let expectation = expected_identity(&fresh, None, None, || moved.clone(), OWN).unwrap();
    assert_eq!(expectation.export_id.as_deref(), Some("two"));
}

#[test]
fn a_pinned_identity_takes_precedence_and_no_other_one_is_accepted() {
    let status = json!({"export": {"id": "one", "rootFileID": "7"}});
    let pinned = backend(json!({}), json!({"exportID": "pinned-id"}), status.clone());
    let expectation = expected_identity(&pinned, None, None, || volumes(&["one"]), OWN).unwrap();
    assert_eq!(
        (expectation.export_id.as_deref(), expectation.root_file_id),
        (Some("pinned-id"), None)
    );
    let unpinned = backend(json!({}), json!({}), status);
    for (object, id) in [(&unpinned, "two"), (&pinned, "pinned-id")] {
        for value in [id.to_owned(), format!("{id}@again")] {
            let expectation = expected_identity(object, Some(&value), None, || volumes(&["one"]), OWN).unwrap();
            assert_eq!(
                (expectation.export_id.as_deref(), expectation.accepted),
                (Some(id), true)
            );
        }
    }
    // It would hold until the next probe.
    let refused = expected_identity(&pinned, Some("two@again"), None, || volumes(&["one"]), OWN).unwrap_err();
    let message = refused.planned.message;
    assert!(message.contains("two, and spec.exportID pins pinned-id"), "{message}");
}

#[test]
fn a_new_identity_is_created_only_on_request_and_not_beside_a_pinned_one() {
    let known = backend(
        json!({}),
        json!({}),
        json!({"export": {"id": "one", "rootFileID": "7"}}),
    );
    let expectation = expected_identity(&known, Some("new"), None, || volumes(&["one"]), OWN).unwrap();
    assert!(expectation.may_create && expectation.must_create && expectation.accepted);
    assert_eq!(expectation.export_id, None);
    let pinned = backend(json!({}), json!({"exportID": "pinned-id"}), json!({}));
    let refused = expected_identity(&pinned, Some("new"), None, || volumes(&[]), OWN).unwrap_err();
    assert!(
        refused.planned.message.contains("pinned-id"),
        "{}",
        refused.planned.message
    );
}

#[test]
fn the_command_that_accepts_an_export_is_printed_also_after_it_was_used() {
    let mismatch = |acceptable: Option<&str>| Unconfirmed {
        planned: PlannedCondition::fails(Reason::IdentityMismatch, "it has another identity"),
        acceptable: acceptable.map(str::to_owned),
    };
    let named = |mut object: NfsBackend| {
        object.metadata.name = Some("main".to_owned());
        object
    };
    let explained = |acceptable: &str, object: &NfsBackend| {
        explain_acceptance(mismatch(Some(acceptable)), object, None)
            .planned
            .message
    };
    let command = "it has another identity (kubectl annotate --overwrite nfsb main nfs-operator.io/accept-identity=";
    let plain = named(backend(json!({}), json!({}), json!({"export": {"id": "recorded"}})));
    assert_eq!(explained("one", &plain), format!("{command}one)"));
    assert_eq!(explained("new", &plain), format!("{command}new)"));
    let pinned = named(backend(json!({}), json!({"exportID": "pinned-id"}), json!({})));
    assert_eq!(
        explained("one", &pinned),
        "it has another identity. spec.exportID pins pinned-id: correct or remove it first"
    );
    assert_eq!(explained("pinned-id", &pinned), format!("{command}pinned-id)"));
    let used = named(backend(json!({ACCEPT_IDENTITY: "one"}), json!({}), json!({})));
    let again = explained("one", &used);
    assert!(again.contains("append @"), "{again}");
    assert!(again.starts_with(&format!("{command}one@$(date +%s)). ")), "{again}");
    let in_progress = explain_acceptance(mismatch(Some("one")), &used, Some("one"));
    assert_eq!(in_progress, mismatch(Some("one")));
    assert_eq!(explain_acceptance(mismatch(None), &plain, None), mismatch(None));
}

#[test]
fn the_secret_of_another_cluster_stops_a_backend_that_has_data() {
    let status = |cluster: &str| {
        let status = json!({"export": {"id": "one", "rootFileID": "7", "identityFileID": "8",
            "clusterFolderFileID": "9", "clusterID": cluster}});
        backend(json!({}), json!({}), status)
    };
    let own = expected_identity(&status("own"), None, None, || volumes(&["one"]), OWN).unwrap();
    assert!(own.own_file_ids.is_some());
    let refused = expected_identity(&status("other"), None, None, || volumes(&["one"]), OWN).unwrap_err();
    assert_eq!(refused.planned.reason, Reason::RecordsSecretMismatch);
    for part in [
        "cluster other",
        "cluster own",
        "restore the Secret",
        "accept-identity: one",
    ] {
        assert!(
            refused.planned.message.contains(part),
            "{part} is not in: {}",
            refused.planned.message
        );
    }
    let without_data = OwnCluster {
        has_data: &|| false,
        ..OWN
    };
    let replaced = expected_identity(&status("other"), None, None, || volumes(&[]), without_data).unwrap();
    assert_eq!(
        (replaced.export_id.as_deref(), replaced.own_file_ids),
        (Some("one"), None),
        "another folder has other fileids"
    );
}
