#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;
use crate::controllers::backend::expected_identity::Unconfirmed;
use export_store::{ExportError, Identity};
use nfs_client::FsId;

fn backend(spec: Value, status: &NfsBackendStatus) -> NfsBackend {
    let mut whole = json!({"server": "s.example", "path": "/p"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsBackend",
        "metadata": {"name": "b", "generation": 1}, "spec": whole, "status": status,
    }))
    .unwrap()
}

fn well() -> Probe {
    Probe {
        export: None,
        reachable: PlannedCondition::holds(Reason::ServerAnswers, ""),
        identity: Some(Ok(Identity {
            id: "id".into(),
            root_file_id: 7,
            own_file_ids: export_store::OwnFileIds {
                identity: 8,
                cluster: 9,
            },
            fsid: FsId { major: 1, minor: 2 },
            created: false,
            warnings: Vec::new(),
        })),
        writable: Some(PlannedCondition::holds(Reason::WritesSucceed, "")),
        full: None,
        statistics: Some(FsStat {
            total: 1 << 40,
            available: 1 << 39,
            inodes: 100,
            inodes_free: 50,
        }),
        snapshot_directory: Some(None),
        snapshots_creatable: None,
        archives: Some(0),
        unsigned_records: Some(export_store::UnsignedRecords::default()),
    }
}

fn judged(object: &NfsBackend, probe: &Probe, at: i64) -> (PlannedCondition, NfsBackendStatus) {
    judged_as(object, probe, (probe.confirmed(), None), at)
}

fn judged_with_quota(
    object: &NfsBackend,
    probe: &Probe,
    quota: Option<PlannedCondition>,
    at: i64,
) -> (PlannedCondition, NfsBackendStatus) {
    judged_as(object, probe, (probe.confirmed(), quota), at)
}

fn judged_as(
    object: &NfsBackend,
    probe: &Probe,
    (identity, quota): (Option<&Identity>, Option<PlannedCondition>),
    at: i64,
) -> (PlannedCondition, NfsBackendStatus) {
    let purged = PurgeReport::default();
    let observed = Observed {
        object,
        probe,
        identity: identity.cloned(),
        cluster_id: "own",
        beacon: BeaconPlan::default(),
        totals: Totals::default(),
        purged: &purged,
        orphans: None,
        recovery: RecoveryProgress::default(),
        usage: None,
        quota,
        blocker: None,
        handled_requests: Vec::new(),
        now: Timestamp::from_second(at).unwrap(),
    };
    let ready = ready(&observed);
    let status = status(&observed, &ready);
    (ready, status)
}

#[test]
fn a_backend_without_a_quota_agent_is_not_ready_only_where_limits_are_required() {
    let missing = || Some(PlannedCondition::fails(Reason::QuotaAgentMissing, "run it"));
    let reported = |status: &NfsBackendStatus| {
        let conditions = status.conditions.iter();
        conditions
            .filter(|condition| condition.type_ == "QuotasEnforced")
            .count()
    };
    for (enforce, expected) in [
        ("Required", Reason::QuotaAgentMissing),
        ("Preferred", Reason::AllChecksPassed),
    ] {
        let object = backend(json!({"quota": {"enforce": enforce}}), &NfsBackendStatus::default());
        let (ready, status) = judged_with_quota(&object, &well(), missing(), 0);
        assert_eq!((ready.reason, reported(&status)), (expected, 1), "{enforce}");
    }
    let object = backend(json!({}), &NfsBackendStatus::default());
    assert_eq!(
        reported(&judged(&object, &well(), 0).1),
        0,
        "nothing changes without spec.quota"
    );
}

#[test]
fn ready_has_the_reason_of_the_first_failed_stage() {
    let object = backend(json!({}), &NfsBackendStatus::default());
    assert_eq!(judged(&object, &well(), 0).0.reason, Reason::AllChecksPassed);
    let cases: [(Probe, Reason); 6] = [
        (
            Probe {
                reachable: PlannedCondition::fails(Reason::ConnectionRefused, ""),
                ..well()
            },
            Reason::ConnectionRefused,
        ),
        (
            Probe {
                identity: Some(Err(PlannedCondition::fails(Reason::IdentityMismatch, "").into())),
                ..well()
            },
            Reason::IdentityMismatch,
        ),
        (
            Probe {
                writable: Some(PlannedCondition::fails(Reason::ReadOnly, "")),
                ..well()
            },
            Reason::ReadOnly,
        ),
        (
            Probe {
                statistics: Some(FsStat {
                    total: 1,
                    available: 0,
                    inodes: 0,
                    inodes_free: 0,
                }),
                ..well()
            },
            Reason::NoSpace,
        ),
        (
            Probe {
                statistics: Some(FsStat {
                    total: 1,
                    available: 1,
                    inodes: 9,
                    inodes_free: 0,
                }),
                ..well()
            },
            Reason::NoInodes,
        ),
        (
            Probe {
                statistics: Some(FsStat {
                    total: 1,
                    available: 1,
                    inodes: 0,
                    inodes_free: 0,
                }),
                ..well()
            },
            Reason::AllChecksPassed,
        ),
    ];
    for (probe, reason) in cases {
        assert_eq!(judged(&object, &probe, 0).0.reason, reason);
    }
}

#[test]
fn a_suspended_backend_and_one_below_its_reserve_are_not_ready() {
    let suspended = backend(json!({"suspend": true}), &NfsBackendStatus::default());
    assert_eq!(judged(&suspended, &well(), 0).0.reason, Reason::Suspended);
    let reserved = backend(json!({"capacity": {"reserve": "1Ti"}}), &NfsBackendStatus::default());
    assert_eq!(judged(&reserved, &well(), 0).0.reason, Reason::CapacityExceeded);
}

#[test]
fn changed_figures_are_written_once_a_minute_and_changed_conditions_at_once() {
    let (_, first) = judged(&backend(json!({}), &NfsBackendStatus::default()), &well(), 1000);
    let object = backend(json!({}), &first);
    let mut busy = well();
    busy.statistics = Some(FsStat {
        available: 1,
        ..busy.statistics.unwrap()
    });
    assert_eq!(
        judged(&object, &busy, 1059).1,
        first,
        "changed figures alone are not written"
    );
    assert_ne!(judged(&object, &busy, 1060).1, first);
    assert_ne!(
        judged(&object, &busy, 940).1,
        first,
        "the former leader's clock was a minute ahead"
    );
    let refused = Probe {
        reachable: PlannedCondition::fails(Reason::ConnectionRefused, "no"),
        ..well()
    };
    let (_, changed_status) = judged(&object, &refused, 1001);
    let since = |status: &NfsBackendStatus, type_: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .unwrap()
            .last_transition_time
            .clone()
    };
    assert_eq!(since(&changed_status, "Ready").0.as_second(), 1001);
    assert_eq!(
        since(&changed_status, "Writable").0.as_second(),
        1000,
        "an unchanged condition keeps its time"
    );
}

#[test]
fn an_outdated_cache_does_not_take_the_identity_of_the_export_from_the_status() {
    let outdated = backend(json!({}), &NfsBackendStatus::default());
    let replaced = Probe {
        identity: Some(Err(PlannedCondition::fails(Reason::IdentityMismatch, "").into())),
        ..well()
    };
    let (_, status) = judged_as(&outdated, &replaced, (well().confirmed(), None), 0);
    assert_eq!(status.export.id.as_deref(), Some("id"));
    assert_eq!(status.export.identity_file_id.as_deref(), Some("8"));
    let (_, status) = judged(&outdated, &replaced, 0);
    assert_eq!(status.export, ExportStatus::default(), "nothing was ever confirmed");
}

#[test]
fn a_purge_that_an_error_stopped_is_reported_although_nothing_is_left() {
    let stopped = PurgeReport {
        interrupted: true,
        error: Some(ExportError::NotLeader),
        ..PurgeReport::default()
    };
    let condition = trash_condition(&stopped);
    assert_eq!(condition.reason, Reason::TrashStuck);
    assert!(condition.message.contains("not the leader"), "{}", condition.message);
    assert_eq!(trash(&stopped).last_error, Some(ExportError::NotLeader.to_string()));
}

#[test]
fn a_reported_full_trash_is_not_written_again() {
    let purged = PurgeReport {
        left: export_store::TrashContent {
            entries: 1,
            oldest: Some(Timestamp::new(5, 123_456_789).unwrap()),
        },
        ..PurgeReport::default()
    };
    let probe = well();
    let status = |object: &NfsBackend, at| {
        let observed = Observed {
            object,
            probe: &probe,
            identity: probe.confirmed().cloned(),
            cluster_id: "own",
            beacon: BeaconPlan::default(),
            totals: Totals::default(),
            purged: &purged,
            orphans: None,
            recovery: RecoveryProgress::default(),
            usage: None,
            quota: None,
            blocker: None,
            handled_requests: Vec::new(),
            now: Timestamp::from_second(at).unwrap(),
        };
        let ready = ready(&observed);
        status(&observed, &ready)
    };
    let first = status(&backend(json!({}), &NfsBackendStatus::default()), 1000);
    // The object as the API server returns it.
    let object = backend(json!({}), &first);
    assert_eq!(Some(&status(&object, 1010)), object.status.as_ref());
}

#[test]
fn a_failed_probe_keeps_the_known_identity() {
    let (_, first) = judged(&backend(json!({}), &NfsBackendStatus::default()), &well(), 0);
    let unreachable = Probe {
        identity: None,
        writable: None,
        statistics: None,
        archives: None,
        reachable: PlannedCondition::fails(Reason::ConnectionTimedOut, ""),
        ..well()
    };
    let (_, later) = judged(&backend(json!({}), &first), &unreachable, 1);
    assert_eq!(
        (later.export.id.as_deref(), later.export.root_file_id.as_deref()),
        (Some("id"), Some("7"))
    );
    assert_eq!(later.archives, Some(0));
}

#[test]
fn an_identity_that_can_be_accepted_is_reported_until_the_export_is_confirmed_or_not_reached() {
    let other = Probe {
        identity: Some(Err(Unconfirmed {
            planned: PlannedCondition::fails(Reason::IdentityMismatch, "another one"),
            acceptable: Some("other".to_owned()),
        })),
        ..well()
    };
    let unreachable = Probe {
        identity: None,
        ..well()
    };
    let (_, before) = judged(&backend(json!({}), &NfsBackendStatus::default()), &well(), 0);
    assert_eq!(before.export.acceptable_id, None);
    let (_, replaced) = judged(&backend(json!({}), &before), &other, 1);
    assert_eq!(
        (replaced.export.id.as_deref(), replaced.export.acceptable_id.as_deref()),
        (Some("id"), Some("other"))
    );
    for probe in [well(), unreachable] {
        let (_, later) = judged(&backend(json!({}), &replaced), &probe, 2);
        assert_eq!(later.export.acceptable_id, None);
        assert_eq!(later.export.id.as_deref(), Some("id"));
    }
}

#[test]
fn a_complete_usage_scan_is_written_at_once_and_its_progress_once_a_minute() {
    let probe = well();
    let purged = PurgeReport::default();
    let status = |object: &NfsBackend, usage: Option<UsageStatus>, at| {
        let observed = Observed {
            object,
            probe: &probe,
            identity: probe.confirmed().cloned(),
            cluster_id: "own",
            beacon: BeaconPlan::default(),
            totals: Totals::default(),
            purged: &purged,
            orphans: None,
            usage,
            quota: None,
            recovery: RecoveryProgress::default(),
            blocker: None,
            handled_requests: Vec::new(),
            now: Timestamp::from_second(at).unwrap(),
        };
        let ready = ready(&observed);
        status(&observed, &ready).usage
    };
    let counted = |bytes, ended: Option<i64>| {
        Some(UsageStatus {
            size: quantity::exact(bytes),
            last_completion_time: ended.map(|at| Time(Timestamp::from_second(at).unwrap())),
            ..UsageStatus::default()
        })
    };
    let before = |usage: &Option<UsageStatus>| {
        let status = judged(&backend(json!({}), &NfsBackendStatus::default()), &well(), 1000).1;
        let usage = usage.clone();
        backend(json!({}), &NfsBackendStatus { usage, ..status })
    };
    let first = counted(1, Some(900));
    assert_eq!(
        status(&before(&None), first.clone(), 1001),
        first,
        "the first progress is written"
    );
    assert_eq!(
        status(&before(&first), counted(2, Some(900)), 1001),
        first,
        "further progress is not"
    );
    let later = counted(2, Some(900));
    assert_eq!(
        status(&before(&first), later.clone(), 1060),
        later,
        "it is after a minute"
    );
    let ended = counted(2, Some(1001));
    assert_eq!(status(&before(&first), ended.clone(), 1001), ended);
    assert_eq!(
        status(&before(&first), None, 1001),
        None,
        "the end of counting is written"
    );
}

#[test]
fn the_orphans_of_a_scan_are_written_at_once_and_its_time_is_not() {
    let purged = PurgeReport::default();
    let status_of = |probe: &Probe, object: &NfsBackend, orphans: Option<&OrphansStatus>, at| {
        let observed = Observed {
            object,
            probe,
            identity: probe.confirmed().cloned(),
            cluster_id: "own",
            beacon: BeaconPlan::default(),
            totals: Totals::default(),
            purged: &purged,
            orphans,
            recovery: RecoveryProgress::default(),
            usage: None,
            quota: None,
            blocker: None,
            handled_requests: Vec::new(),
            now: Timestamp::from_second(at).unwrap(),
        };
        let ready = ready(&observed);
        (ready.reason, status(&observed, &ready))
    };
    let status = |object: &NfsBackend, orphans: Option<&OrphansStatus>, at| {
        let (ready, status) = status_of(&well(), object, orphans, at);
        assert_eq!(ready, Reason::AllChecksPassed, "orphans do not affect Ready");
        status
    };
    let scanned = |at| OrphansStatus {
        last_scan_time: Some(Time(Timestamp::from_second(at).unwrap())),
        ..OrphansStatus::default()
    };
    let first = status(&backend(json!({}), &NfsBackendStatus::default()), None, 1000);
    let reason = |status: &NfsBackendStatus| {
        let of =
            |condition: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| condition.type_ == "Consistent";
        status.conditions.iter().find(of).unwrap().reason.clone()
    };
    assert_eq!(reason(&first), "NotScanned");
    let second = status(&backend(json!({}), &first), Some(&scanned(1005)), 1010);
    assert_eq!(reason(&second), "NoOrphansFound");
    let unconfirmed = Probe {
        identity: Some(Err(PlannedCondition::fails(Reason::IdentityMismatch, "").into())),
        ..well()
    };
    let (_, mismatch) = status_of(&unconfirmed, &backend(json!({}), &second), Some(&scanned(1005)), 1012);
    assert_eq!(reason(&mismatch), "NotProbed", "the scan was of another export");
    let third = status(&backend(json!({}), &second), Some(&scanned(1015)), 1020);
    assert_eq!(third, second, "a later scan with the same result is not written");
    let mut found = scanned(1025);
    let orphan = crate::api::Orphan {
        volume: "pvc-1".into(),
        directory: None,
    };
    found.add(crate::api::OrphanKind::RecordUnreadable, orphan);
    let fourth = status(&backend(json!({}), &third), Some(&found), 1030);
    assert_eq!(reason(&fourth), "OrphansFound");
    assert_eq!(fourth.orphans.unwrap().total, 1);
}

#[test]
fn nothing_is_reported_about_an_export_whose_identity_is_not_confirmed() {
    let object = backend(json!({}), &NfsBackendStatus::default());
    let mismatch = PlannedCondition::fails(Reason::IdentityMismatch, "another one");
    let other = Probe {
        identity: Some(Err(mismatch.into())),
        writable: None,
        ..well()
    };
    for (probe, known) in [(well(), "True"), (other, "Unknown")] {
        let (_, status) = judged(&object, &probe, 100);
        for type_ in ["CapacityAvailable", "TrashPurgeable"] {
            let found = status.conditions.iter().find(|condition| condition.type_ == type_);
            assert_eq!(found.unwrap().status, known, "{type_}");
        }
        assert_eq!(status.capacity.unwrap().available.is_some(), known == "True");
    }
}

#[test]
fn an_export_that_refuses_new_files_is_full_whatever_its_figures_are() {
    let object = backend(json!({}), &NfsBackendStatus::default());
    let full = Probe {
        full: Some(PlannedCondition::fails(Reason::QuotaExceeded, "")),
        ..well()
    };
    let (ready, status) = judged(&object, &full, 100);
    assert_eq!((ready.status, ready.reason), (Some(false), Reason::QuotaExceeded));
    for (type_, holds) in [("Writable", "True"), ("CapacityAvailable", "False")] {
        let found = status.conditions.iter().find(|condition| condition.type_ == type_);
        assert_eq!(found.unwrap().status, holds, "{type_}");
    }
}
