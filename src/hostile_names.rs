//! Tests of all entry points for names with hostile names. Each hostile name is designed to escape from a directory, to
//! collide with the operator's own names, or to bypass a check. The list specifies which entry points accept it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NFSVolumeSource, PersistentVolume, PersistentVolumeSpec};
use serde_json::json;

use crate::api::names::{VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_EXPORT_ID, VOLUME_FILE_ID};
use crate::decide::directory_pattern::{Pattern, PatternValues};
use crate::decide::mount_options::claim_options;
use crate::decide::object_name::{is_object_name, is_provisioner_name};
use crate::decide::reclaim::{ExpectedLocation, locate};
use export_store::hostile_names::HOSTILE_NAMES;
use export_store::naming::{DirectoryPath, check_export_path, parse_export_address, snapshot_name};
use export_store::{Record, layout};
use nfs_client::address::check_server;
use nfs_client::fuzzing::{lists, v3_fuzzing};

/// An entry point: its letter, its description, and a function that returns true if it accepts a name.
pub(crate) type Entry = (char, &'static str, fn(&str) -> bool);

/// All entry points for names, paths and addresses that someone else specifies. No other code validates them.
pub(crate) const ENTRIES: &[Entry] = &[
    ('d', "a directory", |name| DirectoryPath::parse(name).is_ok()),
    ('p', "a pattern: a backend's, or a class's pathPattern", |name| {
        Pattern::parse(name).is_ok()
    }),
    ('l', "a label's value in a pattern", |name| {
        expands("${pvc.labels.x}", name)
    }),
    ('a', "an annotation's value in a pattern", |name| {
        expands("a/${.PVC.annotations.x}", name)
    }),
    ('v', "a volume's annotation nfs-operator.io/directory", locates),
    ('r', "the directory in a record on the export", |name| {
        reads(name, "archived-a")
    }),
    ('t', "an archive's name in a record on the export", |name| {
        reads("a", name)
    }),
    (
        'o',
        "a volume's, cluster's or backend's name that becomes a file's",
        |name| layout::record(name).is_ok(),
    ),
    ('c', "the claim that a claim is to be a copy of", is_object_name),
    ('k', "the snapshot from which a claim is to be a copy", |name| {
        snapshot_name(name).is_some()
    }),
    ('m', "a mount option of a claim", |name| claim_options(name).is_ok()),
    ('s', "a backend's server", |name| check_server(name).is_ok()),
    ('e', "a backend's path", |name| {
        check_export_path(&format!("/{name}")).is_ok()
    }),
    ('S', "the server of `nfs-operator probe`", |name| {
        parse_export_address(&format!("{name}:/export")).is_ok()
    }),
    ('E', "the path of `nfs-operator probe`", |name| {
        parse_export_address(&format!("nfs:/{name}")).is_ok()
    }),
    ('n', "an entry of a listing of NFSv4", |name| lists(name.as_bytes())),
    ('M', "the path that NFSv3's MOUNT is asked for", |name| {
        let path = format!("/{name}");
        check_export_path(&path).is_ok() && v3_fuzzing::mounts(&path)
    }),
    ('N', "an entry of a listing of NFSv3", |name| {
        v3_fuzzing::lists(name.as_bytes())
    }),
    (
        'P',
        "the provisioner name of a Deployment, for `kubectl nfs migrate`",
        is_provisioner_name,
    ),
];

fn expands(pattern: &str, value: &str) -> bool {
    let map = BTreeMap::from([("x".to_owned(), value.to_owned())]);
    let values = PatternValues {
        namespace: "shop",
        claim: "data",
        claim_uid: "1",
        volume: "pvc-1",
        labels: &map,
        annotations: &map,
    };
    Pattern::parse(pattern).unwrap().expand(&values).is_ok()
}

fn locates(directory: &str) -> bool {
    let annotations = [
        (VOLUME_BACKEND, "fast"),
        (VOLUME_EXPORT_ID, "id-1"),
        (VOLUME_DIRECTORY, directory),
        (VOLUME_FILE_ID, "7"),
    ];
    let mut volume = PersistentVolume::default();
    volume.metadata.annotations = Some(
        annotations
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    );
    volume.spec = Some(PersistentVolumeSpec {
        nfs: Some(NFSVolumeSource {
            server: "nfs".into(),
            path: format!("/export/{directory}"),
            read_only: None,
        }),
        ..PersistentVolumeSpec::default()
    });
    let home = ExpectedLocation {
        backend: "fast",
        export_id: Some("id-1"),
        addresses: &[("nfs", "/export")],
    };
    locate(&volume, &home).is_ok()
}

fn reads(directory: &str, archive: &str) -> bool {
    let record = json!({
        "version": 1, "volume": "pvc-1", "backend": "fast", "directory": directory,
        "claim": {"namespace": "n", "namespaceUID": "u", "namespaceUid": "u", "name": "c", "uid": "1"},
        "state": {"name": "Archiving", "target": archive, "mode": 511},
    });
    Record::parse("pvc-1", record.to_string().as_bytes()).is_ok()
}

#[test]
fn every_hostile_name_is_refused_at_every_entry_that_could_reach_a_server_with_it() {
    let mut wrong = Vec::new();
    for &(name, why, expected) in HOSTILE_NAMES {
        let taken: String = ENTRIES
            .iter()
            .filter(|(_, _, takes)| takes(name))
            .map(|(letter, _, _)| *letter)
            .collect();
        if taken != expected {
            wrong.push(format!(
                "{name:?} ({why}) is taken at {taken:?}, and not at {expected:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_entry_takes_what_is_harmless() {
    for (letter, entry, takes) in ENTRIES {
        let harmless = match letter {
            't' => "archived-a",
            'm' => "ro",
            _ => "data",
        };
        assert!(takes(harmless), "{entry} refuses {harmless}");
        assert!(!takes(&"a".repeat(2000)), "{entry} takes 2,000 bytes");
    }
}
