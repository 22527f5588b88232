//! Parents of directories whose pattern has a `/`: they go with the last directory below them, and nobody else's do.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use export_store::{
    Decided, ExportStore, Holder, PathReservations, PurgeLimits, Reclaimed, ReservedPath, RollbackOutcome,
};
use nfs_client::{Protocol, VersionChoice};
use rig::proxy::has_bytes;
use rig::{Action, Direction};

use crate::archive_crash::restore;
use crate::fixture::{CLUSTER, OTHER_CLUSTER, StoreClient, StoreFixture, adopting, names, reclaim, request};

/// Returns the number of recorded parents.
pub fn recorded(fixture: &StoreFixture) -> usize {
    let folder = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/parents"));
    if folder.exists() { names(&folder).len() } else { 0 }
}

async fn provision(export: &ExportStore, uid: &str, directory: &str) -> u64 {
    export.provision(&request(uid, directory)).await.unwrap().file_id
}

async fn delete(export: &ExportStore, uid: &str, directory: &str, file_id: u64) {
    let done = export
        .delete(&reclaim(uid, directory, file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::Deleted);
}

/// Removes what is recorded and empty, as the periodic scan does.
async fn scan(export: &ExportStore) {
    for parent in export.recorded_parents().await.unwrap() {
        export.remove_parent_if_empty(&parent).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parents_go_with_the_last_directory_below_them() {
    for version in [VersionChoice::Auto, VersionChoice::Exactly(Protocol::V3)] {
        let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
        let export = fixture.store().await;
        let one = provision(&export, "1", "team/sub/one").await;
        let two = provision(&export, "2", "team/two").await;
        let mode = fs::metadata(fixture.on_disk("team/sub")).unwrap().permissions().mode();
        assert_eq!((mode & 0o7777, recorded(&fixture)), (0o755, 2));
        delete(&export, "1", "team/sub/one", one).await;
        assert!(fixture.on_disk("team/two").exists() && !fixture.on_disk("team/sub").exists());
        // An archive leaves its parent, and a restored one needs it again.
        fs::write(fixture.on_disk("team/two/data"), "").unwrap();
        let done = export.archive(&reclaim("2", "team/two", two), &Decided).await.unwrap();
        assert!(matches!(done, Reclaimed::Archived { .. }), "{done:?}");
        let archive = vec!["archived-two".to_owned()];
        assert_eq!((fixture.listed(), recorded(&fixture)), (archive.clone(), 0));
        // An empty directory is removed instead of archived.
        let three = provision(&export, "3", "team/three").await;
        let done = export
            .archive(&reclaim("3", "team/three", three), &Decided)
            .await
            .unwrap();
        assert_eq!(done, Reclaimed::EmptyRemoved);
        export.forget_volume("pvc-3").await.unwrap();
        // So is that of a claim that gets no volume.
        provision(&export, "4", "team/sub/four").await;
        assert_eq!(export.rollback("pvc-4", "4").await.unwrap(), RollbackOutcome::Gone);
        assert_eq!((fixture.listed(), recorded(&fixture)), (archive, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undone_restore_leaves_no_parent() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let file_id = provision(&export, "1", "home/work").await;
    fs::write(fixture.on_disk("home/work/data"), "").unwrap();
    export
        .archive(&reclaim("1", "home/work", file_id), &Decided)
        .await
        .unwrap();
    client.reservations.remove(&Holder::Volume("pvc-1".to_owned()));
    let to = restore("1", file_id);
    export.provision(&to).await.unwrap();
    assert!(fixture.on_disk(&to.directory.to_string()).exists());
    assert_eq!(recorded(&fixture), to.directory.segments().len() - 1);
    export.rollback(&to.volume, &to.claim.uid).await.unwrap();
    assert_eq!(
        (fixture.listed(), recorded(&fixture)),
        (vec!["archived-work".to_owned()], 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_existed_or_was_replaced_or_holds_something_else_stays() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    for parent in ["existed", "existed/sub"] {
        fs::create_dir(fixture.on_disk(parent)).unwrap();
    }
    let existed = provision(&export, "1", "existed/sub/one").await;
    assert_eq!(recorded(&fixture), 0);
    delete(&export, "1", "existed/sub/one", existed).await;
    assert!(fixture.on_disk("existed/sub").exists());

    let replaced = provision(&export, "2", "replaced/two").await;
    fs::rename(fixture.on_disk("replaced"), fixture.on_disk("former")).unwrap();
    fs::create_dir(fixture.on_disk("replaced")).unwrap();
    fs::rename(fixture.on_disk("former/two"), fixture.on_disk("replaced/two")).unwrap();
    delete(&export, "2", "replaced/two", replaced).await;
    scan(&export).await;
    assert!(fixture.on_disk("replaced").exists() && fixture.on_disk("former").exists());

    let held = provision(&export, "3", "held/three").await;
    fs::write(fixture.on_disk("held/theirs"), "theirs").unwrap();
    delete(&export, "3", "held/three", held).await;
    scan(&export).await;
    assert_eq!(fs::read_to_string(fixture.on_disk("held/theirs")).unwrap(), "theirs");
    // It is empty later, and a scan finds it.
    fs::remove_file(fixture.on_disk("held/theirs")).unwrap();
    scan(&export).await;
    assert!(!fixture.on_disk("held").exists());
    assert_eq!(recorded(&fixture), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_with_a_record_that_this_cluster_did_not_sign_stays() {
    let fixture = StoreFixture::start().await;
    provision(&fixture.store().await, "1", "team/one").await;
    let folder = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/parents"));
    let name = names(&folder).remove(0);
    let content = fs::read_to_string(folder.join(&name)).unwrap();
    fs::remove_dir(fixture.on_disk("team/one")).unwrap();
    let with_another_key = StoreClient {
        key: 8,
        ..fixture.client()
    };
    scan(&with_another_key.open().await).await;
    assert!(fixture.on_disk("team").exists());
    let export = fixture.store().await;
    for forged in [
        content.replace("team", "mate"),
        content.replace(":1,", ": 1,"),
        String::new(),
    ] {
        fs::write(folder.join(&name), forged).unwrap();
        scan(&export).await;
        assert!(fixture.on_disk("team").exists());
    }
    fs::write(folder.join(&name), content).unwrap();
    scan(&export).await;
    assert!(!fixture.on_disk("team").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_is_the_path_of_a_backend_or_contains_one_stays() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let one = provision(&export, "1", "team/sub/one").await;
    // An administrator created the backend a moment ago, and it was not probed yet.
    let root = vec![ReservedPath::on_server("127.0.0.1", "/export/team/sub")];
    let other = Holder::BackendRoot("other".into());
    client.reservations.insert(other.clone(), root, None);
    // The reclaim itself is refused while the backend overlaps, so the directory is removed by hand.
    fs::remove_dir(fixture.on_disk("team/sub/one")).unwrap();
    delete_missing(&export, one).await;
    scan(&export).await;
    assert!(fixture.on_disk("team/sub").exists());
    client.reservations.remove(&other);
    scan(&export).await;
    assert_eq!(fixture.listed(), Vec::<String>::new());
}

/// Reclaims a volume whose directory was removed by hand.
async fn delete_missing(export: &ExportStore, file_id: u64) {
    let done = export
        .delete(&reclaim("1", "team/sub/one", file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::AlreadyGone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_a_volume_adopted_stays_although_it_is_empty() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    for (uid, put_back) in [("1", false), ("2", true)] {
        let file_id = provision(&export, uid, "team/one").await;
        fs::write(fixture.on_disk("team/theirs"), "").unwrap();
        delete(&export, uid, "team/one", file_id).await;
        export.forget_volume(&format!("pvc-{uid}")).await.unwrap();
        assert_eq!(recorded(&fixture), 1);
        let folder = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/parents"));
        let name = names(&folder).remove(0);
        let content = fs::read(folder.join(&name)).unwrap();
        let adopter = format!("adopter-{uid}");
        assert!(export.provision(&adopting(&adopter, "team")).await.unwrap().adopted);
        assert_eq!(recorded(&fixture), 0);
        fs::remove_file(fixture.on_disk("team/theirs")).unwrap();
        if put_back {
            // Even with its record, the parent is the directory of a volume.
            fs::write(folder.join(&name), content).unwrap();
        }
        scan(&export).await;
        assert!(fixture.on_disk("team").exists());
        let file_id = fs::metadata(fixture.on_disk("team")).unwrap().ino();
        fs::write(fixture.on_disk("team/data"), "").unwrap();
        export
            .archive(&reclaim(&adopter, "team", file_id), &Decided)
            .await
            .unwrap();
        client.reservations.remove(&Holder::Volume(format!("pvc-{adopter}")));
        scan(&export).await;
        assert_eq!(recorded(&fixture), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_is_shared_by_the_backends_of_an_export_and_not_by_clusters() {
    let fixture = StoreFixture::start().await;
    let (fast, slow) = fixture.two_backends().await;
    let one = provision(&fast, "1", "team/one").await;
    let two = provision(&slow, "2", "team/two").await;
    delete(&fast, "1", "team/one", one).await;
    assert!(fixture.on_disk("team/two").exists());
    delete(&slow, "2", "team/two", two).await;
    assert_eq!(fixture.listed(), Vec::<String>::new());

    let one = provision(&fast, "3", "team/three").await;
    let other = StoreClient {
        cluster: OTHER_CLUSTER,
        reservations: Arc::new(PathReservations::new()),
        ..fixture.client()
    };
    let other = other.open().await;
    let two = provision(&other, "4", "team/four").await;
    delete(&fast, "3", "team/three", one).await;
    delete(&other, "4", "team/four", two).await;
    assert!(fixture.on_disk("team").exists(), "the other cluster did not make it");
    other.forget_volume("pvc-4").await.unwrap();
    let restarted = fixture.store().await;
    restarted.recover(&|_: &str| true).await.unwrap();
    assert_eq!(fixture.listed(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_is_removed_while_a_directory_is_made_below_it_is_made_again() {
    for version in [VersionChoice::Auto, VersionChoice::Exactly(Protocol::V3)] {
        let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
        fs::create_dir(fixture.on_disk("team")).unwrap();
        let client = StoreClient {
            port: fixture.proxy.port(),
            ..fixture.client()
        };
        let export = client.open().await;
        let removed = Arc::new(AtomicBool::new(false));
        let (team, done) = (fixture.on_disk("team"), Arc::clone(&removed));
        // The record was written, so the path was looked up: the next request with the directory's name is its creation.
        let recorded = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-1"));
        fixture.proxy.on_record(Direction::Up, move |request| {
            let creates = has_bytes(request, b"\0\0\0\x03one\0") && recorded.exists();
            if creates && !done.swap(true, Ordering::Relaxed) {
                fs::remove_dir(&team).unwrap();
            }
            Action::Forward
        });
        let file_id = provision(&export, "1", "team/one").await;
        assert!(removed.load(Ordering::Relaxed));
        assert_eq!(fs::metadata(fixture.on_disk("team/one")).unwrap().ino(), file_id);
        // This time the operator made it.
        delete(&export, "1", "team/one", file_id).await;
        assert_eq!(fixture.listed(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claims_and_reclaims_below_one_parent_do_not_disturb_each_other() {
    let fixture = StoreFixture::start().await;
    let export = Arc::new(fixture.store().await);
    let rounds = (0..8).map(|number| {
        let export = Arc::clone(&export);
        tokio::spawn(async move {
            for round in 0..12 {
                let (uid, directory) = (format!("{number}-{round}"), format!("team/sub/{number}"));
                let file_id = provision(&export, &uid, &directory).await;
                delete(&export, &uid, &directory, file_id).await;
                export.forget_volume(&format!("pvc-{uid}")).await.unwrap();
            }
        })
    });
    for round in rounds.collect::<Vec<_>>() {
        round.await.unwrap();
    }
    scan(&export).await;
    assert_eq!((fixture.listed(), recorded(&fixture)), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_without_a_parent_costs_no_call_for_parents() {
    let fixture = StoreFixture::start().await;
    let client = StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let export = client.open().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    fixture.proxy.on_record(Direction::Up, move |request| {
        count.fetch_add(usize::from(has_bytes(request, b"parents")), Ordering::Relaxed);
        Action::Forward
    });
    let file_id = provision(&export, "1", "one").await;
    delete(&export, "1", "one", file_id).await;
    export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert!(!fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/parents")).exists());
    let file_id = provision(&export, "2", "team/one").await;
    delete(&export, "2", "team/one", file_id).await;
    assert!(calls.load(Ordering::Relaxed) > 0);
}
