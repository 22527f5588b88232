//! The rules that protect data, on a real server: identity, our own folder, overlap, adoption, reclaim.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Arc;

use nfs_operator::api::Reason;
use nfs_operator::export::{
    DirectoryRequest, Expected, ExportError, Holder, Ledger, ManagedExport, Place, ReclaimRequest, Reclaimed,
    UndoOutcome,
};
use nfs_operator::nfs::Credential;
use rig::Squash;

use crate::export_lab::{CLUSTER, Lab, Life, OTHER_CLUSTER, adopting, identify, names, reclaim, request};

async fn refused(export: &ManagedExport, request: &DirectoryRequest) -> (Reason, bool) {
    let error = export.provision(request).await.unwrap_err();
    println!("{error}");
    (error.reason(), error.definite_refusal())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_changed_before_identity_was_confirmed() {
    let lab = Lab::start().await;
    let export = lab.life().connect().await;
    let (reason, definite) = refused(&export, &request("1", "a")).await;
    assert_eq!((reason, definite), (Reason::IdentityNotConfirmed, false));
    assert_eq!(names(&lab.disk), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_gets_one_identity_however_many_come_at_once() {
    let lab = Lab::start().await;
    let lives = (0..8).map(|_| {
        let life = lab.life();
        tokio::spawn(async move { identify(&life.connect().await).await })
    });
    let mut identities = Vec::new();
    for life in lives.collect::<Vec<_>>() {
        identities.push(life.await.unwrap());
    }
    let first = identities.first().unwrap().id.clone();
    assert!(identities.iter().all(|identity| identity.id == first));
    assert_eq!(identities.iter().filter(|identity| identity.created).count(), 1);
    for own in ["", "/identity", &format!("/{CLUSTER}"), &format!("/{CLUSTER}/trash")] {
        let found = fs::metadata(lab.on_disk(&format!(".nfs-operator{own}"))).unwrap();
        assert_eq!(found.mode() & 0o077, 0, "{own}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_swapped_for_an_empty_one_or_a_copy_is_not_touched() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    let identity = identify(&export).await;
    let expected = Expected {
        export_id: Some(identity.id.clone()),
        root_file_id: Some(identity.root_file_id),
        ..Expected::default()
    };
    let mismatch = async |expected: &Expected| {
        let error = export.confirm_identity(expected.clone()).await.unwrap_err();
        assert_eq!(error.reason(), Reason::IdentityMismatch, "{error}");
        println!("{error}");
        let (reason, definite) = refused(&export, &request("1", "a")).await;
        assert_eq!((reason, definite), (Reason::IdentityMismatch, false));
    };
    // Empty, as when a disk is not mounted: even when it is said that one may be made.
    let away = lab.disk.with_extension("away");
    fs::rename(lab.on_disk(".nfs-operator"), &away).unwrap();
    let may_create = Expected {
        may_create: true,
        ..expected.clone()
    };
    mismatch(&may_create).await;
    assert_eq!(names(&lab.disk), Vec::<String>::new());
    // Another one.
    let file = away.join("identity");
    let text = fs::read_to_string(&file).unwrap();
    fs::rename(&away, lab.on_disk(".nfs-operator")).unwrap();
    let file_now = lab.on_disk(".nfs-operator/identity");
    fs::write(&file_now, text.replace(&identity.id, "another")).unwrap();
    mismatch(&expected).await;
    // A copy: the file says that it was made for another root.
    let copied = text.replace(&identity.root_file_id.to_string(), "12345");
    fs::write(&file_now, &copied).unwrap();
    let unknown_root = Expected {
        root_file_id: None,
        ..expected.clone()
    };
    mismatch(&unknown_root).await;
    assert_eq!(fs::read_to_string(&file_now).unwrap(), copied);
    // Accepted by an administrator, it stays accepted.
    let accepted = Expected {
        accepted: true,
        ..unknown_root
    };
    export.confirm_identity(accepted).await.unwrap();
    assert_eq!(export.confirm_identity(expected).await.unwrap().id, identity.id);
    export.provision(&request("1", "a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_ours_that_others_may_enter_or_that_is_a_link_is_not_used() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    let own = lab.on_disk(".nfs-operator");
    let unsafe_now = async || {
        let expected = Expected {
            may_create: true,
            ..Expected::default()
        };
        let confirmed = export.confirm_identity(expected).await.map(drop);
        let error = match confirmed {
            Ok(()) => export.probe_write().await.map(drop).unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.reason(), Reason::ReservedDirectoryUnsafe, "{error}");
        let (reason, _) = refused(&export, &request("1", "a")).await;
        assert_eq!(reason, Reason::ReservedDirectoryUnsafe);
    };
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    unsafe_now().await;
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    identify(&export).await;
    std::os::unix::fs::chown(own.join(CLUSTER).join("records"), Some(1000), None).unwrap();
    unsafe_now().await;
    std::os::unix::fs::chown(own.join(CLUSTER).join("records"), Some(0), None).unwrap();
    fs::rename(&own, lab.on_disk("elsewhere")).unwrap();
    symlink("elsewhere", &own).unwrap();
    unsafe_now().await;
    fs::remove_file(&own).unwrap();
    fs::write(&own, "a file").unwrap();
    unsafe_now().await;
    fs::remove_file(&own).unwrap();
    fs::rename(lab.on_disk("elsewhere"), &own).unwrap();
    identify(&export).await;
    let probe = export.probe_write().await.unwrap();
    assert_eq!((probe.effective_uid, probe.squashed), (Some(0), false));
    assert_eq!(lab.listed(), Vec::<String>::new());
    assert_eq!(names(&own.join(CLUSTER)), ["records", "trash"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_there_is_refused_or_adopted_as_asked() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    fs::create_dir(lab.on_disk("old")).unwrap();
    fs::write(lab.on_disk("old/data"), "precious").unwrap();
    assert_eq!(
        refused(&export, &request("1", "old")).await,
        (Reason::DirectoryExists, true)
    );
    let by_label = DirectoryRequest {
        adoptable: false,
        ..adopting("1", "old")
    };
    assert_eq!(refused(&export, &by_label).await, (Reason::DirectoryExists, true));
    symlink("/etc", lab.on_disk("link")).unwrap();
    assert_eq!(
        refused(&export, &adopting("1", "link")).await,
        (Reason::NotADirectory, true)
    );
    assert_eq!(
        refused(&export, &adopting("1", "link/sub")).await,
        (Reason::NotADirectory, true)
    );
    fs::write(lab.on_disk("file"), "").unwrap();
    assert_eq!(
        refused(&export, &adopting("1", "file")).await,
        (Reason::NotADirectory, true)
    );
    assert_eq!(lab.records(), Vec::<String>::new());

    let made = export.provision(&adopting("1", "old")).await.unwrap();
    assert!(made.adopted);
    let mode = fs::metadata(lab.on_disk("old")).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o755, "an adopted directory keeps its mode");
    // Undone, it stays; deleted, it is archived.
    assert_eq!(export.undo("pvc-1", "1").await.unwrap(), UndoOutcome::DirectoryKept);
    let made = export.provision(&adopting("2", "old")).await.unwrap();
    let done = export.delete(&reclaim("2", "old", made.file_id)).await.unwrap();
    assert!(
        matches!(&done, Reclaimed::Archived { name, .. } if name == "archived-old"),
        "{done:?}"
    );
    assert_eq!(
        fs::read_to_string(lab.on_disk("archived-old/data")).unwrap(),
        "precious"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_do_not_overlap_by_path_by_case_or_by_fileid() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    export.provision(&request("1", "team/one")).await.unwrap();
    for taken in ["team/one", "TEAM/One", "team", "team/one/below"] {
        assert_eq!(
            refused(&export, &request("2", taken)).await,
            (Reason::DirectoryOverlaps, true),
            "{taken}"
        );
    }
    // Renamed by hand: it is still the first volume's.
    fs::rename(lab.on_disk("team/one"), lab.on_disk("moved")).unwrap();
    assert_eq!(
        refused(&export, &adopting("2", "moved")).await,
        (Reason::DirectoryOverlaps, true)
    );
    assert_eq!(
        refused(&export, &request("2", "moved/x")).await,
        (Reason::DirectoryOverlaps, true)
    );
    assert_eq!(lab.records(), ["pvc-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_nested_in_another_and_another_clusters_directories_are_left_alone() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    // Another operator's backend, on a path inside ours.
    fs::create_dir_all(lab.on_disk("nested/.nfs-operator")).unwrap();
    assert_eq!(
        refused(&export, &request("1", "nested/x")).await,
        (Reason::DirectoryOverlaps, true)
    );
    assert_eq!(
        refused(&export, &adopting("1", "nested")).await,
        (Reason::DirectoryOverlaps, true)
    );
    // Another backend of ours, by its address.
    let inside = vec![Place::on_server("127.0.0.1", "/export/other")];
    let life = lab.life();
    let ours = life.begin().await;
    life.ledger.insert(Holder::BackendRoot("other".into()), inside, None);
    assert_eq!(
        refused(&ours, &request("1", "other/x")).await,
        (Reason::DirectoryOverlaps, true)
    );
    // Another cluster's volume on the same export.
    let other = Life {
        cluster: OTHER_CLUSTER,
        ledger: Arc::new(Ledger::new()),
        ..lab.life()
    };
    let other = other.begin().await;
    other.provision(&request("9", "theirs")).await.unwrap();
    assert_eq!(
        refused(&export, &adopting("1", "theirs")).await,
        (Reason::DirectoryOverlaps, true)
    );
    assert_eq!(
        refused(&export, &request("1", "theirs/x")).await,
        (Reason::DirectoryOverlaps, true)
    );
    let settled = export.settle(&|_: &str| false).await.unwrap();
    assert!(settled.open.is_empty() && settled.stuck.is_empty());
    assert_eq!(lab.records(), Vec::<String>::new());
    assert!(lab.on_disk("theirs").is_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_another_claim_a_damaged_one_and_a_foreign_thing_stop_it() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    let records = lab.on_disk(&format!(".nfs-operator/{CLUSTER}/records"));
    export.provision(&request("1", "a")).await.unwrap();
    let other = DirectoryRequest {
        volume: "pvc-1".into(),
        ..request("2", "b")
    };
    assert_eq!(refused(&export, &other).await, (Reason::RecordUnusable, false));
    fs::write(records.join("pvc-3"), "garbage").unwrap();
    assert_eq!(
        refused(&export, &request("3", "c")).await,
        (Reason::RecordUnusable, false)
    );
    symlink("/etc/passwd", records.join("pvc-4")).unwrap();
    assert_eq!(
        refused(&export, &request("4", "d")).await,
        (Reason::RecordUnusable, false)
    );
    fs::create_dir(records.join("pvc-5")).unwrap();
    assert_eq!(
        refused(&export, &request("5", "e")).await,
        (Reason::RecordUnusable, false)
    );
    fs::write(records.join("pvc-6"), vec![b' '; 20_000]).unwrap();
    assert_eq!(
        refused(&export, &request("6", "f")).await,
        (Reason::RecordUnusable, false)
    );
    // Cut short: nothing was made by then, and it is written anew.
    fs::write(records.join("pvc-7"), "{\"version\":1,").unwrap();
    export.provision(&request("7", "g")).await.unwrap();
    let settled = export.settle(&|volume: &str| volume == "pvc-1").await.unwrap();
    assert_eq!(settled.damaged.len(), 4, "{:?}", settled.damaged);
    let open: Vec<_> = settled.open.iter().map(|record| record.volume.as_str()).collect();
    assert_eq!(open, ["pvc-7"]);
    assert_eq!(lab.listed(), ["a", "g"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reclaim_is_refused_where_volume_record_and_directory_disagree() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    let made = export.provision(&request("1", "a")).await.unwrap();
    fs::write(lab.on_disk("a/data"), "").unwrap();
    let right = reclaim("1", "a", made.file_id);
    let refused = async |request: &ReclaimRequest| {
        let archive = export.archive(request).await.unwrap_err().reason();
        let delete = export.delete(request).await.unwrap_err().reason();
        assert_eq!(archive, delete);
        assert!(lab.on_disk("a/data").exists());
        archive
    };
    let wrong = |change: &dyn Fn(&mut ReclaimRequest)| {
        let mut request = right.clone();
        change(&mut request);
        request
    };
    assert_eq!(refused(&wrong(&|it| it.file_id = Some(1))).await, Reason::ReclaimUnsafe);
    assert_eq!(
        refused(&wrong(&|it| it.directory = reclaim("1", "b", 1).directory)).await,
        Reason::ReclaimUnsafe
    );
    assert_eq!(
        refused(&wrong(&|it| it.claim.uid = "2".into())).await,
        Reason::RecordUnusable
    );
    assert_eq!(
        refused(&wrong(&|it| it.volume = "pvc-2".into())).await,
        Reason::RecordMissing
    );
    // Another volume has it too.
    let places = vec![Place::on_server("127.0.0.1", "/export/a/below")];
    let life = lab.life();
    let watched = life.begin().await;
    life.ledger.insert(Holder::Volume("static".into()), places, None);
    let error = watched.delete(&right).await.unwrap_err();
    assert!(matches!(error, ExportError::Overlaps { .. }), "{error}");
    // Something else has the name.
    fs::rename(lab.on_disk("a"), lab.on_disk("b")).unwrap();
    fs::create_dir(lab.on_disk("a")).unwrap();
    assert_eq!(export.delete(&right).await.unwrap_err().reason(), Reason::ReclaimUnsafe);
    fs::remove_dir(lab.on_disk("a")).unwrap();
    // Gone: to delete it is done; to archive it is not.
    assert_eq!(
        export.archive(&right).await.unwrap_err().reason(),
        Reason::DirectoryMissing
    );
    assert_eq!(export.delete(&right).await.unwrap(), Reclaimed::AlreadyGone);
    assert!(lab.on_disk("b/data").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archives_of_the_same_name_are_both_kept_and_strangers_are_not_replaced() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    fs::create_dir(lab.on_disk("archived-data")).unwrap();
    for (uid, parent) in [("1", "x"), ("2", "y")] {
        let directory = format!("{parent}/data");
        let made = export.provision(&request(uid, &directory)).await.unwrap();
        fs::write(lab.on_disk(&format!("{directory}/file")), uid).unwrap();
        let done = export.archive(&reclaim(uid, &directory, made.file_id)).await.unwrap();
        let Reclaimed::Archived { name, .. } = done else {
            panic!("{done:?}")
        };
        assert_eq!(fs::read_to_string(lab.on_disk(&name).join("file")).unwrap(), uid);
    }
    assert_eq!(names(&lab.on_disk("archived-data")), Vec::<String>::new());
    assert_eq!(export.count_archives(), 2);
    let next = lab.confirmed().await;
    next.settle(&|_: &str| false).await.unwrap();
    assert_eq!(next.count_archives(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undo_never_removes_what_a_volume_names_or_what_holds_something() {
    let lab = Lab::start().await;
    let life = lab.life();
    let export = life.begin().await;
    let made = export.provision(&request("1", "a")).await.unwrap();
    fs::write(lab.on_disk("a/file"), "").unwrap();
    assert_eq!(export.undo("pvc-1", "1").await.unwrap(), UndoOutcome::NotEmpty);
    fs::remove_file(lab.on_disk("a/file")).unwrap();
    let file = Some((identify(&export).await.id, made.file_id));
    life.ledger
        .insert(Holder::Volume("pvc-1".into()), Vec::new(), file.clone());
    assert_eq!(
        export.undo("pvc-1", "1").await.unwrap_err().reason(),
        Reason::DirectoryOverlaps
    );
    life.ledger.remove(&Holder::Volume("pvc-1".into()));
    life.ledger.insert(Holder::Volume("static".into()), Vec::new(), file);
    assert_eq!(
        export.undo("pvc-1", "1").await.unwrap_err().reason(),
        Reason::DirectoryOverlaps
    );
    assert!(lab.on_disk("a").is_dir());
    life.ledger.remove(&Holder::Volume("static".into()));
    assert_eq!(export.undo("pvc-1", "1").await.unwrap(), UndoOutcome::Gone);
    assert_eq!(lab.listed(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_a_squashed_root_cannot_set_is_refused_and_nothing_is_left() {
    let lab = Lab::with(rig::Export::new("/export").squash(Squash::Root)).await;
    fs::set_permissions(&lab.disk, fs::Permissions::from_mode(0o777)).unwrap();
    let export = lab.confirmed().await;
    assert!(export.probe_write().await.unwrap().squashed);
    let owned = DirectoryRequest {
        uid: Some(1234),
        ..request("1", "a")
    };
    assert_eq!(refused(&export, &owned).await, (Reason::RootSquashed, true));
    assert_eq!((lab.listed(), lab.records()), (Vec::new(), Vec::new()));
    // Without an owner nothing needs root.
    export.provision(&request("1", "a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_says_no_space_and_leaves_nothing_behind_once_there_is_some() {
    let lab = Lab::with(rig::Export::new("/export").tmpfs(1 << 20, Some(24))).await;
    let export = lab.confirmed().await;
    let mut made = 0;
    let error = loop {
        match export
            .provision(&request(&format!("{made}"), &format!("d{made}")))
            .await
        {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 100);
    };
    println!("{made}: {error}");
    assert!(matches!(error.reason(), Reason::NoSpace | Reason::NoInodes), "{error}");
    // One volume less makes room for the one that failed.
    export.undo("pvc-0", "0").await.unwrap();
    export
        .provision(&request(&format!("{made}"), &format!("d{made}")))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_after_the_server_was_restarted() {
    let mut lab = Lab::start().await;
    let export = lab.confirmed().await;
    export.provision(&request("1", "a")).await.unwrap();
    lab.nfs.restart(rig::Recovery::Lost).await.unwrap();
    export.provision(&request("2", "b")).await.unwrap();
    assert_eq!(lab.listed(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_the_former_provisioner_is_recorded_before_it_is_touched() {
    let lab = Lab::start().await;
    let life = Life {
        credential: Credential::default(),
        ..lab.life()
    };
    let export = life.begin().await;
    fs::create_dir(lab.on_disk("team-data-pvc-1")).unwrap();
    fs::write(lab.on_disk("team-data-pvc-1/file"), "").unwrap();
    let unknown = ReclaimRequest {
        file_id: None,
        ..reclaim("1", "team-data-pvc-1", 0)
    };
    assert_eq!(
        export.delete(&unknown).await.unwrap_err().reason(),
        Reason::RecordMissing
    );
    let file_id = export.register(&unknown, false).await.unwrap();
    assert_eq!(fs::metadata(lab.on_disk("team-data-pvc-1")).unwrap().ino(), file_id);
    assert_eq!(export.delete(&unknown).await.unwrap(), Reclaimed::Deleted);
    assert_eq!(lab.listed(), Vec::<String>::new());
    assert_eq!(export.retain(&unknown).await.unwrap(), Reclaimed::Deleted);
}
