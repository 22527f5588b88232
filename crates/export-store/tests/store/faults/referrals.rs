//! Referrals (RFC 8881 section 11.3): the server replies that an object is on another server. The client never requests
//! the target, so a server cannot redirect the operator to another one.

use export_store::ErrorKind;
use export_store::{Decided, ErrorHints, classify};
use nfs_client::{Client, NfsError, Status, VersionChoice};

use super::adversarial_trees::{managed, purged, says};
use crate::fixture::{reclaim, refused, request};
use crate::nfs::hostile::{DIRECTORY, FILE, Hostile, Tree};
use crate::nfs::{name, target};

#[tokio::test]
async fn a_referral_on_the_path_to_the_export_is_reported_and_not_followed() {
    // The root of the server, the directory of the export, and its parent.
    for (referral, path) in [("", "/"), ("inner", "/inner"), ("inner", "/inner/deeper")] {
        let server = Hostile::start().await;
        let inner = server.tree().add(Tree::ROOT, b"inner", DIRECTORY);
        server.tree().add(inner, b"deeper", DIRECTORY);
        let mut target = target(server.port, VersionChoice::Auto);
        target.path = path.to_owned();
        Client::connect(target.clone()).await.unwrap();

        let at = server.tree().find(referral).unwrap_or(Tree::ROOT);
        server.tree().at(at).absent = true;
        let moved = Client::connect(target.clone()).await.unwrap_err();
        assert!(
            matches!(&moved, NfsError::ExportMoved { path: told } if told == path),
            "{path}: {moved}"
        );
        assert_eq!(classify(&moved, &ErrorHints::default()), ErrorKind::ExportMoved);
        assert_eq!(server.tree().asked_where, 0, "{path}");

        server.tree().at(at).absent = false;
        Client::connect(target).await.unwrap();
    }
}

#[tokio::test]
async fn an_export_that_becomes_a_referral_during_use_is_reported_and_not_followed() {
    let server = Hostile::start().await;
    let inner = server.tree().add(Tree::ROOT, b"inner", DIRECTORY);
    let mut target = target(server.port, VersionChoice::Auto);
    target.path = "/inner".to_owned();
    let export = Client::connect(target).await.unwrap();
    let root = export.root().await.unwrap().handle;
    server.tree().at(inner).absent = true;
    let moved = export.root().await.unwrap_err();
    assert!(matches!(moved, NfsError::ExportMoved { .. }), "{moved}");
    for error in [
        export.list(&root, None).await.map(drop).unwrap_err(),
        export.lookup(&root, &name("a")).await.map(drop).unwrap_err(),
        export
            .make_directory(&root, &name("a"), Default::default())
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert_eq!(error.status(), Some(Status::Moved), "{error}");
        assert_eq!(classify(&error, &ErrorHints::default()), ErrorKind::ExportMoved);
    }
    assert!(server.tree().objects[&inner].children.is_empty());
    assert_eq!(server.tree().asked_where, 0);
}

#[tokio::test]
async fn a_referral_within_a_tree_is_left_and_reported_and_the_rest_is_removed() {
    let (server, report) = purged(|tree, top| {
        let elsewhere = tree.add(top, b"elsewhere", DIRECTORY);
        tree.add(elsewhere, b"theirs", FILE);
        tree.at(elsewhere).absent = true;
        tree.add(top, b"last", FILE);
    })
    .await;
    assert_eq!((report.failed, report.left.entries), (1, 1), "{report:?}");
    assert!(says(&report, "Moved"), "{report:?}");
    let tree = server.tree();
    assert!(tree.removed.iter().any(|(_, name)| name == b"last"));
    assert!(
        !tree
            .removed
            .iter()
            .any(|(_, name)| name == b"theirs" || name == b"elsewhere")
    );
    assert_eq!(tree.asked_where, 0);
}

#[tokio::test]
async fn a_volumes_directory_that_became_a_referral_is_left_alone() {
    let server = Hostile::start().await;
    let export = managed(&server).await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    let directory = server.tree().find("a").unwrap();
    server.tree().at(directory).absent = true;
    let error = export
        .delete(&reclaim("1", "a", created.file_id), &Decided)
        .await
        .unwrap_err();
    println!("{error}");
    assert_eq!(server.tree().find("a"), Some(directory), "{error}");
    // No directory is created behind a referral.
    let (reason, _) = refused(&export, &request("2", "a/b")).await;
    println!("{reason:?}");
    assert!(server.tree().objects[&directory].children.is_empty());
    assert_eq!(server.tree().asked_where, 0);
}
