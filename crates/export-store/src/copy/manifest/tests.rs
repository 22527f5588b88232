#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::digest::{BlockDigest, ContentDigest};
use super::*;
use nfs_client::{Attributes, FileKind, FsId, Times};

fn details(change: u64, ctime: i64) -> FullAttributes {
    FullAttributes {
        attributes: Attributes {
            kind: FileKind::Regular,
            mode: 0o644,
            uid: Some(1),
            gid: Some(1),
            owner: "1".to_owned(),
            group: "1".to_owned(),
            size: 5,
            fileid: 7,
            fsid: FsId { major: 1, minor: 0 },
            links: 1,
        },
        times: Times::default(),
        change,
        ctime: Some(Time {
            seconds: ctime,
            nanos: 3,
        }),
        used: 5,
    }
}

fn entry(settled_before: Option<i64>) -> FileEntry {
    FileEntry::new(&details(1, 100), 1, settled_before, (8, None))
}

#[test]
fn a_file_is_unchanged_only_if_nothing_that_shows_a_change_differs() {
    let settled = entry(Some(101));
    assert!(settled.is_unchanged(&details(1, 100)));
    let changes: [fn(&mut FullAttributes); 6] = [
        |now| now.change += 1,
        |now| now.attributes.size += 1,
        |now| now.attributes.fileid += 1,
        |now| now.times.modified.nanos += 1,
        |now| now.ctime = None,
        |now| now.ctime = Some(Time { seconds: 100, nanos: 4 }),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut now = details(1, 100);
        change(&mut now);
        assert!(!settled.is_unchanged(&now), "{number}");
    }
}

#[test]
fn a_file_that_changed_shortly_before_the_copy_is_never_unchanged() {
    for (settled_before, expected) in [(Some(101), true), (Some(100), false), (None, false)] {
        let found = entry(settled_before).is_unchanged(&details(1, 100));
        assert_eq!(found, expected, "{settled_before:?}");
    }
    let without_ctime = FullAttributes {
        ctime: None,
        ..details(1, 100)
    };
    let entry = FileEntry::new(&without_ctime, 1, Some(i64::MAX), (8, None));
    assert!(!entry.is_unchanged(&without_ctime));
}

#[test]
fn reading_a_file_may_change_its_change_attribute() {
    let entry = FileEntry::new(&details(1, 100), 2, Some(101), (8, None));
    assert!(entry.is_unchanged(&details(2, 100)));
    assert!(!entry.is_unchanged(&details(1, 100)));
}

#[test]
fn the_checksum_of_a_small_file_is_its_sha256_and_that_of_a_large_one_covers_all_blocks() {
    let block = |bytes: &[u8]| {
        let mut block = BlockDigest::new();
        bytes.chunks(2).for_each(|part| block.update(part));
        block.finish()
    };
    let of = |blocks: &[&[u8]], size: u64| {
        let mut content = ContentDigest::new();
        blocks.iter().for_each(|bytes| content.add(block(bytes)));
        content.finish(size)
    };
    assert_eq!(
        hexadecimal(&of(&[b"abc"], 3).unwrap()),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert_eq!(of(&[], 0), Some(digest_of(b"")));
    assert_eq!(of(&[b"abc"], 4), None);
    let two = of(&[b"abc", b"d"], 4).unwrap();
    assert_eq!(two, digest_of(&[digest_of(b"abc"), digest_of(b"d")].concat()));
    assert_ne!(Some(two), of(&[b"d", b"abc"], 4));
}

#[test]
fn a_chunk_has_the_entries_that_were_written() {
    let reference = ChunkRef {
        offset: 1,
        length: 2,
        digest: digest_of(b"chunk"),
    };
    assert_eq!(ChunkRef::of_record(&reference.to_record()), Some(reference));
    let entries = [
        (&b"\xff"[..], EntryKind::File(entry(Some(1)))),
        (b"link", EntryKind::Symlink(digest_of(b"target"))),
        (b"directory", EntryKind::Directory(vec![reference])),
    ];
    let entries = entries.map(|(name, kind)| ManifestEntry {
        name: name.to_vec(),
        kind,
    });
    let chunk: Vec<u8> = entries
        .iter()
        .flat_map(|entry| postcard::to_extend(entry, Vec::new()).unwrap())
        .collect();
    assert_eq!(decode_entries(&chunk).unwrap(), entries);
    let (_, truncated) = chunk.split_last().unwrap();
    assert!(decode_entries(truncated).is_err());
}
