//! The hostile names: each was thought of as a way out of a directory, into the operator's own names, or past a check;
//! and every way in, with what becomes of each there.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NFSVolumeSource, PersistentVolume, PersistentVolumeSpec};
use serde_json::json;

use crate::api::names::{VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_EXPORT_ID, VOLUME_FILE_ID};
use crate::export::{Record, layout};
use crate::mount_options::claim_options;
use crate::naming::address::{Address, check_server, export_names};
use crate::naming::{DirectoryPath, Pattern, PatternValues, is_object_name};
use crate::nfs::fuzzing::{lists, v3_fuzzing};
use crate::policy::{Home, locate};

/// The name, what it would do, and the entries that take it all the same, by their letters in [`ENTRIES`].
pub(crate) const HOSTILE_NAMES: &[(&str, &str, &str)] = &[
    ("", "the export itself", "eEM"),
    (".", "the directory itself", ""),
    ("..", "the parent", ""),
    ("...", "hidden, and cut to nothing by Windows servers", "eEnMN"),
    ("a/..", "the export itself", ""),
    ("../a", "beside the export", ""),
    ("a/../b", "another directory", ""),
    ("a/../../etc", "beside the export", ""),
    ("a/./b", "another spelling of a/b", ""),
    ("a//b", "another spelling of a/b", ""),
    ("/a", "absolute", ""),
    ("/", "the root", ""),
    ("//", "the root", ""),
    ("a/", "another spelling of a", ""),
    ("..\\a", "the parent on a Windows server", "eEnMN"),
    ("a\\b", "two segments on a Windows server", "eEnMN"),
    ("c:", "a drive, or a named stream, on a Windows server", "eEnMN"),
    ("a:b", "a named stream of a on a Windows server", "eEnMN"),
    ("a.", "a on a Windows server", "seSEnMN"),
    ("a ", "a on a Windows server", "eEnMN"),
    (" a", "confusing in every listing", "eEnMN"),
    ("a b", "two words for a shell or a mount option", "eEnMN"),
    ("a,b", "two mount options", "eEnMN"),
    ("a\0b", "a for servers in C", ""),
    ("a\nb", "two lines in a log", "nN"),
    ("a\tb", "two columns in a log", "nN"),
    ("a\u{1b}[2J", "a terminal's command", "nN"),
    ("a\u{7f}", "invisible", "nN"),
    ("~", "a home for shells", "eEnMN"),
    ("~root", "a home for shells", "eEnMN"),
    ("$HOME", "a variable for shells", "eEnMN"),
    ("$(id)", "a command for shells", "eEnMN"),
    ("`id`", "a command for shells", "eEnMN"),
    ("a;b", "two commands for shells", "eEnMN"),
    ("a|b", "a pipe for shells", "eEnMN"),
    ("*", "everything for shells", "eEnMN"),
    ("a?", "a pattern for shells", "eEnMN"),
    ("%2e%2e", "the parent after decoding", "eEnMN"),
    ("..%2fa", "beside the export after decoding", "eEnMN"),
    (
        "\u{ff0e}\u{ff0e}",
        "the parent after compatibility normalisation",
        "eEnMN",
    ),
    ("a\u{2215}b", "two segments after normalisation", "eEnMN"),
    ("a\u{202e}b", "read backwards in a listing", "eEnMN"),
    ("caf\u{e9}", "composed: another name after normalisation", "eEnMN"),
    ("cafe\u{301}", "decomposed: another name after normalisation", "eEnMN"),
    ("\u{212a}", "the letter k after case folding", "eEnMN"),
    ("a\u{200b}", "invisible", "eEnMN"),
    (".nfs-operator", "the operator's own directory", "nN"),
    (
        ".NFS-Operator",
        "the operator's own directory where case is folded",
        "nN",
    ),
    (".nfs-operator/identity", "the export's identity", ""),
    ("a/.nfs-operator", "makes a backend's root of a", ""),
    (".nfs-operator-deleted-pvc-1", "a tombstone", "nN"),
    (".nfs0000000001", "a silly-renamed file", "eEnMN"),
    (".snapshot", "the server's snapshots", "eEnMN"),
    ("a/.snapshot", "the server's snapshots", "eEM"),
    (".zfs", "the server's snapshots", "eEnMN"),
    ("~snapshot", "the server's snapshots", "eEnMN"),
    ("lost+found", "what fsck found", "eEnMN"),
    ("LOST+FOUND", "what fsck found, where case is folded", "eEnMN"),
    ("@eaDir", "the server's index", "eEnMN"),
    ("#recycle", "the server's recycle bin", "eEnMN"),
    ("$RECYCLE.BIN", "the server's recycle bin", "eEnMN"),
    ("archived-a", "an archive", "tocseSEnMN"),
    ("Archived-a", "an archive where case is folded", "seSEnMN"),
    ("ARCHIVED-", "an archive where case is folded", "eEnMN"),
    ("a/archived-b", "an archive, one level down", "eEM"),
    ("archived-a/b", "inside an archive", "eEM"),
    ("PROGRA~1", "another name for a directory on a Windows server", "eEnMN"),
    ("nfs.example.org:/export", "an address within an address", "eSEM"),
    ("[::1]", "an address in brackets", "eSEnMN"),
    ("[nfs.example.org]", "a name in brackets", "eEnMN"),
    ("-oproxy", "an option for a command", "dplavreEnMN"),
    ("a,sec=sys", "a second mount option", "eEnMN"),
    (
        "ro,exec",
        "a second mount option behind one that claims may set",
        "eEnMN",
    ),
    ("timeo=1,exec", "a second mount option behind a number", "eEnMN"),
    ("nfs..example.org", "an empty label", "dplavroeEnMN"),
    ("pvc-1.", "pvc-1 on a Windows server", "seSEnMN"),
    ("${pvc.name}", "a pattern that was never expanded", "peEnMN"),
];

/// A way in: its letter, what comes in there, and whether it takes a name.
pub(crate) type Entry = (char, &'static str, fn(&str) -> bool);

/// Every way in for a name, a path or an address that somebody else wrote. No other code judges them.
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
    ('m', "a mount option of a claim", |name| claim_options(name).is_ok()),
    ('s', "a backend's server", |name| check_server(name).is_ok()),
    ('e', "a backend's path", |name| {
        export_names(&format!("/{name}")).is_ok()
    }),
    ('S', "the server of `nfs-operator probe`", |name| {
        Address::parse(&format!("{name}:/export")).is_ok()
    }),
    ('E', "the path of `nfs-operator probe`", |name| {
        Address::parse(&format!("nfs:/{name}")).is_ok()
    }),
    ('n', "an entry of a listing of NFSv4", |name| lists(name.as_bytes())),
    ('M', "the path that NFSv3's MOUNT is asked for", |name| {
        v3_fuzzing::mounts(&format!("/{name}"))
    }),
    ('N', "an entry of a listing of NFSv3", |name| {
        v3_fuzzing::lists(name.as_bytes())
    }),
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
    let home = Home {
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
