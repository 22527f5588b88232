//! Records that this cluster did not sign, adopted at the request of an administrator.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use export_store::ErrorKind;
use export_store::{Adopted, Decided, ExportError, ExportStore, Holder, RecordName, ReservedPath, SignatureStatus};
use serde_json::{Value, json};

use crate::fixture::{CLUSTER, OTHER_CLUSTER, StoreClient, StoreFixture, claim, reclaim, request};
use crate::trust::{archived, doubted, forge, kept, path, settled};

/// Adopts a record at the request of an administrator. The backends `fast` and `slow` exist.
async fn adopt(export: &ExportStore, name: &str) -> Result<Adopted, ExportError> {
    let is_backend = |name: &str| ["fast", "slow"].contains(&name);
    export.adopt(&RecordName::parse(name).unwrap(), &is_backend).await
}

async fn refusal(export: &ExportStore, name: &str) -> ExportError {
    let error = adopt(export, name).await.unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::RecordNotAdopted);
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_signed_with_another_key_must_be_adopted_and_then_neither_expires_nor_deletes() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let name = archived(&export, &fixture, "1").await;
    archived(&export, &fixture, "2").await;
    assert_eq!(kept(&export, "pvc-1").await.trust, SignatureStatus::Signed);
    let kept_by = fixture.client().open().await;
    settled(&kept_by).await;
    assert_eq!(doubted(&kept_by), []);

    forge(&fixture, "pvc-2", |record| {
        record["state"]["terms"] = json!({"held": true, "expires": 1, "delete": true});
    });
    let other_key = StoreClient {
        key: 8,
        ..fixture.client()
    };
    let export = other_key.open().await;
    settled(&export).await;
    let expected = [("pvc-1", SignatureStatus::Forged), ("pvc-2", SignatureStatus::Unsigned)];
    assert_eq!(
        doubted(&export),
        expected.map(|(volume, trust)| (volume.to_owned(), trust))
    );
    assert_eq!(kept(&export, "pvc-1").await.trust, SignatureStatus::Forged);

    for volume in ["pvc-1", "pvc-2"] {
        let adopted = adopt(&export, volume).await.unwrap();
        assert!(
            adopted.archive && export.archives().contains(&adopted.volume),
            "{adopted:?}"
        );
        assert_eq!(kept(&export, volume).await.trust, SignatureStatus::Signed);
        // Again, as after a lost reply.
        assert_eq!(adopt(&export, volume).await.unwrap(), adopted);
    }
    assert_eq!(doubted(&export), []);
    let terms = kept(&export, "pvc-2").await.archive.terms;
    assert_eq!((terms.held, terms.expires, terms.delete), (true, None, false));
    assert_eq!(fs::read_to_string(fixture.on_disk(&name).join("data")).unwrap(), "1");
    let again = other_key.open().await;
    settled(&again).await;
    assert_eq!(doubted(&again), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_adopted_only_if_it_matches_the_export() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    archived(&export, &fixture, "1").await;
    let created = export.provision(&request("2", "in-use")).await.unwrap();
    let volume = Holder::Volume("pvc-2".to_owned());
    let reservations = fixture.client().reservations;
    reservations.insert(
        volume,
        vec![ReservedPath::on_server("127.0.0.1", "/export/in-use")],
        Some((export.read_identity().await.unwrap().unwrap().id, created.file_id)),
    );
    fs::create_dir(fixture.on_disk("archived-of-nobody")).unwrap();
    fs::create_dir_all(fixture.on_disk("nested/.nfs-operator")).unwrap();
    let client = StoreClient {
        reservations,
        ..fixture.client()
    };
    let true_one = fixture.record("pvc-1");
    let inode = |name: &str| fs::metadata(fixture.on_disk(name)).unwrap().ino();
    let (nobodys, nested, in_use) = (inode("archived-of-nobody"), inode("nested"), inode("in-use"));
    let live = |record: &mut Value, directory: &str, file_id: u64| {
        record["state"] = json!({"name": "Live"});
        record["directory"] = json!(directory);
        record["fileID"] = json!(file_id);
    };
    type Change<'a> = Box<dyn Fn(&mut Value) + 'a>;
    let lies: [(&str, Change<'_>); 9] = [
        (
            "does not exist, or is not",
            Box::new(|record| record["fileID"] = json!(1)),
        ),
        (
            "does not exist, or is not",
            Box::new(|record| record["fileID"] = Value::Null),
        ),
        (
            "does not exist, or is not",
            Box::new(|record| record["state"]["target"] = json!("archived-elsewhere")),
        ),
        (
            "does not exist, or is not",
            Box::new(|record| record["state"]["target"] = json!("archived-of-nobody")),
        ),
        (
            "is not a valid archive name",
            Box::new(|record| record["state"]["target"] = json!("in-use")),
        ),
        (
            "its directory is invalid",
            Box::new(move |record| live(record, "../etc", 1)),
        ),
        ("in-use", Box::new(move |record| live(record, "in-use", in_use))),
        ("in-use", Box::new(move |record| live(record, "in-use/below", nobodys))),
        (
            "path of a backend",
            Box::new(move |record| live(record, "nested", nested)),
        ),
    ];
    for (why, lie) in lies {
        forge(&fixture, "pvc-1", &lie);
        let before = fs::read(path(&fixture, CLUSTER, "pvc-1")).unwrap();
        let export = client.open().await;
        settled(&export).await;
        let error = refusal(&export, "pvc-1").await.to_string();
        assert!(error.contains(why), "{why:?} is not why: {error}");
        assert_eq!(fs::read(path(&fixture, CLUSTER, "pvc-1")).unwrap(), before);
        assert!(!export.archives().contains(&"pvc-1".to_owned()) || export.is_unsigned("pvc-1"));
    }
    let busy = json!({"name": "Purging", "archive": true_one["state"], "since": 1});
    forge(&fixture, "pvc-1", |record| {
        *record = true_one.clone();
        record["state"] = busy;
    });
    let export = client.open().await;
    settled(&export).await;
    assert!(refusal(&export, "pvc-1").await.to_string().contains("being purged"));
    forge(&fixture, "pvc-2", |_| ());
    assert!(refusal(&export, "pvc-2").await.to_string().contains("PersistentVolume"));
    assert!(refusal(&export, "pvc-9").await.to_string().contains("no such record"));
    for name in ["", "a b", "../x", "x/../y", "x/y/z", "/y", "PVC"] {
        assert!(RecordName::parse(name).is_err(), "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_clusters_record_is_counted_and_adopted_only_by_name() {
    let fixture = StoreFixture::start().await;
    let theirs = StoreClient {
        cluster: OTHER_CLUSTER,
        key: 9,
        ..fixture.client()
    };
    let there = theirs.open().await;
    let name = archived(&there, &fixture, "1").await;
    there.provision(&request("2", "team/live")).await.unwrap();
    fs::write(fixture.on_disk("team/live/data"), "2").unwrap();
    let export = fixture.store().await;
    settled(&export).await;
    let unsigned_records = export.unsigned_records();
    assert_eq!(unsigned_records.own, []);
    let others = &unsigned_records.others[..];
    assert_eq!((others.len(), &*others[0].id, others[0].records), (1, OTHER_CLUSTER, 2));
    assert_eq!(others[0].named, ["pvc-1", "pvc-2"]);
    assert!(refusal(&export, "pvc-1").await.to_string().contains("no such record"));
    assert_eq!(fixture.records(), Vec::<String>::new());

    let full = |volume: &str| format!("{OTHER_CLUSTER}/{volume}");
    let adopted = adopt(&export, &full("pvc-1")).await.unwrap();
    assert_eq!((adopted.archive, &adopted.directory), (true, &name));
    assert_eq!(kept(&export, "pvc-1").await.trust, SignatureStatus::Signed);
    assert_eq!(kept(&export, "pvc-1").await.claim, claim("1"));
    let adopted = adopt(&export, &full("pvc-2")).await.unwrap();
    assert_eq!((adopted.archive, &*adopted.directory), (false, "team/live"));
    assert!(!path(&fixture, OTHER_CLUSTER, "pvc-1").exists() && !path(&fixture, OTHER_CLUSTER, "pvc-2").exists());
    assert_eq!(export.unsigned_records().others, []);
    assert_eq!(adopt(&export, &full("pvc-2")).await.unwrap(), adopted);
    assert_eq!(fs::read_to_string(fixture.on_disk("team/live/data")).unwrap(), "2");

    // The former owner does not touch them any more.
    let file_id = fixture.record("pvc-2")["fileID"].as_u64().unwrap();
    let error = there
        .archive(&reclaim("2", "team/live", file_id), &Decided)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RecordMissing);
    // A name that is in use here is not replaced.
    let record = fs::read(path(&fixture, CLUSTER, "pvc-1")).unwrap();
    let stranger = String::from_utf8(record.clone())
        .unwrap()
        .replace("\"team\"", "\"other\"");
    fs::write(path(&fixture, OTHER_CLUSTER, "pvc-1"), stranger).unwrap();
    let error = refusal(&export, &format!("{OTHER_CLUSTER}/pvc-1")).await;
    assert!(error.to_string().contains("another record of that name"));
    assert_eq!(fs::read(path(&fixture, CLUSTER, "pvc-1")).unwrap(), record);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_another_existing_backend_are_adopted_there() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    archived(&export, &fixture, "1").await;
    for backend in ["slow", "gone"] {
        forge(&fixture, "pvc-1", |record| record["backend"] = json!(backend));
        let export = fixture.client().open().await;
        settled(&export).await;
        if backend == "slow" {
            assert!(
                refusal(&export, "pvc-1")
                    .await
                    .to_string()
                    .contains("belongs to backend slow")
            );
        } else {
            assert!(adopt(&export, "pvc-1").await.unwrap().archive);
        }
    }
    assert_eq!(fixture.record("pvc-1")["backend"], "fast");
}
