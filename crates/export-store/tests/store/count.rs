//! The usage of a tree, counted over NFS, in comparison with the disk.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use export_store::naming::DirectoryPath;
use export_store::{CountTarget, Decided, ExportStore, RateLimiter, TreeUsage};
use nfs_client::{Protocol, VersionChoice};
use rig::{Action, Direction};

use crate::fixture::{StoreFixture, reclaim, request};

/// Depth of directories, and number of files in the largest one: more than fit in a page.
const DEPTH: usize = 120;
const MANY: usize = 1500;

fn grow(root: &Path, outside: &Path) {
    fs::create_dir(outside).unwrap();
    fs::write(outside.join("large"), vec![1; 5 << 20]).unwrap();
    for name in [
        b"\xf6\x01\x1b[31m".as_slice(),
        b" -rf *\n",
        b"$(reboot)",
        "\u{202e}gnp".as_bytes(),
    ] {
        let folder = root.join(OsStr::from_bytes(name));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(OsStr::from_bytes(name)), vec![2; 10_000]).unwrap();
        symlink(outside, folder.join("to a directory")).unwrap();
        symlink("..", folder.join("upwards")).unwrap();
        symlink("x".repeat(200), folder.join("dangling")).unwrap();
    }
    for name in ["one", "two", "three"] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("own"), vec![3; 100_000]).unwrap();
        let shared = root.join("one/own");
        fs::hard_link(shared, root.join(name).join("again")).unwrap();
    }
    fs::File::create(root.join("sparse"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(root.join("fifo"))
            .status()
            .unwrap()
            .success()
    );
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..MANY {
        fs::write(root.join(format!("many/{number:0>100}")), b"x").unwrap();
    }
    let mut deep = root.to_owned();
    for level in 0..DEPTH {
        deep.push(format!("level{level}"));
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("file"), b"data").unwrap();
    }
}

/// Returns the usage on disk: the number of names, and the size of all files, each counted once.
fn on_disk(root: &Path) -> (u64, u64) {
    let (mut names, mut size, mut seen) = (0, 0, std::collections::HashSet::new());
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is = fs::symlink_metadata(&path).unwrap();
            names += 1;
            if is.is_dir() {
                open.push(path);
            } else if is.is_file() && seen.insert(is.ino()) {
                size += is.len();
            }
        }
    }
    (names, size)
}

/// `du`.
fn du(root: &Path) -> u64 {
    let reported = Command::new("du").args(["-s", "-B1"]).arg(root).output().unwrap();
    let reported = String::from_utf8_lossy(&reported.stdout).into_owned();
    reported.split_whitespace().next().unwrap().parse().unwrap()
}

async fn count(export: &ExportStore, directory: &str, file_id: u64) -> Option<TreeUsage> {
    let directory = DirectoryPath::parse(directory).unwrap();
    let of = (CountTarget::Directory(&directory), Some(file_id));
    export.count(of, &mut RateLimiter::unlimited(), |_| true).await.unwrap()
}

#[tokio::test]
async fn a_tree_with_unusual_names_and_links_is_counted_like_du_and_nothing_is_touched() {
    for version in [VersionChoice::Auto, VersionChoice::Exactly(Protocol::V3)] {
        let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
        let export = fixture.store().await;
        let created = export.provision(&request("1", "team/data")).await.unwrap();
        let root = fixture.on_disk("team/data");
        grow(&root, &fixture.on_disk("outside"));
        let before = rig::snapshot(&root).unwrap();
        let counted = count(&export, "team/data", created.file_id).await.unwrap();
        let (names, size) = on_disk(&root);
        assert_eq!((counted.names, counted.size), (names, size), "{version:?}");
        assert_eq!(counted.used, du(&root), "{version:?}");
        assert_eq!(
            (counted.special, counted.elsewhere, counted.unread),
            (1, 0, 0),
            "{version:?}"
        );
        assert_eq!(rig::snapshot(&root).unwrap(), before);
    }
}

#[tokio::test]
async fn a_directory_other_than_the_expected_one_is_not_counted() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    fs::write(fixture.on_disk("a/file"), b"data").unwrap();
    assert_eq!(count(&export, "a", created.file_id).await.unwrap().names, 1);
    assert_eq!(
        count(&export, "a", created.file_id + 1).await,
        None,
        "another one has its name"
    );
    assert_eq!(count(&export, "b", created.file_id).await, None, "nothing is there");
    fs::rename(fixture.on_disk("a"), fixture.on_disk("b")).unwrap();
    symlink("b", fixture.on_disk("a")).unwrap();
    assert_eq!(count(&export, "a", created.file_id).await, None, "a link to it");
    fs::remove_file(fixture.on_disk("a")).unwrap();
    fs::rename(fixture.on_disk("b"), fixture.on_disk("a")).unwrap();
    export
        .archive(&reclaim("1", "a", created.file_id), &Decided)
        .await
        .unwrap();
    let archived = |name: &'static str| (CountTarget::Archive(name), Some(created.file_id));
    let mut pace = RateLimiter::unlimited();
    let found = export.count(archived("archived-a"), &mut pace, |_| true);
    assert_eq!(found.await.unwrap().unwrap().names, 1);
    for name in ["archived-b", "..", ".nfs-operator", "archived-a/../a", "archived-\n"] {
        let found = export
            .count(archived(name), &mut RateLimiter::unlimited(), |_| true)
            .await;
        assert_eq!(found.unwrap(), None, "{name:?}");
    }
}

#[tokio::test]
async fn a_count_whose_connection_is_cut_repeatedly_has_the_same_result() {
    let fixture = StoreFixture::start().await;
    let mut client = fixture.client();
    client.port = fixture.proxy.port();
    let export = client.open().await;
    let created = export.provision(&request("1", "data")).await.unwrap();
    grow(&fixture.on_disk("data"), &fixture.on_disk("outside"));
    let expected = count(&export, "data", created.file_id).await.unwrap();
    let directory = DirectoryPath::parse("data").unwrap();
    let of = (CountTarget::Directory(&directory), Some(created.file_id));
    let (replies, mut pace) = (AtomicU64::new(1), RateLimiter::unlimited());
    fixture.proxy.on_record(Direction::Down, move |_| {
        match replies.fetch_add(1, Ordering::Relaxed) % 30 {
            0 => Action::Cut,
            _ => Action::Forward,
        }
    });
    let counted = export.count(of, &mut pace, |_| true);
    assert_eq!(counted.await.unwrap(), Some(expected));
    assert!(fixture.proxy.accepted() > 3, "it was cut");
}

#[tokio::test]
async fn a_directory_that_is_removed_during_the_count_is_not_counted() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "data")).await.unwrap();
    grow(&fixture.on_disk("data"), &fixture.on_disk("outside"));
    let directory = DirectoryPath::parse("data").unwrap();
    let of = (CountTarget::Directory(&directory), Some(created.file_id));
    let mut pace = RateLimiter::unlimited();
    let counted = export.count(of, &mut pace, |_| {
        // The first cancellation is sufficient.
        let _ = fs::rename(fixture.on_disk("data"), fixture.on_disk("elsewhere"));
        true
    });
    assert_eq!(counted.await.unwrap(), None);
    let stopped = (CountTarget::Directory(&directory), None);
    fs::rename(fixture.on_disk("elsewhere"), fixture.on_disk("data")).unwrap();
    let stopped = export.count(stopped, &mut pace, |content| content.names < 10);
    assert_eq!(stopped.await.unwrap(), None, "the count was cancelled");
}
