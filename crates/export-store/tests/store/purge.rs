//! The trash: trees that are hard to remove are removed completely, and nothing outside is touched.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use export_store::{Decided, ExportStore, Holder, PurgeLimits, Reclaimed};
use nfs_client::Credential;
use rig::Squash;

use crate::fixture::{CLUSTER, StoreClient, StoreFixture, names, reclaim, request};

async fn deleted(export: &ExportStore, uid: &str, directory: &str, file_id: u64) {
    let done = export
        .delete(&reclaim(uid, directory, file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::Deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deep_tree_with_unusual_names_links_and_closed_directories_is_removed_and_nothing_else() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    let outside = fixture.on_disk("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "").unwrap();
    let top = fixture.on_disk("a");
    for number in 0..10_000 {
        fs::write(top.join(format!("file-{number}")), "").unwrap();
    }
    for byte in [0x80_u8, 0xff, b'\n', b'\\', b'*'] {
        fs::write(top.join(OsStr::from_bytes(&[byte, b'x'])), "").unwrap();
        fs::create_dir_all(top.join(OsStr::from_bytes(&[byte, b'd', byte])).join("below")).unwrap();
    }
    symlink(&outside, top.join("absolute")).unwrap();
    symlink("../outside", top.join("relative")).unwrap();
    fs::hard_link(outside.join("precious"), top.join("hard")).unwrap();
    let mut deep = top.clone();
    for level in 0..100 {
        deep.push(format!("level-{level}"));
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("file"), "").unwrap();
        symlink(&outside, deep.join("link")).unwrap();
    }
    for number in 0..700 {
        fs::create_dir(top.join(format!("dir-{number}"))).unwrap();
        fs::write(top.join(format!("dir-{number}/file")), "").unwrap();
    }
    let closed = top.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("file"), "").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();

    deleted(&export, "1", "a", created.file_id).await;
    assert_eq!(fixture.listed(), ["outside"], "gone at once");
    let before = export.trash().await.unwrap();
    assert_eq!(before.entries, 1);
    assert!(before.oldest.is_some());
    let begin = std::time::Instant::now();
    let report = export.purge_trash(PurgeLimits::default()).await.unwrap();
    println!("{report:?} in {:?}", begin.elapsed());
    assert_eq!((report.left.entries, report.failed, report.interrupted), (0, 0, false));
    assert!(report.removed >= 10_000 + 1_400 + 300);
    assert_eq!(names(&outside), ["precious"]);
    assert_eq!(
        names(&fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/trash"))),
        Vec::<String>::new()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_stops_at_its_limits_and_is_resumed_by_the_next() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    for directory in 0..40 {
        fs::create_dir_all(fixture.on_disk(&format!("a/{directory}"))).unwrap();
        for file in 0..100 {
            fs::write(fixture.on_disk(&format!("a/{directory}/{file}")), "").unwrap();
        }
    }
    deleted(&export, "1", "a", created.file_id).await;
    let limits = PurgeLimits {
        removals: 500,
        ..PurgeLimits::default()
    };
    let report = export.purge_trash(limits).await.unwrap();
    assert!(report.interrupted && report.left.entries == 1, "{report:?}");
    let next = fixture.store().await;
    let report = next.purge_trash(PurgeLimits::default()).await.unwrap();
    assert!(!report.interrupted && report.left.entries == 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_root_squash_a_purge_acts_as_the_owner_of_each_directory() {
    let fixture = StoreFixture::with(rig::Export::new("/export").squash(Squash::Root)).await;
    fs::set_permissions(&fixture.disk, fs::Permissions::from_mode(0o777)).unwrap();
    let export = fixture.store().await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    let inside = fixture.on_disk("a/owned/deeper");
    fs::create_dir_all(&inside).unwrap();
    fs::write(inside.join("file"), "").unwrap();
    chown(fixture.on_disk("a/owned"), Some(1000), Some(1000)).unwrap();
    chown(&inside, Some(2000), Some(0)).unwrap();
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o000)).unwrap();
    // Owned by root, as which the store cannot act: it stays and is reported.
    let roots = fixture.on_disk("a/roots");
    fs::create_dir(&roots).unwrap();
    fs::write(roots.join("file"), "").unwrap();
    deleted(&export, "1", "a", created.file_id).await;
    let report = export.purge_trash(PurgeLimits::default()).await.unwrap();
    println!("{report:?}");
    assert_eq!((report.left.entries, report.failed), (1, 1));
    let failure = report.failures.first().unwrap();
    assert!(failure.path.ends_with("roots/file"), "{failure:?}");
    let trash = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/trash"));
    let left = trash.join(names(&trash).first().unwrap());
    assert_eq!(names(&left), ["roots"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_cannot_enter_the_trash_becomes_a_tombstone_and_is_found_again() {
    let fixture = StoreFixture::start().await;
    let client = StoreClient {
        credential: Credential {
            uid: 1000,
            gid: 1000,
            supplementary: None,
        },
        ..fixture.client()
    };
    fs::set_permissions(&fixture.disk, fs::Permissions::from_mode(0o777)).unwrap();
    let export = client.open().await;
    let created = export.provision(&request("1", "home/a")).await.unwrap();
    fs::write(fixture.on_disk("home/a/file"), "").unwrap();
    // A directory of another owner cannot be moved to another parent without write permission on it.
    chown(fixture.on_disk("home/a"), Some(2000), Some(2000)).unwrap();
    fs::set_permissions(fixture.on_disk("home/a"), fs::Permissions::from_mode(0o755)).unwrap();
    deleted(&export, "1", "home/a", created.file_id).await;
    assert_eq!(names(&fixture.on_disk("home")), [".nfs-operator-deleted-pvc-1"]);
    assert_eq!(fixture.records(), ["pvc-1"]);
    assert_eq!(export.trash().await.unwrap().entries, 1);
    export.forget_volume("pvc-1").await.unwrap();
    // The next client finds it by its record.
    let next = client.open().await;
    next.recover(&|_: &str| false).await.unwrap();
    assert_eq!(next.trash().await.unwrap().entries, 1);
    let report = next.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.left.entries, report.failed), (0, 0), "{report:?}");
    assert!(!fixture.on_disk("home").exists(), "it was empty then");
    assert_eq!(fixture.records(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_leaves_the_directories_of_volumes_and_archives_that_were_moved_into_the_trash() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let mut created = Vec::new();
    for uid in ["1", "2", "3", "4"] {
        let directory = format!("d{uid}");
        created.push(export.provision(&request(uid, &directory)).await.unwrap().file_id);
        fs::write(fixture.on_disk(&directory).join("mine"), uid).unwrap();
    }
    export.archive(&reclaim("3", "d3", created[2]), &Decided).await.unwrap();
    client.reservations.remove(&Holder::Volume("pvc-3".into()));
    // An administrator moved a volume, an empty volume and an archive into the directory of the first volume.
    fs::create_dir(fixture.on_disk("d1/sub")).unwrap();
    fs::rename(fixture.on_disk("d2"), fixture.on_disk("d1/sub/moved")).unwrap();
    fs::rename(fixture.on_disk("archived-d3"), fixture.on_disk("d1/kept")).unwrap();
    fs::remove_file(fixture.on_disk("d4/mine")).unwrap();
    fs::rename(fixture.on_disk("d4"), fixture.on_disk("d1/sub/empty")).unwrap();
    assert_eq!(
        export.delete(&reclaim("1", "d1", created[0]), &Decided).await.unwrap(),
        Reclaimed::Deleted
    );
    for _ in 0..2 {
        let report = export.purge_trash(PurgeLimits::default()).await.unwrap();
        let reasons: Vec<&str> = report.failures.iter().map(|failure| failure.reason.as_str()).collect();
        assert_eq!((report.failed, report.left.entries), (3, 1), "{reasons:?}");
        for whose in [
            "the directory of volume pvc-2",
            "the archive of volume pvc-3",
            "the directory of volume pvc-4",
        ] {
            assert!(
                reasons.iter().any(|reason| reason.contains(whose)),
                "{whose}: {reasons:?}"
            );
        }
    }
    let trash = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/trash"));
    let entry = trash.join(&names(&trash)[0]);
    assert_eq!(fs::read_to_string(entry.join("sub/moved/mine")).unwrap(), "2");
    assert_eq!(fs::read_to_string(entry.join("kept/mine")).unwrap(), "3");
    assert_eq!(names(&entry), ["kept", "sub"], "the rest is purged");
    assert_eq!(names(&entry.join("sub")), ["empty", "moved"]);
    // As the message advises, they are moved back.
    fs::rename(entry.join("sub/moved"), fixture.on_disk("d2")).unwrap();
    fs::rename(entry.join("sub/empty"), fixture.on_disk("d4")).unwrap();
    fs::rename(entry.join("kept"), fixture.on_disk("archived-d3")).unwrap();
    let report = export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.failed, report.left.entries), (0, 0));
    // A volume whose object still exists is purged from the trash, once it was moved there by its own reclaim.
    let done = export.delete(&reclaim("2", "d2", created[1]), &Decided).await.unwrap();
    assert_eq!(done, Reclaimed::Deleted);
    let report = export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.failed, report.left.entries), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_on_one_export_count_and_purge_its_trash_once() {
    let fixture = StoreFixture::start().await;
    let (fast, slow) = fixture.two_backends().await;
    let made = slow.provision(&request("1", "d1")).await.unwrap();
    fs::write(fixture.on_disk("d1/data"), "x").unwrap();
    let reclaimed = slow.delete(&reclaim("1", "d1", made.file_id), &Decided).await.unwrap();
    assert_eq!(reclaimed, Reclaimed::Deleted);
    let others = PurgeLimits {
        shared_trash: false,
        ..PurgeLimits::default()
    };
    let report = slow.purge_trash(others).await.unwrap();
    assert_eq!((report.removed, report.left.entries), (0, 0));
    assert_eq!(fast.trash().await.unwrap().entries, 1);
    let report = fast.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.removed > 0, report.left.entries), (true, 0));
}
