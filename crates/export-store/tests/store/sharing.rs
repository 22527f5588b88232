//! Directories that volumes share (data-safety rule 26).

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use export_store::{
    Decided, DirectoryRequest, ErrorKind, GroupRange, Holder, PathReservations, Reclaimed, RecordName, Recoverability,
    ReservedPath, RollbackOutcome, Sharing,
};

use crate::crash::at_every_moment;
use crate::fixture::{CLUSTER, OTHER_CLUSTER, StoreClient, StoreFixture, adopting, reclaim, refused, request, sharing};
use crate::trust::forge;

/// Creates a directory with data in it, which the operator did not make.
fn common(fixture: &StoreFixture, directory: &str) {
    let path = fixture.on_disk(directory);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("data"), "everybody's").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
}

/// Returns what a change of the directory, of its entries or of its attributes would change.
fn state_of(path: &Path) -> (u64, u32, u32, u32, i64, i64, String) {
    let found = fs::metadata(path).unwrap();
    let (ino, mode, uid, gid) = (found.ino(), found.mode(), found.uid(), found.gid());
    let data = fs::read_to_string(path.join("data")).unwrap();
    (ino, mode, uid, gid, found.ctime(), found.ctime_nsec(), data)
}

fn other(fixture: &StoreFixture) -> StoreClient {
    StoreClient {
        cluster: OTHER_CLUSTER,
        key: 9,
        reservations: Arc::new(PathReservations::new()),
        ..fixture.client()
    }
}

const OVERLAPS: (ErrorKind, bool) = (ErrorKind::DirectoryOverlaps, true);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_share_a_directory_that_is_never_created_changed_archived_or_deleted() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let of = |uid: &str| DirectoryRequest {
        mode: 0o700,
        mode_requested: true,
        adopted_mode: Some(0o700),
        uid: Some(4000),
        gid: Some(4000),
        gid_range: Some(GroupRange { min: 5000, max: 5001 }),
        ..sharing(uid, "data/common")
    };
    let foreseen = export.dry_run(&of("1")).await.unwrap_err();
    assert_eq!(foreseen.kind(), ErrorKind::SharedDirectoryMissing, "{foreseen}");
    let missing = refused(&export, &of("1")).await;
    assert_eq!(missing, (ErrorKind::SharedDirectoryMissing, true));
    assert_eq!((fixture.listed(), fixture.records()), (Vec::new(), Vec::new()));

    symlink("/etc", fixture.on_disk("link")).unwrap();
    fs::write(fixture.on_disk("file"), "").unwrap();
    for unusable in ["link", "link/sub", "file"] {
        let found = refused(&export, &sharing("1", unusable)).await;
        assert_eq!(found, (ErrorKind::NotADirectory, true), "{unusable}");
    }
    let chosen = DirectoryRequest {
        adoptable: false,
        ..of("1")
    };
    common(&fixture, "data/common");
    assert_eq!(
        refused(&export, &chosen).await,
        (ErrorKind::DirectoryNotShareable, true)
    );
    assert_eq!(fixture.records(), Vec::<String>::new());

    let path = fixture.on_disk("data/common");
    let before = state_of(&path);
    for uid in ["1", "2", "3", "4"] {
        export.dry_run(&of(uid)).await.unwrap();
        let created = export.provision(&of(uid)).await.unwrap();
        assert!(created.shared && created.adopted, "{created:?}");
        assert_eq!((created.group, created.file_id), (None, before.0));
        // Again, as after a lost reply.
        assert_eq!(export.provision(&of(uid)).await.unwrap(), created);
        let record = fixture.record(&format!("pvc-{uid}"));
        assert_eq!((&record["version"], &record["shared"]), (&2.into(), &true.into()));
    }
    assert_eq!(
        export.rollback("pvc-4", "4").await.unwrap(),
        RollbackOutcome::DirectoryKept
    );
    for (uid, left) in [("1", 2), ("2", 1), ("3", 0)] {
        let volume = reclaim(uid, "data/common", before.0);
        let done = match uid {
            "1" => export.delete(&volume, &Decided).await,
            "2" => export.archive(&volume, &Decided).await,
            _ => export.retain(&volume, &Decided).await,
        };
        assert_eq!(done.unwrap(), Reclaimed::Retained);
        assert_eq!(fixture.records().len(), left);
        // Again, as after a lost patch of the finalizer. Without a record, nothing is known about the directory.
        let error = export.delete(&volume, &Decided).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RecordMissing, "{error}");
        assert_eq!(export.retain(&volume, &Decided).await.unwrap(), Reclaimed::Retained);
        assert_eq!(state_of(&path), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_shared_directory_and_its_parents_stay() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    // The operator makes the parent for another volume.
    let beside = export.provision(&request("1", "team/own")).await.unwrap();
    fs::create_dir(fixture.on_disk("team/common")).unwrap();
    let shared = export.provision(&sharing("2", "team/common")).await.unwrap();
    let done = export
        .delete(&reclaim("1", "team/own", beside.file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::Deleted);
    let done = export
        .delete(&reclaim("2", "team/common", shared.file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::Retained);
    assert!(fixture.on_disk("team/common").is_dir());

    // A parent that the operator made is not removed once it is shared, although it is empty.
    export.provision(&request("3", "made/own")).await.unwrap();
    let file_id = fs::metadata(fixture.on_disk("made/own")).unwrap().ino();
    export
        .retain(&reclaim("3", "made/own", file_id), &Decided)
        .await
        .unwrap();
    client.reservations.remove(&Holder::Volume("pvc-3".to_owned()));
    fs::remove_dir(fixture.on_disk("made/own")).unwrap();
    let shared = export.provision(&sharing("4", "made")).await.unwrap();
    export
        .delete(&reclaim("4", "made", shared.file_id), &Decided)
        .await
        .unwrap();
    export.recover(&|_: &str| false).await.unwrap();
    assert!(fixture.on_disk("made").is_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_directory_and_any_other_exclude_each_other_by_path_and_by_fileid() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    common(&fixture, "team/common");
    fs::create_dir(fixture.on_disk("team/common/below")).unwrap();
    fs::create_dir(fixture.on_disk("nested")).unwrap();
    export.provision(&request("own", "home/own")).await.unwrap();
    fs::create_dir(fixture.on_disk("home/own/below")).unwrap();
    export.provision(&sharing("s", "team/common")).await.unwrap();
    let restarted = fixture.client();
    let next = restarted.open().await;
    next.recover(&|_: &str| false).await.unwrap();
    for export in [&export, &next] {
        for request in [
            // A volume that does not share, in, around and inside a shared directory.
            request("1", "team/common"),
            adopting("1", "team/common"),
            adopting("1", "Team/Common"),
            request("1", "team/common/new"),
            adopting("1", "team/common/below"),
            adopting("1", "team"),
            // A shared directory at, around and inside that of a volume that does not share.
            sharing("1", "home/own"),
            sharing("1", "home"),
            sharing("1", "home/own/below"),
            // Shared directories in one another.
            sharing("1", "team"),
            sharing("1", "team/common/below"),
        ] {
            let directory = request.directory.clone();
            assert_eq!(
                refused(export, &request).await,
                OVERLAPS,
                "{directory} {:?}",
                request.existing
            );
        }
        let mut names = fixture.records();
        names.sort();
        assert_eq!(names, ["pvc-own", "pvc-s"]);
    }
    // Somebody moved the directories: the fileids tell.
    fs::rename(fixture.on_disk("team/common"), fixture.on_disk("nested/common")).unwrap();
    fs::rename(fixture.on_disk("home/own"), fixture.on_disk("nested/own")).unwrap();
    for request in [
        adopting("1", "nested/common"),
        request("1", "nested/common/new"),
        sharing("1", "nested/own"),
        sharing("1", "nested/common/below"),
    ] {
        let directory = request.directory.clone();
        assert_eq!(
            refused(&next, &request).await,
            OVERLAPS,
            "{directory} {:?}",
            request.existing
        );
    }
    assert_eq!(state_of(&fixture.on_disk("nested/common")).6, "everybody's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_the_operator_and_no_root_of_a_backend_is_shared() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    for reserved in [
        ".nfs-operator",
        ".nfs-operator/trash",
        "archived-x",
        ".hidden",
        ".",
        "a/..",
    ] {
        let parsed = export_store::naming::DirectoryPath::parse(reserved);
        assert!(parsed.is_err(), "{reserved}");
    }
    fs::create_dir_all(fixture.on_disk("inner/.nfs-operator")).unwrap();
    fs::create_dir(fixture.on_disk("inner/common")).unwrap();
    for directory in ["inner", "inner/common"] {
        assert_eq!(
            refused(&export, &sharing("1", directory)).await,
            OVERLAPS,
            "{directory}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whether_a_directory_is_shared_is_what_its_records_say_and_not_the_volumes() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let places = |path: &str| vec![ReservedPath::on_server("127.0.0.1", "/export").below(path)];
    let volume = |name: &str| Holder::Volume(name.to_owned());
    // Somebody annotated a volume that does not share.
    export.provision(&request("own", "own")).await.unwrap();
    client
        .reservations
        .insert_as(volume("pvc-own"), places("own"), None, Sharing::Shared);
    assert_eq!(refused(&export, &sharing("1", "own")).await, OVERLAPS);
    // Somebody removed the annotation from a volume that shares.
    common(&fixture, "common");
    let created = export.provision(&sharing("s", "common")).await.unwrap();
    client.reservations.insert(volume("pvc-s"), places("common"), None);
    assert_eq!(refused(&export, &sharing("1", "common")).await, OVERLAPS);
    // The record decides about its reclaim, and what was recorded stays, whatever the class says now.
    let again = export.provision(&adopting("s", "common")).await.unwrap();
    assert!(again.shared, "{again:?}");
    let before = state_of(&fixture.on_disk("common"));
    let done = export
        .delete(&reclaim("s", "common", created.file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::Retained);
    assert_eq!(state_of(&fixture.on_disk("common")), before);
    let own = export.provision(&sharing("own", "own")).await.unwrap();
    assert!(!own.shared, "{own:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_nothing_confirms_is_replaced_by_one_that_shares() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    common(&fixture, "common");
    export.provision(&adopting("1", "common")).await.unwrap();
    forge(&fixture, "pvc-1", |_| {});
    let before = state_of(&fixture.on_disk("common"));
    let shared = export.provision(&sharing("1", "common")).await.unwrap();
    assert!(shared.shared, "{shared:?}");
    assert_eq!(fixture.record("pvc-1")["shared"], true);
    assert_eq!(state_of(&fixture.on_disk("common")), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_share_a_directory_and_respect_that_of_each_other() {
    let fixture = StoreFixture::start().await;
    let (ours, theirs) = (fixture.store().await, other(&fixture).open().await);
    common(&fixture, "team/common");
    let before = state_of(&fixture.on_disk("team/common"));
    let (first, second) = (sharing("1", "team/common"), sharing("2", "team/common"));
    let (one, two) = tokio::join!(ours.provision(&first), theirs.provision(&second));
    assert!(one.unwrap().shared && two.unwrap().shared);
    for request in [
        adopting("3", "team/common"),
        request("3", "team/common/new"),
        adopting("3", "team"),
        sharing("3", "team"),
    ] {
        let directory = request.directory.clone();
        assert_eq!(
            refused(&theirs, &request).await,
            OVERLAPS,
            "{directory} {:?}",
            request.existing
        );
    }
    let done = ours
        .delete(&reclaim("1", "team/common", before.0), &Decided)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::Retained);
    assert_eq!(state_of(&fixture.on_disk("team/common")), before);
    // The other cluster has it still.
    let adopted = refused(&ours, &adopting("4", "team/common")).await;
    assert_eq!(adopted, OVERLAPS);
    assert!(ours.provision(&sharing("5", "team/common")).await.unwrap().shared);
    // What only one of the two shares is not shared.
    common(&fixture, "alone");
    theirs.provision(&adopting("6", "alone")).await.unwrap();
    assert_eq!(refused(&ours, &sharing("7", "alone")).await, OVERLAPS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_that_share_are_recovered_and_their_records_adopted_as_such() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    common(&fixture, "common");
    let metadata = serde_json::json!({"cluster": "c", "provisioner": "p", "size": "1", "reclaimPolicy": "Delete"});
    for uid in ["1", "2"] {
        let request = DirectoryRequest {
            metadata: serde_json::from_value(metadata.clone()).unwrap(),
            ..sharing(uid, "common")
        };
        export.provision(&request).await.unwrap();
    }
    // All objects are lost.
    let next = fixture.store().await;
    let recovered = next.recover(&|_: &str| false).await.unwrap();
    assert_eq!(recovered.open.len(), 2);
    for volume in ["pvc-1", "pvc-2"] {
        let found = next.recoverability(volume).await.unwrap();
        assert!(
            matches!(&found, Recoverability::Volume(found) if found.record.shared),
            "{found:?}"
        );
        let seen = next.inspect(volume, None).await.unwrap();
        assert_eq!(seen.other_volume, None, "they share it");
    }
    assert_eq!(refused(&next, &adopting("3", "common")).await, OVERLAPS);
    assert!(next.provision(&sharing("3", "common")).await.unwrap().shared);

    // Another key, and another cluster: an administrator adopts the records one by one.
    let other_key = StoreClient {
        key: 8,
        ..fixture.client()
    };
    let next = other_key.open().await;
    next.recover(&|_: &str| false).await.unwrap();
    for volume in ["pvc-1", "pvc-2", "pvc-3"] {
        let name = RecordName::parse(volume).unwrap();
        next.adopt(&name, &|_: &str| true).await.unwrap();
        assert_eq!(fixture.record(volume)["shared"], true);
    }
    let theirs = other(&fixture).open().await;
    let name = RecordName::parse(&format!("{CLUSTER}/pvc-1")).unwrap();
    theirs.adopt(&name, &|_: &str| true).await.unwrap();
    let file_id = fs::metadata(fixture.on_disk("common")).unwrap().ino();
    let done = theirs.delete(&reclaim("1", "common", file_id), &Decided).await.unwrap();
    assert_eq!(done, Reclaimed::Retained);
    assert_eq!(fixture.records(), ["pvc-2", "pvc-3"]);
    assert_eq!(state_of(&fixture.on_disk("common")).6, "everybody's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sharing_that_is_interrupted_anywhere_changes_nothing_and_ends_with_one_record() {
    at_every_moment(
        async |fixture, _, _| {
            common(fixture, "home/common");
            fs::metadata(fixture.on_disk("home/common")).unwrap().ino()
        },
        |uid, _| {
            Box::new(|export| {
                Box::pin(async move {
                    export.provision(&sharing(&uid, "home/common")).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let before = state_of(&fixture.on_disk("home/common"));
            let created = next.provision(&sharing(uid, "home/common")).await.unwrap();
            assert!(created.shared && created.file_id == file_id, "{created:?}");
            assert_eq!(fixture.records(), [format!("pvc-{uid}")]);
            let undone = next.rollback(&format!("pvc-{uid}"), uid).await.unwrap();
            assert_eq!(undone, RollbackOutcome::DirectoryKept);
            assert_eq!(fixture.records(), Vec::<String>::new());
            assert_eq!(state_of(&fixture.on_disk("home/common")), before);
            crate::crash::clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reclaim_of_a_shared_directory_that_is_interrupted_anywhere_touches_no_directory_and_no_other_volume() {
    at_every_moment(
        async |fixture, export, uid| {
            common(fixture, "home/common");
            export.provision(&sharing("other", "home/common")).await.unwrap();
            export.provision(&sharing("also", "home/common")).await.unwrap();
            export.provision(&sharing(uid, "home/common")).await.unwrap().file_id
        },
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export
                        .delete(&reclaim(&uid, "home/common", file_id), &Decided)
                        .await
                        .unwrap();
                    export
                        .archive(&reclaim("also", "home/common", file_id), &Decided)
                        .await
                        .unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let before = state_of(&fixture.on_disk("home/common"));
            for uid in [uid, "also"] {
                let volume = reclaim(uid, "home/common", file_id);
                match next.archive(&volume, &Decided).await {
                    Ok(done) => assert_eq!(done, Reclaimed::Retained),
                    // The record is gone, so nothing is done. The volume says that it is retained.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::RecordMissing, "{error}"),
                }
                assert_eq!(next.retain(&volume, &Decided).await.unwrap(), Reclaimed::Retained);
            }
            assert_eq!(fixture.records(), ["pvc-other"]);
            assert_eq!(state_of(&fixture.on_disk("home/common")), before);
            assert_eq!(fixture.listed(), ["home"]);
            crate::crash::clear(fixture);
        },
    )
    .await;
}
