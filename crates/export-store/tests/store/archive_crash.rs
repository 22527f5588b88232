//! Operations on archives, interrupted before and after each call, and repeated by a new client.

use std::fs;

use std::os::unix::fs::MetadataExt as _;

use export_store::{
    ArchivePhase, ArchiveRef, Decided, DirectoryRequest, ExportError, ExportStore, PurgeLimits, RetentionTerms,
    RollbackOutcome, TermsRevision,
};

use crate::crash::{at_every_moment, clear, with_data};
use crate::fixture::{StoreFixture, reclaim, request};

const ARCHIVE: &str = "archived-work";

pub fn which(uid: &str, file_id: u64) -> ArchiveRef {
    ArchiveRef {
        volume: format!("pvc-{uid}"),
        claim_uid: uid.into(),
        file_id,
    }
}

/// Creates an archive with the file `mine`.
pub async fn archived(fixture: &StoreFixture, export: &ExportStore, uid: &str) -> u64 {
    let file_id = with_data(fixture, export, uid).await;
    export
        .archive(&reclaim(uid, "home/work", file_id), &Decided)
        .await
        .unwrap();
    file_id
}

/// Returns the first revision of an object.
pub fn object(uid: &str) -> TermsRevision {
    TermsRevision {
        uid: uid.into(),
        generation: 1,
    }
}

/// Binds an archive to an object with the terms of a new archive, and announces its purge.
pub async fn begin_purge(export: &ExportStore, archive: &ArchiveRef) -> Result<(), ExportError> {
    let (terms, object) = (RetentionTerms::default(), object("object"));
    export.bind_archive_object(archive, &terms, &object).await?;
    assert!(export.begin_purge(archive, &terms, &object).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_object_that_the_record_has_the_terms_of_purges_an_archive() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let file_id = archived(&fixture, &export, "1").await;
    let (archive, terms) = (which("1", file_id), RetentionTerms::default());
    let looser = RetentionTerms {
        expires: Some(1),
        ..RetentionTerms::default()
    };
    let edited = TermsRevision {
        generation: 3,
        ..object("one")
    };
    let announced = async |terms: &RetentionTerms, object: TermsRevision| {
        export.begin_purge(&archive, terms, &object).await.unwrap()
    };
    assert!(!announced(&terms, object("one")).await, "the record names no object");
    export
        .bind_archive_object(&archive, &terms, &object("one"))
        .await
        .unwrap();
    assert!(!announced(&looser, object("one")).await, "other terms");
    assert!(!announced(&terms, object("other")).await, "another object");
    export.save_retention(&archive, &terms, &edited).await.unwrap();
    export
        .bind_archive_object(&archive, &terms, &object("one"))
        .await
        .unwrap();
    assert!(!announced(&terms, object("one")).await, "an older revision");
    let phase = async || export.find_archive("pvc-1").await.unwrap().unwrap().phase;
    assert_eq!(phase().await, ArchivePhase::Archived);
    assert!(announced(&terms, edited.clone()).await);
    assert_eq!(phase().await, ArchivePhase::Purging);
    assert!(!announced(&terms, object("other")).await, "announced by another object");
    assert_eq!(phase().await, ArchivePhase::Archived, "the purge was canceled");
    assert!(announced(&terms, edited.clone()).await);
    fs::remove_dir_all(fixture.on_disk(ARCHIVE)).unwrap();
    assert!(
        announced(&terms, object("other")).await,
        "nothing is left that could be kept"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_that_is_interrupted_anywhere_purges_everything_and_nothing_foreign() {
    at_every_moment(
        archived,
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    begin_purge(&export, &which(&uid, file_id)).await.unwrap();
                    export.end_purge(&which(&uid, file_id)).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let strangers = stranger(fixture);
            let (volume, which) = (format!("pvc-{uid}"), which(uid, file_id));
            if next.find_archive(&volume).await.unwrap().is_some() {
                begin_purge(&next, &which).await.unwrap();
                next.end_purge(&which).await.unwrap();
            }
            assert_eq!(next.find_archive(&volume).await.unwrap(), None);
            assert_eq!(next.count_archives(), 0);
            next.purge_trash(PurgeLimits::default()).await.unwrap();
            assert_eq!(next.trash().await.unwrap().entries, 0);
            assert_eq!(fixture.records(), Vec::<String>::new());
            if strangers {
                theirs_is_there(fixture);
            } else {
                assert!(!fixture.on_disk(ARCHIVE).exists());
            }
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_purge_that_is_interrupted_anywhere_can_be_cancelled() {
    at_every_moment(
        archived,
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    begin_purge(&export, &which(&uid, file_id)).await.unwrap();
                    assert!(export.cancel_purge(&which(&uid, file_id)).await.unwrap());
                })
            })
        },
        async |fixture, next, uid, file_id| {
            assert!(next.cancel_purge(&which(uid, file_id)).await.unwrap());
            let kept = next.find_archive(&format!("pvc-{uid}")).await.unwrap().unwrap();
            assert_eq!(
                (kept.phase, kept.exists, kept.file_id),
                (ArchivePhase::Archived, true, file_id)
            );
            assert_eq!(fs::read_to_string(fixture.on_disk(ARCHIVE).join("mine")).unwrap(), uid);
            clear(fixture);
        },
    )
    .await;
}

/// Returns a request of the claim `n<uid>` for the archive of volume `pvc-<uid>`.
pub fn restore(uid: &str, file_id: u64) -> DirectoryRequest {
    DirectoryRequest {
        restore: Some(which(uid, file_id)),
        ..request(&format!("n{uid}"), "home/deep/again")
    }
}

/// Creates a foreign directory with the name of the archive as soon as the name is free.
fn stranger(fixture: &StoreFixture) -> bool {
    let created = fs::create_dir(fixture.on_disk(ARCHIVE)).is_ok();
    if created {
        fs::write(fixture.on_disk(ARCHIVE).join("theirs"), "theirs").unwrap();
    }
    created
}

fn theirs_is_there(fixture: &StoreFixture) {
    let theirs = fs::read_to_string(fixture.on_disk(ARCHIVE).join("theirs"));
    assert_eq!(theirs.unwrap(), "theirs");
}

/// Mode and owner of a directory before it is archived.
pub async fn archived_as_it_was(fixture: &StoreFixture, export: &ExportStore, uid: &str) -> u64 {
    let file_id = with_data(fixture, export, uid).await;
    std::os::unix::fs::chown(fixture.on_disk("home/work"), Some(1000), Some(1001)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o2750);
    fs::set_permissions(fixture.on_disk("home/work"), mode).unwrap();
    export
        .archive(&reclaim(uid, "home/work", file_id), &Decided)
        .await
        .unwrap();
    file_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_is_interrupted_anywhere_ends_with_the_data_unchanged_in_one_place() {
    at_every_moment(
        archived_as_it_was,
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export.provision(&restore(&uid, file_id)).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let strangers = stranger(fixture);
            let created = next.provision(&restore(uid, file_id)).await.unwrap();
            assert_eq!((created.file_id, created.adopted), (file_id, false));
            let found = fs::metadata(fixture.on_disk("home/deep/again")).unwrap();
            let seen = (found.ino(), found.mode() & 0o7777, found.uid(), found.gid());
            assert_eq!(seen, (file_id, 0o2750, 1000, 1001));
            assert_eq!(
                fs::read_to_string(fixture.on_disk("home/deep/again/mine")).unwrap(),
                uid
            );
            let kept = next.find_archive(&format!("pvc-{uid}")).await.unwrap().unwrap();
            let ArchivePhase::Restoring(to) = kept.phase else {
                panic!("{kept:?}")
            };
            next.finish_restore(&which(uid, file_id), &to).await.unwrap();
            assert_eq!(fixture.records(), [format!("pvc-n{uid}")]);
            assert_eq!(next.count_archives(), 0);
            // Again, as after a lost reply to the creation of the volume.
            assert_eq!(next.provision(&restore(uid, file_id)).await.unwrap(), created);
            if strangers {
                theirs_is_there(fixture);
            } else {
                assert!(!fixture.on_disk(ARCHIVE).exists());
            }
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_is_interrupted_anywhere_and_whose_claim_is_gone_becomes_an_archive_again() {
    at_every_moment(
        archived_as_it_was,
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export.provision(&restore(&uid, file_id)).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let strangers = stranger(fixture);
            let undone = next.rollback(&format!("pvc-n{uid}"), &format!("n{uid}")).await.unwrap();
            assert_eq!(undone, RollbackOutcome::Gone);
            assert!(!fixture.on_disk("home/deep/again").exists());
            assert_eq!(fixture.records(), [format!("pvc-{uid}")]);
            let kept = next.find_archive(&format!("pvc-{uid}")).await.unwrap().unwrap();
            assert_eq!(
                (kept.phase, kept.exists, kept.file_id),
                (ArchivePhase::Archived, true, file_id)
            );
            let archive_state = &kept.archive;
            assert_eq!(
                (archive_state.mode, archive_state.uid, archive_state.gid),
                (0o2750, Some(1000), Some(1001))
            );
            let archive = fixture.on_disk(&archive_state.target);
            let found = fs::metadata(&archive).unwrap();
            assert_eq!((found.mode() & 0o7777, found.uid()), (0o700, 0));
            assert_eq!(fs::read_to_string(archive.join("mine")).unwrap(), uid);
            if strangers {
                theirs_is_there(fixture);
            }
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_a_restore_that_is_interrupted_anywhere_ends_with_one_archive() {
    at_every_moment(
        async |fixture, export, uid| {
            let file_id = archived_as_it_was(fixture, export, uid).await;
            export.provision(&restore(uid, file_id)).await.unwrap();
            file_id
        },
        |uid, _| {
            Box::new(move |export| {
                Box::pin(async move {
                    export
                        .rollback(&format!("pvc-n{uid}"), &format!("n{uid}"))
                        .await
                        .unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            next.rollback(&format!("pvc-n{uid}"), &format!("n{uid}")).await.unwrap();
            assert_eq!(fixture.records(), [format!("pvc-{uid}")]);
            let kept = next.find_archive(&format!("pvc-{uid}")).await.unwrap().unwrap();
            assert_eq!(
                (kept.phase, kept.exists, kept.file_id),
                (ArchivePhase::Archived, true, file_id)
            );
            let archive = fixture.on_disk(&kept.archive.target);
            assert_eq!(fs::metadata(&archive).unwrap().mode() & 0o7777, 0o700);
            assert_eq!(fs::read_to_string(archive.join("mine")).unwrap(), uid);
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_moves_to_one_claim_of_its_own_namespace_and_to_no_other() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let file_id = archived(&fixture, &export, "1").await;
    let foreign = |mut request: DirectoryRequest| {
        request.claim.namespace_uid = "recreated".into();
        request
    };
    let refused = export.provision(&foreign(restore("1", file_id))).await.unwrap_err();
    assert_eq!(refused.kind(), export_store::ErrorKind::ArchiveNotFound);
    assert!(refused.definite_refusal());
    assert_eq!(fixture.records(), ["pvc-1"], "nothing is left of what was refused");
    let other = DirectoryRequest {
        restore: Some(which("1", file_id)),
        ..request("2", "other")
    };
    let first = restore("1", file_id);
    let (one, two) = tokio::join!(export.provision(&first), export.provision(&other));
    let (won, lost) = match (one, two) {
        (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
        both => panic!("{both:?}"),
    };
    assert_eq!(won.file_id, file_id);
    assert_eq!(lost.kind(), export_store::ErrorKind::ArchiveBusy);
    let data = fixture.on_disk(&won.directory.to_string()).join("mine");
    assert_eq!(fs::read_to_string(data).unwrap(), "1");
    assert_eq!(
        begin_purge(&export, &which("1", file_id)).await.unwrap_err().kind(),
        export_store::ErrorKind::RecordUnusable
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_archive_stays_released_after_a_restart_until_it_has_an_object_again() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let file_id = archived(&fixture, &export, "1").await;
    let archive = which("1", file_id);
    assert_eq!(export.released_archives(), []);
    // A repetition changes nothing.
    for _ in 0..2 {
        export.release_archive(&archive).await.unwrap();
    }
    let next = fixture.store().await;
    next.recover(&|_: &str| false).await.unwrap();
    assert!(next.is_released("pvc-1") && next.has_archive("pvc-1"));
    assert_eq!(next.count_archives(), 1);
    // No object would end the restore.
    let refused = next.provision(&restore("1", file_id)).await.unwrap_err();
    assert_eq!(refused.kind(), export_store::ErrorKind::ArchiveBusy, "{refused}");
    assert_eq!(fixture.records(), ["pvc-1"]);
    let names: Vec<String> = next.released_archives().into_iter().map(|found| found.name).collect();
    assert_eq!(names, ["pvc-1"]);
    assert!(fixture.on_disk(ARCHIVE).join("mine").exists());
    next.save_retention(&archive, &RetentionTerms::default(), &object("imported"))
        .await
        .unwrap();
    assert!(!next.is_released("pvc-1"));
    let found = next.find_archive("pvc-1").await.unwrap().unwrap();
    assert!(!found.archive.released);
    next.provision(&restore("1", file_id)).await.unwrap();
}
