#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use serde_json::json;

use super::*;

const ALL: &[ClaimOverride] = &[
    ClaimOverride::Mode,
    ClaimOverride::Uid,
    ClaimOverride::Gid,
    ClaimOverride::OnDelete,
    ClaimOverride::MountOptions,
    ClaimOverride::Backend,
];

fn backend(allowed: &[ClaimOverride]) -> NfsBackendSpec {
    serde_json::from_value(json!({
        "server": "s", "path": "/e", "claimOverrides": allowed,
        "directory": {"mode": "0750", "uid": 10, "gid": 20},
    }))
    .unwrap()
}

fn class() -> ClassParameters {
    ClassParameters {
        uid: Some(11),
        on_delete: Some(OnDelete::Archive),
        ..ClassParameters::default()
    }
}

fn settings(annotations: &[(&str, &str)], allowed: &[ClaimOverride]) -> Result<VolumeSettings, PlannedCondition> {
    let annotations = annotations
        .iter()
        .map(|(name, value)| (format!("nfs-operator.io/{name}"), (*value).to_owned()))
        .collect();
    VolumeSettings::of(&backend(allowed), &class(), &annotations)
}

#[test]
fn a_claim_takes_precedence_over_its_class_and_the_class_over_the_backend() {
    let plain = settings(&[], &[]).unwrap();
    assert_eq!(
        (plain.mode, plain.uid, plain.gid, plain.on_delete),
        (0o750, Some(11), Some(20), Some(OnDelete::Archive))
    );
    let annotations = [
        ("mode", "2770"),
        ("uid", "0"),
        ("gid", "30"),
        ("on-delete", "Retain"),
        ("mount-options", "soft, timeo=600"),
    ];
    let own = settings(&annotations, ALL).unwrap();
    assert_eq!(
        (own.mode, own.uid, own.gid, own.on_delete),
        (0o2770, Some(0), Some(30), Some(OnDelete::Retain))
    );
    assert_eq!(own.mount_options, ["soft", "timeo=600"]);
    assert!(own.mode_requested);
}

#[test]
fn each_annotation_must_be_allowed_by_name() {
    for (name, value, word) in [
        ("mode", "0700", ClaimOverride::Mode),
        ("uid", "1", ClaimOverride::Uid),
        ("gid", "1", ClaimOverride::Gid),
        ("on-delete", "delete", ClaimOverride::OnDelete),
        ("mount-options", "ro", ClaimOverride::MountOptions),
    ] {
        assert!(settings(&[(name, value)], &[word]).is_ok(), "{name}");
        let others: Vec<ClaimOverride> = ALL.iter().copied().filter(|other| *other != word).collect();
        let refused = settings(&[(name, value)], &others).unwrap_err();
        assert_eq!(refused.reason, Reason::OverrideRefused, "{name}");
        for part in [
            &format!("nfs-operator.io/{name} "),
            "remove it",
            &format!("`{}` added", word.name()),
        ] {
            assert!(refused.message.contains(part), "{}", refused.message);
        }
    }
}

#[test]
fn an_invalid_value_is_refused_with_a_description_of_valid_values() {
    for (name, value, takes) in [
        ("mode", "rwx", "octal"),
        ("mode", "", "octal"),
        ("mode", "17777", "octal"),
        ("uid", "-1", "4294967294"),
        ("gid", "4294967295", "4294967294"),
        ("on-delete", "recycle", "archive, delete, retain"),
        ("mount-options", "suid", "hard"),
        ("mount-options", "ro,exec", "exec"),
        ("mount-options", "timeo=1=2", "timeo"),
        ("mount-options", "", "hard"),
    ] {
        let refused = settings(&[(name, value)], ALL).unwrap_err();
        assert_eq!(refused.reason, Reason::InvalidOverride, "{name} {value}");
        for part in [name, takes, "correct or remove it"] {
            assert!(refused.message.contains(part), "{}", refused.message);
        }
    }
    let long = settings(&[("mode", &"7".repeat(100_000))], ALL).unwrap_err();
    assert!(long.message.len() < 400, "{}", long.message.len());
}

#[test]
fn a_misspelled_annotation_is_refused_and_those_of_others_are_ignored() {
    let misspelled = settings(&[("mod", "0750")], ALL).unwrap_err();
    assert_eq!(misspelled.reason, Reason::InvalidOverride);
    for part in [
        "nfs-operator.io/mod is unknown",
        "nfs-operator.io/mode, nfs-operator.io/mount-options",
        "correct or remove it",
    ] {
        assert!(misspelled.message.contains(part), "{}", misspelled.message);
    }
    let others = [("placed-on", "b"), ("restore", "copy"), ("backend", "b")];
    assert_eq!(settings(&others, &[]), settings(&[], &[]));
    let foreign = BTreeMap::from([("nfs-operator.iox/mode".to_owned(), "0700".to_owned())]);
    assert_eq!(
        VolumeSettings::of(&backend(&[]), &class(), &foreign),
        settings(&[], &[])
    );
}

fn with_range(mode: Option<&str>) -> NfsBackendSpec {
    let directory = json!({"mode": mode, "gidRange": {"min": 20000, "max": 20009}});
    let spec = json!({"server": "s", "path": "/e", "claimOverrides": ALL, "directory": directory});
    serde_json::from_value(spec).unwrap()
}

#[test]
fn with_a_group_for_each_volume_the_mode_is_2770_unless_one_is_set() {
    let none = BTreeMap::new();
    let settings =
        |backend: &NfsBackendSpec, class: &ClassParameters| VolumeSettings::of(backend, class, &none).unwrap();
    let plain = settings(&with_range(None), &ClassParameters::default());
    assert_eq!((plain.mode, plain.mode_requested, plain.gid), (0o2770, true, None));
    assert_eq!(plain.gid_range, Some(GroupRange { min: 20000, max: 20009 }));
    assert_eq!(plain.adopted_mode, None, "an adopted directory keeps its mode");
    let own = settings(&with_range(Some("2750")), &ClassParameters::default());
    assert_eq!((own.mode, own.adopted_mode), (0o2750, Some(0o2750)));
    let class = ClassParameters {
        mode: Some(0o777),
        ..ClassParameters::default()
    };
    assert_eq!(settings(&with_range(None), &class).mode, 0o777);
    let spec = json!({"server": "s", "path": "/e"});
    let default = settings(&serde_json::from_value(spec).unwrap(), &ClassParameters::default());
    assert_eq!((default.mode, default.mode_requested), (0o777, false));
}

#[test]
fn neither_class_nor_claim_chooses_a_group_where_each_volume_gets_its_own() {
    let class = ClassParameters {
        gid: Some(2000),
        ..ClassParameters::default()
    };
    let refused = VolumeSettings::of(&with_range(None), &class, &BTreeMap::new()).unwrap_err();
    assert_eq!(refused.reason, Reason::InvalidParameter);
    assert!(refused.message.contains("gidRange 20000-20009"), "{}", refused.message);
    let annotations = BTreeMap::from([(names::CLAIM_GID.to_owned(), "2000".to_owned())]);
    let refused = VolumeSettings::of(&with_range(None), &ClassParameters::default(), &annotations).unwrap_err();
    assert_eq!(refused.reason, Reason::OverrideRefused);
    assert!(refused.message.contains("remove it"), "{}", refused.message);
}

#[test]
fn a_shared_directory_gets_no_mode_owner_and_group_and_is_always_retained() {
    let sharing = ClassParameters {
        existing: Some(Existing::Share),
        ..ClassParameters::default()
    };
    let none = BTreeMap::new();
    for backend in [backend(ALL), with_range(None)] {
        let settings = VolumeSettings::of(&backend, &sharing, &none).unwrap();
        let VolumeSettings {
            uid, gid, gid_range, ..
        } = settings;
        assert_eq!((uid, gid, gid_range), (None, None, None));
        assert!(!settings.mode_requested && settings.adopted_mode.is_none());
        assert_eq!(settings.existing, Existing::Share);
    }
    let refused = |class: ClassParameters, annotation: Option<(&str, &str)>| {
        let annotations = annotation.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let refused = VolumeSettings::of(&backend(ALL), &class, &annotations.into_iter().collect()).unwrap_err();
        (refused.reason, refused.message)
    };
    for (class, name) in [
        (
            ClassParameters {
                mode: Some(0o770),
                ..sharing.clone()
            },
            "mode",
        ),
        (
            ClassParameters {
                uid: Some(1),
                ..sharing.clone()
            },
            "uid",
        ),
        (
            ClassParameters {
                gid: Some(1),
                ..sharing.clone()
            },
            "gid",
        ),
        (
            ClassParameters {
                on_delete: Some(OnDelete::Delete),
                ..sharing.clone()
            },
            "onDelete",
        ),
        (
            ClassParameters {
                on_delete: Some(OnDelete::Archive),
                ..sharing.clone()
            },
            "onDelete",
        ),
    ] {
        let (reason, message) = refused(class, None);
        assert_eq!(reason, Reason::InvalidParameter);
        for part in [&format!("parameter {name}"), "existing: Share", "remove the parameter"] {
            assert!(message.contains(part), "{message}");
        }
    }
    for (name, value) in [
        (names::CLAIM_MODE, "0770"),
        (names::CLAIM_UID, "1"),
        (names::CLAIM_GID, "1"),
        (names::CLAIM_ON_DELETE, "delete"),
    ] {
        let (reason, message) = refused(sharing.clone(), Some((name, value)));
        assert_eq!(reason, Reason::OverrideRefused);
        for part in [name, "existing: Share", "remove it"] {
            assert!(message.contains(part), "{message}");
        }
    }
    let retain = BTreeMap::from([(names::CLAIM_ON_DELETE.to_owned(), "retain".to_owned())]);
    assert!(VolumeSettings::of(&backend(ALL), &sharing, &retain).is_ok());
}

#[test]
fn a_claim_cannot_request_a_shared_directory() {
    let refused = settings(&[("existing", "Share")], ALL).unwrap_err();
    assert_eq!(refused.reason, Reason::InvalidOverride);
    assert!(
        refused.message.contains("nfs-operator.io/existing is unknown"),
        "{}",
        refused.message
    );
}
