//! Records that this cluster did not sign: they cause no change, and objects can confirm them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use export_store::{
    ArchivePhase, ArchiveRef, Decided, ExportError, ExportStore, Reclaimed, RecordTransfer, RecordedArchive,
    RecoveryReport, RetentionTerms, SignatureStatus, TermsRevision, VolumeDirectory, VolumeMetadata,
};
use serde_json::{Value, json};

use crate::fixture::{CLUSTER, StoreFixture, claim, reclaim, request};

/// Recovers the records, as an operator without volumes does.
pub async fn settled(export: &ExportStore) -> RecoveryReport {
    export.recover(&|_| false).await.unwrap()
}

/// Creates a directory with a file, and archives it.
pub async fn archived(export: &ExportStore, fixture: &StoreFixture, uid: &str) -> String {
    let created = export.provision(&request(uid, &format!("dir-{uid}"))).await.unwrap();
    fs::write(fixture.on_disk(&format!("dir-{uid}/data")), uid).unwrap();
    let request = reclaim(uid, &format!("dir-{uid}"), created.file_id);
    match export.archive(&request, &Decided).await.unwrap() {
        Reclaimed::Archived { name, .. } => name,
        other => panic!("{other:?}"),
    }
}

/// Returns the reference in the object of the archive.
fn archive_of(fixture: &StoreFixture, uid: &str) -> ArchiveRef {
    let volume = format!("pvc-{uid}");
    ArchiveRef {
        file_id: fixture.record(&volume)["fileID"].as_u64().unwrap(),
        claim_uid: uid.to_owned(),
        volume,
    }
}

pub fn path(fixture: &StoreFixture, cluster: &str, volume: &str) -> PathBuf {
    fixture.on_disk(&format!(".nfs-operator/{cluster}/records/{volume}"))
}

/// Changes the record of a volume without the key.
pub fn forge(fixture: &StoreFixture, volume: &str, change: impl FnOnce(&mut Value)) {
    let mut record = fixture.record(volume);
    record.as_object_mut().unwrap().remove("signature");
    change(&mut record);
    fs::write(path(fixture, CLUSTER, volume), record.to_string()).unwrap();
}

pub async fn kept(export: &ExportStore, volume: &str) -> RecordedArchive {
    export.find_archive(volume).await.unwrap().unwrap()
}

pub fn doubted(export: &ExportStore) -> Vec<(String, SignatureStatus)> {
    let own = export.unsigned_records().own.into_iter();
    own.map(|doubted| (doubted.volume, doubted.trust)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsigned_record_alone_starts_or_resumes_nothing() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    archived(&export, &fixture, "1").await;
    // As after a crash between the rename and the record. It would be completed if it were signed.
    forge(&fixture, "pvc-1", |record| record["state"]["name"] = json!("Archiving"));
    // A tombstone would be purged.
    fs::create_dir(fixture.on_disk(".nfs-operator-deleted-pvc-2")).unwrap();
    fs::write(fixture.on_disk(".nfs-operator-deleted-pvc-2/data"), "precious").unwrap();
    let inode = fs::metadata(fixture.on_disk(".nfs-operator-deleted-pvc-2"))
        .unwrap()
        .ino();
    let mut tombstone = fixture.record("pvc-1");
    tombstone["volume"] = json!("pvc-2");
    tombstone["directory"] = json!("dir-2");
    tombstone["fileID"] = json!(inode);
    tombstone["state"] = json!({"name": "Tombstone", "since": 1});
    tombstone.as_object_mut().unwrap().remove("handle");
    fs::write(path(&fixture, CLUSTER, "pvc-2"), tombstone.to_string()).unwrap();
    // A waiting claim, and a record that gives it the directory of another.
    fs::create_dir(fixture.on_disk("anothers")).unwrap();
    let mut lie = fixture.record("pvc-1");
    lie["volume"] = json!("pvc-3");
    lie["claim"]["uid"] = json!("3");
    lie["directory"] = json!("anothers");
    lie["fileID"] = json!(fs::metadata(fixture.on_disk("anothers")).unwrap().ino());
    lie["state"] = json!({"name": "Live"});
    fs::write(path(&fixture, CLUSTER, "pvc-3"), lie.to_string()).unwrap();

    let export = fixture.client().open().await;
    let found = settled(&export).await;
    let mut stuck: Vec<&str> = found.stuck.iter().map(|record| &*record.volume).collect();
    stuck.sort_unstable();
    assert_eq!(stuck, ["pvc-1", "pvc-2"]);
    assert_eq!(fixture.record("pvc-1")["state"]["name"], "Archiving");
    assert_eq!(export.archives(), Vec::<String>::new());
    export.purge_trash(Default::default()).await.unwrap();
    assert!(fixture.on_disk(".nfs-operator-deleted-pvc-2/data").exists());
    let created = export.provision(&request("3", "its-own")).await.unwrap();
    assert_eq!(created.directory.to_string(), "its-own");
    let unsigned_records = doubted(&export);
    assert!(
        !unsigned_records.iter().any(|(volume, _)| volume == "pvc-3"),
        "{unsigned_records:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_confirms_its_own_record_and_no_other() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "data")).await.unwrap();
    fs::write(fixture.on_disk("data/file"), "kept").unwrap();
    let reported = reclaim("1", "data", created.file_id);
    let unsigned = |fixture: &StoreFixture| fixture.record("pvc-1").get("signature").is_none();
    assert!(!unsigned(&fixture));
    forge(&fixture, "pvc-1", |record| {
        record["claim"]["namespace"] = json!("of-a-thief")
    });
    for wrong in [
        VolumeDirectory {
            claim: claim("2"),
            ..reported.clone()
        },
        reclaim("1", "elsewhere", created.file_id),
        reclaim("1", "data", created.file_id + 1),
    ] {
        let wrong = VolumeDirectory {
            volume: "pvc-1".to_owned(),
            ..wrong
        };
        assert!(export.sign_confirmed(&wrong).await.is_err());
        assert!(unsigned(&fixture));
    }
    export.sign_confirmed(&reported).await.unwrap();
    assert!(!unsigned(&fixture));
    assert_eq!(
        fixture.record("pvc-1")["claim"]["namespace"],
        "team",
        "the volume's word, not the record's"
    );
    // Its reclaim resumes with a record of an earlier release, and leaves a signed one.
    forge(&fixture, "pvc-1", |_| ());
    export.archive(&reported, &Decided).await.unwrap();
    assert_eq!(kept(&export, "pvc-1").await.trust, SignatureStatus::Signed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_records_cause_no_removal_no_move_and_no_signature() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let name = archived(&export, &fixture, "1").await;
    let inode = |path: &str| fs::metadata(fixture.on_disk(path)).unwrap().ino();
    // A complete copy without a volume would be moved to the trash.
    fs::create_dir_all(fixture.on_disk("precious/below")).unwrap();
    let mut lie = fixture.record("pvc-1");
    lie.as_object_mut().unwrap().remove("signature");
    lie.as_object_mut().unwrap().remove("handle");
    lie["claim"]["uid"] = json!("2");
    lie["volume"] = json!("pvc-2");
    lie["directory"] = json!("precious");
    lie["fileID"] = json!(inode("precious"));
    lie["state"] = json!({"name": "Creating"});
    fs::write(path(&fixture, CLUSTER, "pvc-2"), lie.to_string()).unwrap();
    // Two records that claim a restore of an archive: a rollback would sign the archive as theirs.
    fs::create_dir(fixture.on_disk("archived-secret")).unwrap();
    lie["volume"] = json!("pvc-3");
    lie["directory"] = json!("nowhere");
    lie["restores"] = json!("pvc-4");
    fs::write(path(&fixture, CLUSTER, "pvc-3"), lie.to_string()).unwrap();
    forge(&fixture, "pvc-1", |record| {
        let mut archive = record["state"].clone();
        archive["target"] = json!("archived-secret");
        record["volume"] = json!("pvc-4");
        record["fileID"] = json!(inode("archived-secret"));
        record["state"] = json!({"name": "Restoring", "archive": archive,
            "to": {"volume": "pvc-3", "claim": lie["claim"].clone(), "directory": "nowhere"}});
        record.as_object_mut().unwrap().remove("handle");
    });
    fs::rename(path(&fixture, CLUSTER, "pvc-1"), path(&fixture, CLUSTER, "pvc-4")).unwrap();
    let records = || ["pvc-2", "pvc-3", "pvc-4"].map(|volume| fs::read(path(&fixture, CLUSTER, volume)).unwrap());
    let before = records();

    let export = fixture.client().open().await;
    let open = settled(&export).await.open;
    assert_eq!(open.len(), 2, "{open:?}");
    for record in open {
        let undone = export.rollback(&record.volume, &record.claim.uid).await;
        let error = undone.unwrap_err();
        assert!(matches!(error, ExportError::RecordUnsigned { .. }), "{error}");
    }
    assert_eq!(records(), before);
    assert!(fixture.on_disk("precious/below").exists() && fixture.on_disk("archived-secret").exists());
    assert_eq!(kept(&export, "pvc-4").await.trust, SignatureStatus::Unsigned);
    assert!(fixture.on_disk(&name).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_of_an_archive_confirms_its_record_but_not_a_purge() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let name = archived(&export, &fixture, "1").await;
    forge(&fixture, "pvc-1", |record| {
        record["state"] = json!({"name": "Purging", "archive": record["state"].clone(), "since": 1});
    });
    let which = archive_of(&fixture, "1");
    for refused in [
        export.end_purge(&which).await,
        crate::archive_crash::begin_purge(&export, &which).await,
        export.cancel_purge(&which).await.map(drop),
        export
            .save_retention(&which, &RetentionTerms::default(), &TermsRevision::default())
            .await,
    ] {
        assert!(
            matches!(refused, Err(ExportError::RecordUnsigned { .. })),
            "{refused:?}"
        );
    }
    let held = RetentionTerms {
        held: true,
        ..RetentionTerms::default()
    };
    let revision = TermsRevision::default();
    export.sign_confirmed_archive(&which, &held, &revision).await.unwrap();
    let kept = kept(&export, "pvc-1").await;
    assert_eq!(
        (kept.trust, kept.phase, kept.exists),
        (SignatureStatus::Signed, ArchivePhase::Archived, true)
    );
    assert_eq!(kept.archive.terms, held);
    assert_eq!(fs::read_to_string(fixture.on_disk(&name).join("data")).unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_record_that_was_restored_is_valid_only_for_its_own_directory() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let name = archived(&export, &fixture, "1").await;
    let former = fs::read(path(&fixture, CLUSTER, "pvc-1")).unwrap();
    let which = archive_of(&fixture, "1");
    crate::archive_crash::begin_purge(&export, &which).await.unwrap();
    export.end_purge(&which).await.unwrap();
    assert_eq!(fixture.records(), Vec::<String>::new());
    // Before the fileid of the purged directory can be reused.
    fs::create_dir(fixture.on_disk(&name)).unwrap();
    fs::write(path(&fixture, CLUSTER, "pvc-1"), former).unwrap();
    let export = fixture.client().open().await;
    settled(&export).await;
    let kept = kept(&export, "pvc-1").await;
    assert_eq!((kept.trust, kept.exists), (SignatureStatus::Signed, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_record_follows_its_volume_to_another_claim_and_nothing_else_does() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "data")).await.unwrap();
    fs::write(fixture.on_disk("data/file"), "1").unwrap();
    let bound_to = |uid: &str| VolumeDirectory {
        claim: claim(uid),
        ..reclaim("1", "data", created.file_id)
    };
    let metadata: VolumeMetadata = serde_json::from_value(json!({
        "cluster": CLUSTER, "provisioner": "p", "size": "1Gi", "reclaimPolicy": "Delete", "released": false,
    }))
    .unwrap();
    // The operator did not run while the volume was bound to claim 2.
    export
        .transfer_record(&bound_to("1"), &claim("2"), &metadata)
        .await
        .unwrap();
    export
        .transfer_record(&bound_to("1"), &claim("3"), &metadata)
        .await
        .unwrap();
    export
        .transfer_record(&bound_to("1"), &claim("3"), &metadata)
        .await
        .unwrap();
    assert_eq!(fixture.record("pvc-1")["claim"]["uid"], "3");
    for wrong in [
        reclaim("1", "elsewhere", created.file_id),
        reclaim("1", "data", created.file_id + 1),
        reclaim("2", "data", created.file_id),
    ] {
        export
            .transfer_record(&wrong, &claim("4"), &metadata)
            .await
            .unwrap_err();
    }
    // A record of another claim that is not signed is not confirmed by the volume.
    let signed = fs::read(path(&fixture, CLUSTER, "pvc-1")).unwrap();
    forge(&fixture, "pvc-1", |record| record["claim"]["uid"] = json!("5"));
    export
        .transfer_record(&bound_to("1"), &claim("4"), &metadata)
        .await
        .unwrap_err();
    fs::write(path(&fixture, CLUSTER, "pvc-1"), signed).unwrap();
    let done = export.archive(&bound_to("3"), &Decided).await.unwrap();
    assert!(matches!(done, Reclaimed::Archived { .. }), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_remains_that_of_its_claim_while_its_directory_is_not_moved_back() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let name = archived(&export, &fixture, "1").await;
    let file_id = fixture.record("pvc-1")["fileID"].as_u64().unwrap();
    let bound_to = |uid: &str| VolumeDirectory {
        claim: claim(uid),
        ..reclaim("1", "dir-1", file_id)
    };
    let metadata: VolumeMetadata = serde_json::from_value(json!({
        "cluster": CLUSTER, "provisioner": "p", "size": "1Gi", "reclaimPolicy": "Delete", "released": false,
    }))
    .unwrap();
    let transfer = async || export.transfer_record(&bound_to("1"), &claim("2"), &metadata).await;

    assert_eq!(transfer().await.unwrap(), RecordTransfer::Reclaimed(claim("1")));
    assert_eq!(fixture.record("pvc-1")["claim"]["uid"], "1");
    // The next process leaves the records of volumes that exist to them, and finds the archive here.
    let next = fixture.store().await;
    assert!(!next.has_archive("pvc-1"));
    let kept = next.transfer_record(&bound_to("1"), &claim("2"), &metadata).await;
    assert_eq!(kept.unwrap(), RecordTransfer::Reclaimed(claim("1")));
    assert!(next.has_archive("pvc-1"));
    export.archive(&bound_to("2"), &Decided).await.unwrap_err();
    let done = export.archive(&bound_to("1"), &Decided).await.unwrap();
    assert!(
        matches!(&done, Reclaimed::Archived { name: found, .. } if *found == name),
        "{done:?}"
    );

    // What nobody signed may name any claim.
    let signed = fs::read(path(&fixture, CLUSTER, "pvc-1")).unwrap();
    forge(&fixture, "pvc-1", |record| {
        record["claim"]["namespace"] = json!("other")
    });
    let error = transfer().await.unwrap_err();
    assert!(matches!(error, ExportError::RecordUnsigned { .. }), "{error}");
    fs::write(path(&fixture, CLUSTER, "pvc-1"), signed).unwrap();

    // Moved back by an administrator, for the claim that the volume is bound to.
    fs::rename(fixture.on_disk(&name), fixture.on_disk("dir-1")).unwrap();
    assert_eq!(transfer().await.unwrap(), RecordTransfer::Transferred);
    assert_eq!(fixture.record("pvc-1")["claim"]["uid"], "2");
    assert_eq!(fixture.record("pvc-1")["state"]["name"], "Live");
    assert_eq!(export.archives(), Vec::<String>::new());
    assert_eq!(fs::read_to_string(fixture.on_disk("dir-1/data")).unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_very_many_unsigned_records_most_are_only_counted_and_none_is_taken_for_signed() {
    const DESCRIBED: usize = 10_000;
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    archived(&export, &fixture, "1").await;
    let mut lie = fixture.record("pvc-1");
    lie["state"] = json!({"name": "Live"});
    let forged: Vec<String> = (0..DESCRIBED + 2).map(|number| format!("forged-{number}")).collect();
    for volume in &forged {
        lie["volume"] = json!(volume);
        fs::write(path(&fixture, CLUSTER, volume), lie.to_string()).unwrap();
    }
    let export = fixture.client().open().await;
    let found = settled(&export).await;
    assert!(found.open.iter().all(|record| !record.is_lost));
    let unsigned = export.unsigned_records();
    assert_eq!((unsigned.own.len(), unsigned.further), (DESCRIBED, 2));
    assert!(forged.iter().all(|volume| export.is_unsigned(volume)));
    assert!(!export.is_unsigned("pvc-1"));
    // All are moved away, except one that was only counted.
    let described: Vec<&str> = unsigned.own.iter().map(|record| &*record.volume).collect();
    let left = forged
        .iter()
        .find(|volume| !described.contains(&volume.as_str()))
        .unwrap();
    for volume in forged.iter().filter(|volume| *volume != left) {
        fs::remove_file(path(&fixture, CLUSTER, volume)).unwrap();
    }
    settled(&export).await;
    let unsigned = export.unsigned_records();
    let described: Vec<&str> = unsigned.own.iter().map(|record| &*record.volume).collect();
    assert_eq!((described, unsigned.further), (vec![left.as_str()], 0));
    let still: Vec<&String> = forged.iter().filter(|volume| export.is_unsigned(volume)).collect();
    assert_eq!(still, [left]);
}
