#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
use std::collections::BTreeMap;

use super::*;
use crate::naming::DirectoryPath;
use crate::signature::{KEY_LENGTH, RecordsKey, SignatureStatus};

fn records_key() -> RecordsKey {
    RecordsKey::new(&[7; KEY_LENGTH])
}

fn seal() -> QuotaSeal {
    QuotaSeal::new(Some(records_key().quota_key()), "cluster", "export")
}

fn order() -> Order {
    Order {
        volume: "pvc-1".to_owned(),
        directory: QuotaDirectory::parse("team/data").unwrap(),
        file_id: 12,
        generation: 3,
        bytes: Some(5 << 30),
        inodes: None,
    }
}

fn report(state: LimitState) -> Report {
    Report {
        volume: "pvc-1".to_owned(),
        file_id: 12,
        generation: 3,
        project: Some(1_000_001),
        state,
        visit: Vec::new(),
    }
}

fn heartbeat() -> Heartbeat {
    Heartbeat {
        instance: "4f2a".to_owned(),
        sequence: 9,
        agent_version: "0.1.0".to_owned(),
        file_system: "xfs".to_owned(),
        enforced: false,
        inodes_counted: true,
        ignored_orders: 1,
        reported: 0,
        reason: Some(AgentProblem::QuotasOff),
        message: Some("mount it with prjquota".to_owned()),
    }
}

fn usage() -> Usage {
    let volume = VolumeUsage { bytes: 4096, inodes: 1 };
    Usage {
        instance: "4f2a".to_owned(),
        sequence: 9,
        volumes: BTreeMap::from([("pvc-1".to_owned(), volume)]),
    }
}

fn roundtrip<F: QuotaFile + PartialEq + std::fmt::Debug>(file: &F) -> String {
    let sealed = seal().seal(file).unwrap();
    let (opened, status) = seal().open::<F>(file.name(), &sealed).unwrap();
    assert_eq!((&opened, status), (file, SignatureStatus::Signed));
    String::from_utf8(sealed).unwrap()
}

/// Created with an independent implementation: the bytes and signatures must be the same in every release.
#[test]
fn files_and_signatures_stay_what_they_were() {
    let failed = LimitState::Failed {
        reason: SizeProblem::DirectoryMissing,
        message: "m".to_owned(),
    };
    let announcing = Heartbeat {
        reported: 12,
        ..heartbeat()
    };
    for (file, expected) in [
        (roundtrip(&order()), ORDER),
        (roundtrip(&report(LimitState::InForce)), IN_FORCE),
        (roundtrip(&report(LimitState::Pending { visited: 5 })), PENDING),
        (roundtrip(&report(failed)), FAILED),
        (roundtrip(&heartbeat()), HEARTBEAT),
        (roundtrip(&announcing), ANNOUNCING),
        (roundtrip(&usage()), USAGE),
    ] {
        assert_eq!(file, expected);
    }
}

const ORDER: &str = concat!(
    r#"{"version":1,"volume":"pvc-1","directory":"team/data","fileID":12,"generation":3,"bytes":5368709120"#,
    r#","signature":"c4621b029bb18656b57c6cdf219748c8fe3d97c1bebee36a44dc4ef4fafb897d"}"#,
    "\n"
);
const IN_FORCE: &str = concat!(
    r#"{"version":1,"volume":"pvc-1","fileID":12,"generation":3,"project":1000001,"state":"InForce""#,
    r#","signature":"1dd8998eabae3198a8d6ab0a67e19cd8bd2af90cb636dc9531682f5df1e373fc"}"#,
    "\n"
);
const PENDING: &str = concat!(
    r#"{"version":1,"volume":"pvc-1","fileID":12,"generation":3,"project":1000001,"state":"Pending","visited":5"#,
    r#","signature":"109de174b48de6889b5537c3253dad4d05f059f89c881f401e1cdd28ae856c73"}"#,
    "\n"
);
const FAILED: &str = concat!(
    r#"{"version":1,"volume":"pvc-1","fileID":12,"generation":3,"project":1000001,"state":"Failed","reason":"DirectoryMissing","message":"m""#,
    r#","signature":"77e1a3ee456784a926ee040235a62ea791a2fcd629622e2a3d8cf828a9666dd0"}"#,
    "\n"
);
const HEARTBEAT: &str = concat!(
    r#"{"version":1,"instance":"4f2a","sequence":9,"agentVersion":"0.1.0","fileSystem":"xfs","enforced":false,"inodesCounted":true,"ignoredOrders":1,"reason":"QuotasOff","message":"mount it with prjquota""#,
    r#","signature":"f190a576d6220a4347547b62d93ffe708f932405549845a47db951247f925b2f"}"#,
    "\n"
);
const ANNOUNCING: &str = concat!(
    r#"{"version":1,"instance":"4f2a","sequence":9,"agentVersion":"0.1.0","fileSystem":"xfs","enforced":false,"inodesCounted":true,"ignoredOrders":1,"reported":12,"reason":"QuotasOff","message":"mount it with prjquota""#,
    r#","signature":"eda16ce4774ea5ed07da74a0aa4fa89ac0684f5a8741299a864dd0d2a1a192b8"}"#,
    "\n"
);
const USAGE: &str = concat!(
    r#"{"version":1,"instance":"4f2a","sequence":9,"volumes":{"pvc-1":{"bytes":4096,"inodes":1}}"#,
    r#","signature":"f4bd171b6eeb978918ed794957d9361c77952ebdf105834df2cc7ec1d5032793"}"#,
    "\n"
);

#[test]
fn a_file_with_any_byte_changed_removed_or_added_is_not_believed() {
    let sealed = seal().seal(&order()).unwrap();
    let believed = |bytes: &[u8]| matches!(seal().open::<Order>("pvc-1", bytes), Ok((_, SignatureStatus::Signed)));
    assert!(believed(&sealed));
    for place in 0..sealed.len() {
        let (mut changed, mut shorter, mut longer) = (sealed.clone(), sealed.clone(), sealed.clone());
        changed[place] ^= 1;
        shorter.remove(place);
        longer.insert(place, b' ');
        for bytes in [changed, shorter, longer] {
            assert!(!believed(&bytes), "byte {place}");
        }
    }
}

#[test]
fn a_file_copied_elsewhere_is_not_believed() {
    let sealed = seal().seal(&order()).unwrap();
    let at = |key: QuotaKey, cluster: &str, export: &str| {
        let seal = QuotaSeal::new(Some(key), cluster, export);
        seal.open::<Order>("pvc-1", &sealed).unwrap().1
    };
    let key = || records_key().quota_key();
    assert_eq!(at(key(), "cluster", "export"), SignatureStatus::Signed);
    assert_eq!(at(key(), "another", "export"), SignatureStatus::Forged);
    assert_eq!(at(key(), "cluster", "another"), SignatureStatus::Forged);
    assert_eq!(at(key(), "clustere", "xport"), SignatureStatus::Forged);
    let another = RecordsKey::new(&[8; KEY_LENGTH]).quota_key();
    assert_eq!(at(another, "cluster", "export"), SignatureStatus::Forged);
    let renamed = seal().open::<Order>("pvc-2", &sealed).unwrap_err();
    assert_eq!(renamed, QuotaFileError::Damaged("it is about \"pvc-1\"".into()));
    let text = String::from_utf8(sealed.clone()).unwrap().replace("pvc-1", "pvc-2");
    let changed = seal().open::<Order>("pvc-2", text.as_bytes()).unwrap();
    assert_eq!(changed.1, SignatureStatus::Forged);
}

#[test]
fn a_signature_is_valid_for_one_kind_of_file() {
    // The text is both an order and a report.
    let text = |signature: &str| {
        let fields = r#""version":1,"volume":"pvc-1","fileID":12,"generation":3,"project":1,"state":"InForce""#;
        format!("{{{fields},\"directory\":\"a\"{signature}}}\n")
    };
    let open = text("");
    let key = records_key().quota_key().signing();
    let signer = crate::signature::Signer {
        key: &key,
        purpose: crate::signature::Purpose::QuotaReport,
        cluster_id: "cluster",
        export_id: "export",
    };
    let sealed = signer.seal("pvc-1", open.as_bytes());
    let report = seal().open::<Report>("pvc-1", &sealed).unwrap();
    assert_eq!(report.1, SignatureStatus::Signed);
    let order = seal().open::<Order>("pvc-1", &sealed).unwrap();
    assert_eq!(order.1, SignatureStatus::Forged);
}

#[test]
fn files_without_a_signature_are_unsigned_with_and_without_a_key() {
    let keyless = QuotaSeal::new(None, "cluster", "export");
    let plain = keyless.seal(&order()).unwrap();
    for seal in [&keyless, &seal()] {
        let (opened, status) = seal.open::<Order>("pvc-1", &plain).unwrap();
        assert_eq!((opened, status), (order(), SignatureStatus::Unsigned));
    }
    let signed = seal().seal(&order()).unwrap();
    let (_, status) = keyless.open::<Order>("pvc-1", &signed).unwrap();
    assert_eq!(status, SignatureStatus::Forged);
}

#[test]
fn orders_that_break_a_rule_are_refused() {
    let sealed = |directory: &str, rest: &str| {
        let text = format!(
            "{{\"version\":1,\"volume\":\"pvc-1\",\"directory\":\"{directory}\",\"fileID\":1,\"generation\":1{rest}}}\n"
        );
        seal().open::<Order>("pvc-1", text.as_bytes()).map(|(order, _)| order)
    };
    for directory in [
        "a",
        "team/data",
        "archived-a",
        ".nfs-operator/cluster/staging/pvc-1/tree",
    ] {
        let order = sealed(directory, "").unwrap();
        assert_eq!(order.directory.to_string(), directory);
    }
    for directory in [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "a/..",
        "a/archived-b",
        "archived-a/b",
        "a b",
        "\\u0000",
        ".nfs-operator",
        ".nfs-operator/identity",
        ".nfs-operator/cluster/records",
        ".nfs-operator/another/staging/pvc-1/tree",
        ".nfs-operator/cluster/staging/../tree",
        ".nfs-operator/cluster/staging/pvc-1/links",
        ".nfs-operator/cluster/staging/pvc-1/tree/a",
        &"a".repeat(300),
        &"a/".repeat(600),
    ] {
        assert!(sealed(directory, "").is_err(), "{directory}");
    }
    for rest in [
        ",\"bytes\":0",
        ",\"inodes\":0",
        ",\"bytes\":-1",
        ",\"bytes\":1.5",
        ",\"bytes\":18446744073709551616",
    ] {
        assert!(sealed("a", rest).is_err(), "{rest}");
    }
    assert_eq!(sealed("a", ",\"bytes\":1,\"new\":[]").unwrap().bytes, Some(1));
    let zero = Order {
        bytes: Some(0),
        ..order()
    };
    assert!(matches!(seal().seal(&zero), Err(QuotaFileError::Damaged(_))));
}

#[test]
fn files_of_the_wrong_size_or_version_are_refused() {
    let open = |bytes: &[u8]| seal().open::<Order>("pvc-1", bytes).unwrap_err();
    assert_eq!(
        open(&vec![b' '; MAX_ORDER_LEN + 1]),
        QuotaFileError::TooLong(MAX_ORDER_LEN)
    );
    for truncated in [&b""[..], &[0; 100], b"{\"version\":1"] {
        assert_eq!(open(truncated), QuotaFileError::Truncated);
    }
    assert_eq!(open(b"{\"version\":2}"), QuotaFileError::TooNew(2));
    let message = "a".repeat(2000);
    let failed = LimitState::Failed {
        reason: SizeProblem::ChangeRefused,
        message,
    };
    assert!(seal().seal(&report(failed)).is_err());
}

#[test]
fn the_longest_order_fits() {
    let longest = DirectoryPath::parse(&format!("{}a", "abcdefg/".repeat(127))).unwrap();
    let order = Order {
        volume: "v".repeat(crate::layout::MAX_VOLUME_NAME_LEN),
        directory: QuotaDirectory::of_volume(&longest),
        file_id: u64::MAX,
        generation: u64::MAX,
        bytes: Some(u64::MAX),
        inodes: Some(u64::MAX),
    };
    assert!(seal().seal(&order).is_ok());
}

#[test]
fn reasons_of_newer_releases_are_unknown() {
    let text = "{\"version\":1,\"volume\":\"pvc-1\",\"fileID\":1,\"generation\":1,\"state\":\"Failed\",\
                \"reason\":\"Newer\",\"message\":\"m\"}\n";
    let (report, _) = seal().open::<Report>("pvc-1", text.as_bytes()).unwrap();
    let reason = SizeProblem::Unknown;
    let message = "m".to_owned();
    assert_eq!(report.state, LimitState::Failed { reason, message });
}

#[test]
fn the_key_file_has_the_derived_keys_and_survives_a_rotation() {
    let rotated = RecordsKey::new(&[8; KEY_LENGTH]).with_previous(&[7; KEY_LENGTH]);
    let lines = KeyFile::lines("cluster", &rotated);
    let file = KeyFile::parse(&format!("# keys\n\n{lines}another {}\n", "00".repeat(32))).unwrap();
    assert_eq!(file.key("cluster"), Some(&rotated.quota_key()));
    assert_eq!(file.key("another"), Some(&QuotaKey::new([0; KEY_LENGTH])));
    assert_eq!(file.key("third"), None);
    let former = seal().seal(&order()).unwrap();
    let seal = QuotaSeal::new(file.key("cluster").cloned(), "cluster", "export");
    assert_eq!(seal.open::<Order>("pvc-1", &former).unwrap().1, SignatureStatus::Signed);
    assert!(!format!("{file:?}").contains("00"));
}

#[test]
fn a_key_file_with_a_mistake_names_the_line() {
    let key = "ab".repeat(32);
    for (text, expected) in [
        (String::new(), KeyFileError::Empty),
        ("# only\n".to_owned(), KeyFileError::Empty),
        (format!("c {key}\nc"), KeyFileError::Line { line: 2 }),
        (format!("c {}", "AB".repeat(32)), KeyFileError::Line { line: 1 }),
        (format!("c {key}0"), KeyFileError::Line { line: 1 }),
        (format!("../c {key}"), KeyFileError::Line { line: 1 }),
        (format!("c {key}\nc {key}\nc {key}"), KeyFileError::TooMany { line: 3 }),
    ] {
        assert_eq!(KeyFile::parse(&text).unwrap_err(), expected, "{text}");
    }
}
