#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;
use crate::runtime::writes::merge;

/// Returns an archive with these changes.
fn archive(change: &Value) -> NfsArchive {
    let mut object = json!({
        "apiVersion": "nfs-operator.io/v1alpha1",
        "kind": "NfsArchive",
        "metadata": {"name": "pvc-1"},
        "spec": {"claimRef": {"namespace": "team", "name": "data"}},
        "status": {
            "backendName": "main", "exportID": "e", "directory": "archived-x", "fileID": "1", "volumeName": "pvc-1",
            "requestedSize": "1Gi", "claimUID": "1", "namespaceUID": "ns",
        },
    });
    merge(&mut object, change.clone());
    serde_json::from_value(object).unwrap()
}

/// A restore by a claim in this namespace, with this annotation, of a class with these backends.
struct Case {
    namespace: (&'static str, &'static str),
    labels: Value,
    annotation: Option<&'static str>,
    bytes: u128,
    backends: &'static [&'static str],
    selector: Option<&'static str>,
    by_name: bool,
    due: bool,
    in_progress: Option<RestoreMode>,
    from_backup: bool,
}

const USUAL: Case = Case {
    namespace: ("team", "ns"),
    labels: Value::Null,
    annotation: None,
    bytes: 1 << 30,
    backends: &[],
    selector: None,
    by_name: false,
    due: false,
    in_progress: None,
    from_backup: false,
};

fn decided(case: &Case, change: Value) -> Result<RestoreMode, Reason> {
    let annotations = case.annotation.map(|how| json!({ RESTORE: how }));
    let claim = json!({"metadata": {"name": "c", "annotations": annotations}});
    let namespace = json!({"metadata": {"name": case.namespace.0, "uid": case.namespace.1, "labels": case.labels}});
    let selector = case
        .selector
        .map(|text| ("backendSelector".to_owned(), text.to_owned()));
    let selector = selector.into_iter().collect();
    let request = ClaimRequest {
        provisioner: "nfs-operator.io/nfs".into(),
        parameters: crate::api::ClassParameters {
            backends: case.backends.iter().map(|&name| name.to_owned()).collect(),
            ..crate::api::ClassParameters::parse(&selector).unwrap()
        },
        mount_options: Vec::new(),
        reclaim_policy: "Delete".into(),
        bytes: case.bytes,
        source: None,
        snapshot: None,
        topologies: Vec::new(),
        restore: Some(RestoreSource::Archive("pvc-1".into())),
        node: None,
    };
    let restore = RestoreRequest {
        claim: &serde_json::from_value(claim).unwrap(),
        request: &request,
        namespace: &serde_json::from_value(namespace).unwrap(),
        expired: case.due.then(|| "its retention ended".to_owned()),
        alias: None,
        labels: &BTreeMap::from([("tier".to_owned(), "slow".to_owned())]),
        by_name: case.by_name,
        in_progress: case.in_progress,
        from_backup: case.from_backup,
    };
    decide(&restore, &archive(&change))
        .map(|(source, mode)| {
            assert_eq!(
                (&*source.backend, &*source.export_id, source.archive.file_id),
                ("main", "e", 1)
            );
            mode
        })
        .map_err(|condition| condition.reason)
}

#[test]
fn an_archive_is_moved_only_into_the_namespace_that_it_is_from() {
    let listed = json!({"spec": {"allowedNamespaces": {"matchNames": ["other"]}}});
    let labelled = json!({"spec": {"allowedNamespaces": {"selector": {"matchLabels": {"team": "a"}}}}});
    let of_old = json!({"status": {"namespaceUID": ""}});
    let at = |name, uid| Case {
        namespace: (name, uid),
        ..USUAL
    };
    let with_label = Case {
        labels: json!({"team": "a"}),
        ..at("other", "else")
    };
    for (what, case, spec, expected) in [
        ("its own", USUAL, json!({}), Ok(RestoreMode::Move)),
        (
            "recreated with the same name",
            at("team", "new"),
            json!({}),
            Err(Reason::ArchiveNotFound),
        ),
        ("another", at("other", "else"), json!({}), Err(Reason::ArchiveNotFound)),
        (
            "without a known namespace UID",
            at("team", ""),
            of_old,
            Err(Reason::ArchiveNotFound),
        ),
        ("listed", at("other", "else"), listed.clone(), Ok(RestoreMode::Copy)),
        (
            "listed, and another",
            at("third", "else"),
            listed,
            Err(Reason::ArchiveNotFound),
        ),
        ("labelled", with_label, labelled.clone(), Ok(RestoreMode::Copy)),
        (
            "not labelled",
            at("other", "else"),
            labelled,
            Err(Reason::ArchiveNotFound),
        ),
        (
            "in progress, from another namespace",
            Case {
                in_progress: Some(RestoreMode::Move),
                ..at("other", "else")
            },
            json!({}),
            Err(Reason::ArchiveNotFound),
        ),
        (
            "a copy in progress that is no longer allowed",
            Case {
                in_progress: Some(RestoreMode::Copy),
                ..at("other", "else")
            },
            json!({}),
            Err(Reason::ArchiveNotFound),
        ),
        (
            "a namesake, by name alone",
            Case {
                by_name: true,
                ..at("team", "new")
            },
            json!({}),
            Ok(RestoreMode::Copy),
        ),
        (
            "a namesake, by name alone, in progress as a move",
            Case {
                by_name: true,
                in_progress: Some(RestoreMode::Move),
                ..at("team", "new")
            },
            json!({}),
            Ok(RestoreMode::Copy),
        ),
        (
            "no namesake, by name alone",
            Case {
                by_name: true,
                ..at("other", "else")
            },
            json!({}),
            Err(Reason::ArchiveNotFound),
        ),
        (
            "of no namespace at all, by name alone",
            Case {
                by_name: true,
                ..at("", "else")
            },
            json!({"spec": {"claimRef": {"namespace": ""}}, "status": {"namespaceUID": ""}}),
            Err(Reason::ArchiveNotFound),
        ),
        (
            "its own, by name alone",
            Case { by_name: true, ..USUAL },
            json!({}),
            Ok(RestoreMode::Move),
        ),
    ] {
        assert_eq!(decided(&case, spec), expected, "{what}");
    }
}

#[test]
fn a_held_or_remote_archive_is_copied_and_an_expired_or_too_large_one_is_not_restored() {
    for (what, case, spec, expected) in [
        (
            "held",
            USUAL,
            json!({"spec": {"legalHold": true}}),
            Ok(RestoreMode::Copy),
        ),
        (
            "expired",
            Case { due: true, ..USUAL },
            json!({}),
            Err(Reason::ArchiveExpired),
        ),
        (
            "expired after the restore started",
            Case {
                due: true,
                in_progress: Some(RestoreMode::Move),
                ..USUAL
            },
            json!({}),
            Ok(RestoreMode::Move),
        ),
        (
            "too large",
            Case {
                bytes: (1 << 30) - 1,
                ..USUAL
            },
            json!({}),
            Err(Reason::ClaimTooSmall),
        ),
        (
            "of unknown size",
            Case { bytes: 1, ..USUAL },
            json!({"status": {"requestedSize": null}}),
            Ok(RestoreMode::Move),
        ),
        (
            "a copy",
            Case {
                annotation: Some("copy"),
                ..USUAL
            },
            json!({}),
            Ok(RestoreMode::Copy),
        ),
        (
            "a move",
            Case {
                annotation: Some("move"),
                ..USUAL
            },
            json!({}),
            Ok(RestoreMode::Move),
        ),
        (
            "a mistake",
            Case {
                annotation: Some("mvoe"),
                ..USUAL
            },
            json!({}),
            Err(Reason::InvalidOverride),
        ),
        (
            "on a backend of the class",
            Case {
                backends: &["a", "main"],
                ..USUAL
            },
            json!({}),
            Ok(RestoreMode::Move),
        ),
        (
            "on another backend",
            Case {
                backends: &["a"],
                ..USUAL
            },
            json!({}),
            Ok(RestoreMode::Copy),
        ),
        (
            "on a backend with other labels",
            Case {
                selector: Some("tier=fast"),
                ..USUAL
            },
            json!({}),
            Ok(RestoreMode::Copy),
        ),
        (
            "with the labels that the class selects",
            Case {
                selector: Some("tier=slow"),
                ..USUAL
            },
            json!({}),
            Ok(RestoreMode::Move),
        ),
        (
            "expired, and to be copied",
            Case {
                due: true,
                annotation: Some("copy"),
                ..USUAL
            },
            json!({}),
            Err(Reason::ArchiveExpired),
        ),
        (
            "expired, and being copied",
            Case {
                due: true,
                in_progress: Some(RestoreMode::Copy),
                ..USUAL
            },
            json!({}),
            Ok(RestoreMode::Copy),
        ),
        (
            "too large for a copy",
            Case {
                bytes: (1 << 30) - 1,
                annotation: Some("copy"),
                ..USUAL
            },
            json!({}),
            Err(Reason::ClaimTooSmall),
        ),
        (
            "on demand",
            USUAL,
            json!({"status": {"volumeName": "pvc-7"}}),
            Ok(RestoreMode::Copy),
        ),
        (
            "on demand, by a move",
            Case {
                annotation: Some("move"),
                ..USUAL
            },
            json!({"status": {"volumeName": "pvc-7"}}),
            Ok(RestoreMode::Copy),
        ),
        (
            "an invalid fileid",
            USUAL,
            json!({"status": {"fileID": "x"}}),
            Err(Reason::ArchiveNotFound),
        ),
    ] {
        assert_eq!(decided(&case, spec), expected, "{what}");
    }
}

#[test]
fn an_incomplete_archive_is_visible_only_to_namespaces_that_may_have_it() {
    let incomplete_archive = |status: Value| {
        let mut change = json!({"status": {"fileID": null}});
        merge(&mut change, json!({ "status": status }));
        archive(&change)
    };
    let namespace = |name: &str, uid: &str| {
        let object = json!({"metadata": {"name": name, "uid": uid}});
        serde_json::from_value(object).unwrap()
    };
    let source_known = incomplete_archive(json!({}));
    assert_eq!(
        incomplete(&namespace("team", "ns"), &source_known).reason,
        Reason::ArchiveBusy
    );
    let source_unknown = incomplete_archive(json!({"namespaceUID": "", "claimUID": ""}));
    assert_eq!(
        incomplete(&namespace("team", "ns"), &source_unknown).reason,
        Reason::ArchiveBusy
    );
    assert_eq!(
        incomplete(&namespace("other", "else"), &source_known).reason,
        Reason::ArchiveNotFound
    );
    let listed = archive(&json!({
        "spec": {"allowedNamespaces": {"matchNames": ["other"]}}, "status": {"fileID": null},
    }));
    assert_eq!(
        incomplete(&namespace("other", "else"), &listed).reason,
        Reason::ArchiveBusy
    );
}
