//! Copies from and to servers on which names collide or directories change: nothing is lost without a report.

use std::sync::Arc;

use export_store::{CopyError, CopyLimits, CopyProgress, CopyProgressSnapshot, CopySource, ExportStore, copy_volume};

use crate::copy::{copied, volume};
use crate::faults::adversarial_trees::managed;
use crate::fixture::{reclaim, request};
use crate::nfs::TIMEOUT;
use crate::nfs::hostile::{DIRECTORY, FILE, Hostile, Tree};

/// Fills a volume of one server with `grow` and copies it to the other server.
async fn copied_to(target: &Hostile, grow: impl FnOnce(&mut Tree, u64)) -> Result<CopyProgressSnapshot, CopyError> {
    let source = Hostile::start().await;
    let (from, to): (Arc<ExportStore>, _) = (Arc::new(managed(&source).await), Arc::new(managed(target).await));
    let file_id = volume(&from, "1").await;
    {
        let mut tree = source.tree();
        let top = tree.find("1").unwrap();
        grow(&mut tree, top);
    }
    let copy = copied((&from, "1", file_id), (&to, "2")).await;
    copy.map(|(_, progress)| progress)
}

#[tokio::test]
async fn names_that_are_the_same_on_the_target_fail_the_copy() {
    for kind in [FILE, DIRECTORY] {
        let target = Hostile::start().await;
        target.tree().ignores_case = true;
        let failed = copied_to(&target, |tree, top| {
            let inner = tree.add(top, b"inner", DIRECTORY);
            tree.add(inner, b"Name", kind);
            tree.add(inner, b"name", kind);
        })
        .await
        .unwrap_err();
        assert!(matches!(failed, CopyError::NamesCollide { .. }), "{failed}");
        let message = failed.to_string();
        assert!(
            message.contains("/inner/Name") && message.contains("/inner/name"),
            "{message}"
        );
        assert!(target.tree().find("2").is_none(), "nothing is published");
    }
}

#[tokio::test]
async fn a_file_that_is_renamed_during_the_listing_is_copied() {
    let target = Hostile::start().await;
    let progress = copied_to(&target, |tree, top| {
        for number in 0..150 {
            tree.add(top, format!("file {number:03}").as_bytes(), FILE);
        }
        let renamed = tree.add(top, b"last", FILE);
        let rename = move |tree: &mut Tree| tree.relocate(renamed, top, b"a first");
        tree.on_listing = Some((top, Box::new(rename)));
    })
    .await
    .unwrap();
    assert!(target.tree().find("2/a first").is_some(), "{progress:?}");
    let children = {
        let tree = target.tree();
        tree.find("2").map(|copy| tree.objects[&copy].children.len()).unwrap()
    };
    assert_eq!(children, 151);
    assert_eq!(progress.changed_directories, 0, "listed completely the second time");
}

#[tokio::test]
async fn a_directory_that_keeps_changing_is_reported() {
    /// Renames the object after each page.
    fn rename(tree: &mut Tree, top: u64, renamed: u64, times: u32) {
        tree.relocate(renamed, top, format!("renamed {times}").as_bytes());
        let again = move |tree: &mut Tree| rename(tree, top, renamed, times + 1);
        tree.on_listing = Some((top, Box::new(again)));
    }
    let target = Hostile::start().await;
    let progress = copied_to(&target, |tree, top| {
        let renamed = tree.add(top, b"file", FILE);
        rename(tree, top, renamed, 0);
    })
    .await
    .unwrap();
    assert_eq!(progress.changed_directories, 1, "{progress:?}");
    assert!(
        progress.to_string().contains("changed while they were listed"),
        "{progress}"
    );
}

/// Copies a volume with one file, of which at most `max_bytes` may be copied.
async fn copied_up_to(max_bytes: u64, size: usize) -> Result<CopyProgressSnapshot, CopyError> {
    let (source, target) = (Hostile::start().await, Hostile::start().await);
    let (from, to) = (Arc::new(managed(&source).await), Arc::new(managed(&target).await));
    let file_id = volume(&from, "1").await;
    {
        let mut tree = source.tree();
        let top = tree.find("1").unwrap();
        let file = tree.add(top, b"file", FILE);
        tree.at(file).content = vec![7; size];
    }
    let limits = CopyLimits::default().with_max_bytes(max_bytes);
    let (progress, volume) = (Arc::default(), CopySource::Volume(reclaim("1", "1", file_id)));
    let copy = copy_volume((&from, &volume), (&to, &request("2", "2")), &limits, &progress).await;
    assert_eq!(target.tree().find("2").is_some(), copy.is_ok());
    copy.map(|_| progress.snapshot())
}

#[tokio::test]
async fn a_copy_that_is_larger_than_its_claim_fails() {
    for size in [1000, 1 << 20] {
        copied_up_to(size as u64, size).await.unwrap();
        let failed = copied_up_to(size as u64 - 1, size).await.unwrap_err();
        assert!(matches!(failed, CopyError::TooLarge { .. }), "{failed}");
    }
}

/// Makes a volume with 40 names of one file, whose content the server never returns completely.
async fn endless_links(server: &Hostile, export: &ExportStore, uid: &str) -> CopySource {
    let file_id = volume(export, uid).await;
    let mut tree = server.tree();
    let top = tree.find(uid).unwrap();
    let file = tree.add(top, b"name 0", FILE);
    tree.at(file).content = vec![7; 1 << 18];
    tree.at(file).silent_from = Some(1 << 17);
    tree.at(file).links = 40;
    for number in 1..40 {
        tree.graft(top, format!("name {number}").as_bytes(), file);
    }
    CopySource::Volume(reclaim(uid, uid, file_id))
}

#[tokio::test]
async fn names_that_wait_for_another_name_of_their_file_delay_no_other_copy() {
    let (source, target) = (Hostile::start().await, Hostile::start().await);
    let (from, to) = (Arc::new(managed(&source).await), Arc::new(managed(&target).await));
    let linked = endless_links(&source, &from, "1").await;
    let file_id = volume(&from, "2").await;
    {
        let mut tree = source.tree();
        let top = tree.find("2").unwrap();
        tree.add(top, b"file", FILE);
    }
    let (limits, progress) = (CopyLimits::default(), Arc::new(CopyProgress::default()));
    let copy_to = async |source: CopySource, uid: &str| {
        copy_volume((&from, &source), (&to, &request(uid, uid)), &limits, &progress).await
    };
    let mut endless = std::pin::pin!(copy_to(linked, "3"));
    let started = async {
        // Each name is listed and looked up before the other copy begins.
        while progress.snapshot().bytes == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ended = &mut endless => panic!("the server answered: {ended:?}"),
        () = started => {}
    }
    let other = copy_to(CopySource::Volume(reclaim("2", "2", file_id)), "4");
    tokio::select! {
        ended = &mut endless => panic!("the other copy waited for this one: {ended:?}"),
        done = tokio::time::timeout(TIMEOUT, other) => done.expect("the other copy waits").map(drop).unwrap(),
    }
    assert!(target.tree().find("4/file").is_some());
}
