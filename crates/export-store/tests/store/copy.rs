//! Copies of trees: complete, exact, and never partial.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use export_store::ErrorKind;
use export_store::{
    CopyError, CopyLimits, CopyProgress, CopyProgressSnapshot, CopySource, ExportStore, ProvisionedDirectory,
    PurgeLimits, copy_volume,
};
use nfs_client::{Protocol, VersionChoice};
use rig::{Action, Direction, Squash};

use crate::fixture::{CLUSTER, StoreClient, StoreFixture, names, reclaim, request};

/// Copies a volume of `source` to a directory with this name, for another claim.
pub async fn copied(
    (source, uid, file_id): (&Arc<ExportStore>, &str, u64),
    (target, new): (&Arc<ExportStore>, &str),
) -> Result<(ProvisionedDirectory, CopyProgressSnapshot), CopyError> {
    let tally = Arc::new(CopyProgress::default());
    let of = CopySource::Volume(reclaim(uid, uid, file_id));
    let created = copy_volume(
        (source, &of),
        (target, &request(new, new)),
        &CopyLimits::default(),
        &tally,
    )
    .await;
    created.map(|created| (created, tally.snapshot()))
}

/// Creates a volume with its directory.
pub async fn volume(export: &ExportStore, uid: &str) -> u64 {
    export.provision(&request(uid, uid)).await.unwrap().file_id
}

/// A time in the past.
fn long_ago(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + seconds, 123_456_000)
}

fn age(path: &Path, seconds: u64) {
    let times = FileTimes::new()
        .set_accessed(long_ago(seconds))
        .set_modified(long_ago(seconds));
    File::open(path).unwrap().set_times(times).unwrap();
}

/// Creates a tree with everything that a copy preserves, and some files that it omits.
fn grow(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for (name, size) in [
        ("none", 0_usize),
        ("small", 5),
        ("whole", 64 << 10),
        ("more", (64 << 10) + 1),
        ("big", 3_000_001),
    ] {
        let content: Vec<u8> = (0..size).map(|place| (place / 251) as u8 ^ place as u8).collect();
        fs::write(root.join(name), content).unwrap();
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"middle", 5 << 20).unwrap();
    sparse.set_len(16 << 20).unwrap();
    File::create(root.join("hole")).unwrap().set_len(9 << 20).unwrap();
    fs::write(root.join("a/one"), "several names").unwrap();
    fs::hard_link(root.join("a/one"), root.join("a/b/two")).unwrap();
    fs::hard_link(root.join("a/one"), root.join("three")).unwrap();
    symlink("nowhere/at all", root.join("a/dangling")).unwrap();
    symlink("/etc/passwd", root.join("outside")).unwrap();
    symlink("..", root.join("a/up")).unwrap();
    lchown(root.join("outside"), Some(77), Some(78)).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"\xe4\xff\n name")), "bytes").unwrap();
    chown(root.join("small"), Some(1234), Some(4321)).unwrap();
    for (name, mode) in [("small", 0o4755), ("more", 0o000), ("a/b", 0o2770), ("empty", 0o000)] {
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    for number in 0..300 {
        fs::write(root.join(format!("a/b/c/file-{number}")), number.to_string()).unwrap();
    }
    for (seconds, name) in [
        "small", "more", "big", "sparse", "a/one", "a/b/c", "a/b", "a", "empty", "",
    ]
    .iter()
    .enumerate()
    {
        age(&root.join(name), seconds as u64);
    }
}

/// Returns what a copy must preserve, for each name: type, mode, owner, size, time, content, and the other names of the
/// same file.
fn seen(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut first: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    let mut paths = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                folders.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        let is = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_owned();
        let content = if is.is_file() {
            fs::read(&path).unwrap()
        } else if is.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_owned()
        } else {
            Vec::new()
        };
        let size = if is.is_dir() { 0 } else { is.size() };
        let same = match is.is_file() && is.nlink() > 1 {
            true => first.entry(is.ino()).or_insert_with(|| name.clone()).clone(),
            false => Vec::new(),
        };
        let hash = content
            .iter()
            .fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        let links = if is.is_dir() { 0 } else { is.nlink() };
        // nfs-ganesha does not set the times of symbolic links.
        let changed = match is.is_symlink() {
            true => String::new(),
            false => format!("{}.{}", is.mtime(), is.mtime_nsec()),
        };
        found.insert(
            name,
            format!(
                "{:o} {}:{} {size} {changed} {hash:x} {links} {}",
                is.mode(),
                is.uid(),
                is.gid(),
                same.escape_ascii()
            ),
        );
    }
    found
}

fn assert_same(copy: &Path, source: &Path) {
    let (copy, source) = (seen(copy), seen(source));
    let differ: Vec<_> = source
        .iter()
        .filter(|(name, seen)| copy.get(*name) != Some(*seen))
        .map(|(name, seen)| (name.escape_ascii().to_string(), seen, copy.get(name)))
        .collect();
    assert!(differ.is_empty(), "{differ:#?}");
    assert_eq!(copy.len(), source.len());
}

/// Checks that nothing is left of a copy, except in the trash.
fn assert_tidy(fixture: &StoreFixture) {
    let staging = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/staging"));
    assert_eq!(names(&staging), Vec::<String>::new());
}

async fn has_it_all(version: VersionChoice) {
    let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
    let export = Arc::new(fixture.store().await);
    let file_id = volume(&export, "old").await;
    grow(&fixture.on_disk("old"));
    let before = seen(&fixture.on_disk("old"));
    let (created, tally) = copied((&export, "old", file_id), (&export, "new")).await.unwrap();
    println!("{version:?}: {tally}; {}", tally.progress());
    assert_eq!(seen(&fixture.on_disk("old")), before, "the source was changed");
    assert_same(&fixture.on_disk("new"), &fixture.on_disk("old"));
    assert_eq!(created.file_id, fs::metadata(fixture.on_disk("new")).unwrap().ino());
    assert_eq!(fixture.record("pvc-new").pointer("/fileID").unwrap(), created.file_id);
    assert_eq!(fixture.record("pvc-new").pointer("/state/name").unwrap(), "Live");
    for name in ["sparse", "hole"] {
        let blocks = fs::metadata(fixture.on_disk("new").join(name)).unwrap().blocks() * 512;
        assert!(blocks < 2 << 20, "{name} takes {blocks} bytes");
    }
    assert_eq!(
        (tally.files as usize, tally.changed, tally.vanished),
        (before.len() - 1, 0, 0)
    );
    assert_eq!(
        tally.bytes,
        5 + (64 << 10) + (64 << 10) + 1 + 3_000_001 + (25 << 20) + 13 + 5 + 790
    );
    assert_tidy(&fixture);
    let purged = export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((purged.failed, purged.left.entries), (0, 0));
    assert_same(&fixture.on_disk("new"), &fixture.on_disk("old"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_complete() {
    has_it_all(VersionChoice::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_complete_without_hole_detection_and_without_sessions() {
    has_it_all(VersionChoice::Exactly(Protocol::V4_0)).await;
    has_it_all(VersionChoice::Exactly(Protocol::V3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_goes_from_one_server_to_another() {
    let fixture = StoreFixture::start().await;
    let other = StoreFixture::over(VersionChoice::Exactly(Protocol::V3), rig::Export::new("/export")).await;
    let (export, target) = (Arc::new(fixture.store().await), Arc::new(other.store().await));
    let file_id = volume(&export, "old").await;
    grow(&fixture.on_disk("old"));
    let (_, tally) = copied((&export, "old", file_id), (&target, "new")).await.unwrap();
    println!("{tally}");
    assert_same(&other.on_disk("new"), &fixture.on_disk("old"));
    assert_tidy(&other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_sockets_and_fifos_are_left_out_and_counted() {
    let fixture = StoreFixture::start().await;
    let export = Arc::new(fixture.store().await);
    let file_id = volume(&export, "old").await;
    let root = fixture.on_disk("old");
    fs::write(root.join("file"), "x").unwrap();
    let created = std::process::Command::new("sh")
        .arg("-c")
        .arg("mkfifo fifo && mknod zero c 1 5 && mknod disk b 7 0")
        .current_dir(&root)
        .status();
    assert!(created.unwrap().success());
    drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap());
    let (_, tally) = copied((&export, "old", file_id), (&export, "new")).await.unwrap();
    assert_eq!((tally.files, tally.special), (1, 4));
    assert!(tally.to_string().contains("4 left out"), "{tally}");
    assert_eq!(names(&fixture.on_disk("new")), ["file"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_cannot_preserve_owners_is_refused_before_it_starts() {
    let fixture = StoreFixture::with(rig::Export::new("/export").squash(Squash::Root)).await;
    chown(&fixture.disk, Some(65534), Some(65534)).unwrap();
    let export = Arc::new(fixture.store().await);
    let file_id = volume(&export, "old").await;
    fs::write(fixture.on_disk("old/file"), "x").unwrap();
    let refused = copied((&export, "old", file_id), (&export, "new")).await.unwrap_err();
    println!("{refused}");
    assert_eq!(refused.kind(), ErrorKind::CopyNeedsChown);
    assert_eq!(fixture.listed(), ["old"]);
    export.rollback("pvc-new", "new").await.unwrap();
    assert_eq!(fixture.records(), ["pvc-old"]);
    assert_tidy(&fixture);
}

/// Connects through the proxy.
async fn through_proxy(fixture: &StoreFixture) -> Arc<ExportStore> {
    let client = StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    Arc::new(client.open().await)
}

/// Returns whether a call contains this NFSv4 operation followed by this many bytes, which identifies large WRITEs.
fn long(record: &[u8]) -> bool {
    record.len() > 100_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changes_while_it_is_copied_is_counted() {
    let fixture = StoreFixture::start().await;
    let export = through_proxy(&fixture).await;
    let file_id = volume(&export, "old").await;
    let root = fixture.on_disk("old");
    fs::write(root.join("still"), vec![1; 3_000_000]).unwrap();
    fs::write(root.join("busy"), vec![2; 3_000_000]).unwrap();
    let busy = root.join("busy");
    fixture.proxy.on_record(Direction::Up, move |record| {
        if long(record) {
            let file = File::options().write(true).open(&busy).unwrap();
            file.write_all_at(b"meanwhile", 10).unwrap();
        }
        Action::Forward
    });
    let (_, tally) = copied((&export, "old", file_id), (&export, "new")).await.unwrap();
    fixture.proxy.clear_hooks();
    assert_eq!((tally.files, tally.changed), (2, 1));
    assert!(
        tally.to_string().contains("1 changed while they were copied"),
        "{tally}"
    );
    assert_eq!(fs::read(fixture.on_disk("new/still")).unwrap(), vec![1; 3_000_000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_source_that_is_removed_meanwhile_is_discarded() {
    let fixture = StoreFixture::start().await;
    let export = through_proxy(&fixture).await;
    let file_id = volume(&export, "old").await;
    fs::write(fixture.on_disk("old/file"), vec![1; 3_000_000]).unwrap();
    let (from, to) = (fixture.on_disk("old"), fixture.on_disk("elsewhere"));
    fixture.proxy.on_record(Direction::Up, move |record| {
        if long(record) && from.exists() {
            fs::rename(&from, &to).unwrap();
        }
        Action::Forward
    });
    let deleted = copied((&export, "old", file_id), (&export, "new")).await.unwrap_err();
    println!("{deleted}");
    assert_eq!(deleted.kind(), ErrorKind::CopySourceGone);
    assert_eq!(fixture.listed(), ["elsewhere"]);
    export.rollback("pvc-new", "new").await.unwrap();
    assert_tidy(&fixture);
    assert_eq!(fixture.records(), ["pvc-old"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_never_replaces_existing_data() {
    let fixture = StoreFixture::start().await;
    let export = Arc::new(fixture.store().await);
    let file_id = volume(&export, "old").await;
    fs::write(fixture.on_disk("old/file"), "mine").unwrap();
    fs::create_dir(fixture.on_disk("new")).unwrap();
    let refused = copied((&export, "old", file_id), (&export, "new")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DirectoryExists);
    assert_eq!(names(&fixture.on_disk("new")), Vec::<String>::new());
    assert_eq!(fixture.records(), ["pvc-old"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_restart_only_delays_a_copy() {
    let mut fixture = StoreFixture::start().await;
    let export = Arc::new(fixture.store().await);
    let file_id = volume(&export, "old").await;
    let root = fixture.on_disk("old");
    for number in 0..40 {
        fs::write(root.join(format!("file-{number}")), vec![number; 1_000_000]).unwrap();
    }
    let tally = Arc::new(CopyProgress::default());
    let copying = {
        let (export, tally) = (Arc::clone(&export), Arc::clone(&tally));
        tokio::spawn(async move {
            let of = CopySource::Volume(reclaim("old", "old", file_id));
            copy_volume(
                (&export, &of),
                (&export, &request("new", "new")),
                &CopyLimits::default(),
                &tally,
            )
            .await
        })
    };
    rig::wait::until("the copy to be under way", crate::nfs::TIMEOUT, async || {
        let files = tally.snapshot().files;
        if files > 2 { Ok(()) } else { Err(files.to_string()) }
    })
    .await
    .unwrap();
    fixture.nfs.kill9().await.unwrap();
    fixture.nfs.restart(rig::StableStorage::Kept).await.unwrap();
    copying.await.unwrap().unwrap();
    assert_same(&fixture.on_disk("new"), &fixture.on_disk("old"));
    assert_tidy(&fixture);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_takes_as_long_as_the_bandwidth_of_its_backends_allows() {
    let fixture = StoreFixture::start().await;
    let (source, target) = fixture.two_backends().await;
    let (source, target) = (Arc::new(source), Arc::new(target));
    let file_id = volume(&source, "old").await;
    fs::write(fixture.on_disk("old/large"), vec![1; 4 << 20]).unwrap();
    for number in 0..32 {
        fs::write(fixture.on_disk(&format!("old/small-{number}")), vec![2; 32 << 10]).unwrap();
    }
    let time = async |new: &str| {
        let began = Instant::now();
        copied((&source, "old", file_id), (&target, new)).await.unwrap();
        began.elapsed()
    };
    let unlimited = time("unlimited").await;
    source.limit_copies(Some(2 << 20));
    let limited = time("limited").await;
    // 5 MiB, of which the last block of 1 MiB need not be waited for, nor the small files, which may all begin before it.
    assert!(
        limited >= Duration::from_millis(1500),
        "{limited:?}, without a limit {unlimited:?}"
    );
    source.limit_copies(None);
    target.limit_copies(Some(2 << 20));
    let limited = time("target").await;
    assert!(
        limited >= Duration::from_millis(1500),
        "{limited:?}, without a limit {unlimited:?}"
    );
}
