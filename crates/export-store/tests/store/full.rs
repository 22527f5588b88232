//! A full export: directories can be deleted, which frees space (data-safety rule 18).

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use export_store::{
    ArchivePhase, ArchiveRef, Decided, ErrorKind, ExportStore, PurgeLimits, Reclaimed, RetentionTerms, VolumeDirectory,
};
use rig::proxy::{encode_opaque, has_bytes};
use rig::{Action, Direction};
use serde_json::json;

use crate::archive_crash::{object, which};
use crate::fixture::{CLUSTER, OTHER_CLUSTER, StoreClient, StoreFixture, alone, names, reclaim, refused, request};
use crate::trust::settled;

/// Fills an export as a tenant does: with data, or with empty files.
fn fill(folder: &Path, what: ErrorKind) {
    fs::create_dir_all(folder).unwrap();
    for number in 0..100_000 {
        let Ok(mut file) = fs::File::create(folder.join(number.to_string())) else {
            return;
        };
        if what == ErrorKind::NoSpace {
            while file.write_all(&[1; 4096]).is_ok() {}
            return;
        }
    }
    panic!("{} is not full", folder.display());
}

fn in_trash(fixture: &StoreFixture) -> Vec<String> {
    names(&fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/trash")))
}

fn has_reserve(fixture: &StoreFixture) -> bool {
    fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/reserve")).exists()
}

fn spare(fixture: &StoreFixture) -> PathBuf {
    fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/.spare"))
}

async fn volume(export: &ExportStore, fixture: &StoreFixture, uid: &str) -> VolumeDirectory {
    let directory = format!("dir-{uid}");
    let created = export.provision(&request(uid, &directory)).await.unwrap();
    fs::write(fixture.on_disk(&format!("{directory}/data")), [7; 100_000]).unwrap();
    reclaim(uid, &directory, created.file_id)
}

#[tokio::test]
async fn a_reserve_that_somebody_removed_is_made_again_by_one_of_the_next_ten_probes() {
    let fixture = StoreFixture::with(rig::Export::new("/export")).await;
    let export = fixture.store().await;
    for _ in 0..2 {
        export.probe_write().await.unwrap();
    }
    fs::remove_file(spare(&fixture)).unwrap();
    fs::remove_file(fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/reserve"))).unwrap();
    for _ in 0..10 {
        export.probe_write().await.unwrap();
    }
    assert!(has_reserve(&fixture) && spare(&fixture).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_that_was_given_up_is_made_again_by_the_next_probe_with_space() {
    let fixture = StoreFixture::with(rig::Export::new("/export").tmpfs(8 << 20, None)).await;
    let export = fixture.store().await;
    for _ in 0..2 {
        export.probe_write().await.unwrap();
    }
    let one = volume(&export, &fixture, "1").await;
    fs::remove_file(spare(&fixture)).unwrap();
    fill(&fixture.on_disk("dir-1/ballast"), ErrorKind::NoSpace);
    assert_eq!(export.delete(&one, &Decided).await.unwrap(), Reclaimed::Deleted);
    assert!(!has_reserve(&fixture));
    export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!(export.probe_write().await.unwrap().full, None);
    assert!(has_reserve(&fixture));
}

async fn deletions_free(what: ErrorKind, export: rig::Export) {
    let fixture = StoreFixture::with(export).await;
    let first = fixture.store().await;
    assert_eq!(first.probe_write().await.unwrap().full, None);
    assert!(has_reserve(&fixture));
    // As on a server without hard links, where it is used once.
    fs::remove_file(spare(&fixture)).unwrap();
    let mut volumes = Vec::new();
    for uid in ["1", "2", "3"] {
        volumes.push(volume(&first, &fixture, uid).await);
    }
    fill(&fixture.on_disk("dir-3/ballast"), what);

    // After a restart, too.
    let export = fixture.store().await;
    assert_eq!(export.probe_write().await.unwrap().full, Some(what));
    settled(&export).await;
    assert_eq!(refused(&export, &request("9", "new")).await, (what, true));
    assert!(has_reserve(&fixture), "the reserve is for deletions");

    // The record of the deletion gets the reserve.
    let one = &volumes[0];
    assert_eq!(export.delete(one, &Decided).await.unwrap(), Reclaimed::Deleted);
    assert!(!has_reserve(&fixture));
    assert_eq!(fixture.record("pvc-1")["state"]["name"], "Deleting");
    export.forget_volume("pvc-1").await.unwrap();

    // A tenant takes what it left: the next deletion has no room for a record.
    fill(&fixture.on_disk("dir-3/more"), what);
    let two = &volumes[1];
    assert_eq!(export.delete(two, &Decided).await.unwrap(), Reclaimed::Deleted);
    let unrecorded = format!("team_pvc-2.f{}", two.file_id.unwrap());
    assert!(in_trash(&fixture).contains(&unrecorded), "{:?}", in_trash(&fixture));
    assert_eq!(fixture.records(), ["pvc-3"]);
    assert_eq!(export.delete(two, &Decided).await.unwrap(), Reclaimed::AlreadyGone);
    assert_eq!(export.delete(&volumes[2], &Decided).await.unwrap(), Reclaimed::Deleted);

    // The purge frees the space.
    let report = export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.left.entries, report.failed), (0, 0));
    assert_eq!(export.probe_write().await.unwrap().full, None);
    assert!(has_reserve(&fixture));
    export.provision(&request("9", "new")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_export_without_space_volumes_can_be_deleted_and_purged() {
    deletions_free(ErrorKind::NoSpace, rig::Export::new("/export").tmpfs(8 << 20, None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_export_without_inodes_volumes_can_be_deleted_and_purged() {
    deletions_free(
        ErrorKind::NoInodes,
        rig::Export::new("/export").tmpfs(16 << 20, Some(200)),
    )
    .await;
}

/// The request that creates a record and its directory takes the last inode for the record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_without_an_inode_is_refused_after_its_record_and_leaves_nothing() {
    let fixture = StoreFixture::with(rig::Export::new("/export").tmpfs(16 << 20, Some(200))).await;
    let client = StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let export = alone(client.open().await).await;
    let both = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&both);
    // NFSv4's CREATE (operation 6, RFC 8881 section 18.4) of a directory (type 2).
    let mkdir = [&[0, 0, 0, 6, 0, 0, 0, 2][..], &encode_opaque(b"new")].concat();
    fixture.proxy.on_record(Direction::Up, move |record| {
        let is_both = has_bytes(record, &encode_opaque(b"pvc-9")) && has_bytes(record, &mkdir);
        counter.fetch_add(usize::from(is_both), Ordering::Relaxed);
        Action::Forward
    });
    let ballast = fixture.on_disk("ballast");
    fill(&ballast, ErrorKind::NoInodes);
    fs::remove_file(ballast.join("0")).unwrap();
    // The record is removed before the server is asked what it lacks, and then it has the one inode.
    assert_eq!(refused(&export, &request("9", "new")).await, (ErrorKind::NoSpace, true));
    assert_eq!(both.load(Ordering::Relaxed), 1, "one request for both");
    assert_eq!(fixture.records(), Vec::<String>::new());
    assert!(!fixture.on_disk("new").exists());

    fs::remove_dir_all(&ballast).unwrap();
    export.provision(&request("9", "new")).await.unwrap();
    assert_eq!(fixture.records(), ["pvc-9"]);
    assert!(fixture.on_disk("new").is_dir());
}

/// Before a deletion is recorded, what was read of the other clusters up to a minute ago counts: without a record, it is
/// read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_that_cannot_be_recorded_leaves_what_another_cluster_recorded() {
    let fixture = StoreFixture::with(rig::Export::new("/export").tmpfs(8 << 20, None)).await;
    let export = fixture.store().await;
    let theirs = fixture.on_disk(&format!(".nfs-operator/{OTHER_CLUSTER}/records"));
    fs::create_dir_all(&theirs).unwrap();
    let record = json!({"version": 3, "directory": "dir-1", "fileID": 1_u64 << 60});
    fs::write(fixture.on_disk("prepared"), record.to_string()).unwrap();
    let one = volume(&export, &fixture, "1").await;
    fill(&fixture.on_disk("ballast"), ErrorKind::NoSpace);
    for file in ["reserve", ".spare"] {
        let _ = fs::remove_file(fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/{file}")));
    }
    fill(&fixture.on_disk("more"), ErrorKind::NoSpace);
    fs::rename(fixture.on_disk("prepared"), theirs.join("pvc-9")).unwrap();
    let refused = export.delete(&one, &Decided).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReclaimUnsafe, "{refused}");
    assert!(refused.to_string().contains(OTHER_CLUSTER), "{refused}");
    assert!(fixture.on_disk("dir-1/data").exists());

    fs::remove_file(theirs.join("pvc-9")).unwrap();
    assert_eq!(export.delete(&one, &Decided).await.unwrap(), Reclaimed::Deleted);
    assert_eq!(in_trash(&fixture), [format!("team_pvc-1.f{}", one.file_id.unwrap())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_without_a_record_that_is_interrupted_is_found_to_be_done() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    for (uid, again) in [("1", false), ("2", true)] {
        let request = volume(&export, &fixture, uid).await;
        let trashed = format!(
            ".nfs-operator/{CLUSTER}/trash/team_pvc-{uid}.f{}",
            request.file_id.unwrap()
        );
        fs::rename(fixture.on_disk(&format!("dir-{uid}")), fixture.on_disk(&trashed)).unwrap();
        if again {
            fs::create_dir(fixture.on_disk(&format!("dir-{uid}"))).unwrap();
        }
        let next = fixture.store().await;
        assert_eq!(next.delete(&request, &Decided).await.unwrap(), Reclaimed::Deleted);
        assert_eq!(fixture.on_disk(&format!("dir-{uid}")).exists(), again);
        assert!(!fixture.records().contains(&format!("pvc-{uid}")));
    }
}

async fn archives_need_no_space(what: ErrorKind, export: rig::Export) {
    let fixture = StoreFixture::with(export).await;
    let export = fixture.store().await;
    assert_eq!(export.probe_write().await.unwrap().full, None);
    let mut volumes = Vec::new();
    for uid in ["1", "2", "3", "4", "5"] {
        volumes.push(volume(&export, &fixture, uid).await);
    }
    fill(&fixture.on_disk("dir-5/ballast"), what);
    let export = fixture.store().await;
    assert_eq!(export.probe_write().await.unwrap().full, Some(what));
    let archive = async |number: usize| {
        let archived = export.archive(&volumes[number - 1], &Decided).await.unwrap();
        assert!(matches!(archived, Reclaimed::Archived { .. }), "{archived:?}");
        assert_eq!(names(&fixture.on_disk(&format!("archived-dir-{number}"))), ["data"]);
        assert_eq!(fixture.record(&format!("pvc-{number}"))["state"]["name"], "Archived");
    };
    // Each record gets the spare file, and its former file becomes the next one.
    for number in [1, 2] {
        archive(number).await;
        assert!(has_reserve(&fixture));
        assert_eq!(fs::metadata(spare(&fixture)).unwrap().nlink(), 1);
    }
    // A server without hard links, and a tenant who takes the space.
    fs::remove_file(spare(&fixture)).unwrap();
    fill(&fixture.on_disk("dir-5/more"), what);
    archive(3).await;
    assert!(!has_reserve(&fixture));
    fill(&fixture.on_disk("dir-5/still-more"), what);
    let refused = export.archive(&volumes[3], &Decided).await.unwrap_err();
    assert_eq!((refused.kind(), refused.outcome_unknown()), (what, false));
    assert!(fixture.on_disk("dir-4/data").exists());
    assert_eq!(fixture.record("pvc-4")["state"]["name"], "Live");

    // A deletion needs no space, and makes some.
    assert_eq!(export.delete(&volumes[4], &Decided).await.unwrap(), Reclaimed::Deleted);
    export.purge_trash(PurgeLimits::default()).await.unwrap();
    archive(4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_export_without_space_volumes_can_be_archived() {
    archives_need_no_space(ErrorKind::NoSpace, rig::Export::new("/export").tmpfs(8 << 20, None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_export_without_inodes_volumes_can_be_archived() {
    archives_need_no_space(
        ErrorKind::NoInodes,
        rig::Export::new("/export").tmpfs(16 << 20, Some(200)),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_file_that_an_interrupted_replacement_left_is_not_overwritten() {
    let fixture = StoreFixture::with(rig::Export::new("/export").tmpfs(8 << 20, None)).await;
    let export = fixture.store().await;
    export.probe_write().await.unwrap();
    let (one, two) = (
        volume(&export, &fixture, "1").await,
        volume(&export, &fixture, "2").await,
    );
    // Both are links to a record.
    let record = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-2"));
    fs::remove_file(spare(&fixture)).unwrap();
    for name in [".spare", ".spare-next"] {
        fs::hard_link(&record, spare(&fixture).with_file_name(name)).unwrap();
    }
    fill(&fixture.on_disk("dir-2/ballast"), ErrorKind::NoSpace);
    let archived = export.archive(&one, &Decided).await.unwrap();
    assert!(matches!(archived, Reclaimed::Archived { .. }), "{archived:?}");
    assert_eq!(fixture.record("pvc-2")["volume"], "pvc-2");
    assert_eq!(fs::metadata(&record).unwrap().nlink(), 1);
    assert_eq!(export.delete(&two, &Decided).await.unwrap(), Reclaimed::Deleted);
}

/// Without spare file and reserve, as on a file system that writes everything to a new place.
async fn a_purge_needs_no_space(what: ErrorKind, export: rig::Export) {
    let fixture = StoreFixture::with(export).await;
    let export = fixture.store().await;
    let mut archives = Vec::new();
    for uid in ["1", "2"] {
        let request = volume(&export, &fixture, uid).await;
        export.archive(&request, &Decided).await.unwrap();
        let archive = which(uid, request.file_id.unwrap());
        export
            .bind_archive_object(&archive, &RetentionTerms::default(), &object("object"))
            .await
            .unwrap();
        archives.push(archive);
    }
    assert_eq!(export.probe_write().await.unwrap().full, None);
    fill(&fixture.on_disk("ballast"), what);
    for file in ["reserve", ".spare"] {
        fs::remove_file(fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/{file}"))).unwrap();
    }
    fill(&fixture.on_disk("more"), what);
    let (terms, by) = (RetentionTerms::default(), object("object"));
    let refused = export.begin_purge(&archives[0], &terms, &by).await.unwrap_err();
    assert!(refused.is_full(), "{refused}");
    assert!(
        !export
            .purge_unrecorded(&archives[0], &terms, &object("other"))
            .await
            .unwrap()
    );
    assert!(fixture.on_disk("archived-dir-1/data").exists());

    assert!(export.purge_unrecorded(&archives[0], &terms, &by).await.unwrap());
    assert_eq!(fixture.records(), ["pvc-2"]);
    let unrecorded = |uid: &str, archive: &ArchiveRef| format!("team_pvc-{uid}.f{}", archive.file_id);
    assert_eq!(in_trash(&fixture), [unrecorded("1", &archives[0])]);

    // Interrupted between the rename and the removal of the record.
    let trashed = format!(".nfs-operator/{CLUSTER}/trash/{}", unrecorded("2", &archives[1]));
    fs::rename(fixture.on_disk("archived-dir-2"), fixture.on_disk(&trashed)).unwrap();
    let found = export.find_archive("pvc-2").await.unwrap().unwrap();
    assert_eq!((found.phase, found.exists), (ArchivePhase::Purging, false));
    assert!(export.purge_unrecorded(&archives[1], &terms, &by).await.unwrap());
    assert!(fixture.records().is_empty());
    let report = export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((report.left.entries, report.failed), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_export_without_space_archives_can_be_purged() {
    a_purge_needs_no_space(ErrorKind::NoSpace, rig::Export::new("/export").tmpfs(8 << 20, None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_export_without_inodes_archives_can_be_purged() {
    a_purge_needs_no_space(
        ErrorKind::NoInodes,
        rig::Export::new("/export").tmpfs(16 << 20, Some(200)),
    )
    .await;
}
