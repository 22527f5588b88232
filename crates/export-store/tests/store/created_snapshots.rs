//! Snapshots that are created for a backup, on CephFS, and on servers that create none.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use export_store::{
    ArchiveRequest, CopyError, CopyProgressSnapshot, ErrorKind, ExportStore, SnapshotSelector, SnapshotUse,
};
use futures::{StreamExt as _, stream};
use nfs_client::{Client, FileRef, Name, Protocol, SetAttributes, VersionChoice};

use crate::copy::volume;
use crate::fixture::StoreFixture;
use crate::incremental::{back_up, backup_request};

/// Number of files between the first and the last one that is copied.
const FILES: usize = 200;

fn name(text: &str) -> Name {
    Name::new(text.to_owned()).unwrap()
}

/// Returns the request for a backup of a snapshot that is created, or else of the newest one.
fn creating(backup: &str, file_id: u64, required: bool) -> ArchiveRequest {
    ArchiveRequest {
        snapshot: Some(SnapshotUse {
            selector: SnapshotSelector::Newest { max_age: None },
            required,
            create: true,
        }),
        ..backup_request(backup, file_id, &[])
    }
}

async fn back_up_one_moment(
    export: &Arc<ExportStore>,
    backup: &str,
    (file_id, required): (u64, bool),
) -> Result<CopyProgressSnapshot, CopyError> {
    back_up(export, (export, &creating(backup, file_id, required))).await
}

async fn find(nfs: &Client, path: &[&str]) -> Option<FileRef> {
    let names: Vec<Name> = path.iter().map(|part| name(part)).collect();
    let root = nfs.root().await.unwrap();
    let mut nodes = nfs.walk(&root.handle, &names).await.unwrap();
    nodes.pop().filter(|_| nodes.len() + 1 == names.len())
}

async fn read(nfs: &Client, folder: &str, file: &str) -> String {
    let folder = find(nfs, &[folder]).await.unwrap();
    let content = nfs.read_file(&folder.handle, &name(file), 1000).await.unwrap().unwrap();
    String::from_utf8(content.content).unwrap()
}

async fn write(nfs: &Client, folder: &str, file: &str, content: &str) {
    let folder = find(nfs, &[folder]).await.unwrap();
    let node = match nfs.lookup(&folder.handle, &name(file)).await.unwrap() {
        Some(node) => node,
        None => nfs.create_file(&folder.handle, &name(file), b"", 0o644).await.unwrap(),
    };
    let content = Bytes::copy_from_slice(content.as_bytes());
    nfs.write(&node.handle, 0, &content).await.unwrap();
}

/// Returns the names of the snapshots.
async fn snapshots(nfs: &Client) -> Vec<String> {
    let folder = find(nfs, &[".snap"]).await.unwrap();
    // There are few: they fit into one page.
    let page = nfs.list(&folder.handle, None).await.unwrap();
    page.entries.into_iter().map(|entry| entry.name.to_string()).collect()
}

async fn backs_up_one_moment(version: VersionChoice) {
    let fixture = StoreFixture::on_ceph(version).await;
    let export = Arc::new(fixture.store().await);
    let file_id = volume(&export, "old").await;
    export.maintain_snapshots().await.unwrap();
    let nfs = export.nfs().clone();
    write(&nfs, "old", "a", "0").await;
    write(&nfs, "old", "z", "0").await;
    stream::iter(0..FILES)
        .for_each_concurrent(8, |number| {
            let nfs = &nfs;
            async move { write(nfs, "old", &format!("file-{number}"), "content").await }
        })
        .await;
    // Always first the one and then the other: at any moment, the second is at most one step behind.
    let writer = tokio::spawn({
        let nfs = nfs.clone();
        async move {
            for number in 1.. {
                write(&nfs, "old", "a", &format!("{number:09}")).await;
                write(&nfs, "old", "z", &format!("{number:09}")).await;
            }
        }
    });
    let copied = back_up_one_moment(&export, "one", (file_id, true)).await.unwrap();
    assert!(copied.is_of_one_moment(), "{copied}");
    writer.abort();
    assert_eq!(copied.files as usize, FILES + 2);
    let number = async |file: &str| read(&nfs, "archived-one", file).await.parse::<u64>().unwrap();
    let (first, second) = (number("a").await, number("z").await);
    assert!(first == second || first == second + 1, "{first} {second}");
    assert_eq!(snapshots(&nfs).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_one_moment_is_copied_from_a_snapshot_that_is_created_for_it() {
    backs_up_one_moment(VersionChoice::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_one_moment_is_copied_from_a_snapshot_that_is_created_for_it_over_nfsv3() {
    backs_up_one_moment(VersionChoice::Exactly(Protocol::V3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_snapshots_that_a_former_process_left_are_removed() {
    let fixture = StoreFixture::on_ceph(VersionChoice::Auto).await;
    let export = Arc::new(fixture.store().await);
    let file_id = volume(&export, "old").await;
    let nfs = export.nfs().clone();
    write(&nfs, "old", "file", &"content ".repeat(1000)).await;
    let folder = find(&nfs, &[".snap"]).await.unwrap();
    let attributes = SetAttributes::default();
    nfs.make_directory(&folder.handle, &name("nightly"), attributes)
        .await
        .unwrap();
    // It takes minutes.
    export.limit_copies(Some(10));
    let copy = tokio::spawn({
        let export = Arc::clone(&export);
        async move { back_up_one_moment(&export, "one", (file_id, true)).await }
    });
    let own = "nfs-operator-uid-of-fast-uid-of-one";
    let both = || async { snapshots(&nfs).await.len() == 2 };
    while !both().await {
        assert!(!copy.is_finished());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    export.maintain_snapshots().await.unwrap();
    let mut found = snapshots(&nfs).await;
    found.sort();
    assert_eq!(found, [own, "nightly"]);
    copy.abort();
    copy.await.unwrap_err();
    fixture.store().await.maintain_snapshots().await.unwrap();
    assert_eq!(snapshots(&nfs).await, ["nightly"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_no_snapshot_is_removed_and_not_copied() {
    let fixture = StoreFixture::start().await;
    let export = Arc::new(fixture.store().await);
    let file_id = volume(&export, "old").await;
    fs::write(fixture.on_disk("old/file"), "content").unwrap();
    let refused = async |expected: &str| {
        let error = export.maintain_snapshots().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SnapshotUnavailable, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        let error = back_up_one_moment(&export, "one", (file_id, true)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SnapshotUnavailable, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!fixture.on_disk("archived-one").exists());
    };
    refused("exposes no snapshots").await;
    fs::create_dir(fixture.on_disk(".snap")).unwrap();
    refused("is not a snapshot").await;
    assert_eq!(fs::read_dir(fixture.on_disk(".snap")).unwrap().count(), 0);
    back_up_one_moment(&export, "two", (file_id, false)).await.unwrap();
    let copy = fixture.record("two").pointer("/state/copy").unwrap().clone();
    let outcome = copy["outcome"].as_str().unwrap();
    assert!(
        outcome.contains("is not a snapshot; among those that exist: "),
        "{outcome}"
    );
    assert_eq!(fs::read(fixture.on_disk("archived-two/file")).unwrap(), b"content");
}
