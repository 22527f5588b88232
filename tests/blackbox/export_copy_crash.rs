//! A copy that dies at every moment.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use nfs_operator::export::{Budget, ManagedExport, Tally, UndoOutcome, copy_volume};

use crate::export_crash::{Operation, at_every_moment, clear};
use crate::export_lab::{CLUSTER, Lab, names, reclaim, request};

/// The source of a copy: a file with two names, one in a directory.
async fn source(lab: &Lab, export: &ManagedExport, uid: &str) -> u64 {
    let old = format!("{uid}-old");
    let made = export.provision(&request(&old, "old")).await.unwrap();
    fs::create_dir(lab.on_disk("old/below")).unwrap();
    fs::write(lab.on_disk("old/file"), uid).unwrap();
    fs::hard_link(lab.on_disk("old/file"), lab.on_disk("old/below/again")).unwrap();
    made.file_id
}

async fn copy(export: &Arc<ManagedExport>, uid: &str, file_id: u64) -> u64 {
    let of = reclaim(&format!("{uid}-old"), "old", file_id);
    let new = request(uid, "home/new");
    let tally = Arc::new(Tally::default());
    let made = copy_volume((export, &of), (export, &new), &Budget::default(), &tally).await;
    made.unwrap().file_id
}

fn begun(uid: String, file_id: u64) -> Box<dyn FnOnce(ManagedExport) -> Operation> {
    Box::new(move |export| {
        Box::pin(async move {
            copy(&Arc::new(export), &uid, file_id).await;
        })
    })
}

/// The source is as it was, and nothing is left in the staging folder.
fn nothing_half_done(lab: &Lab, uid: &str) {
    assert_eq!(fs::read_to_string(lab.on_disk("old/below/again")).unwrap(), uid);
    assert_eq!(fs::metadata(lab.on_disk("old/file")).unwrap().nlink(), 2);
    let staging = lab.on_disk(&format!(".nfs-operator/{CLUSTER}/staging"));
    if staging.exists() {
        assert_eq!(names(&staging), Vec::<String>::new());
    }
}

/// What has the name is the whole copy, or there is nothing.
fn whole_or_nothing(lab: &Lab, uid: &str) {
    let new = lab.on_disk("home/new");
    if new.exists() {
        assert_eq!(fs::read_to_string(new.join("file")).unwrap(), uid);
        assert_eq!(fs::read_to_string(new.join("below/again")).unwrap(), uid);
        assert_eq!(fs::metadata(new.join("file")).unwrap().nlink(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_dies_anywhere_ends_as_one_whole_copy() {
    at_every_moment(source, begun, async |lab, next, uid, file_id| {
        whole_or_nothing(lab, uid);
        let made = copy(&Arc::new(next), uid, file_id).await;
        whole_or_nothing(lab, uid);
        assert_eq!(fs::metadata(lab.on_disk("home/new")).unwrap().ino(), made);
        nothing_half_done(lab, uid);
        let record = lab.record(&format!("pvc-{uid}"));
        assert_eq!(record.pointer("/state/name").unwrap(), "Live");
        assert_eq!(record.pointer("/fileID").unwrap(), made);
        clear(lab);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_dies_anywhere_is_undone_unless_it_was_finished() {
    at_every_moment(source, begun, async |lab, next, uid, _| {
        whole_or_nothing(lab, uid);
        let path = lab.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-{uid}"));
        // Without a session's reply cache, a record may be there without its content.
        let record: Option<serde_json::Value> = fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let state = record.and_then(|record| record.pointer("/state/name").cloned());
        let finished = state.is_some_and(|state| state == "Live");
        let undone = next.undo(&format!("pvc-{uid}"), uid).await.unwrap();
        // Of one that is finished, a volume may have been made: its data is nobody's to remove.
        assert_eq!(undone == UndoOutcome::NotEmpty, finished, "{undone:?}");
        assert_eq!(lab.on_disk("home/new").exists(), finished);
        nothing_half_done(lab, uid);
        clear(lab);
    })
    .await;
}
