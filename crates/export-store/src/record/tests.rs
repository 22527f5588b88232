#![allow(clippy::unwrap_used)] // A test that cannot continue has failed.

use super::*;

fn record(state: State) -> Record {
    Record {
        volume: "pvc-1".into(),
        backend: "fast".into(),
        claim: ClaimRef {
            namespace: "team".into(),
            namespace_uid: "ns".into(),
            name: "data".into(),
            uid: "1".into(),
        },
        directory: DirectoryPath::parse("team/data").unwrap(),
        file_id: Some(u64::MAX),
        handle: Some(RecordedHandle {
            directory: "0a".into(),
            folder: Some("0b".into()),
        }),
        adopted: true,
        shared: false,
        restores: None,
        group: None,
        metadata: None,
        state,
    }
}

fn archiving(target: &str) -> State {
    State::Archiving(archive_state(target))
}

fn archive_state(target: &str) -> ArchiveState {
    ArchiveState {
        target: target.into(),
        mode: 0o2775,
        uid: Some(0),
        gid: None,
        since: Some(7),
        volume_created: Some(5),
        retention: Some(2),
        size: Some("1Gi".into()),
        class: None,
        terms: RetentionTerms {
            held: true,
            expires: Some(9),
            delete: true,
        },
        revision: Some(TermsRevision {
            uid: "o".into(),
            generation: 3,
        }),
        copy: None,
        released: false,
    }
}

fn copying(volume: &str) -> State {
    State::Copying(ArchiveState {
        copy: Some(CopyState {
            volume: volume.into(),
            requested_by: "o".into(),
            outcome: Some("7 files".into()),
            amount: None,
            manifest: None,
            checkpoint: Some(Checkpoint {
                tree: u64::MAX,
                manifest: ManifestRef {
                    offset: 7,
                    length: 8,
                    sha256: "00".repeat(32),
                },
                saving: 9,
            }),
            snapshot: None,
            shares_files: false,
        }),
        ..archive_state("archived-nightly")
    })
}

#[test]
fn a_copy_says_who_asked_for_it_and_of_which_volume() {
    let nobody = State::Copying(archive_state("archived-nightly"));
    for damaged in [nobody, copying("../pvc-2")] {
        let bytes = record(damaged).to_bytes().unwrap();
        assert!(matches!(Record::parse("pvc-1", &bytes), Err(RecordError::Damaged(_))));
    }
}

#[test]
fn what_is_written_is_read_in_every_state() {
    for state in [
        State::Creating,
        State::Live,
        State::RemovingEmpty,
        archiving("archived-data"),
        copying("pvc-2"),
        State::Deleting { since: 7 },
        State::Tombstone { since: 7 },
    ] {
        let record = record(state);
        assert_eq!(Record::parse("pvc-1", &record.to_bytes().unwrap()), Ok(record));
    }
}

#[test]
fn earlier_releases_do_not_read_the_record_of_a_shared_directory() {
    let version = |record: &Record| {
        let content: serde_json::Value = serde_json::from_slice(&record.to_bytes().unwrap()).unwrap();
        content.get("version").cloned()
    };
    let alone = record(State::Live);
    let shared = Record {
        shared: true,
        ..alone.clone()
    };
    assert_eq!((version(&alone), version(&shared)), (Some(1.into()), Some(2.into())));
    assert_eq!(Record::parse("pvc-1", &shared.to_bytes().unwrap()), Ok(shared.clone()));
    // It existed before, whatever the record says.
    let created = Record {
        adopted: false,
        ..shared.clone()
    };
    assert_eq!(Record::parse("pvc-1", &created.to_bytes().unwrap()), Ok(shared));
}

#[test]
fn a_record_cut_short_anywhere_is_told_from_a_damaged_one() {
    let bytes = record(archiving("archived-data")).to_bytes().unwrap();
    // The record is complete without its newline.
    for length in 0..bytes.len() - 2 {
        assert_eq!(
            Record::parse("pvc-1", bytes.get(..length).unwrap()),
            Err(RecordError::Truncated),
            "{length}"
        );
    }
    assert_eq!(Record::parse("pvc-1", &[0; 100]), Err(RecordError::Truncated));
    assert!(matches!(
        Record::parse("pvc-1", b"#!/bin/sh"),
        Err(RecordError::Damaged(_))
    ));
    assert!(matches!(
        Record::parse("pvc-1", &[0xff; 9]),
        Err(RecordError::Damaged(_))
    ));
}

#[test]
fn nothing_in_a_record_is_trusted_as_a_path() {
    let text = String::from_utf8(record(State::Live).to_bytes().unwrap()).unwrap();
    for hostile in ["../etc", "/etc", "a/../b", ".nfs-operator", "archived-x", "a//b", ""] {
        let text = text.replace("team/data", hostile);
        assert!(
            matches!(Record::parse("pvc-1", text.as_bytes()), Err(RecordError::Damaged(_))),
            "{hostile}"
        );
    }
    let text = String::from_utf8(record(archiving("archived-data")).to_bytes().unwrap()).unwrap();
    for hostile in ["archived-", "archived-a/../../b", "other", "..", "archived-\\u0000"] {
        let text = text.replace("archived-data", hostile);
        assert!(
            matches!(Record::parse("pvc-1", text.as_bytes()), Err(RecordError::Damaged(_))),
            "{hostile}"
        );
    }
}

#[test]
fn the_record_of_another_volume_or_a_newer_release_is_not_used() {
    let bytes = record(State::Live).to_bytes().unwrap();
    assert!(matches!(Record::parse("pvc-2", &bytes), Err(RecordError::Damaged(_))));
    assert_eq!(
        Record::parse("pvc-1", br#"{"version":4,"x":1}"#),
        Err(RecordError::TooNew(4))
    );
}

#[test]
fn earlier_releases_do_not_read_the_record_of_a_backup_that_shares_files() {
    for (shares_files, expected) in [(false, 1), (true, 3)] {
        let State::Copying(mut archive) = copying("pvc-2") else {
            unreachable!()
        };
        archive.copy.as_mut().unwrap().shares_files = shares_files;
        for state in [State::Copying(archive.clone()), State::Archived(archive)] {
            let bytes = record(state.clone()).to_bytes().unwrap();
            let content: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(content.get("version"), Some(&expected.into()));
            assert_eq!(Record::parse("pvc-1", &bytes), Ok(record(state)));
        }
    }
}

#[test]
fn what_a_volume_is_stays_in_its_record_as_long_as_there_is_one() {
    let metadata = VolumeMetadata {
        cluster: "c".into(),
        provisioner: "p".into(),
        size: "1Gi".into(),
        class: None,
        access_modes: vec!["ReadWriteMany".into()],
        mount_options: Vec::new(),
        reclaim_policy: "Delete".into(),
        on_delete: None,
        gid: Some(4242),
        node_affinity: Some(serde_json::json!({"required": {"nodeSelectorTerms": []}})),
        released: true,
    };
    for (state, kept) in [
        (State::Creating, true),
        (State::Live, true),
        (State::Deleting { since: 7 }, false),
        (archiving("archived-data"), false),
    ] {
        let noted = Record {
            metadata: Some(metadata.clone()),
            ..record(state)
        };
        let read = Record::parse("pvc-1", &noted.to_bytes().unwrap()).unwrap();
        assert_eq!(read.metadata.is_some(), kept, "{:?}", read.state);
        assert!(read.metadata.is_none_or(|read| read == metadata));
    }
}

#[test]
fn a_note_that_is_too_long_for_a_record_is_none() {
    let metadata = VolumeMetadata {
        cluster: "c".into(),
        provisioner: "p".into(),
        size: "1Gi".into(),
        class: None,
        access_modes: Vec::new(),
        mount_options: vec!["x".repeat(8 * 1024)],
        reclaim_policy: "Delete".into(),
        on_delete: None,
        gid: None,
        node_affinity: None,
        released: false,
    };
    assert_eq!(metadata.clone().within_size_limit(), None);
    let short = VolumeMetadata {
        mount_options: vec!["x".repeat(7 * 1024)],
        ..metadata
    };
    let longest = Record {
        metadata: short.within_size_limit(),
        ..record(State::Live)
    };
    assert!(longest.metadata.is_some() && longest.to_bytes().is_ok());
}
