//! A group for each volume, from a range.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::sync::Arc;

use export_store::{
    ArchiveRef, CopyLimits, CopySource, Decided, DirectoryRequest, ErrorKind, ExportStore, GroupRange,
    PathReservations, Reclaimed, copy_volume,
};
use nfs_client::Credential;
use rig::Direction;

use crate::crash::dies;
use crate::fixture::{OTHER_CLUSTER, StoreClient, StoreFixture, adopting, claim, reclaim, refused, request};

const RANGE: GroupRange = GroupRange { min: 20000, max: 20003 };

fn own_group(request: DirectoryRequest) -> DirectoryRequest {
    DirectoryRequest {
        mode: 0o2770,
        mode_requested: true,
        gid_range: Some(RANGE),
        ..request
    }
}

fn in_range(uid: &str) -> DirectoryRequest {
    own_group(request(uid, &format!("dir-{uid}")))
}

/// Returns mode and group of a directory.
fn seen(fixture: &StoreFixture, directory: &str) -> (u32, u32) {
    let found = fs::metadata(fixture.on_disk(directory)).unwrap();
    (found.mode() & 0o7777, found.gid())
}

async fn provision(store: &ExportStore, uid: &str) -> u32 {
    store.provision(&in_range(uid)).await.unwrap().group.unwrap()
}

/// Archives the directory of a volume that has no object anymore.
async fn archive(store: &ExportStore, uid: &str, file_id: u64) -> String {
    let archived = store
        .archive(&reclaim(uid, &format!("dir-{uid}"), file_id), &Decided)
        .await;
    match archived.unwrap() {
        Reclaimed::Archived { name, .. } => name,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_volume_gets_a_group_that_is_free_after_its_directory_and_its_record() {
    let fixture = StoreFixture::start().await;
    let (fast, slow) = fixture.two_backends().await;
    let groups = [
        provision(&fast, "1").await,
        provision(&slow, "2").await,
        provision(&fast, "3").await,
        provision(&slow, "4").await,
    ];
    assert_eq!(groups, [20000, 20001, 20002, 20003], "two backends share the export");
    for (uid, group) in (1..).zip(groups) {
        assert_eq!(seen(&fixture, &format!("dir-{uid}")), (0o2770, group));
        assert_eq!(fixture.record(&format!("pvc-{uid}"))["group"], group);
    }
    assert_eq!(refused(&fast, &in_range("5")).await, (ErrorKind::GroupsExhausted, true));
    assert!(
        !fixture.records().contains(&"pvc-5".to_owned()),
        "nothing is left of it"
    );

    // After a start, the records show the same.
    let again = fixture.store().await;
    again.recover(&|_| false).await.unwrap();
    assert_eq!(
        refused(&again, &in_range("5")).await,
        (ErrorKind::GroupsExhausted, true)
    );
    assert_eq!(provision(&again, "3").await, 20002, "it keeps its group");
    again.rollback("pvc-3", "3").await.unwrap();
    assert_eq!(provision(&again, "5").await, 20002);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_moment_neither_loses_a_group_nor_gives_it_away_twice() {
    let fixture = StoreFixture::start().await;
    let mut crashes = 0;
    for nth in 0.. {
        let uid = format!("n{nth}");
        let crashing = in_range(&uid);
        let died = dies(&fixture, Direction::Up, nth, move |store| {
            Box::pin(async move {
                let _ = store.provision(&crashing).await;
            })
        });
        let died = died.await;
        let store = fixture.store().await;
        store.recover(&|_| false).await.unwrap();
        // Another volume first: it must not get what the interrupted one has.
        let other = provision(&store, "other").await;
        let own = provision(&store, &uid).await;
        assert_ne!(own, other, "{uid}");
        assert_eq!(seen(&fixture, &format!("dir-{uid}")), (0o2770, own));
        store.rollback("pvc-other", "other").await.unwrap();
        store.rollback(&format!("pvc-{uid}"), &uid).await.unwrap();
        let all: HashSet<u32> = [
            provision(&store, "a").await,
            provision(&store, "b").await,
            provision(&store, "c").await,
            provision(&store, "d").await,
        ]
        .into();
        assert_eq!(all.len(), 4, "{uid}: none is lost");
        for uid in ["a", "b", "c", "d"] {
            store.rollback(&format!("pvc-{uid}"), uid).await.unwrap();
        }
        if !died {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 4, "{crashes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_keeps_its_group_and_the_volume_that_it_becomes_gets_it() {
    let fixture = StoreFixture::start().await;
    let store = fixture.store().await;
    let made = store.provision(&in_range("1")).await.unwrap();
    let file = fixture.on_disk("dir-1/file");
    fs::write(&file, "text").unwrap();
    chown(&file, Some(1000), Some(20000)).unwrap();
    let name = archive(&store, "1", made.file_id).await;
    assert_eq!(seen(&fixture, &name).0, 0o700);

    let again = fixture.store().await;
    again.recover(&|_| false).await.unwrap();
    assert_eq!(provision(&again, "2").await, 20001, "the archive has the first one");
    let restore = DirectoryRequest {
        restore: Some(ArchiveRef {
            volume: "pvc-1".into(),
            claim_uid: "1".into(),
            file_id: made.file_id,
        }),
        ..in_range("3")
    };
    let restored = again.provision(&restore).await.unwrap();
    assert_eq!(restored.group, Some(20000));
    assert_eq!(seen(&fixture, "dir-3"), (0o2770, 20000));
    assert_eq!(fs::metadata(fixture.on_disk("dir-3/file")).unwrap().gid(), 20000);
    assert_eq!(provision(&again, "4").await, 20002);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_gets_its_own_group_and_so_does_what_had_the_group_of_the_source() {
    let fixture = StoreFixture::start().await;
    let store = Arc::new(fixture.store().await);
    let made = store.provision(&in_range("1")).await.unwrap();
    for (name, gid) in [("mine", 20000), ("other", 777)] {
        let file = fixture.on_disk("dir-1").join(name);
        fs::write(&file, "text").unwrap();
        chown(&file, Some(1000), Some(gid)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
    }
    let source = CopySource::Volume(reclaim("1", "dir-1", made.file_id));
    let (target, limits, progress) = (in_range("2"), CopyLimits::default(), Arc::default());
    let copy = copy_volume((&store, &source), (&store, &target), &limits, &progress).await;
    let copy = copy.unwrap();
    assert_eq!(copy.group, Some(20001));
    assert_eq!(seen(&fixture, "dir-2"), (0o2770, 20001));
    let owner = |name: &str| {
        let found = fs::metadata(fixture.on_disk("dir-2").join(name)).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    assert_eq!(owner("mine"), (1000, 20001, 0o660));
    assert_eq!(owner("other"), (1000, 777, 0o660));
    assert_eq!(fs::metadata(fixture.on_disk("dir-1/mine")).unwrap().gid(), 20000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_directory_keeps_its_mode_and_a_free_group_of_the_range() {
    let fixture = StoreFixture::start().await;
    let store = fixture.store().await;
    for (name, gid) in [("old", 20002), ("older", 0), ("same", 20002)] {
        fs::create_dir(fixture.on_disk(name)).unwrap();
        chown(fixture.on_disk(name), Some(1000), Some(gid)).unwrap();
        fs::set_permissions(fixture.on_disk(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (uid, name, group) in [("1", "old", 20002), ("2", "older", 20000), ("3", "same", 20001)] {
        let made = store.provision(&own_group(adopting(uid, name))).await.unwrap();
        assert_eq!((made.adopted, made.group), (true, Some(group)), "{name}");
        assert_eq!(seen(&fixture, name), (0o755, group), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_that_share_an_export_do_not_share_groups() {
    let fixture = StoreFixture::start().await;
    let ours = fixture.store().await;
    let theirs = StoreClient {
        cluster: OTHER_CLUSTER,
        key: 9,
        reservations: Arc::new(PathReservations::new()),
        ..fixture.client()
    };
    let theirs = theirs.open().await;
    let (one, two) = (in_range("1"), in_range("2"));
    let (one, two) = tokio::join!(ours.provision(&one), theirs.provision(&two));
    let (three, four) = (in_range("3"), in_range("4"));
    let (three, four) = tokio::join!(ours.provision(&three), theirs.provision(&four));
    let made = [one, two, three, four].map(|made| made.unwrap());
    let groups: HashSet<u32> = made.iter().map(|made| made.group.unwrap()).collect();
    assert_eq!(groups.len(), 4, "{made:?}");
    for made in made {
        assert_eq!(
            seen(&fixture, &made.directory.to_string()),
            (0o2770, made.group.unwrap())
        );
    }
    let (kind, _) = refused(&ours, &in_range("5")).await;
    assert_eq!(kind, ErrorKind::GroupsExhausted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_other_than_root_gives_each_volume_its_group() {
    let export = rig::Export::new("/export").squash(rig::Squash::Root);
    let fixture = StoreFixture::with(export).await;
    chown(&fixture.disk, Some(2000), Some(2000)).unwrap();
    fs::set_permissions(&fixture.disk, fs::Permissions::from_mode(0o755)).unwrap();
    let client = StoreClient {
        credential: Credential {
            uid: 2000,
            gid: 2000,
            supplementary: None,
        },
        ..fixture.client()
    };
    let store = client.open().await;
    let made = store.provision(&in_range("1")).await.unwrap();
    assert_eq!(made.group, Some(20000));
    assert_eq!(seen(&fixture, "dir-1"), (0o2770, 20000));
    fs::write(fixture.on_disk("dir-1/file"), "text").unwrap();
    archive(&store, "1", made.file_id).await;
    let restore = DirectoryRequest {
        restore: Some(ArchiveRef {
            volume: "pvc-1".into(),
            claim_uid: claim("1").uid,
            file_id: made.file_id,
        }),
        ..in_range("2")
    };
    store.provision(&restore).await.unwrap();
    assert_eq!(seen(&fixture, "dir-2"), (0o2770, 20000));
    let found = fs::metadata(fixture.on_disk("dir-2")).unwrap();
    assert_eq!(found.uid(), 2000);
}
