//! A full export: directories can be deleted, which frees space (data-safety rule 18).

use std::fs;
use std::io::Write as _;
use std::path::Path;

use export_store::{ErrorKind, ExportStore, PurgeLimits, ReclaimRequest, Reclaimed};

use crate::fixture::{CLUSTER, StoreFixture, names, reclaim, refused, request};
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

async fn volume(export: &ExportStore, fixture: &StoreFixture, uid: &str) -> ReclaimRequest {
    let directory = format!("dir-{uid}");
    let created = export.provision(&request(uid, &directory)).await.unwrap();
    fs::write(fixture.on_disk(&format!("{directory}/data")), [7; 100_000]).unwrap();
    reclaim(uid, &directory, created.file_id)
}

async fn deletions_free(what: ErrorKind, export: rig::Export) {
    let fixture = StoreFixture::with(export).await;
    let first = fixture.store().await;
    assert_eq!(first.probe_write().await.unwrap().full, None);
    assert!(has_reserve(&fixture));
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
    assert_eq!(export.delete(one).await.unwrap(), Reclaimed::Deleted);
    assert!(!has_reserve(&fixture));
    assert_eq!(fixture.record("pvc-1")["state"]["name"], "Deleting");
    export.forget_volume("pvc-1").await.unwrap();

    // A tenant takes what it left: the next deletion has no room for a record.
    fill(&fixture.on_disk("dir-3/more"), what);
    let two = &volumes[1];
    assert_eq!(export.delete(two).await.unwrap(), Reclaimed::Deleted);
    let unrecorded = format!("pvc-2.f{}", two.file_id.unwrap());
    assert!(in_trash(&fixture).contains(&unrecorded), "{:?}", in_trash(&fixture));
    assert_eq!(fixture.records(), ["pvc-3"]);
    assert_eq!(export.delete(two).await.unwrap(), Reclaimed::AlreadyGone);
    assert_eq!(export.delete(&volumes[2]).await.unwrap(), Reclaimed::Deleted);

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_without_a_record_that_is_interrupted_is_found_to_be_done() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    for (uid, again) in [("1", false), ("2", true)] {
        let request = volume(&export, &fixture, uid).await;
        let trashed = format!(".nfs-operator/{CLUSTER}/trash/pvc-{uid}.f{}", request.file_id.unwrap());
        fs::rename(fixture.on_disk(&format!("dir-{uid}")), fixture.on_disk(&trashed)).unwrap();
        if again {
            fs::create_dir(fixture.on_disk(&format!("dir-{uid}"))).unwrap();
        }
        let next = fixture.store().await;
        assert_eq!(next.delete(&request).await.unwrap(), Reclaimed::Deleted);
        assert_eq!(fixture.on_disk(&format!("dir-{uid}")).exists(), again);
        assert!(!fixture.records().contains(&format!("pvc-{uid}")));
    }
}
