#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use serde_json::{Value, json};

use super::*;

const UID: &str = "3f2b1c9e-9f64-4f0e-8a53-0d9c1f7a2b11";

fn volume(server: &str, path: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pvc-{UID}"), "annotations": {PROVISIONED_BY: "old/name"}},
        "spec": {
            "nfs": {"server": server, "path": path},
            "claimRef": {"namespace": "shop", "name": "data", "uid": UID},
        },
    }))
    .unwrap()
}

fn backend(name: &str, server: &str, path: &str, former: Value) -> NfsBackend {
    serde_json::from_value(json!({
        "apiVersion": "nfs-operator.io/v1alpha1",
        "kind": "NfsBackend",
        "metadata": {"name": name},
        "spec": {"server": server, "path": path, "formerAddresses": former},
    }))
    .unwrap()
}

fn located(volume: &PersistentVolume, backends: &[NfsBackend]) -> Result<String, String> {
    let backends: Vec<&NfsBackend> = backends.iter().collect();
    match locate(volume, "default", &backends) {
        Ok(directory) => Ok(directory.to_string()),
        Err(stop) => {
            assert_eq!(stop.reason, Reason::ReclaimUnsafe);
            Err(stop.message)
        }
    }
}

#[test]
fn an_address_leads_to_the_one_backend_with_the_longest_path() {
    let former = json!([{"server": "old.example.org", "path": "/"}]);
    let backends = [
        backend("default", "nfs.example.org", "/export", former),
        backend("other", "other.example.org", "/export", json!([])),
    ];
    for (server, path, directory) in [
        ("nfs.example.org", "/export/a", "a"),
        ("NFS.example.org", "/export/a/b/c", "a/b/c"),
        ("old.example.org", "/shop-data", "shop-data"),
    ] {
        assert_eq!(located(&volume(server, path), &backends).as_deref(), Ok(directory));
    }
    for (server, path) in [
        ("nfs.example.org", "/export"),
        ("nfs.example.org", "/export/"),
        ("nfs.example.org", "/exported/a"),
        ("nfs.example.org", "/export//a"),
        ("nfs.example.org", "/export/../a"),
        ("nfs.example.org", "/export/.nfs-operator/x"),
        ("nfs.example.org", "/export/archived-a"),
        ("third.example.org", "/export/a"),
        ("other.example.org", "/export/a"),
    ] {
        assert!(located(&volume(server, path), &backends).is_err(), "{server}:{path}");
    }
}

#[test]
fn an_address_that_leads_elsewhere_or_to_several_backends_is_refused() {
    let inner = [
        backend("default", "nfs", "/export", json!([])),
        backend("team", "nfs", "/export/team", json!([])),
    ];
    assert_eq!(located(&volume("nfs", "/export/a"), &inner).as_deref(), Ok("a"));
    let refused = located(&volume("nfs", "/export/team/a"), &inner).unwrap_err();
    assert!(refused.contains("backend team"), "{refused}");
    let twins = [
        backend("default", "nfs", "/export", json!([])),
        backend("twin", "nfs", "/export", json!([])),
    ];
    let refused = located(&volume("nfs", "/export/a"), &twins).unwrap_err();
    assert!(refused.contains("default") && refused.contains("twin"), "{refused}");
}

#[test]
fn only_the_claims_own_volume_is_one_and_only_without_anything_of_ours() {
    let aliases = BTreeMap::from([("old/name".to_owned(), "default".to_owned())]);
    let plain = volume("nfs", "/export/a");
    assert_eq!(alias_backend(&plain, &aliases), Some("default"));
    for name in OURS {
        let mut marked = plain.clone();
        let annotations = marked.metadata.annotations.get_or_insert_default();
        annotations.insert(name.to_owned(), String::new());
        assert_eq!(alias_backend(&marked, &aliases), None, "{name}");
    }
    let mut held = plain.clone();
    held.metadata.finalizers = Some(vec![RECLAIM_FINALIZER.to_owned()]);
    assert_eq!(alias_backend(&held, &aliases), None);
    let mut other = plain.clone();
    other.metadata.annotations = Some(BTreeMap::from([(PROVISIONED_BY.to_owned(), "another".to_owned())]));
    assert_eq!(alias_backend(&other, &aliases), None);

    let backends = [backend("default", "nfs", "/export", json!([]))];
    let mut renamed = plain;
    renamed.metadata.name = Some("data".to_owned());
    assert!(located(&renamed, &backends).is_err());
}

#[test]
fn the_class_decides_and_without_one_the_data_is_archived() {
    let parse = |parameters: &[(&str, &str)]| {
        let parameters = parameters.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        Some(ClassParameters::parse_as_nfs_subdir(&parameters))
    };
    assert_eq!(policy(None), Ok(OnDelete::Archive));
    assert_eq!(policy(parse(&[])), Ok(OnDelete::Archive));
    assert_eq!(policy(parse(&[("archiveOnDelete", "false")])), Ok(OnDelete::Delete));
    assert_eq!(policy(parse(&[("onDelete", "retain")])), Ok(OnDelete::Retain));
    let stop = policy(parse(&[("archiveOnDelete", "perhaps")])).unwrap_err();
    assert_eq!(stop.reason, Reason::InvalidParameter);
    assert!(stop.message.contains("perhaps"), "{}", stop.message);
}
