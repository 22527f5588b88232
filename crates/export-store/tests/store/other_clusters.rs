//! Other clusters on the same export: their number does not matter, and their directories are left alone.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use export_store::{Decided, ErrorKind, PathReservations, PurgeLimits};
use nfs_client::{Protocol, VersionChoice};
use rig::{Action, Direction};
use serde_json::json;

use crate::fixture::{OTHER_CLUSTER, StoreClient, StoreFixture, adopting, alone, reclaim, refused, request};
use crate::trust::settled;

/// Writes the record of a volume of another cluster.
fn record_of(fixture: &StoreFixture, cluster: &str, volume: &str, directory: &str) {
    let record = json!({
        "version": 1, "volume": volume, "backend": "fast", "directory": directory, "adopted": false,
        "claim": {"namespace": "team", "name": "data", "uid": volume},
        "fileID": 1_u64 << 60, "state": {"name": "Live"},
    });
    write_record(fixture, cluster, volume, &record.to_string());
}

fn write_record(fixture: &StoreFixture, cluster: &str, volume: &str, content: &str) {
    let folder = fixture.on_disk(&format!(".nfs-operator/{cluster}/records"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(volume), content).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_of_hundreds_of_former_clusters_stop_nothing() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    fs::create_dir(fixture.on_disk("team")).unwrap();
    for number in 0..200 {
        let (cluster, volume) = (format!("cluster-{number:03}"), format!("pvc-{number}"));
        record_of(&fixture, &cluster, &volume, &format!("team/dir-{number}"));
    }
    fs::create_dir(fixture.on_disk("team/dir-150")).unwrap();
    export.provision(&request("1", "team/data")).await.unwrap();
    export.provision(&adopting("2", "team/data2")).await.unwrap();
    let held = refused(&export, &adopting("3", "team/dir-150")).await;
    assert_eq!(held, (ErrorKind::DirectoryOverlaps, true));
    settled(&export).await;
    let others = export.unsigned_records().others;
    assert_eq!(others.len(), 200);
    assert!(others.iter().all(|other| other.records == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_100000_names_among_the_records_of_another_cluster_stop_nothing() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    fs::create_dir_all(fixture.on_disk("team/theirs")).unwrap();
    record_of(&fixture, OTHER_CLUSTER, "pvc-1", "team/theirs");
    // Drafts need not be read, which keeps this test short.
    let records = fixture.on_disk(&format!(".nfs-operator/{OTHER_CLUSTER}/records"));
    for number in 0..100_001 {
        fs::write(records.join(format!(".draft-pvc-{number}")), "").unwrap();
    }
    export.provision(&request("1", "team/data")).await.unwrap();
    let held = refused(&export, &adopting("3", "team/theirs")).await;
    assert_eq!(held, (ErrorKind::DirectoryOverlaps, true));
}

fn other(fixture: &StoreFixture) -> StoreClient {
    StoreClient {
        cluster: OTHER_CLUSTER,
        key: 9,
        reservations: Arc::new(PathReservations::new()),
        ..fixture.client()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_clusters_that_adopt_a_directory_at_the_same_time_one_wins() {
    let fixture = StoreFixture::start().await;
    let (ours, theirs) = (fixture.store().await, other(&fixture).open().await);
    for number in 0..20 {
        let directory = format!("shared-{number}");
        fs::create_dir(fixture.on_disk(&directory)).unwrap();
        let uid = number.to_string();
        let (one, two) = (adopting(&uid, &directory), adopting(&format!("{uid}-b"), &directory));
        let (one, two) = tokio::join!(ours.provision(&one), theirs.provision(&two));
        assert_ne!(one.is_ok(), two.is_ok(), "{directory}: {one:?} {two:?}");
        let error = one.err().or(two.err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::DirectoryOverlaps, "{error}");
    }
    let records = |cluster: &str| crate::fixture::names(&fixture.on_disk(&format!(".nfs-operator/{cluster}/records")));
    let all = records(crate::fixture::CLUSTER).len() + records(OTHER_CLUSTER).len();
    assert_eq!(all, 20, "those that came second left no record");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_removed_that_another_cluster_has_recorded_meanwhile() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let newer = |uid: &str, directory: &str, file_id: u64| {
        let volume = format!("pvc-{uid}-theirs");
        let record = json!({"version": 3, "directory": directory, "fileID": file_id, "later": [1]});
        write_record(&fixture, OTHER_CLUSTER, &volume, &record.to_string());
        volume
    };
    let created = async |uid: &str| {
        let directory = format!("dir-{uid}");
        let created = export.provision(&request(uid, &directory)).await.unwrap();
        fs::write(fixture.on_disk(&format!("{directory}/data")), uid).unwrap();
        reclaim(uid, &directory, created.file_id)
    };
    let forget = |volume: &str| {
        fs::remove_file(fixture.on_disk(&format!(".nfs-operator/{OTHER_CLUSTER}/records/{volume}"))).unwrap();
    };
    // By path, in another spelling; by fileid; and without anything to go by.
    let by_path = created("1").await;
    let volume = newer("1", "DIR-1/below", 1 << 60);
    let refused = export.delete(&by_path, &Decided).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReclaimUnsafe, "{refused}");
    assert!(refused.to_string().contains(OTHER_CLUSTER), "{refused}");
    forget(&volume);
    let volume = newer("2", "elsewhere", by_path.file_id.unwrap());
    let refused = export.archive(&by_path, &Decided).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReclaimUnsafe, "{refused}");
    forget(&volume);
    write_record(&fixture, OTHER_CLUSTER, "pvc-x", "rubbish");
    let refused = export.delete(&by_path, &Decided).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::RecordUnusable, "{refused}");
    let file = format!(".nfs-operator/{OTHER_CLUSTER}/records/pvc-x");
    assert!(refused.to_string().contains(&file), "{refused}");
    assert_eq!(fs::read_to_string(fixture.on_disk("dir-1/data")).unwrap(), "1");
    forget("pvc-x");
    export.archive(&by_path, &Decided).await.unwrap();

    // The archive.
    let archive = crate::trust::kept(&export, "pvc-1").await;
    let which = export_store::ArchiveRef {
        volume: "pvc-1".into(),
        claim_uid: "1".into(),
        file_id: by_path.file_id.unwrap(),
    };
    crate::archive_crash::begin_purge(&export, &which).await.unwrap();
    let volume = newer("3", &archive.archive.target, 1 << 60);
    let refused = export.end_purge(&which).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReclaimUnsafe, "{refused}");
    assert!(fixture.on_disk(&archive.archive.target).is_dir());
    forget(&volume);
    export.end_purge(&which).await.unwrap();

    // What was begun for a claim.
    export.provision(&request("5", "dir-5")).await.unwrap();
    let file_id = fs::metadata(fixture.on_disk("dir-5")).unwrap().ino();
    let volume = newer("5", "elsewhere", file_id);
    let refused = export.rollback("pvc-5", "5").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DirectoryOverlaps, "{refused}");
    assert!(fixture.on_disk("dir-5").is_dir());
    forget(&volume);
    export.rollback("pvc-5", "5").await.unwrap();
    assert!(!fixture.on_disk("dir-5").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_comes_between_two_changes_is_noticed_before_the_next_one() {
    for version in [
        VersionChoice::Exactly(Protocol::V4_1),
        VersionChoice::Exactly(Protocol::V4_0),
        VersionChoice::Exactly(Protocol::V3),
    ] {
        for operation in ["provision", "delete", "archive"] {
            let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
            let export = alone(fixture.store().await).await;
            let created = export.provision(&request("1", "mine")).await.unwrap();
            fs::write(fixture.on_disk("mine/data"), "1").unwrap();
            let volume = reclaim("1", "mine", created.file_id);
            let theirs = json!({"version": 3, "directory": if operation == "provision" { "new" } else { "mine" }});
            // From now on, another cluster has a folder on the export.
            write_record(&fixture, OTHER_CLUSTER, "pvc-theirs", &theirs.to_string());
            let refused = match operation {
                "provision" => export.provision(&request("2", "new")).await.unwrap_err(),
                "delete" => export.delete(&volume, &Decided).await.unwrap_err(),
                _ => export.archive(&volume, &Decided).await.unwrap_err(),
            };
            println!("{version:?} {operation}: {refused}");
            assert!(refused.to_string().contains(OTHER_CLUSTER), "{refused}");
            assert!(!fixture.on_disk("new").exists(), "{version:?} {operation}");
            assert_eq!(fs::read_to_string(fixture.on_disk("mine/data")).unwrap(), "1");
            assert_eq!(fixture.records(), ["pvc-1"], "{version:?} {operation}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_somebody_creates_during_the_request_is_refused() {
    let fixture = StoreFixture::start().await;
    let client = StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let export = alone(client.open().await).await;
    let (requests, path) = (AtomicUsize::new(0), fixture.on_disk("new"));
    fixture.proxy.on_record(Direction::Up, move |_| {
        // After the lookup of the path, before the record.
        if requests.fetch_add(1, Ordering::Relaxed) == 1 {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("data"), "theirs").unwrap();
        }
        Action::Forward
    });
    let refused = refused(&export, &request("1", "new")).await;
    assert_eq!(refused, (ErrorKind::DirectoryExists, true));
    assert_eq!(fs::read_to_string(fixture.on_disk("new/data")).unwrap(), "theirs");
    assert_eq!(fixture.records(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_that_only_another_cluster_recorded_show_that_the_secret_is_the_wrong_one() {
    let fixture = StoreFixture::start().await;
    let (ours, theirs) = (fixture.store().await, other(&fixture).open().await);
    theirs.provision(&request("1", "team/theirs")).await.unwrap();
    theirs.provision(&request("2", "team/too")).await.unwrap();
    let names = |numbers: &[u32]| -> Vec<String> { numbers.iter().map(|number| format!("pvc-{number}")).collect() };
    let recorded_by = ours.cluster_with_records_of(&names(&[1, 2, 3])).await.unwrap();
    assert_eq!(recorded_by.as_deref(), Some(OTHER_CLUSTER));
    assert_eq!(
        ours.cluster_with_records_of(&names(&[3])).await.unwrap(),
        None,
        "nobody's"
    );
    assert_eq!(theirs.cluster_with_records_of(&names(&[1, 2])).await.unwrap(), None);
    ours.provision(&request("3", "team/ours")).await.unwrap();
    let recorded_by = ours.cluster_with_records_of(&names(&[1, 2, 3])).await.unwrap();
    assert_eq!(recorded_by, None, "this cluster has records of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_leaves_the_directories_of_other_clusters_that_were_moved_into_the_trash() {
    let fixture = StoreFixture::start().await;
    let (ours, theirs) = (fixture.store().await, other(&fixture).open().await);
    for (uid, directory) in [("1", "theirs/within"), ("2", "theirs/empty"), ("3", "theirs/on-top")] {
        theirs.provision(&request(uid, directory)).await.unwrap();
    }
    let created = ours.provision(&request("4", "ours")).await.unwrap();
    for directory in ["theirs/within", "theirs/on-top", "ours"] {
        fs::write(fixture.on_disk(&format!("{directory}/data")), directory).unwrap();
    }
    // An administrator moved them: two into the directory of a volume, and one into the trash.
    let move_to = |from: &str, to: &str| fs::rename(fixture.on_disk(from), fixture.on_disk(to)).unwrap();
    fs::create_dir(fixture.on_disk("ours/sub")).unwrap();
    move_to("theirs/within", "ours/sub/within");
    move_to("theirs/empty", "ours/empty");
    let trash = format!(".nfs-operator/{}/trash", crate::fixture::CLUSTER);
    move_to("theirs/on-top", &format!("{trash}/on-top"));
    ours.delete(&reclaim("4", "ours", created.file_id), &Decided)
        .await
        .unwrap();
    let report = ours.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.failed, report.left.entries), (3, 2), "{:?}", report.failures);
    let named = |failure: &export_store::PurgeFailure| failure.reason.contains(OTHER_CLUSTER);
    assert!(report.failures.iter().all(named), "{:?}", report.failures);
    let entries = crate::fixture::names(&fixture.on_disk(&trash));
    let entry = entries.iter().find(|name| *name != "on-top").unwrap();
    let read = |path: &str| fs::read_to_string(fixture.on_disk(&format!("{trash}/{path}"))).unwrap();
    assert_eq!(read("on-top/data"), "theirs/on-top");
    assert_eq!(read(&format!("{entry}/sub/within/data")), "theirs/within");
    assert_eq!(
        crate::fixture::names(&fixture.on_disk(&format!("{trash}/{entry}"))),
        ["empty", "sub"]
    );

    for (from, to) in [("sub/within", "within"), ("empty", "empty"), ("../on-top", "on-top")] {
        move_to(&format!("{trash}/{entry}/{from}"), &format!("theirs/{to}"));
    }
    let report = ours.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.failed, report.left.entries), (0, 0));
}

/// Another cluster records a name after this one found it free, and before anything has the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_is_not_restored_to_a_name_or_from_a_name_that_another_cluster_recorded() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "dir-1")).await.unwrap();
    fs::write(fixture.on_disk("dir-1/data"), "1").unwrap();
    export
        .archive(&reclaim("1", "dir-1", created.file_id), &Decided)
        .await
        .unwrap();
    let target = crate::trust::kept(&export, "pvc-1").await.archive.target;
    let restoring = crate::archive_crash::restore("1", created.file_id);
    let forget = || fs::remove_dir_all(fixture.on_disk(&format!(".nfs-operator/{OTHER_CLUSTER}"))).unwrap();
    for theirs in [restoring.directory.to_string(), target.clone()] {
        record_of(&fixture, OTHER_CLUSTER, "pvc-9", &theirs);
        let refused = export.provision(&restoring).await.unwrap_err();
        assert!(refused.to_string().contains(OTHER_CLUSTER), "{refused}");
        assert!(fixture.on_disk(&target).join("data").exists(), "{theirs}");
        forget();
    }
    let restored = export.provision(&restoring).await.unwrap();
    assert_eq!(
        fs::read_to_string(fixture.on_disk(&format!("{}/data", restored.directory))).unwrap(),
        "1"
    );
    // The restore is not undone while another cluster has a record of the directory.
    record_of(&fixture, OTHER_CLUSTER, "pvc-9", &restored.directory.to_string());
    let refused = export
        .rollback(&restoring.volume, &restoring.claim.uid)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains(OTHER_CLUSTER), "{refused}");
    assert!(fixture.on_disk(&restored.directory.to_string()).join("data").exists());
    forget();
    export.rollback(&restoring.volume, &restoring.claim.uid).await.unwrap();
    assert!(fixture.on_disk(&target).join("data").exists());
}
