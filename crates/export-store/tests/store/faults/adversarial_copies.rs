//! Copies from and to servers on which names collide or directories change: nothing is lost without a report.

use std::sync::Arc;

use export_store::{CopyError, CopyProgressSnapshot, ExportStore};

use crate::copy::{copied, volume};
use crate::faults::adversarial_trees::managed;
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
