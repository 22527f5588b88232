//! Reclaim and rollback: checked twice, and never applied to the data of others.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::pin::Pin;
use std::sync::Arc;

use export_store::{
    Decided, ErrorKind, ExportError, ExportStore, Holder, PurgeLimits, ReclaimDecision, Reclaimed, ReservedPath,
    RollbackOutcome, ServerComparison, VolumeDirectory,
};
use futures::future::{BoxFuture, ready};
use nfs_client::{Credential, Protocol, VersionChoice};

use crate::archive_crash::{archived, begin_purge, restore, which};
use crate::fixture::{CLUSTER, StoreClient, StoreFixture, adopting, identify, names, reclaim, refused, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reclaim_is_refused_where_volume_record_and_directory_disagree() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    fs::write(fixture.on_disk("a/data"), "").unwrap();
    let right = reclaim("1", "a", created.file_id);
    let refused = async |request: &VolumeDirectory| {
        let archive = export.archive(request, &Decided).await.unwrap_err().kind();
        let delete = export.delete(request, &Decided).await.unwrap_err().kind();
        assert_eq!(archive, delete);
        assert!(fixture.on_disk("a/data").exists());
        archive
    };
    let wrong = |change: &dyn Fn(&mut VolumeDirectory)| {
        let mut request = right.clone();
        change(&mut request);
        request
    };
    assert_eq!(
        refused(&wrong(&|it| it.file_id = Some(1))).await,
        ErrorKind::ReclaimUnsafe
    );
    assert_eq!(
        refused(&wrong(&|it| it.directory = reclaim("1", "b", 1).directory)).await,
        ErrorKind::ReclaimUnsafe
    );
    assert_eq!(
        refused(&wrong(&|it| it.claim.uid = "2".into())).await,
        ErrorKind::RecordUnusable
    );
    assert_eq!(
        refused(&wrong(&|it| it.volume = "pvc-2".into())).await,
        ErrorKind::RecordMissing
    );
    // Another volume uses it, too.
    let places = vec![ReservedPath::on_server("127.0.0.1", "/export/a/below")];
    let client = fixture.client();
    let watched = client.open().await;
    client
        .reservations
        .insert(Holder::Volume("static".into()), places, None);
    let error = watched.delete(&right, &Decided).await.unwrap_err();
    assert!(matches!(error, ExportError::Overlaps { .. }), "{error}");
    // Another object has the name.
    fs::rename(fixture.on_disk("a"), fixture.on_disk("b")).unwrap();
    fs::create_dir(fixture.on_disk("a")).unwrap();
    assert_eq!(
        export.delete(&right, &Decided).await.unwrap_err().kind(),
        ErrorKind::ReclaimUnsafe
    );
    fs::remove_dir(fixture.on_disk("a")).unwrap();
    // It is missing: a delete is complete, an archive is not.
    assert_eq!(
        export.archive(&right, &Decided).await.unwrap_err().kind(),
        ErrorKind::DirectoryMissing
    );
    let undecided = export.delete(&right, &Undecided).await.unwrap_err();
    assert!(matches!(undecided, ExportError::Undecided { .. }), "{undecided}");
    export.forget_volume("pvc-1").await.unwrap();
    assert_eq!(fixture.records(), ["pvc-1"]);
    assert_eq!(export.delete(&right, &Decided).await.unwrap(), Reclaimed::AlreadyGone);
    export.forget_volume("pvc-1").await.unwrap();
    assert_eq!(fixture.records(), Vec::<String>::new());
    assert!(fixture.on_disk("b/data").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_archives_of_the_same_name_are_both_kept_and_nothing_foreign_is_replaced() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    fs::create_dir(fixture.on_disk("archived-data")).unwrap();
    for (uid, parent) in [("1", "x"), ("2", "y")] {
        let directory = format!("{parent}/data");
        let created = export.provision(&request(uid, &directory)).await.unwrap();
        fs::write(fixture.on_disk(&format!("{directory}/file")), uid).unwrap();
        let done = export
            .archive(&reclaim(uid, &directory, created.file_id), &Decided)
            .await
            .unwrap();
        let Reclaimed::Archived { name, .. } = done else {
            panic!("{done:?}")
        };
        assert_eq!(fs::read_to_string(fixture.on_disk(&name).join("file")).unwrap(), uid);
    }
    assert_eq!(names(&fixture.on_disk("archived-data")), Vec::<String>::new());
    assert_eq!(export.count_archives(), 2);
    let next = fixture.store().await;
    next.recover(&|_: &str| false).await.unwrap();
    assert_eq!(next.count_archives(), 2);
    // Their volumes still exist, and may be retained.
    let next = fixture.store().await;
    next.recover(&|_: &str| true).await.unwrap();
    assert_eq!(next.count_archives(), 0);
    let released = ["pvc-1".to_owned(), "pvc-none".to_owned()];
    next.recover_archives(&released).await.unwrap();
    assert_eq!(next.archives(), ["pvc-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_never_removes_a_directory_that_a_volume_uses_or_that_is_not_empty() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    fs::write(fixture.on_disk("a/file"), "").unwrap();
    assert_eq!(export.rollback("pvc-1", "1").await.unwrap(), RollbackOutcome::NotEmpty);
    fs::remove_file(fixture.on_disk("a/file")).unwrap();
    let file = Some((identify(&export).await.id, created.file_id));
    client
        .reservations
        .insert(Holder::Volume("pvc-1".into()), Vec::new(), file.clone());
    assert_eq!(
        export.rollback("pvc-1", "1").await.unwrap_err().kind(),
        ErrorKind::DirectoryOverlaps
    );
    client.reservations.remove(&Holder::Volume("pvc-1".into()));
    client
        .reservations
        .insert(Holder::Volume("static".into()), Vec::new(), file);
    assert_eq!(
        export.rollback("pvc-1", "1").await.unwrap_err().kind(),
        ErrorKind::DirectoryOverlaps
    );
    assert!(fixture.on_disk("a").is_dir());
    client.reservations.remove(&Holder::Volume("static".into()));
    assert_eq!(export.rollback("pvc-1", "1").await.unwrap(), RollbackOutcome::Gone);
    assert_eq!(fixture.listed(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_nfs_subdir_is_recorded_before_it_is_touched() {
    let fixture = StoreFixture::start().await;
    let client = StoreClient {
        credential: Credential::default(),
        ..fixture.client()
    };
    let export = client.open().await;
    fs::create_dir(fixture.on_disk("team-data-pvc-1")).unwrap();
    fs::write(fixture.on_disk("team-data-pvc-1/file"), "").unwrap();
    let unknown = VolumeDirectory {
        file_id: None,
        ..reclaim("1", "team-data-pvc-1", 0)
    };
    assert_eq!(
        export.delete(&unknown, &Decided).await.unwrap_err().kind(),
        ErrorKind::RecordMissing
    );
    let file_id = export.create_missing_record(&unknown, false).await.unwrap();
    assert_eq!(fs::metadata(fixture.on_disk("team-data-pvc-1")).unwrap().ino(), file_id);
    assert_eq!(export.delete(&unknown, &Decided).await.unwrap(), Reclaimed::Deleted);
    assert_eq!(fixture.listed(), Vec::<String>::new());
    assert_eq!(export.retain(&unknown, &Decided).await.unwrap(), Reclaimed::Deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_directory_can_be_retained() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    fs::write(fixture.on_disk("a/data"), "").unwrap();
    let right = reclaim("1", "a", created.file_id);
    export.archive(&right, &Decided).await.unwrap();
    // As after a crash before the last record, and the removal of the archive.
    let record = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-1"));
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("Archived", "Archiving")).unwrap();
    fs::remove_dir_all(fixture.on_disk("archived-a")).unwrap();
    assert_eq!(
        export.archive(&right, &Decided).await.unwrap_err().kind(),
        ErrorKind::DirectoryMissing
    );
    assert_eq!(fixture.records(), ["pvc-1"]);
    assert_eq!(export.retain(&right, &Decided).await.unwrap(), Reclaimed::Retained);
    assert_eq!(fixture.records(), Vec::<String>::new());
}

/// Creates directories until one has this inode number, because file systems reuse numbers, and moves it to the path.
fn with_number(fixture: &StoreFixture, number: u64, path: &str) -> bool {
    let nursery = fixture.on_disk("nursery");
    fs::create_dir(&nursery).unwrap();
    let found = (0..300).map(|index| nursery.join(index.to_string())).any(|candidate| {
        fs::create_dir(&candidate).unwrap();
        let found = fs::metadata(&candidate).unwrap().ino() == number;
        if found {
            fs::write(candidate.join("theirs"), "").unwrap();
            fs::rename(&candidate, fixture.on_disk(path)).unwrap();
        }
        found
    });
    fs::remove_dir_all(&nursery).unwrap();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_directory_with_the_fileid_and_name_of_a_removed_one_is_not_mistaken_for_it() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let mut tried = 0;
    for (uid, empty) in [
        ("1", true),
        ("2", false),
        ("3", true),
        ("4", false),
        ("5", true),
        ("6", false),
    ] {
        let directory = format!("d{uid}");
        let created = export.provision(&request(uid, &directory)).await.unwrap();
        if !empty {
            fs::write(fixture.on_disk(&directory).join("mine"), "").unwrap();
        }
        let request = reclaim(uid, &directory, created.file_id);
        let reclaimed = async || {
            let done = match empty {
                true => export.archive(&request, &Decided).await.unwrap(),
                false => export.delete(&request, &Decided).await.unwrap(),
            };
            export.purge_trash(PurgeLimits::default()).await.unwrap();
            done
        };
        let first = reclaimed().await;
        // The reclaim is repeated, as after a crash before its result was saved.
        if with_number(&fixture, created.file_id, &directory) {
            tried += 1;
            assert_eq!(reclaimed().await, first);
            assert!(fixture.on_disk(&directory).join("theirs").exists());
        }
        // The volume object is gone now; until then, its path stays reserved.
        client.reservations.remove(&Holder::Volume(format!("pvc-{uid}")));
    }
    println!("{tried} numbers were given again");
}

/// Knows `localhost` as a name of this machine, and any other name as another one.
struct ThisMachine;

impl ServerComparison for ThisMachine {
    fn why_same<'a>(
        &'a self,
        server: &'a str,
        other: &'a str,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send + 'a>> {
        Box::pin(async move { (other == "localhost").then(|| format!("{other} is {server}")) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_whose_server_has_another_name_keeps_its_directory() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await.with_server_comparison(Arc::new(ThisMachine));
    let uses = |server: &str, path: &str| {
        let places = vec![ReservedPath::on_server(server, path)];
        client
            .reservations
            .insert(Holder::Volume("static".into()), places, None);
    };
    let overlaps = |error: ExportError| {
        assert!(matches!(error, ExportError::Overlaps { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::DirectoryOverlaps);
        assert!(error.to_string().contains("localhost"), "{error}");
    };

    let created = export.provision(&request("1", "home/work")).await.unwrap();
    fs::write(fixture.on_disk("home/work/mine"), "1").unwrap();
    let released = reclaim("1", "home/work", created.file_id);
    for used in ["/export/home/work", "/export/home/work/below", "/export/home", "/"] {
        uses("localhost", used);
        overlaps(export.delete(&released, &Decided).await.unwrap_err());
        overlaps(export.archive(&released, &Decided).await.unwrap_err());
    }
    assert!(fixture.on_disk("home/work/mine").exists());
    uses("elsewhere", "/export/home/work");
    export.archive(&released, &Decided).await.unwrap();

    // A new directory.
    for used in ["/export/new", "/export/new/data", "/export/new/data/below"] {
        uses("localhost", used);
        overlaps(export.dry_run(&request("2", "new/data")).await.unwrap_err());
        overlaps(export.provision(&request("2", "new/data")).await.unwrap_err());
    }

    // The archive's directory.
    let archive = which("1", created.file_id);
    uses("localhost", "/export/archived-work");
    overlaps(crate::archive_crash::begin_purge(&export, &archive).await.unwrap_err());
    overlaps(export.provision(&restore("1", created.file_id)).await.unwrap_err());
    uses("elsewhere", "/export/archived-work");
    crate::archive_crash::begin_purge(&export, &archive).await.unwrap();
    uses("localhost", "/export/archived-work/below");
    overlaps(export.end_purge(&archive).await.unwrap_err());
    assert!(fixture.on_disk("archived-work/mine").exists());
    uses("elsewhere", "/export/archived-work");
    export.end_purge(&archive).await.unwrap();

    // The empty directory of a claim without a volume.
    export.provision(&request("3", "empty")).await.unwrap();
    uses("localhost", "/export/empty");
    assert_eq!(
        export.rollback("pvc-3", "3").await.unwrap_err().kind(),
        ErrorKind::DirectoryOverlaps
    );
    assert!(fixture.on_disk("empty").exists());
    uses("elsewhere", "/export/empty");
    assert_eq!(export.rollback("pvc-3", "3").await.unwrap(), RollbackOutcome::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_does_not_remove_a_directory_whose_volume_may_have_been_created() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "home/work")).await.unwrap();
    let nested = fixture.on_disk("home/.nfs-operator");
    fs::create_dir(&nested).unwrap();
    // A process that does not know the volume, because its watch is late.
    let export = fixture.store().await;
    let (kind, definite) = refused(&export, &request("1", "home/work")).await;
    assert_eq!((kind, definite), (ErrorKind::DirectoryOverlaps, false));
    assert!(fixture.on_disk("home/work").exists());
    fs::remove_dir(&nested).unwrap();
    let found = export.provision(&request("1", "home/work")).await.unwrap();
    assert_eq!(found.file_id, created.file_id);
}

/// An administrator may retain a volume after its directory was archived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_whose_volume_exists_is_neither_restored_nor_purged_and_nothing_is_begun() {
    let fixture = StoreFixture::start().await;
    let client = fixture.client();
    let export = client.open().await;
    let file_id = archived(&fixture, &export, "1").await;
    let volume = Holder::Volume("pvc-1".into());
    client.reservations.insert(volume.clone(), Vec::new(), None);
    let busy = (ErrorKind::ArchiveBusy, true);
    assert_eq!(refused(&export, &restore("1", file_id)).await, busy);
    assert_eq!(fixture.records(), ["pvc-1"]);
    let purged = begin_purge(&export, &which("1", file_id)).await.unwrap_err();
    assert_eq!(purged.kind(), ErrorKind::ArchiveBusy, "{purged}");
    client.reservations.remove(&volume);
    export.provision(&restore("1", file_id)).await.unwrap();
    assert_eq!(
        fs::read_to_string(fixture.on_disk("home/deep/again/mine")).unwrap(),
        "1"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_with_an_unusable_record_is_refused_as_long_as_nothing_is_begun() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let file_id = archived(&fixture, &export, "1").await;
    let record = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-1"));
    let valid = fs::read(&record).unwrap();
    fs::write(&record, "no record").unwrap();
    let unusable = ErrorKind::RecordUnusable;
    assert_eq!(refused(&export, &restore("1", file_id)).await, (unusable, true));
    assert_eq!(fixture.records(), ["pvc-1"]);
    fs::write(&record, &valid).unwrap();
    export.provision(&restore("1", file_id)).await.unwrap();
    assert_eq!(
        fs::read_to_string(fixture.on_disk("home/deep/again/mine")).unwrap(),
        "1"
    );
}

/// Archives a volume with data and removes the archive by hand. Returns the fileid that it had.
async fn archived_and_removed(fixture: &StoreFixture, client: &StoreClient, export: &ExportStore, uid: &str) -> u64 {
    let directory = format!("d{uid}");
    let made = export.provision(&request(uid, &directory)).await.unwrap();
    fs::write(fixture.on_disk(&directory).join("mine"), "").unwrap();
    let archived = export
        .archive(&reclaim(uid, &directory, made.file_id), &Decided)
        .await
        .unwrap();
    assert!(matches!(archived, Reclaimed::Archived { .. }), "{archived:?}");
    client.reservations.remove(&Holder::Volume(format!("pvc-{uid}")));
    // As long as it exists, it is the archive's, whatever its name is.
    let (archive, moved) = (format!("archived-{directory}"), format!("moved-{uid}"));
    fs::rename(fixture.on_disk(&archive), fixture.on_disk(&moved)).unwrap();
    let held = (ErrorKind::DirectoryOverlaps, true);
    assert_eq!(refused(export, &adopting("other", &moved)).await, held);
    assert_eq!(
        refused(export, &request("other", &format!("{moved}/below"))).await,
        held
    );
    fs::remove_dir_all(fixture.on_disk(&moved)).unwrap();
    made.file_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fileid_that_was_reused_after_its_directory_was_removed_by_hand_stops_nothing() {
    let fixture = StoreFixture::with(rig::Export::new("/export").ext4(64 << 20)).await;
    let client = fixture.client();
    let export = client.open().await;
    // The directory of another volume.
    let number = archived_and_removed(&fixture, &client, &export, "1").await;
    assert!(with_number(&fixture, number, "d2"), "the number is not reused");
    let made = export.provision(&adopting("2", "d2")).await.unwrap();
    assert_eq!(made.file_id, number);
    export.archive(&reclaim("2", "d2", number), &Decided).await.unwrap();
    assert_eq!(names(&fixture.on_disk("archived-d2")), ["theirs"]);
    // A directory that contains those of volumes.
    let number = archived_and_removed(&fixture, &client, &export, "3").await;
    assert!(with_number(&fixture, number, "team"), "the number is not reused");
    export.provision(&request("4", "team/data")).await.unwrap();
    // A directory in the trash.
    let number = archived_and_removed(&fixture, &client, &export, "5").await;
    let trashed = format!(".nfs-operator/{CLUSTER}/trash/pvc-6.1");
    assert!(with_number(&fixture, number, &trashed), "the number is not reused");
    let report = export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.failed, report.left.entries), (0, 0), "{report:?}");
    assert!(!fixture.on_disk(&trashed).exists());
}

/// The record of a deleted directory remains while its volume does, which an administrator can give to another claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fileid_that_was_reused_after_its_directory_was_purged_stops_nothing() {
    let fixture = StoreFixture::with(rig::Export::new("/export").ext4(64 << 20)).await;
    let export = fixture.client().open().await;
    let made = export.provision(&request("1", "d1")).await.unwrap();
    fs::write(fixture.on_disk("d1").join("mine"), "").unwrap();
    let deleted = export
        .delete(&reclaim("1", "d1", made.file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(deleted, Reclaimed::Deleted);
    // As long as it is in the trash, it is the volume's.
    let trash = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/trash"));
    let trashed = fs::read_dir(&trash).unwrap().next().unwrap().unwrap().path();
    fs::rename(&trashed, fixture.on_disk("d2")).unwrap();
    let held = (ErrorKind::DirectoryOverlaps, true);
    assert_eq!(refused(&export, &adopting("2", "d2")).await, held);
    fs::remove_dir_all(fixture.on_disk("d2")).unwrap();
    assert!(with_number(&fixture, made.file_id, "d2"), "the number is not reused");
    let other = export.provision(&adopting("2", "d2")).await.unwrap();
    assert_eq!(other.file_id, made.file_id);
    export
        .archive(&reclaim("2", "d2", made.file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(names(&fixture.on_disk("archived-d2")), ["theirs"]);
}

/// NFSv3 does not say whether handles are unique. The volume's own record knows its directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_created_directory_with_the_fileid_of_a_purged_one_is_reclaimed_without_unique_handles() {
    let export = rig::Export::new("/export").ext4(64 << 20);
    let fixture = StoreFixture::over(VersionChoice::Exactly(Protocol::V3), export).await;
    let export = fixture.client().open().await;
    let made = export.provision(&request("old", "old")).await.unwrap();
    fs::write(fixture.on_disk("old").join("mine"), "").unwrap();
    export
        .delete(&reclaim("old", "old", made.file_id), &Decided)
        .await
        .unwrap();
    export.purge_trash(PurgeLimits::default()).await.unwrap();
    let mut uids = (0..300).map(|number| number.to_string());
    let reused = loop {
        let uid = uids.next().expect("the number is not reused");
        if export.provision(&request(&uid, &uid)).await.unwrap().file_id == made.file_id {
            break uid;
        }
    };
    fs::write(fixture.on_disk(&reused).join("theirs"), "").unwrap();
    export
        .archive(&reclaim(&reused, &reused, made.file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(names(&fixture.on_disk(&format!("archived-{reused}"))), ["theirs"]);
}

/// The volume was given to another claim.
struct Undecided;

impl ReclaimDecision for Undecided {
    fn decide(&self) -> BoxFuture<'_, bool> {
        Box::pin(ready(false))
    }
}

/// The record of an empty directory that was removed remains in the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fileid_that_was_reused_after_its_empty_directory_was_removed_stops_nothing() {
    let fixture = StoreFixture::with(rig::Export::new("/export").ext4(64 << 20)).await;
    let export = fixture.client().open().await;
    // Its number is used first.
    fs::create_dir(fixture.on_disk("lower")).unwrap();
    let made = export.provision(&request("1", "d1")).await.unwrap();
    // It ends after the record, before the directory is removed.
    export
        .archive(&reclaim("1", "d1", made.file_id), &Undecided)
        .await
        .unwrap_err();
    assert_eq!(fixture.record("pvc-1")["state"]["name"], "RemovingEmpty");
    for removed in ["lower", "d1"] {
        fs::remove_dir(fixture.on_disk(removed)).unwrap();
    }
    assert!(with_number(&fixture, made.file_id, "d2"), "the number is not reused");
    let other = export.provision(&adopting("2", "d2")).await.unwrap();
    assert_eq!(other.file_id, made.file_id);
    export
        .archive(&reclaim("2", "d2", made.file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(names(&fixture.on_disk("archived-d2")), ["theirs"]);
}

/// Data-safety rule 15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_not_moved_if_its_volume_was_given_away_meanwhile() {
    let fixture = StoreFixture::start().await;
    let export = fixture.client().open().await;
    for (uid, has_data) in [("1", true), ("2", false)] {
        let made = export.provision(&request(uid, uid)).await.unwrap();
        if has_data {
            std::fs::write(fixture.on_disk(uid).join("file"), "x").unwrap();
        }
        let request = reclaim(uid, uid, made.file_id);
        for attempt in [
            export.delete(&request, &Undecided).await,
            export.archive(&request, &Undecided).await,
            export.retain(&request, &Undecided).await,
        ] {
            let error = attempt.unwrap_err();
            assert!(matches!(error, ExportError::Undecided { .. }), "{error}");
            assert!(fixture.on_disk(uid).is_dir());
            assert!(
                fixture.records().contains(&format!("pvc-{uid}")),
                "{:?}",
                fixture.records()
            );
        }
        let expected = match has_data {
            true => Reclaimed::Deleted,
            false => Reclaimed::EmptyRemoved,
        };
        assert_eq!(export.delete(&request, &Decided).await.unwrap(), expected);
        assert!(!fixture.on_disk(uid).exists());
    }
}
