//! A copy that is interrupted at every moment.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use export_store::ErrorKind;
use export_store::{
    ArchivePhase, ArchiveRequest, CopyLimits, CopyProgress, CopySource, ExportStore, RequestedArchive, RetentionTerms,
    RollbackOutcome, copy_to_archive, copy_volume,
};

use crate::archive_crash::{archived_as_it_was, begin_purge, object, restore, which};
use crate::crash::{Operation, at_every_moment, clear};
use crate::fixture::{CLUSTER, StoreFixture, claim, names, reclaim, request};

/// Creates the source of a copy: a file with two names, one in a directory.
async fn source(fixture: &StoreFixture, export: &ExportStore, uid: &str) -> u64 {
    let old = format!("{uid}-old");
    let created = export.provision(&request(&old, "old")).await.unwrap();
    fs::create_dir(fixture.on_disk("old/below")).unwrap();
    fs::write(fixture.on_disk("old/file"), uid).unwrap();
    fs::hard_link(fixture.on_disk("old/file"), fixture.on_disk("old/below/again")).unwrap();
    created.file_id
}

async fn copy(export: &Arc<ExportStore>, uid: &str, file_id: u64) -> u64 {
    let of = CopySource::Volume(reclaim(&format!("{uid}-old"), "old", file_id));
    let new = request(uid, "home/new");
    let tally = Arc::new(CopyProgress::default());
    let created = copy_volume((export, &of), (export, &new), &CopyLimits::default(), &tally).await;
    created.unwrap().file_id
}

fn begun(uid: String, file_id: u64) -> Box<dyn FnOnce(ExportStore) -> Operation> {
    Box::new(move |export| {
        Box::pin(async move {
            copy(&Arc::new(export), &uid, file_id).await;
        })
    })
}

/// Checks that the source is unchanged, and that the staging folder is empty.
fn nothing_half_done(fixture: &StoreFixture, uid: &str) {
    assert_eq!(fs::read_to_string(fixture.on_disk("old/below/again")).unwrap(), uid);
    assert_eq!(fs::metadata(fixture.on_disk("old/file")).unwrap().nlink(), 2);
    let staging = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/staging"));
    if staging.exists() {
        assert_eq!(names(&staging), Vec::<String>::new());
    }
}

/// Checks that the copy is complete or absent.
fn whole_or_nothing(fixture: &StoreFixture, uid: &str) {
    let new = fixture.on_disk("home/new");
    if new.exists() {
        assert_eq!(fs::read_to_string(new.join("file")).unwrap(), uid);
        assert_eq!(fs::read_to_string(new.join("below/again")).unwrap(), uid);
        assert_eq!(fs::metadata(new.join("file")).unwrap().nlink(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_interrupted_anywhere_ends_as_one_complete_copy() {
    at_every_moment(source, begun, async |fixture, next, uid, file_id| {
        whole_or_nothing(fixture, uid);
        // What has its name is complete, whatever becomes of the source.
        let found = next.find_copy(&request(uid, "home/new")).await.unwrap();
        assert_eq!(found.is_some(), fixture.on_disk("home/new").exists());
        let created = copy(&Arc::new(next), uid, file_id).await;
        whole_or_nothing(fixture, uid);
        assert_eq!(fs::metadata(fixture.on_disk("home/new")).unwrap().ino(), created);
        nothing_half_done(fixture, uid);
        let record = fixture.record(&format!("pvc-{uid}"));
        assert_eq!(record.pointer("/state/name").unwrap(), "Live");
        assert_eq!(record.pointer("/fileID").unwrap(), created);
        clear(fixture);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_interrupted_anywhere_is_rolled_back_unless_it_was_complete() {
    at_every_moment(source, begun, async |fixture, next, uid, _| {
        whole_or_nothing(fixture, uid);
        let path = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-{uid}"));
        // Without the reply cache of a session, a record may exist without its content.
        let record: Option<serde_json::Value> = fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let state = record.and_then(|record| record.pointer("/state/name").cloned());
        let finished = state.is_some_and(|state| state == "Live");
        let undone = next.rollback(&format!("pvc-{uid}"), uid).await.unwrap();
        // A complete copy may already have a volume, so its data must not be removed.
        assert_eq!(undone == RollbackOutcome::NotEmpty, finished, "{undone:?}");
        assert_eq!(fixture.on_disk("home/new").exists(), finished);
        nothing_half_done(fixture, uid);
        clear(fixture);
    })
    .await;
}

/// Copies the archive of volume `pvc-<uid>` for the claim `n<uid>`.
async fn copy_of_archive(export: &Arc<ExportStore>, uid: &str, file_id: u64) -> u64 {
    let of = CopySource::Archive(which(uid, file_id));
    let new = request(&format!("n{uid}"), "home/new");
    let tally = Arc::new(CopyProgress::default());
    let created = copy_volume((export, &of), (export, &new), &CopyLimits::default(), &tally).await;
    created.unwrap().file_id
}

fn copy_begun(uid: String, file_id: u64) -> Box<dyn FnOnce(ExportStore) -> Operation> {
    Box::new(move |export| {
        Box::pin(async move {
            copy_of_archive(&Arc::new(export), &uid, file_id).await;
        })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_copy_that_is_interrupted_anywhere_ends_complete_and_leaves_the_archive_unchanged() {
    at_every_moment(archived_as_it_was, copy_begun, async |fixture, next, uid, file_id| {
        let next = Arc::new(next);
        let created = copy_of_archive(&next, uid, file_id).await;
        let copy = fixture.on_disk("home/new");
        let found = fs::metadata(&copy).unwrap();
        let seen = (found.ino(), found.mode() & 0o7777, found.uid(), found.gid());
        assert_eq!(seen, (created, 0o2750, 1000, 1001));
        assert_eq!(fs::read_to_string(copy.join("mine")).unwrap(), uid);
        let kept = next.find_archive(&format!("pvc-{uid}")).await.unwrap().unwrap();
        assert_eq!(
            (kept.phase, kept.exists, kept.file_id),
            (ArchivePhase::Archived, true, file_id)
        );
        let archive = fixture.on_disk(&kept.archive.target);
        assert_eq!(fs::metadata(&archive).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::read_to_string(archive.join("mine")).unwrap(), uid);
        let staging = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/staging"));
        assert_eq!(names(&staging), Vec::<String>::new());
        clear(fixture);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_is_being_copied_is_neither_purged_nor_moved() {
    let fixture = StoreFixture::start().await;
    let export = Arc::new(fixture.store().await);
    let file_id = archived_as_it_was(&fixture, &export, "1").await;
    let source = export
        .open_source(&CopySource::Archive(which("1", file_id)))
        .await
        .unwrap();
    let again = export
        .open_source(&CopySource::Archive(which("1", file_id)))
        .await
        .unwrap();
    for held in [Some(source), Some(again)] {
        let purged = begin_purge(&export, &which("1", file_id)).await.unwrap_err();
        assert_eq!(purged.kind(), ErrorKind::ArchiveBusy);
        let moved = export.provision(&restore("1", file_id)).await.unwrap_err();
        assert_eq!((moved.kind(), moved.definite_refusal()), (ErrorKind::ArchiveBusy, true));
        drop(held);
    }
    assert_eq!(fixture.records(), ["pvc-1"], "nothing is left of what was refused");
    begin_purge(&export, &which("1", file_id)).await.unwrap();
    let purging = export.open_source(&CopySource::Archive(which("1", file_id))).await;
    assert_eq!(purging.err().unwrap().kind(), ErrorKind::ArchiveBusy);
    export.end_purge(&which("1", file_id)).await.unwrap();
    let deleted = export.open_source(&CopySource::Archive(which("1", file_id))).await;
    assert_eq!(deleted.err().unwrap().kind(), ErrorKind::ArchiveNotFound);
    let deleted = export.provision(&restore("1", file_id)).await.unwrap_err();
    assert_eq!(
        (deleted.kind(), deleted.definite_refusal()),
        (ErrorKind::ArchiveNotFound, true)
    );
}

/// Another store stands for the attempt that was executed without a reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_was_completed_without_a_reply_counts_as_an_archive() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let file_id = source(&fixture, &export, "1").await;
    let backup = ArchiveRequest {
        name: "backup".into(),
        requested_by: "object".into(),
        claim: claim("1-old"),
        of: reclaim("1-old", "old", file_id),
        terms: RetentionTerms::default(),
        revision: object("object"),
        bases: Vec::new(),
        snapshot: None,
    };
    let executed = Arc::new(fixture.store().await);
    copy_to_archive(&executed, (&executed, &backup), &CopyLimits::default(), &Arc::default())
        .await
        .unwrap();
    assert_eq!(export.count_archives(), 0);
    let found = export.requested_archive("backup", "object").await.unwrap();
    assert!(matches!(found, RequestedArchive::Done(_)), "{found:?}");
    assert_eq!(export.count_archives(), 1);
}
