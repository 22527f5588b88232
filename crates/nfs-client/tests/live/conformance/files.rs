//! Small files.

use futures::future::join_all;
use nfs_client::{Client, FileHandle, FileKind, NfsError, Status};

use super::{Bench, Outcome, listed, mode, name, refused, yes};

pub async fn created_and_read(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    for (called, size) in [("empty", 0), ("small", 7), ("big", 300_000)] {
        let content: Vec<u8> = (0..size).map(|place: u32| place.to_le_bytes()[0]).collect();
        let created = export
            .create_file(&folder, &name(called), &content, 0o640)
            .await
            .unwrap();
        assert_eq!(
            (
                created.attributes.kind,
                created.attributes.size,
                created.attributes.mode
            ),
            (FileKind::Regular, u64::from(size), 0o640)
        );
        let read = export
            .read_file(&folder, &name(called), 1 << 20)
            .await
            .unwrap()
            .unwrap();
        assert!(read.content == content, "{called}");
        assert_eq!(read.node.attributes.fileid, created.attributes.fileid);
    }
    assert_eq!(export.read_file(&folder, &name("none"), 10).await.unwrap(), None);
    yes()
}

pub async fn created_once(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    export
        .create_file(&folder, &name("file"), b"first", 0o600)
        .await
        .unwrap();
    let again = export.create_file(&folder, &name("file"), b"second", 0o644).await;
    let kept = export.read_file(&folder, &name("file"), 10).await.unwrap().unwrap();
    assert_eq!(
        (kept.content.as_slice(), kept.node.attributes.mode),
        (&b"first"[..], 0o600)
    );
    refused(&again.unwrap_err())
}

pub async fn one_creator_wins(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let called = name("file");
    let creators = (0..16u8).map(|number| {
        let content = [number; 100];
        let (export, folder, called) = (&export, &folder, &called);
        async move {
            export
                .create_file(folder, called, &content, 0o600)
                .await
                .map(|_| number)
        }
    });
    let (won, lost): (Vec<_>, Vec<_>) = join_all(creators).await.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1, "{won:?}");
    for lost in lost {
        assert_eq!(lost.unwrap_err().status(), Some(Status::Exists));
    }
    let winner = *won[0].as_ref().unwrap();
    let read = export.read_file(&folder, &called, 1000).await.unwrap().unwrap();
    assert_eq!(read.content, [winner; 100]);
    yes()
}

pub async fn replaced(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let (called, temporary) = (name("file"), name("file.new"));
    export.create_file(&folder, &called, b"first", 0o600).await.unwrap();
    // Left by an interrupted replacement.
    export.create_file(&folder, &temporary, b"half", 0o600).await.unwrap();
    for content in [vec![7; 300_000], b"third".to_vec()] {
        export
            .replace_file(&folder, &called, &temporary, &content, 0o640)
            .await
            .unwrap();
        let read = export.read_file(&folder, &called, 1 << 20).await.unwrap().unwrap();
        assert!(read.content == content);
        assert_eq!(read.node.attributes.mode, 0o640);
    }
    assert_eq!(listed(&export, &folder).await, [called]);
    yes()
}

pub async fn read_within_limits(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    export
        .create_file(&folder, &name("file"), b"content", 0o600)
        .await
        .unwrap();
    assert_eq!(
        export
            .read_file(&folder, &name("file"), 7)
            .await
            .unwrap()
            .unwrap()
            .content,
        b"content"
    );
    let over = export.read_file(&folder, &name("file"), 6).await.unwrap_err();
    assert!(matches!(over, NfsError::Limit { .. }), "{over}");
    let prepared = export.root().await.unwrap().handle;
    let prepared = export.lookup(&prepared, &name("prepared")).await.unwrap().unwrap();
    let link = export.read_file(&prepared.handle, &name("link"), 10).await.unwrap_err();
    assert_eq!(link.status(), Some(Status::Symlink));
    let directory = export.read_file(&prepared.handle, &name("directory"), 10).await;
    assert_eq!(directory.unwrap_err().status(), Some(Status::IsDirectory));
    refused(&over)
}

pub async fn linked(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let file = export.create_file(&folder, &name("file"), b"x", 0o600).await.unwrap();
    export.link(&file.handle, &folder, &name("other")).await.unwrap();
    let found = export.lookup(&folder, &name("other")).await.unwrap().unwrap();
    assert_eq!(found.attributes.fileid, file.attributes.fileid);
    assert_eq!(found.attributes.links, 2);
    let taken = export.link(&file.handle, &folder, &name("other")).await.unwrap_err();
    assert_eq!(taken.status(), Some(Status::Exists));
    export
        .remove_file(&folder, &name("file"), file.attributes.fileid)
        .await
        .unwrap();
    assert_eq!(export.attributes(&file.handle).await.unwrap().links, 1);
    linked_together(&export, &folder).await;
    yes()
}

/// Links entries of a directory in a batch. An entry that is refused does not keep the others from being linked.
async fn linked_together(export: &Client, folder: &FileHandle) {
    let below = export
        .make_directory(folder, &name("links"), mode(0o700))
        .await
        .unwrap();
    let to = below.node.handle;
    let mut entries = Vec::new();
    for number in 0..40 {
        let called = name(&format!("entry {number}"));
        let file = export.create_file(folder, &called, b"xy", 0o600).await.unwrap();
        entries.push((called, file.attributes.fileid));
    }
    export.create_file(&to, &entries[3].0, b"", 0o600).await.unwrap();
    export.remove_file(folder, &entries[17].0, entries[17].1).await.unwrap();
    entries[38].1 += 1_000_000;
    let linked = export.link_entries(folder, &to, &entries).await.unwrap();
    assert_eq!(linked.len(), entries.len());
    for (number, (linked, (called, fileid))) in linked.into_iter().zip(&entries).enumerate() {
        let expected = match number {
            3 => Err(Status::Exists),
            17 => Err(Status::NotFound),
            38 => Err(Status::NotSame),
            _ => Ok(()),
        };
        assert_eq!(
            linked.as_ref().map(drop).map_err(Clone::clone),
            expected,
            "entry {number}"
        );
        let Ok(before) = linked else { continue };
        let found = export.lookup(&to, called).await.unwrap().unwrap();
        assert_eq!((found.attributes.fileid, found.attributes.links), (*fileid, 2));
        assert_eq!((before.attributes.fileid, before.attributes.size), (*fileid, 2));
    }
    assert!(export.link_entries(folder, &to, &[]).await.unwrap().is_empty());
}
