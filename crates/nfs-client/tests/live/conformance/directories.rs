//! Directories: creation, listing, rename and removal.

use futures::{StreamExt as _, stream};
use nfs_client::{Client, FileHandle, FileKind, RemoveOutcome, SetAttributes, Status};

use super::{Bench, Outcome, listed, mode, name, refused, yes};

const OWNED: SetAttributes = SetAttributes {
    mode: Some(0o3771),
    uid: Some(1234),
    gid: Some(4321),
    size: None,
    times: None,
};

pub async fn made_with_mode_and_owner(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let created = export.make_directory(&folder, &name("one"), OWNED).await.unwrap();
    assert_eq!((created.mode_refused, created.owner_refused), (None, None));
    let found = export.lookup(&folder, &name("one")).await.unwrap().unwrap();
    assert_eq!(found, created.node);
    let there = &found.attributes;
    assert_eq!(there.kind, FileKind::Directory);
    assert_eq!(
        (there.mode, there.uid, there.gid),
        (0o3771, Some(1234), Some(4321)),
        "{there:?}"
    );
    let again = export.make_directory(&folder, &name("one"), OWNED).await.unwrap_err();
    assert_eq!(again.status(), Some(Status::Exists));
    yes()
}

pub async fn attributes_are_read_and_changed(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let created = export.make_directory(&folder, &name("d"), mode(0o700)).await.unwrap();
    let handle = created.node.handle;
    let set = export.set_attributes(&handle, OWNED).await.unwrap();
    assert_eq!((set.mode, set.uid, set.gid), (0o3771, Some(1234), Some(4321)));
    let set = export.set_attributes(&handle, mode(0o4750)).await.unwrap();
    assert_eq!((set.mode, set.uid, set.gid), (0o4750, Some(1234), Some(4321)));
    assert_eq!(export.attributes(&handle).await.unwrap(), set);
    assert_eq!(set.fileid, created.node.attributes.fileid);
    assert_eq!(set.fsid, export.root().await.unwrap().attributes.fsid);
    yes()
}

pub async fn five_thousand_entries(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let called = |number| {
        name(&format!(
            "an entry with a name that is long enough to fill pages {number:04}"
        ))
    };
    let created = stream::iter(0..5000).map(|number| {
        let (export, folder) = (export.clone(), folder.clone());
        async move { export.create_file(&folder, &called(number), b"", 0o600).await }
    });
    let created: Vec<_> = created.buffer_unordered(64).collect().await;
    created.into_iter().for_each(|created| drop(created.unwrap()));
    // An entry that cannot be removed does not block the others.
    let full = export
        .make_directory(&folder, &name("full"), mode(0o700))
        .await
        .unwrap();
    let full = full.node.handle;
    export.create_file(&full, &name("file"), b"", 0o600).await.unwrap();
    export
        .make_directory(&folder, &name("none"), mode(0o700))
        .await
        .unwrap();

    let (mut names, mut pages, mut next) = (Vec::new(), 0, None);
    loop {
        let page = export.list(&folder, next).await.unwrap();
        assert!(page.entries.iter().all(|entry| entry.fileid.is_some()));
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        pages += 1;
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert!(pages > 1, "{pages} pages");
    assert_eq!(names.len(), 5002);
    let mut expected: Vec<_> = (0..5000).map(called).collect();
    expected.extend([name("full"), name("none")]);
    names.sort();
    assert!(names == expected, "each name is listed once");
    names.push(name("never there"));
    let outcomes = export.remove_batch(&folder, &names).await.unwrap();
    let count = |outcome: RemoveOutcome| outcomes.iter().filter(|other| **other == outcome).count();
    assert_eq!(count(RemoveOutcome::Removed), 5001);
    assert_eq!(count(RemoveOutcome::Absent), 1);
    assert_eq!(count(RemoveOutcome::Refused(Status::NotEmpty)), 1);
    assert_eq!(listed(&export, &folder).await, [name("full")]);
    yes()
}

pub async fn an_empty_export(bench: Bench) -> Outcome {
    let empty = bench.connect(bench.server.empty.as_ref()?).await.unwrap();
    let root = empty.root().await.unwrap().handle;
    assert_eq!(listed(&empty, &root).await, []);
    empty.close().await;
    yes()
}

pub async fn a_deep_walk(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let mut names: Vec<_> = (0..40).map(|number| name(&format!("d{number}"))).collect();
    let mut below = folder.clone();
    for name in &names {
        below = export
            .make_directory(&below, name, mode(0o755))
            .await
            .unwrap()
            .node
            .handle;
    }
    let walked = export.walk(&folder, &names).await.unwrap();
    assert_eq!(walked.len(), 40);
    assert_eq!(
        walked[39].attributes.fileid,
        export.attributes(&below).await.unwrap().fileid
    );
    export.create_file(&below, &name("file"), b"", 0o600).await.unwrap();
    names.push(name("missing"));
    names.push(name("further"));
    assert_eq!(export.walk(&folder, &names).await.unwrap().len(), 40);
    names[40] = name("file");
    let stopped = export.walk(&folder, &names).await.unwrap_err();
    assert_eq!(stopped.status(), Some(Status::NotDirectory));
    yes()
}

async fn make(export: &Client, folder: &FileHandle, called: &str) -> (FileHandle, u64) {
    let created = export
        .make_directory(folder, &name(called), mode(0o755))
        .await
        .unwrap()
        .node;
    (created.handle, created.attributes.fileid)
}

async fn fileid(export: &Client, folder: &FileHandle, called: &str) -> Option<u64> {
    let found = export.lookup(folder, &name(called)).await.unwrap();
    found.map(|node| node.attributes.fileid)
}

pub async fn renamed_to_a_free_name(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let (_, id) = make(&export, &folder, "one").await;
    let (parent, _) = make(&export, &folder, "parent").await;
    export
        .rename((&folder, &name("one")), id, (&parent, &name("two")))
        .await
        .unwrap();
    assert_eq!(fileid(&export, &folder, "one").await, None);
    assert_eq!(fileid(&export, &parent, "two").await, Some(id));
    let deleted = export
        .rename((&folder, &name("one")), id, (&parent, &name("three")))
        .await
        .unwrap_err();
    assert_eq!(deleted.status(), Some(Status::NotFound));
    yes()
}

pub async fn renamed_onto_an_empty_directory(bench: Bench) -> Outcome {
    onto(bench, false).await
}

pub async fn renamed_onto_a_full_directory(bench: Bench) -> Outcome {
    onto(bench, true).await
}

/// The existing object stays, although the protocol would allow its replacement.
async fn onto(bench: Bench, full: bool) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let (_, one) = make(&export, &folder, "one").await;
    let (there, two) = make(&export, &folder, "two").await;
    if full {
        make(&export, &there, "inside").await;
    }
    let taken = export
        .rename((&folder, &name("one")), one, (&folder, &name("two")))
        .await
        .unwrap_err();
    assert_eq!(fileid(&export, &folder, "one").await, Some(one));
    assert_eq!(fileid(&export, &folder, "two").await, Some(two));
    refused(&taken)
}

pub async fn another_fileid_is_not_touched(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let (_, id) = make(&export, &folder, "one").await;
    let file = export.create_file(&folder, &name("file"), b"x", 0o600).await.unwrap();
    let stranger = id + 1_000_000;
    let renamed = export
        .rename((&folder, &name("one")), stranger, (&folder, &name("two")))
        .await;
    let renamed = renamed.unwrap_err();
    let removed = export.remove_directory(&folder, &name("one"), stranger).await;
    assert_eq!(removed.unwrap_err().status(), renamed.status());
    let removed = export.remove_file(&folder, &name("file"), stranger).await;
    assert_eq!(removed.unwrap_err().status(), renamed.status());
    assert_eq!(listed(&export, &folder).await, [name("file"), name("one")]);
    // An object of the other type is reported.
    let kind = export.remove_file(&folder, &name("one"), id).await.unwrap_err();
    assert_eq!(kind.status(), Some(Status::IsDirectory));
    let kind = export
        .remove_directory(&folder, &name("file"), file.attributes.fileid)
        .await;
    assert_eq!(kind.unwrap_err().status(), Some(Status::NotDirectory));
    refused(&renamed)
}

pub async fn a_tree_is_removed(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let (top, id) = make(&export, &folder, "top").await;
    for number in 0..5 {
        let (below, _) = make(&export, &top, &format!("d{number}")).await;
        let (deepest, _) = make(&export, &below, "deeper").await;
        for number in 0..20 {
            let called = name(&format!("f{number}"));
            export.create_file(&deepest, &called, b"x", 0o600).await.unwrap();
        }
    }
    let full = export.remove_directory(&folder, &name("top"), id).await.unwrap_err();
    assert_eq!(full.status(), Some(Status::NotEmpty));
    empty(export.clone(), top).await;
    export.remove_directory(&folder, &name("top"), id).await.unwrap();
    assert_eq!(listed(&export, &folder).await, []);
    yes()
}

/// Removes everything below a directory, depth first.
fn empty(export: Client, directory: FileHandle) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let names = listed(&export, &directory).await;
        for name in &names {
            let found = export.lookup(&directory, name).await.unwrap().unwrap();
            if found.attributes.kind == FileKind::Directory {
                empty(export.clone(), found.handle).await;
            }
        }
        let outcomes = export.remove_batch(&directory, &names).await.unwrap();
        assert!(outcomes.iter().all(|outcome| *outcome == RemoveOutcome::Removed));
    })
}

pub async fn space_and_inodes(bench: Bench) -> Outcome {
    let found = bench.export.statistics().await.unwrap();
    assert!(found.total > 0 && found.available <= found.total, "{found:?}");
    assert!(found.inodes_free <= found.inodes, "{found:?}");
    yes()
}
