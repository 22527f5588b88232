//! The rules for the creation of directories: overlap, adoption, records, refusals.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use export_store::ErrorKind;
use export_store::{
    CopyLimits, CopyProgress, CopySource, Decided, DirectoryRequest, ExportStore, Holder, PathReservations, Reclaimed,
    RecoveryReport, ReservedPath, RollbackOutcome, copy_volume,
};
use rig::proxy::has_bytes;
use rig::{Action, Direction, Squash};

use crate::fixture::{CLUSTER, OTHER_CLUSTER, StoreClient, StoreFixture, adopting, reclaim, refused, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_directory_is_refused_or_adopted_as_requested() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    fs::create_dir(fixture.on_disk("old")).unwrap();
    fs::write(fixture.on_disk("old/data"), "precious").unwrap();
    symlink("/etc", fixture.on_disk("link")).unwrap();
    fs::write(fixture.on_disk("file"), "").unwrap();
    let by_label = DirectoryRequest {
        adoptable: false,
        ..adopting("1", "old")
    };
    for (request, reason) in [
        (request("1", "old"), ErrorKind::DirectoryExists),
        (by_label, ErrorKind::DirectoryNotAdoptable),
        (adopting("1", "link"), ErrorKind::NotADirectory),
        (adopting("1", "link/sub"), ErrorKind::NotADirectory),
        (adopting("1", "file"), ErrorKind::NotADirectory),
    ] {
        // A request that was refused before is checked with a dry run first, which has the same result.
        let foreseen = export.dry_run(&request).await.unwrap_err();
        assert_eq!((foreseen.kind(), foreseen.definite_refusal()), (reason, true));
        assert_eq!(refused(&export, &request).await, (reason, true));
    }
    assert_eq!(fixture.records(), Vec::<String>::new());
    for welcome in [request("1", "new"), adopting("1", "old")] {
        export.dry_run(&welcome).await.unwrap();
    }
    assert!(!fixture.on_disk("new").exists());
    assert_eq!(fixture.records(), Vec::<String>::new(), "a dry run changes nothing");

    let created = export.provision(&adopting("1", "old")).await.unwrap();
    assert!(created.adopted);
    let mode = fs::metadata(fixture.on_disk("old")).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o755, "an adopted directory keeps its mode");
    // After a rollback it stays; after a delete it is archived.
    assert_eq!(
        export.rollback("pvc-1", "1").await.unwrap(),
        RollbackOutcome::DirectoryKept
    );
    let created = export.provision(&adopting("2", "old")).await.unwrap();
    let done = export
        .delete(&reclaim("2", "old", created.file_id), &Decided)
        .await
        .unwrap();
    assert!(
        matches!(&done, Reclaimed::Archived { name, .. } if name == "archived-old"),
        "{done:?}"
    );
    assert_eq!(
        fs::read_to_string(fixture.on_disk("archived-old/data")).unwrap(),
        "precious"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_with_a_record_is_not_adopted_before_or_after_a_restart() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let retained = export.provision(&request("1", "team/old")).await.unwrap();
    fs::write(fixture.on_disk("team/old/data"), "of claim 1").unwrap();
    // Its object is deleted, and the record stays, as for a volume with the reclaim policy Retain.
    let volume = Holder::Volume("pvc-1".to_owned());
    client.reservations.insert(volume.clone(), Vec::new(), None);
    client.reservations.remove(&volume);
    let restarted = fixture.client().open().await;
    for export in [&export, &restarted] {
        for taken in ["team/old", "team"] {
            let request = adopting("2", taken);
            assert_eq!(
                refused(export, &request).await,
                (ErrorKind::DirectoryOverlaps, true),
                "{taken}"
            );
        }
    }
    // The directory has another name now, and the record has its fileid.
    fs::rename(fixture.on_disk("team/old"), fixture.on_disk("moved")).unwrap();
    let moved = fixture.client().open().await;
    assert_eq!(
        refused(&moved, &adopting("2", "moved")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    assert_eq!(fixture.records(), ["pvc-1"]);
    assert_eq!(fs::metadata(fixture.on_disk("moved")).unwrap().ino(), retained.file_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_former_path_of_an_archive_is_adopted_only_for_its_own_namespace() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let created = export.provision(&request("1", "old")).await.unwrap();
    fs::write(fixture.on_disk("old/data"), "archived").unwrap();
    export
        .archive(&reclaim("1", "old", created.file_id), &Decided)
        .await
        .unwrap();
    client.reservations.remove(&Holder::Volume("pvc-1".to_owned()));
    // An administrator copied the data back.
    fs::create_dir(fixture.on_disk("old")).unwrap();
    fs::write(fixture.on_disk("old/data"), "archived").unwrap();
    let mut other = adopting("2", "old");
    other.claim.namespace = "other".to_owned();
    other.claim.namespace_uid = "other".to_owned();
    let restarted = fixture.client().open().await;
    for export in [&export, &restarted] {
        let found = export.provision(&other).await.unwrap_err();
        assert_eq!(found.kind(), ErrorKind::DirectoryNotAdoptable, "{found}");
    }
    assert!(restarted.provision(&adopting("3", "old")).await.unwrap().adopted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_do_not_overlap_by_path_by_case_or_by_fileid() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    export.provision(&request("1", "team/one")).await.unwrap();
    for taken in ["team/one", "TEAM/One", "team", "team/one/below"] {
        assert_eq!(
            refused(&export, &request("2", taken)).await,
            (ErrorKind::DirectoryOverlaps, true),
            "{taken}"
        );
    }
    // Renamed by hand, it still belongs to the first volume.
    fs::rename(fixture.on_disk("team/one"), fixture.on_disk("moved")).unwrap();
    assert_eq!(
        refused(&export, &adopting("2", "moved")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    assert_eq!(
        refused(&export, &request("2", "moved/x")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    assert_eq!(fixture.records(), ["pvc-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_nested_in_another_and_another_clusters_directories_are_left_alone() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    // The backend of another operator, on a path inside ours.
    fs::create_dir_all(fixture.on_disk("nested/.nfs-operator")).unwrap();
    assert_eq!(
        refused(&export, &request("1", "nested/x")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    assert_eq!(
        refused(&export, &adopting("1", "nested")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    // Another backend of this operator, by its address.
    let inside = vec![ReservedPath::on_server("127.0.0.1", "/export/other")];
    let client = fixture.client();
    let ours = client.open().await;
    client
        .reservations
        .insert(Holder::BackendRoot("other".into()), inside, None);
    assert_eq!(
        refused(&ours, &request("1", "other/x")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    // The volume of another cluster on the same export.
    let other = StoreClient {
        cluster: OTHER_CLUSTER,
        reservations: Arc::new(PathReservations::new()),
        ..fixture.client()
    };
    let other = other.open().await;
    other.provision(&request("9", "theirs")).await.unwrap();
    assert_eq!(
        refused(&export, &adopting("1", "theirs")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    assert_eq!(
        refused(&export, &request("1", "theirs/x")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    let settled = export.recover(&|_: &str| false).await.unwrap();
    assert!(settled.open.is_empty() && settled.stuck.is_empty());
    assert_eq!(fixture.records(), Vec::<String>::new());
    assert!(fixture.on_disk("theirs").is_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_another_claim_a_damaged_record_or_a_foreign_object_in_its_place_stops_provisioning() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let records = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records"));
    export.provision(&request("1", "a")).await.unwrap();
    let other = DirectoryRequest {
        volume: "pvc-1".into(),
        ..request("2", "b")
    };
    assert_eq!(refused(&export, &other).await, (ErrorKind::RecordUnusable, false));
    fs::write(records.join("pvc-3"), "garbage").unwrap();
    assert_eq!(
        refused(&export, &request("3", "c")).await,
        (ErrorKind::RecordUnusable, false)
    );
    symlink("/etc/passwd", records.join("pvc-4")).unwrap();
    assert_eq!(
        refused(&export, &request("4", "d")).await,
        (ErrorKind::RecordUnusable, false)
    );
    fs::create_dir(records.join("pvc-5")).unwrap();
    assert_eq!(
        refused(&export, &request("5", "e")).await,
        (ErrorKind::RecordUnusable, false)
    );
    fs::write(records.join("pvc-6"), vec![b' '; 20_000]).unwrap();
    assert_eq!(
        refused(&export, &request("6", "f")).await,
        (ErrorKind::RecordUnusable, false)
    );
    // Truncated: nothing was created before, and the record is written again.
    fs::write(records.join("pvc-7"), "{\"version\":1,").unwrap();
    export.provision(&request("7", "g")).await.unwrap();
    let settled = export.recover(&|volume: &str| volume == "pvc-1").await.unwrap();
    assert_eq!(settled.damaged.len(), 4, "{:?}", settled.damaged);
    let open: Vec<_> = settled.open.iter().map(|record| record.volume.as_str()).collect();
    assert_eq!(open, ["pvc-7"]);
    assert_eq!(fixture.listed(), ["a", "g"]);
}

/// A process that stops while it writes a record leaves an empty file where the server has no atomic creation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_whose_writer_stopped_stands_in_nobodys_way() {
    let fixture = StoreFixture::start().await;
    let export = Arc::new(fixture.store().await);
    let truncate = |volume: &str| fs::write(crate::trust::path(&fixture, CLUSTER, volume), "").unwrap();
    let source = export.provision(&request("1", "source")).await.unwrap().file_id;
    let source = CopySource::Volume(reclaim("1", "source", source));
    truncate("pvc-2");
    let progress = Arc::new(CopyProgress::default());
    let target = request("2", "copy");
    copy_volume(
        (&export, &source),
        (&export, &target),
        &CopyLimits::default(),
        &progress,
    )
    .await
    .unwrap();
    let volume = export.provision(&request("3", "volume")).await.unwrap();
    truncate("pvc-3");
    let unrecorded = reclaim("3", "volume", volume.file_id);
    let recorded = export.create_missing_record(&unrecorded, false);
    assert_eq!(recorded.await.unwrap(), volume.file_id);
    export.provision(&request("4", "abandoned")).await.unwrap();
    truncate("pvc-4");
    let claim = request("4", "abandoned").claim.uid;
    let next = fixture.store().await;
    assert_eq!(next.rollback("pvc-4", &claim).await.unwrap(), RollbackOutcome::Gone);
    assert_eq!(fixture.records(), ["pvc-1", "pvc-2", "pvc-3"]);
    assert!(
        fixture.on_disk("abandoned").is_dir(),
        "nothing says that it is the operator's"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_a_squashed_root_cannot_set_is_refused_and_leaves_nothing() {
    let fixture = StoreFixture::with(rig::Export::new("/export").squash(Squash::Root)).await;
    fs::set_permissions(&fixture.disk, fs::Permissions::from_mode(0o777)).unwrap();
    let export = fixture.store().await;
    assert!(export.probe_write().await.unwrap().squashed);
    let owned = DirectoryRequest {
        uid: Some(1234),
        ..request("1", "a")
    };
    assert_eq!(refused(&export, &owned).await, (ErrorKind::RootSquashed, true));
    assert_eq!((fixture.listed(), fixture.records()), (Vec::new(), Vec::new()));
    // Without an owner, nothing needs root.
    export.provision(&request("1", "a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_reported_as_no_space_and_leaves_nothing_once_there_is_space() {
    let fixture = StoreFixture::with(rig::Export::new("/export").tmpfs(1 << 20, Some(24))).await;
    let export = fixture.store().await;
    let mut created = 0;
    let error = loop {
        match export
            .provision(&request(&format!("{created}"), &format!("d{created}")))
            .await
        {
            Ok(_) => created += 1,
            Err(error) => break error,
        }
        assert!(created < 100);
    };
    println!("{created}: {error}");
    assert!(
        matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::NoInodes),
        "{error}"
    );
    // The removal of a volume frees space for the one that failed.
    export.rollback("pvc-0", "0").await.unwrap();
    export
        .provision(&request(&format!("{created}"), &format!("d{created}")))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_continue_after_a_server_restart() {
    let mut fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    export.provision(&request("1", "a")).await.unwrap();
    fixture.nfs.restart(rig::StableStorage::Lost).await.unwrap();
    export.provision(&request("2", "b")).await.unwrap();
    assert_eq!(fixture.listed(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_leadership_loss_before_any_change_the_next_leader_completes_the_operation() {
    let fixture = StoreFixture::start().await;
    for allowed in 0.. {
        let (uid, directory) = (allowed.to_string(), format!("data-{allowed}"));
        let requested = AtomicUsize::new(0);
        let leads = move || requested.fetch_add(1, Ordering::Relaxed) < allowed;
        let former = fixture.store().await.with_leadership_check(leads);
        let done = former.provision(&request(&uid, &directory)).await;
        if let Err(error) = &done {
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
            assert!(!error.definite_refusal(), "no other backend is tried");
        }
        if allowed == 0 {
            assert_eq!(
                (fixture.records(), fixture.listed()),
                (Vec::new(), Vec::new()),
                "nothing was started"
            );
        }
        drop(former);
        let next = fixture.store().await;
        next.provision(&request(&uid, &directory)).await.unwrap();
        if done.is_ok() {
            assert!(allowed >= 3, "record, directory and record are changes");
            assert_eq!(fixture.records().len(), allowed + 1);
            assert_eq!(fixture.listed().len(), allowed + 1);
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_on_one_export_recover_only_their_own_records() {
    let fixture = StoreFixture::start().await;
    let (fast, slow) = fixture.two_backends().await;
    for uid in ["1", "2"] {
        fast.provision(&request(uid, &format!("d{uid}"))).await.unwrap();
    }
    let none = |_: &str| false;
    let open =
        |report: &RecoveryReport| -> Vec<String> { report.open.iter().map(|record| record.volume.clone()).collect() };
    assert_eq!(open(&slow.recover(&none).await.unwrap()), Vec::<String>::new());
    assert_eq!(open(&fast.recover(&none).await.unwrap()).len(), 2);
    // The paths are taken for both.
    assert_eq!(
        refused(&slow, &request("3", "d1")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_a_backend_read_reserves_nothing_once_its_own_backend_removed_it() {
    let fixture = StoreFixture::start().await;
    let (fast, _) = fixture.two_backends().await;
    let file_id = fast.provision(&request("1", "d1")).await.unwrap().file_id;
    fs::write(fixture.on_disk("d1/file"), "").unwrap();
    fast.delete(&reclaim("1", "d1", file_id), &Decided).await.unwrap();
    assert_eq!(
        fixture.records(),
        ["pvc-1"],
        "the process ended before it removed the record"
    );
    // The next process: the other backend is the first that reads the record.
    let (fast, slow) = fixture.two_backends().await;
    let none = |_: &str| false;
    slow.recover(&none).await.unwrap();
    fast.recover(&none).await.unwrap();
    assert_eq!(fixture.records(), Vec::<String>::new());
    fast.provision(&request("2", "d1")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_on_one_export_wait_for_each_others_operations_on_a_volume() {
    let fixture = StoreFixture::start().await;
    let slow = StoreClient {
        backend: "slow",
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let fast = StoreClient {
        backend: "fast",
        port: fixture.nfs.port(),
        ..slow.clone()
    };
    let (slow, fast) = (slow.open().await, fast.open().await);
    let contended = request("1", "d1");
    fixture.proxy.hang(true);
    let mut first = pin!(slow.provision(&contended));
    assert!(futures::poll!(first.as_mut()).is_pending());
    let mut second = pin!(fast.provision(&contended));
    let others = async {
        for uid in ["2", "3", "4", "5"] {
            fast.provision(&request(uid, &format!("d{uid}"))).await.unwrap();
        }
    };
    tokio::select! {
        made = &mut second => panic!("it did not wait: {made:?}"),
        () = others => {}
    }
    assert_eq!(fixture.listed(), ["d2", "d3", "d4", "d5"]);
    fixture.proxy.hang(false);
    let (first, second) = futures::join!(first, second);
    assert_eq!(first.unwrap().file_id, second.unwrap().file_id);
    assert_eq!(fixture.listed(), ["d1", "d2", "d3", "d4", "d5"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_moved_to_another_backend_of_the_export_is_rolled_back_only_there() {
    let fixture = StoreFixture::start().await;
    let (fast, slow) = fixture.two_backends().await;
    let made = fast.provision(&request("1", "d1")).await.unwrap();
    // Its volume was not created, and the claim is placed again.
    let resumed = slow.provision(&request("1", "d1")).await.unwrap();
    assert_eq!(resumed.file_id, made.file_id);
    assert_eq!(fixture.record("pvc-1")["backend"], "slow");
    // The former backend still remembers it as unfinished.
    assert_eq!(fast.rollback("pvc-1", "1").await.unwrap(), RollbackOutcome::Gone);
    assert_eq!(
        fast.rollback_superseded("pvc-1", "1").await.unwrap(),
        RollbackOutcome::Gone
    );
    assert_eq!(
        (fixture.listed(), fixture.records()),
        (vec!["d1".to_owned()], vec!["pvc-1".to_owned()])
    );
    assert_eq!(
        refused(&fast, &request("2", "d1")).await,
        (ErrorKind::DirectoryOverlaps, true)
    );
    assert_eq!(slow.rollback("pvc-1", "1").await.unwrap(), RollbackOutcome::Gone);
    assert_eq!((fixture.listed(), fixture.records()), (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adoption_reads_each_record_of_another_directory_at_most_once() {
    const ARCHIVES: usize = 20;
    let fixture = StoreFixture::start().await;
    let client = StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let export = client.open().await;
    for number in 0..ARCHIVES {
        let (uid, directory) = (format!("old-{number}"), format!("old-{number}"));
        let made = export.provision(&request(&uid, &directory)).await.unwrap();
        fs::write(fixture.on_disk(&directory).join("data"), "").unwrap();
        export
            .archive(&reclaim(&uid, &directory, made.file_id), &Decided)
            .await
            .unwrap();
        client.reservations.remove(&Holder::Volume(format!("pvc-{uid}")));
    }
    let reads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reads);
    fixture.proxy.on_record(Direction::Up, move |request| {
        if has_bytes(request, b"pvc-old-") {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Action::Forward
    });
    let adopt = async |export: &ExportStore, name: &str| {
        fs::create_dir(fixture.on_disk(name)).unwrap();
        fs::write(fixture.on_disk(name).join("data"), "").unwrap();
        assert!(export.provision(&adopting(name, name)).await.unwrap().adopted);
        reads.swap(0, Ordering::Relaxed)
    };
    assert_eq!(adopt(&export, "a").await, 0, "this process wrote them");
    let reservations = Arc::new(PathReservations::new());
    let restarted = StoreClient { reservations, ..client }.open().await;
    assert!(adopt(&restarted, "b").await >= ARCHIVES);
    assert_eq!(adopt(&restarted, "c").await, 0);
    // The former path of an archive is still recognized.
    let mut other = adopting("d", "old-1");
    other.claim.namespace = "other".to_owned();
    fs::create_dir(fixture.on_disk("old-1")).unwrap();
    assert_eq!(
        refused(&restarted, &other).await,
        (ErrorKind::DirectoryNotAdoptable, true)
    );
}
