//! Counts the requests that each operation sends to the server: a round trip each, one after the other.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use export_store::{
    ArchivePhase, ArchiveRef, Decided, ExportError, ExportStore, Ordered, Reclaimed, RetentionTerms, TermsRevision,
    VolumeLimit,
};
use nfs_client::{Protocol, VersionChoice};
use rig::{Action, Direction};

use crate::fixture::{StoreClient, StoreFixture, alone, claim, reclaim, request};

/// A store behind a proxy that counts its requests.
struct Counted {
    fixture: StoreFixture,
    store: ExportStore,
    sent: Arc<AtomicUsize>,
}

impl Counted {
    async fn over(version: VersionChoice) -> Self {
        let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
        let client = StoreClient {
            port: fixture.proxy.port(),
            ..fixture.client()
        };
        // As a store is that has looked for other clusters twice.
        let store = alone(client.open().await).await;
        let sent = Arc::<AtomicUsize>::default();
        let counter = Arc::clone(&sent);
        fixture.proxy.on_record(Direction::Up, move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Action::Forward
        });
        Self { fixture, store, sent }
    }

    /// Returns the number of requests since the last call.
    fn take(&self) -> usize {
        self.sent.swap(0, Ordering::Relaxed)
    }

    /// Creates a volume whose directory contains a file; returns the fileid and the number of requests.
    async fn provision(&self, uid: &str) -> (u64, usize) {
        self.take();
        let created = self.store.provision(&request(uid, uid)).await.unwrap();
        let sent = self.take();
        fs::write(self.fixture.on_disk(uid).join("file"), uid).unwrap();
        (created.file_id, sent)
    }

    /// Creates a volume with a limit, as the operator does; returns the number of requests until its order is on the export,
    /// and of those after the report about it was read.
    async fn limited(&self, uid: &str) -> (usize, usize) {
        self.take();
        let request = request(uid, uid);
        let limit = VolumeLimit {
            bytes: Some(1 << 30),
            inodes: None,
        };
        let (created, no_order) = tokio::try_join!(
            self.store.provision(&request),
            self.store.find_no_order(&request.volume),
        )
        .unwrap();
        assert!(no_order.is_some());
        let limit = (limit, no_order);
        let ordered = self.store.order_provisioned(&request, &created, limit).await.unwrap();
        assert!(matches!(ordered, Ordered::Order { is_new: true, .. }));
        let first = self.take();
        let again = self.store.provision(&request).await.unwrap();
        assert_eq!(again.file_id, created.file_id);
        (first, self.take())
    }

    /// Deletes a volume; returns the number of requests.
    async fn delete(&self, uid: &str, file_id: u64) -> usize {
        self.take();
        let deleted = self.store.delete(&reclaim(uid, uid, file_id), &Decided).await.unwrap();
        assert_eq!(deleted, Reclaimed::Deleted);
        self.store.forget_volume(&format!("pvc-{uid}")).await.unwrap();
        assert_eq!(self.fixture.records(), Vec::<String>::new());
        self.take()
    }

    /// Archives a volume, as the operator does; returns the number of requests.
    async fn archive(&self, uid: &str, file_id: u64) -> usize {
        self.take();
        let volume = format!("pvc-{uid}");
        let archived = self.store.archive(&reclaim(uid, uid, file_id), &Decided).await.unwrap();
        let Reclaimed::Archived {
            recorded: Some(found), ..
        } = archived
        else {
            panic!("{archived:?}");
        };
        let archive = ArchiveRef {
            volume: volume.clone(),
            claim_uid: claim(uid).uid,
            file_id,
        };
        let object = TermsRevision {
            uid: "uid".into(),
            generation: 1,
        };
        let terms: RetentionTerms = found.archive.terms;
        self.store.bind_archive_object(&archive, &terms, &object).await.unwrap();
        // The reports about the new object.
        for _ in 0..3 {
            let reported = self.store.find_archive_for_report(&volume).await.unwrap().unwrap();
            assert_eq!(reported.archive.revision.as_ref(), Some(&object));
        }
        let sent = self.take();
        let on_the_export = self.store.find_archive(&volume).await.unwrap();
        assert_eq!(
            self.store.find_archive_for_report(&volume).await.unwrap(),
            on_the_export
        );
        assert!(self.take() > 0, "it was read");
        sent
    }
}

/// Returns the requests of a claim, of a Delete and of an Archive.
async fn round_trips(version: VersionChoice) -> [usize; 3] {
    let counted = Counted::over(version).await;
    let (first, _) = counted.provision("first").await;
    counted.delete("first", first).await;
    let (deleted, claim) = counted.provision("deleted").await;
    let delete = counted.delete("deleted", deleted).await;
    let (archived, _) = counted.provision("archived").await;
    let archive = counted.archive("archived", archived).await;
    println!("{version:?}: claim {claim}, delete {delete}, archive {archive}");
    [claim, delete, archive]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_takes_few_round_trips() {
    let counted = Counted::over(VersionChoice::Exactly(Protocol::V4_1)).await;
    // The folders of the agent are looked for once.
    counted.limited("first").await;
    assert_eq!(counted.limited("second").await, (6, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_operation_takes_few_round_trips() {
    for (version, most) in [
        (VersionChoice::Exactly(Protocol::V4_1), [3, 5, 8]),
        // Opening and closing a file take requests of their own.
        (VersionChoice::Exactly(Protocol::V4_0), [10, 9, 17]),
    ] {
        let sent = round_trips(version).await;
        assert!(
            sent.iter().zip(most).all(|(sent, most)| *sent <= most),
            "{version:?}: {sent:?}, at most {most:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_about_a_new_archive_reads_its_record_only_after_a_change_or_on_another_connection() {
    let counted = Counted::over(VersionChoice::Exactly(Protocol::V4_1)).await;
    let store = &counted.store;
    let (file_id, _) = counted.provision("1").await;
    store.archive(&reclaim("1", "1", file_id), &Decided).await.unwrap();
    counted.take();
    let report = async || {
        let reported = store.find_archive_for_report("pvc-1").await.unwrap().unwrap();
        (reported.phase, counted.take() > 0)
    };
    assert_eq!(report().await, (ArchivePhase::Archived, false));
    let which = ArchiveRef {
        volume: "pvc-1".into(),
        claim_uid: claim("1").uid,
        file_id,
    };
    let object = TermsRevision {
        uid: "uid".into(),
        generation: 1,
    };
    let terms = RetentionTerms::default();
    let other = ArchiveRef {
        claim_uid: "other".into(),
        ..which.clone()
    };
    let refused = store.bind_archive_object(&other, &terms, &object).await.unwrap_err();
    assert!(matches!(refused, ExportError::RecordForeign { .. }), "{refused}");
    store.bind_archive_object(&which, &terms, &object).await.unwrap();
    counted.take();
    assert_eq!(report().await, (ArchivePhase::Archived, false));
    assert!(store.begin_purge(&which, &terms, &object).await.unwrap());
    counted.take();
    assert_eq!(report().await, (ArchivePhase::Purging, true));
    assert!(store.cancel_purge(&which).await.unwrap());
    counted.take();
    assert_eq!(report().await, (ArchivePhase::Archived, true));

    let (file_id, _) = counted.provision("2").await;
    store.archive(&reclaim("2", "2", file_id), &Decided).await.unwrap();
    counted.fixture.proxy.cut().await;
    // Connects again.
    store.find_archive("pvc-1").await.unwrap();
    counted.take();
    store.find_archive_for_report("pvc-2").await.unwrap().unwrap();
    assert!(
        counted.take() > 0,
        "another export may be in the place of the former one"
    );
}
