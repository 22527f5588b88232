#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn archive(volume: &str, change: Value) -> NfsArchive {
    let mut object = json!({
        "apiVersion": "nfs-operator.io/v1alpha1",
        "kind": "NfsArchive",
        "metadata": {"name": volume},
        "spec": {"claimRef": {"namespace": "team", "name": "data"}},
        "status": {
            "backendName": "main", "exportID": "e", "directory": "archived-x", "fileID": "1", "volumeName": volume,
            "claimUID": volume, "namespaceUID": "ns",
            "conditions": [{
                "type": "Available", "status": "True", "reason": "DataPresent", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    });
    merge(&mut object, &change);
    serde_json::from_value(object).unwrap()
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => into.clone_from(from),
    }
}

/// Returns an archive whose data has this age. Older data was archived later.
fn made(volume: &str, seconds: i64) -> NfsArchive {
    let times = json!({"volumeCreationTime": at(seconds).to_string(), "archiveTime": at(1000 - seconds).to_string()});
    archive(volume, json!({ "status": times }))
}

fn policy(retention: Option<&str>, keep_last: Option<i32>) -> ArchivePolicy {
    ArchivePolicy {
        retention: retention.map(Into::into),
        keep_last,
        ..ArchivePolicy::default()
    }
}

#[test]
fn a_namespace_with_the_maximum_number_of_archives_gets_no_more() {
    let archives = [
        archive("a", json!({})),
        archive("b", json!({})),
        archive("c", json!({"status": {"backendName": "other"}})),
        archive("d", json!({"spec": {"claimRef": {"namespace": "another"}}})),
    ];
    let reached = |max_per_namespace, volume| {
        let policy = ArchivePolicy {
            max_per_namespace,
            ..ArchivePolicy::default()
        };
        reached_limit(&policy, ("main", "team", volume), (archives.iter(), Vec::new()))
    };
    assert_eq!(reached(None, "new"), None);
    assert_eq!(reached(Some(3), "new"), None);
    assert_eq!(reached(Some(2), "new"), Some(ReachedLimit::OfNamespace(2)));
    assert_eq!(reached(Some(1), "new"), Some(ReachedLimit::OfNamespace(1)));
    assert_eq!(reached(Some(1), "b"), None, "it is archived already");
    assert_eq!(
        reached(Some(1), "c"),
        Some(ReachedLimit::OfNamespace(1)),
        "a volume of that name on another backend"
    );
}

#[test]
fn a_backup_of_a_volume_does_not_lift_the_maximum_for_the_volume() {
    let backup = archive("nfsbackup-u", json!({"status": {"volumeName": "b"}}));
    let policy = ArchivePolicy {
        max_per_namespace: Some(1),
        ..ArchivePolicy::default()
    };
    assert_eq!(
        reached_limit(&policy, ("main", "team", "b"), (std::iter::once(&backup), Vec::new())),
        Some(ReachedLimit::OfNamespace(1))
    );
}

#[test]
fn a_backend_with_the_maximum_number_of_archives_gets_no_more_of_any_namespace() {
    let archives = [
        archive("a", json!({})),
        archive("b", json!({"spec": {"claimRef": {"namespace": "another"}}})),
        archive("c", json!({"status": {"backendName": "other"}})),
    ];
    let reached = |max_per_namespace, max_per_backend, volume| {
        let policy = ArchivePolicy {
            max_per_namespace,
            max_per_backend,
            ..ArchivePolicy::default()
        };
        reached_limit(&policy, ("main", "team", volume), (archives.iter(), Vec::new()))
    };
    assert_eq!(reached(None, Some(3), "new"), None);
    assert_eq!(reached(None, Some(2), "new"), Some(ReachedLimit::OfBackend(2)));
    assert_eq!(reached(Some(2), Some(2), "new"), Some(ReachedLimit::OfBackend(2)));
    assert_eq!(reached(Some(1), Some(2), "new"), Some(ReachedLimit::OfNamespace(1)));
    assert_eq!(reached(Some(1), Some(2), "b"), None, "it is archived already");
}

#[test]
fn archives_without_an_object_count_toward_the_maximum() {
    let archives = [archive("a", json!({}))];
    let reached = |max_per_namespace, max_per_backend| {
        let policy = ArchivePolicy {
            max_per_namespace,
            max_per_backend,
            ..ArchivePolicy::default()
        };
        let released = vec!["team".to_owned(), "another".to_owned()];
        reached_limit(&policy, ("main", "team", "new"), (archives.iter(), released))
    };
    assert_eq!(reached(Some(3), Some(4)), None);
    assert_eq!(reached(Some(2), Some(4)), Some(ReachedLimit::OfNamespace(2)));
    assert_eq!(reached(Some(3), Some(3)), Some(ReachedLimit::OfBackend(3)));
}

#[test]
fn a_retention_has_days_and_the_units_of_go() {
    for (text, expected) in [
        ("30d", Some(30 * 86_400)),
        ("1d12h", Some(129_600)),
        ("720h", Some(2_592_000)),
        ("90m", Some(5400)),
        ("2s", Some(2)),
        ("for a while", None),
    ] {
        assert_eq!(seconds(&policy(Some(text), None)), expected, "{text}");
    }
    assert_eq!(seconds(&policy(None, None)), None);
}

#[test]
fn an_archive_expires_when_no_rule_keeps_it() {
    let of = |expires: Option<i64>, known: bool| {
        let expires = expires.map(|seconds| at(seconds).to_string());
        let archived = known.then(|| at(1).to_string());
        archive(
            "pvc-1",
            json!({"spec": {"expirationTime": expires}, "status": {"volumeCreationTime": archived}}),
        )
    };
    let (forever, week) = (policy(None, None), policy(Some("7d"), None));
    let (last, both) = (policy(None, Some(2)), policy(Some("7d"), Some(2)));
    let backup = |expires| NfsArchive {
        metadata: archive("nightly", json!({})).metadata,
        ..of(expires, true)
    };
    for (what, archive, policy, newer, expired_at_100) in [
        ("no rule", of(None, true), &forever, 9, false),
        ("before its end", of(Some(101), true), &week, 9, false),
        ("after its end", of(Some(100), true), &week, 0, true),
        ("after its end, policy removed", of(Some(100), true), &forever, 0, true),
        ("its end was removed", of(None, true), &week, 9, false),
        ("among the last", of(None, true), &last, 1, false),
        ("not among the last", of(None, true), &last, 2, true),
        ("not among the last, prolonged", of(Some(101), true), &last, 2, false),
        ("of an earlier release", of(None, false), &last, 2, false),
        ("after its end, among the last", of(Some(100), true), &both, 1, false),
        ("after its end, not among the last", of(Some(100), true), &both, 2, true),
        (
            "before its end, not among the last",
            of(Some(101), true),
            &both,
            2,
            false,
        ),
        ("kept forever, not among the last", of(None, true), &both, 2, false),
        ("backup without end", backup(None), &last, 2, false),
        ("backup after its end", backup(Some(100)), &last, 0, true),
        ("backup before its end", backup(Some(101)), &last, 2, false),
    ] {
        assert_eq!(
            expired(&archive, policy, newer, at(100)).is_some(),
            expired_at_100,
            "{what}"
        );
    }
}

#[test]
fn newer_archives_count_if_they_are_available_and_of_the_same_claim() {
    let of = made("pvc-5", 50);
    let with = |change: Value| {
        let mut object = serde_json::to_value(made("pvc-7", 70)).unwrap();
        merge(&mut object, &change);
        serde_json::from_value::<NfsArchive>(object).unwrap()
    };
    for (what, other, counts) in [
        ("newer", made("pvc-7", 70), 1),
        ("older", made("pvc-3", 30), 0),
        ("of the same second, later by name", made("pvc-6", 50), 0),
        ("of the same second, earlier by name", made("pvc-4", 50), 0),
        (
            "of unknown age",
            archive("pvc-7", json!({"status": {"archiveTime": at(70).to_string()}})),
            0,
        ),
        ("held", with(json!({"spec": {"legalHold": true}})), 0),
        (
            "being deleted",
            with(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            0,
        ),
        ("not available yet", with(json!({"status": {"conditions": []}})), 0),
        (
            "of another claim",
            with(json!({"spec": {"claimRef": {"name": "other"}}})),
            0,
        ),
        (
            "of a namespace of the same name",
            with(json!({"status": {"namespaceUID": "new"}})),
            0,
        ),
        ("a backup", with(json!({"metadata": {"name": "nightly"}})), 0),
        (
            "on another backend",
            with(json!({"status": {"backendName": "other"}})),
            0,
        ),
    ] {
        assert_eq!(count_newer(&of, [&of, &other].into_iter()), counts, "{what}");
    }
}

#[test]
fn an_archive_does_not_expire_before_the_retention_has_passed_since_the_api_server_created_its_object() {
    let of = |name: &str, archived: i64, expires: i64| {
        let created = json!({"name": name, "creationTimestamp": at(1000).to_string()});
        let spec = json!({"expirationTime": at(expires).to_string()});
        let status = json!({"archiveTime": at(archived).to_string()});
        archive("pvc-1", json!({"metadata": created, "spec": spec, "status": status}))
    };
    let (none, hour) = (policy(None, None), policy(Some("1h"), None));
    for (what, archive, policy, recorded, earliest) in [
        (
            "a clock that was behind",
            of("pvc-1", 905, 965),
            &none,
            Some(60),
            Some(1060),
        ),
        (
            "a retention that was changed since",
            of("pvc-1", 905, 965),
            &hour,
            Some(60),
            Some(1060),
        ),
        ("shortened by a person", of("pvc-1", 905, 10), &hour, Some(3600), None),
        (
            "a record of an earlier release",
            of("pvc-1", 905, 965),
            &hour,
            None,
            Some(4600),
        ),
        ("no retention known", of("pvc-1", 905, 965), &none, None, None),
        ("a backup", of("nightly", 905, 965), &hour, None, None),
    ] {
        let expected = earliest.map(at);
        assert_eq!(earliest_expiry(&archive, policy, recorded), expected, "{what}");
    }
}

#[test]
fn an_archive_reports_why_it_is_retained() {
    let (none, last) = (policy(None, None), policy(None, Some(3)));
    let with = |spec: Value| {
        archive(
            "pvc-1",
            json!({"spec": spec, "status": {"volumeCreationTime": at(1).to_string()}}),
        )
    };
    let plain = || with(json!({}));
    for (what, archive, policy, expires, expired, holds, reason) in [
        (
            "no rule",
            plain(),
            Some(&none),
            None,
            None,
            true,
            Reason::KeptIndefinitely,
        ),
        ("no backend", plain(), None, None, None, true, Reason::KeptIndefinitely),
        (
            "until a time",
            plain(),
            Some(&none),
            Some(at(9)),
            None,
            true,
            Reason::NotExpired,
        ),
        (
            "among the last",
            plain(),
            Some(&last),
            None,
            None,
            true,
            Reason::NotExpired,
        ),
        (
            "of unknown age",
            archive("pvc-1", json!({})),
            Some(&last),
            None,
            None,
            true,
            Reason::KeptIndefinitely,
        ),
        (
            "over",
            plain(),
            Some(&none),
            Some(at(9)),
            Some("over"),
            false,
            Reason::ArchiveExpired,
        ),
        (
            "over, and held",
            with(json!({"legalHold": true})),
            Some(&none),
            Some(at(9)),
            Some("over"),
            true,
            Reason::LegalHold,
        ),
    ] {
        let condition = retained(&archive, policy, expires, expired);
        assert_eq!((condition.status, condition.reason), (Some(holds), reason), "{what}");
    }
}
