#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use super::*;
use crate::api::names::{VOLUME_APPARENT_BYTES, VOLUME_UNREAD, VOLUME_USED_BYTES, VOLUME_USED_FILES};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

#[test]
fn a_scan_starts_an_interval_after_the_last_one_and_resumes_at_once() {
    let hour = Duration::from_secs(3600);
    let ended = UsageProgress {
        last_completed: Some(at(10_000)),
        ..UsageProgress::default()
    };
    let requested = UsageProgress {
        requested: true,
        ..ended.clone()
    };
    let cut_off = UsageProgress {
        under_way: Some(ScanPosition::default()),
        ..ended.clone()
    };
    for (progress, now, expected) in [
        (&UsageProgress::default(), 0, 0),
        (&ended, 10_000, 3600),
        (&ended, 10_600, 3000),
        (&ended, 13_600, 0),
        (&ended, 99_999, 0),
        // The clock was set back.
        (&ended, 5_000, 3600),
        (&requested, 10_000, 0),
        (&cut_off, 10_000, 0),
    ] {
        assert_eq!(
            time_until_scan(progress, hour, at(now)).as_secs(),
            expected,
            "{progress:?} {now}"
        );
    }
}

#[test]
fn a_repeatedly_interrupted_volume_is_skipped_and_the_next_one_has_all_attempts() {
    let mut at = ScanPosition {
        part: ScanPart::Archives,
        after: "a".into(),
        attempts: 0,
    };
    let mut tries = 0;
    while let (next, true) = begin_attempt(&at) {
        (at, tries) = (next, tries + 1);
        assert!(tries < 10 && at.part == ScanPart::Archives && at.after == "a", "{at:?}");
    }
    assert_eq!(tries, 3);
    let next = advance(&at, "b");
    assert_eq!(
        (next.part, next.after.as_str(), next.attempts),
        (ScanPart::Archives, "b", 0)
    );
    let nonsense = ScanPosition {
        attempts: i64::MAX,
        ..at
    };
    assert!(!begin_attempt(&nonsense).1);
}

#[test]
fn large_volumes_and_archives_are_counted_whole_after_all_others() {
    let mut part = Some(ScanPart::default());
    let parts: Vec<ScanPart> = std::iter::from_fn(|| {
        let now = part?;
        part = now.next();
        Some(now)
    })
    .collect();
    for (at, part) in parts.iter().enumerate() {
        assert_eq!(deferred_to(*part, LARGE), None);
        match deferred_to(*part, LARGE + 1) {
            Some(later) => assert!(parts[at + 2..].contains(&later), "{part:?}"),
            None => assert!(at >= 2, "{part:?}"),
        }
    }
    assert_eq!(parts.len(), 4);
}

#[test]
fn a_backend_that_is_suspended_deleting_or_unconfirmed_is_not_scanned() {
    let object = |spec: Value, metadata: Value| -> NfsBackend {
        let mut all = json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/export"}});
        for (part, more) in [("spec", spec), ("metadata", metadata)] {
            all[part]
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
        }
        serde_json::from_value(all).unwrap()
    };
    let plain = object(json!({}), json!({}));
    for (reason, halted) in [
        (Reason::AllChecksPassed, false),
        (Reason::NoSpace, false),
        (Reason::ReadOnly, false),
        (Reason::ServerNotResponding, false),
        (Reason::Fenced, true),
        (Reason::IdentityMismatch, true),
        (Reason::IdentityNotConfirmed, true),
    ] {
        assert_eq!(
            is_halted(&plain, &PlannedCondition::fails(reason, "")),
            halted,
            "{reason}"
        );
    }
    let ready = PlannedCondition::holds(Reason::AllChecksPassed, "");
    assert!(is_halted(&object(json!({"suspend": true}), json!({})), &ready));
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert!(is_halted(&object(json!({}), deleting), &ready));
}

fn published(figures: VolumeUsage, written: i64) -> PersistentVolume {
    let mut annotations = json!({
        VOLUME_USED_BYTES: figures.bytes.to_string(),
        VOLUME_USED_FILES: figures.files.to_string(),
        VOLUME_COUNTED_AT: at(written).to_string(),
    });
    if let Some(apparent) = figures.apparent {
        annotations[VOLUME_APPARENT_BYTES] = json!(apparent.to_string());
    }
    if figures.unread > 0 {
        annotations[VOLUME_UNREAD] = json!(figures.unread.to_string());
    }
    serde_json::from_value(json!({"metadata": {"name": "v", "annotations": annotations}})).unwrap()
}

#[test]
fn a_noticeable_difference_and_an_old_result_are_written() {
    let before = VolumeUsage {
        bytes: GIB,
        apparent: Some(GIB),
        files: 1000,
        unread: 0,
    };
    let week = 7 * 24 * 3600;
    for (now, age, news) in [
        (before, 0, false),
        (before, week - 1, false),
        (before, week, true),
        (
            VolumeUsage {
                bytes: GIB + GIB / 100,
                ..before
            },
            1,
            false,
        ),
        (
            VolumeUsage {
                bytes: GIB + GIB / 100 + 1,
                ..before
            },
            1,
            true,
        ),
        (VolumeUsage { bytes: 0, ..before }, 1, true),
        (
            VolumeUsage {
                apparent: Some(2 * GIB),
                ..before
            },
            1,
            true,
        ),
        (
            VolumeUsage {
                apparent: None,
                ..before
            },
            1,
            true,
        ),
        (VolumeUsage { files: 1100, ..before }, 1, false),
        (VolumeUsage { files: 1101, ..before }, 1, true),
        (VolumeUsage { unread: 1, ..before }, 1, true),
    ] {
        assert_eq!(
            needs_write(&published(before, 0), &now, at(age)),
            news,
            "{now:?} after {age} s"
        );
    }
    let small = VolumeUsage {
        bytes: 4096,
        ..VolumeUsage::default()
    };
    assert!(!needs_write(
        &published(small, 0),
        &VolumeUsage { bytes: MIB, ..small },
        at(1)
    ));
    let unread = VolumeUsage { unread: 1, ..before };
    assert!(!needs_write(
        &published(unread, 0),
        &VolumeUsage { unread: 2, ..before },
        at(1)
    ));
    let never: PersistentVolume = serde_json::from_value(json!({"metadata": {"name": "v"}})).unwrap();
    assert!(needs_write(&never, &before, at(0)));
}

#[test]
fn a_claim_is_over_its_request_from_the_first_byte_above_it() {
    let claim = |request: &str| -> PersistentVolumeClaim {
        let spec = json!({"resources": {"requests": {"storage": request}}});
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).unwrap()
    };
    let holds = |bytes| VolumeUsage {
        bytes,
        files: 3,
        ..VolumeUsage::default()
    };
    assert_eq!(over_request(&claim("1Gi"), &holds(GIB)), None);
    let message = over_request(&claim("1Gi"), &holds(GIB + 1)).unwrap();
    assert!(
        message.contains("requests 1Gi") && message.contains(&(GIB + 1).to_string()),
        "{message}"
    );
    assert!(!message.contains("at least"), "{message}");
    let partly = VolumeUsage {
        unread: 1,
        ..holds(GIB + 1)
    };
    assert!(over_request(&claim("1Gi"), &partly).unwrap().contains("at least 1Gi"));
    // The figures of the quota agent: a volume that held more than its limit when it got it.
    assert!(message.ends_with("The limit is enforced: it cannot grow"), "{message}");
    let counted = VolumeUsage {
        apparent: Some(1),
        ..holds(GIB + 1)
    };
    let message = over_request(&claim("1Gi"), &counted).unwrap();
    assert!(message.ends_with("The limit is not enforced"), "{message}");
    assert_eq!(over_request(&claim("nonsense"), &holds(u64::MAX)), None);
}

fn settings() -> Settings {
    Settings::for_tests("own", &[("alias", "main")])
}

fn volume(by: &str, annotations: Value, status: &str) -> PersistentVolume {
    let mut all = json!({PROVISIONED_BY: by});
    all.as_object_mut()
        .unwrap()
        .extend(annotations.as_object().unwrap().clone());
    let spec =
        json!({"nfs": {"server": "nfs", "path": "/export/team/data"}, "persistentVolumeReclaimPolicy": "Delete"});
    serde_json::from_value(json!({
        "metadata": {"name": "v", "annotations": all}, "spec": spec, "status": {"phase": status},
    }))
    .unwrap()
}

#[test]
fn only_volumes_on_this_backend_that_are_not_being_reclaimed_are_counted() {
    let object = json!({"metadata": {"name": "main"}, "spec": {"server": "nfs", "path": "/export"}});
    let object: NfsBackend = serde_json::from_value(object).unwrap();
    let here = json!({
        VOLUME_BACKEND: "main", VOLUME_EXPORT_ID: "id", VOLUME_DIRECTORY: "team/data", VOLUME_FILE_ID: "7",
    });
    let but = |name: &str, value: Option<&str>| {
        let mut changed = here.clone();
        match value {
            Some(value) => changed[name] = json!(value),
            None => drop(changed.as_object_mut().unwrap().remove(name)),
        }
        changed
    };
    for (by, annotations, status, expected) in [
        ("own", here.clone(), "Bound", Some(Some(7))),
        ("alias", json!({}), "Bound", Some(None)),
        ("unknown", here.clone(), "Bound", None),
        ("own", but(VOLUME_BACKEND, Some("other")), "Bound", None),
        ("own", but(VOLUME_EXPORT_ID, Some("copy")), "Bound", None),
        ("own", but(VOLUME_FILE_ID, None), "Bound", None),
        ("own", but(VOLUME_DIRECTORY, Some("../up")), "Bound", None),
    ] {
        let volume = volume(by, annotations, status);
        let found = location(&volume, &settings(), ("main", &object, "id"));
        let found = found.map(|(directory, file_id)| {
            assert_eq!(directory.to_string(), "team/data");
            file_id
        });
        assert_eq!(found, expected, "{volume:?}");
    }
}
