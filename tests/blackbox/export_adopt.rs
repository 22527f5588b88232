//! Records that this cluster did not sign, on a real server: doubted, and adopted on an administrator's word alone.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use nfs_operator::api::Reason;
use nfs_operator::export::{
    ExportError, Holder, KeptArchive, ManagedExport, Place, ReclaimRequest, Reclaimed, RecordName, Settled, Trust,
};
use serde_json::{Value, json};

use crate::export_lab::{CLUSTER, Lab, Life, OTHER_CLUSTER, claim, reclaim, request};

/// Takes in what is there, as an operator does that has no volumes.
async fn settled(export: &ManagedExport) -> Settled {
    export.settle(&|_| false).await.unwrap()
}

/// Makes a directory with a file in it, and archives it.
async fn archived(export: &ManagedExport, lab: &Lab, uid: &str) -> String {
    let made = export.provision(&request(uid, &format!("dir-{uid}"))).await.unwrap();
    fs::write(lab.on_disk(&format!("dir-{uid}/data")), uid).unwrap();
    let request = reclaim(uid, &format!("dir-{uid}"), made.file_id);
    match export.archive(&request).await.unwrap() {
        Reclaimed::Archived { name, .. } => name,
        other => panic!("{other:?}"),
    }
}

fn path(lab: &Lab, cluster: &str, volume: &str) -> std::path::PathBuf {
    lab.on_disk(&format!(".nfs-operator/{cluster}/records/{volume}"))
}

/// Writes a record as somebody does who has no key: what `change` makes of the one of that volume.
fn forge(lab: &Lab, volume: &str, change: impl FnOnce(&mut Value)) {
    let mut record = lab.record(volume);
    record.as_object_mut().unwrap().remove("signature");
    change(&mut record);
    fs::write(path(lab, CLUSTER, volume), record.to_string()).unwrap();
}

async fn kept(export: &ManagedExport, volume: &str) -> KeptArchive {
    export.archive_kept(volume).await.unwrap().unwrap()
}

async fn refusal(export: &ManagedExport, name: &str) -> ExportError {
    let error = export.adopt(&RecordName::parse(name).unwrap()).await.unwrap_err();
    println!("{error}");
    assert_eq!(error.reason(), Reason::RecordNotAdopted);
    error
}

fn doubted(export: &ManagedExport) -> Vec<(String, Trust)> {
    let own = export.doubts().own.into_iter();
    own.map(|doubted| (doubted.volume, doubted.trust)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_key_signed_is_doubted_until_it_is_adopted_by_name_and_then_neither_expires_nor_deletes() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    let name = archived(&export, &lab, "1").await;
    archived(&export, &lab, "2").await;
    assert_eq!(kept(&export, "pvc-1").await.trust, Trust::Signed);
    let kept_by = lab.life().begin().await;
    settled(&kept_by).await;
    assert_eq!(doubted(&kept_by), []);

    forge(&lab, "pvc-2", |record| {
        record["state"]["terms"] = json!({"held": true, "expires": 1, "delete": true});
    });
    let other_key = Life { key: 8, ..lab.life() };
    let export = other_key.begin().await;
    settled(&export).await;
    let expected = [("pvc-1", Trust::Forged), ("pvc-2", Trust::Unsigned)];
    assert_eq!(
        doubted(&export),
        expected.map(|(volume, trust)| (volume.to_owned(), trust))
    );
    assert_eq!(kept(&export, "pvc-1").await.trust, Trust::Forged);

    for volume in ["pvc-1", "pvc-2"] {
        let adopted = export.adopt(&RecordName::parse(volume).unwrap()).await.unwrap();
        assert!(
            adopted.archive && export.archives().contains(&adopted.volume),
            "{adopted:?}"
        );
        assert_eq!(kept(&export, volume).await.trust, Trust::Signed);
        // Once more, as after an answer that was lost.
        assert_eq!(
            export.adopt(&RecordName::parse(volume).unwrap()).await.unwrap(),
            adopted
        );
    }
    assert_eq!(doubted(&export), []);
    let terms = kept(&export, "pvc-2").await.note.terms;
    assert_eq!((terms.held, terms.expires, terms.delete), (true, None, false));
    assert_eq!(fs::read_to_string(lab.on_disk(&name).join("data")).unwrap(), "1");
    let again = other_key.begin().await;
    settled(&again).await;
    assert_eq!(doubted(&again), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_adopted_only_if_what_it_says_is_so() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    archived(&export, &lab, "1").await;
    let made = export.provision(&request("2", "in-use")).await.unwrap();
    let volume = Holder::Volume("pvc-2".to_owned());
    let ledger = lab.life().ledger;
    ledger.insert(
        volume,
        vec![Place::on_server("127.0.0.1", "/export/in-use")],
        Some((export.read_identity().await.unwrap().unwrap().id, made.file_id)),
    );
    fs::create_dir(lab.on_disk("archived-of-nobody")).unwrap();
    fs::create_dir_all(lab.on_disk("nested/.nfs-operator")).unwrap();
    let life = Life { ledger, ..lab.life() };
    let true_one = lab.record("pvc-1");
    let inode = |name: &str| fs::metadata(lab.on_disk(name)).unwrap().ino();
    let (nobodys, nested, in_use) = (inode("archived-of-nobody"), inode("nested"), inode("in-use"));
    let live = |record: &mut Value, directory: &str, file_id: u64| {
        record["state"] = json!({"name": "Live"});
        record["directory"] = json!(directory);
        record["fileID"] = json!(file_id);
    };
    type Change<'a> = Box<dyn Fn(&mut Value) + 'a>;
    let lies: [(&str, Change<'_>); 9] = [
        ("not there, or another", Box::new(|record| record["fileID"] = json!(1))),
        (
            "not there, or another",
            Box::new(|record| record["fileID"] = Value::Null),
        ),
        (
            "not there, or another",
            Box::new(|record| record["state"]["target"] = json!("archived-elsewhere")),
        ),
        (
            "not there, or another",
            Box::new(|record| record["state"]["target"] = json!("archived-of-nobody")),
        ),
        (
            "can't be an archive's name",
            Box::new(|record| record["state"]["target"] = json!("in-use")),
        ),
        ("can't be one", Box::new(move |record| live(record, "../etc", 1))),
        ("in-use", Box::new(move |record| live(record, "in-use", in_use))),
        ("in-use", Box::new(move |record| live(record, "in-use/below", nobodys))),
        (
            "path of a backend",
            Box::new(move |record| live(record, "nested", nested)),
        ),
    ];
    for (why, lie) in lies {
        forge(&lab, "pvc-1", &lie);
        let before = fs::read(path(&lab, CLUSTER, "pvc-1")).unwrap();
        let export = life.begin().await;
        settled(&export).await;
        let error = refusal(&export, "pvc-1").await.to_string();
        assert!(error.contains(why), "{why:?} is not why: {error}");
        assert_eq!(fs::read(path(&lab, CLUSTER, "pvc-1")).unwrap(), before);
        assert!(!export.archives().contains(&"pvc-1".to_owned()) || export.is_doubted("pvc-1"));
    }
    let busy = json!({"name": "Purging", "archive": true_one["state"], "since": 1});
    forge(&lab, "pvc-1", |record| {
        *record = true_one.clone();
        record["state"] = busy;
    });
    let export = life.begin().await;
    settled(&export).await;
    assert!(refusal(&export, "pvc-1").await.to_string().contains("being purged"));
    assert!(refusal(&export, "pvc-2").await.to_string().contains("PersistentVolume"));
    assert!(refusal(&export, "pvc-9").await.to_string().contains("no such record"));
    for name in ["", "a b", "../x", "x/../y", "x/y/z", "/y", "PVC"] {
        assert!(RecordName::parse(name).is_err(), "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_clusters_record_is_counted_and_moves_here_only_by_its_name() {
    let lab = Lab::start().await;
    let theirs = Life {
        cluster: OTHER_CLUSTER,
        key: 9,
        ..lab.life()
    };
    let there = theirs.begin().await;
    let name = archived(&there, &lab, "1").await;
    there.provision(&request("2", "team/live")).await.unwrap();
    fs::write(lab.on_disk("team/live/data"), "2").unwrap();
    let export = lab.confirmed().await;
    settled(&export).await;
    let doubts = export.doubts();
    assert_eq!(doubts.own, []);
    let others = &doubts.others[..];
    assert_eq!((others.len(), &*others[0].id, others[0].records), (1, OTHER_CLUSTER, 2));
    assert_eq!(others[0].named, ["pvc-1", "pvc-2"]);
    assert!(refusal(&export, "pvc-1").await.to_string().contains("no such record"));
    assert_eq!(lab.records(), Vec::<String>::new());

    let full = |volume: &str| RecordName::parse(&format!("{OTHER_CLUSTER}/{volume}")).unwrap();
    let adopted = export.adopt(&full("pvc-1")).await.unwrap();
    assert_eq!((adopted.archive, &adopted.directory), (true, &name));
    assert_eq!(kept(&export, "pvc-1").await.trust, Trust::Signed);
    assert_eq!(kept(&export, "pvc-1").await.claim, claim("1"));
    let adopted = export.adopt(&full("pvc-2")).await.unwrap();
    assert_eq!((adopted.archive, &*adopted.directory), (false, "team/live"));
    assert!(!path(&lab, OTHER_CLUSTER, "pvc-1").exists() && !path(&lab, OTHER_CLUSTER, "pvc-2").exists());
    assert_eq!(export.doubts().others, []);
    assert_eq!(export.adopt(&full("pvc-2")).await.unwrap(), adopted);
    assert_eq!(fs::read_to_string(lab.on_disk("team/live/data")).unwrap(), "2");

    // Whoever had them does not touch them any more.
    let begun = there.archive(&reclaim(
        "2",
        "team/live",
        lab.record("pvc-2")["fileID"].as_u64().unwrap(),
    ));
    assert_eq!(begun.await.unwrap_err().reason(), Reason::RecordMissing);
    // A name that is taken here is not taken over.
    let record = fs::read(path(&lab, CLUSTER, "pvc-1")).unwrap();
    let stranger = String::from_utf8(record.clone())
        .unwrap()
        .replace("\"team\"", "\"other\"");
    fs::write(path(&lab, OTHER_CLUSTER, "pvc-1"), stranger).unwrap();
    let error = refusal(&export, &format!("{OTHER_CLUSTER}/pvc-1")).await;
    assert!(error.to_string().contains("another record of that name"));
    assert_eq!(fs::read(path(&lab, CLUSTER, "pvc-1")).unwrap(), record);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_begun_or_gone_on_with_on_the_word_of_a_record_alone() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    archived(&export, &lab, "1").await;
    // As after a crash between the rename and the record: it would be completed, if it were signed.
    forge(&lab, "pvc-1", |record| record["state"]["name"] = json!("Archiving"));
    // A tombstone would be purged.
    fs::create_dir(lab.on_disk(".nfs-operator-deleted-pvc-2")).unwrap();
    fs::write(lab.on_disk(".nfs-operator-deleted-pvc-2/data"), "precious").unwrap();
    let inode = fs::metadata(lab.on_disk(".nfs-operator-deleted-pvc-2")).unwrap().ino();
    let mut tombstone = lab.record("pvc-1");
    tombstone["volume"] = json!("pvc-2");
    tombstone["directory"] = json!("dir-2");
    tombstone["fileID"] = json!(inode);
    tombstone["state"] = json!({"name": "Tombstone", "since": 1});
    tombstone.as_object_mut().unwrap().remove("handle");
    fs::write(path(&lab, CLUSTER, "pvc-2"), tombstone.to_string()).unwrap();
    // A claim that waits, and a record that says that it has another's directory.
    fs::create_dir(lab.on_disk("anothers")).unwrap();
    let mut lie = lab.record("pvc-1");
    lie["volume"] = json!("pvc-3");
    lie["claim"]["uid"] = json!("3");
    lie["directory"] = json!("anothers");
    lie["fileID"] = json!(fs::metadata(lab.on_disk("anothers")).unwrap().ino());
    lie["state"] = json!({"name": "Live"});
    fs::write(path(&lab, CLUSTER, "pvc-3"), lie.to_string()).unwrap();

    let export = lab.life().begin().await;
    let found = settled(&export).await;
    let mut stuck: Vec<&str> = found.stuck.iter().map(|record| &*record.volume).collect();
    stuck.sort_unstable();
    assert_eq!(stuck, ["pvc-1", "pvc-2"]);
    assert_eq!(lab.record("pvc-1")["state"]["name"], "Archiving");
    assert_eq!(export.archives(), Vec::<String>::new());
    export.purge_trash(Default::default()).await.unwrap();
    assert!(lab.on_disk(".nfs-operator-deleted-pvc-2/data").exists());
    let made = export.provision(&request("3", "its-own")).await.unwrap();
    assert_eq!(made.directory.to_string(), "its-own");
    let doubts = doubted(&export);
    assert!(!doubts.iter().any(|(volume, _)| volume == "pvc-3"), "{doubts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_vouches_for_its_own_record_and_for_no_other() {
    let lab = Lab::start().await;
    let export = lab.confirmed().await;
    let made = export.provision(&request("1", "data")).await.unwrap();
    fs::write(lab.on_disk("data/file"), "kept").unwrap();
    let said = reclaim("1", "data", made.file_id);
    let unsigned = |lab: &Lab| lab.record("pvc-1").get("signature").is_none();
    assert!(!unsigned(&lab));
    forge(&lab, "pvc-1", |record| {
        record["claim"]["namespace"] = json!("of-a-thief")
    });
    for wrong in [
        ReclaimRequest {
            claim: claim("2"),
            ..said.clone()
        },
        reclaim("1", "elsewhere", made.file_id),
        reclaim("1", "data", made.file_id + 1),
    ] {
        let wrong = ReclaimRequest {
            volume: "pvc-1".to_owned(),
            ..wrong
        };
        assert!(export.vouch_for(&wrong).await.is_err());
        assert!(unsigned(&lab));
    }
    export.vouch_for(&said).await.unwrap();
    assert!(!unsigned(&lab));
    assert_eq!(
        lab.record("pvc-1")["claim"]["namespace"],
        "team",
        "the volume's word, not the record's"
    );
    // Its reclaim goes on with a record of an earlier release, and leaves a signed one.
    forge(&lab, "pvc-1", |_| ());
    export.archive(&said).await.unwrap();
    assert_eq!(kept(&export, "pvc-1").await.trust, Trust::Signed);
}
