//! Trees of a malicious server: a count ends, stays inside the tree, and reports that it is incomplete.

use export_store::naming::DirectoryPath;
use export_store::{CountTarget, RateLimiter, TreeUsage};

use super::adversarial_trees::managed;
use crate::fixture::request;
use crate::nfs::hostile::{DIRECTORY, FILE, Hostile, Listing, Tree};

/// Counts the directory of a volume that `grow` filled. The count stops after this number of names.
async fn counted(grow: impl FnOnce(&mut Tree, u64), most: u64) -> Option<TreeUsage> {
    let server = Hostile::start().await;
    let export = managed(&server).await;
    let created = export.provision(&request("1", "a")).await.unwrap();
    {
        let mut tree = server.tree();
        let top = tree.find("a").unwrap();
        tree.add(top, b"file", FILE);
        grow(&mut tree, top);
    }
    let removed = server.tree().removed.len();
    let directory = DirectoryPath::parse("a").unwrap();
    let of = (CountTarget::Directory(&directory), Some(created.file_id));
    let mut pace = RateLimiter::unlimited();
    let counted = export.count(of, &mut pace, |content| content.names < most);
    let counted = counted.await.unwrap();
    println!("{counted:?}");
    assert_eq!(server.tree().removed.len(), removed, "nothing is removed");
    counted
}

#[tokio::test]
async fn a_directory_that_contains_itself_is_counted_once() {
    let counted = counted(
        |tree, top| {
            let inner = tree.add(top, b"inner", DIRECTORY);
            tree.graft(inner, b"itself", inner);
            tree.graft(inner, b"above", top);
        },
        1000,
    );
    let counted = counted.await.unwrap();
    assert_eq!((counted.names, counted.unread), (4, 2));
}

#[tokio::test]
async fn another_file_system_within_the_tree_is_not_counted() {
    let counted = counted(
        |tree, top| {
            let mounted = tree.add(top, b"mounted", DIRECTORY);
            tree.at(mounted).fsid = 8;
            tree.add(mounted, b"theirs", FILE);
        },
        1000,
    );
    let counted = counted.await.unwrap();
    assert_eq!((counted.names, counted.elsewhere, counted.unread), (1, 1, 0));
}

#[tokio::test]
async fn a_listing_with_a_loop_is_skipped_and_the_others_are_counted() {
    let counted = counted(
        |tree, top| {
            let round = tree.add(top, b"a round", DIRECTORY);
            tree.at(round).listing = Listing::Circular;
            tree.add(round, b"one", FILE);
            tree.add(round, b"two", FILE);
            let well = tree.add(top, b"well", DIRECTORY);
            tree.add(well, b"three", FILE);
        },
        1000,
    );
    let counted = counted.await.unwrap();
    assert_eq!(counted.unread, 1);
    assert!(counted.names >= 4, "{counted:?}");
}

#[tokio::test]
async fn an_endless_listing_is_counted_until_the_count_is_stopped() {
    let endless = |tree: &mut Tree, top| tree.at(top).listing = Listing::Endless;
    assert_eq!(counted(endless, 3000).await, None);
}

#[tokio::test]
async fn a_listing_that_cannot_be_continued_is_counted_from_the_beginning() {
    const FILES: u64 = 250;
    for (forgotten, unread) in [(1, 0), (8, 0), (9, 1)] {
        let counted = counted(
            |tree, top| {
                let inner = tree.add(top, b"inner", DIRECTORY);
                for number in 0..FILES {
                    tree.add(inner, format!("file {number}").as_bytes(), FILE);
                }
                tree.forgotten_cookies = forgotten;
            },
            1000,
        );
        let counted = counted.await.unwrap();
        assert_eq!(counted.unread, unread, "{forgotten} restarts");
        if unread == 0 {
            assert_eq!(counted.names, FILES + 2, "{forgotten} restarts");
        }
    }
}

#[tokio::test]
async fn a_directory_that_the_server_refuses_is_reported_as_uncounted() {
    const ACCESS: u32 = 13;
    let counted = counted(
        |tree, top| {
            let closed = tree.add(top, b"closed", DIRECTORY);
            tree.at(closed).refuses = Some(ACCESS);
        },
        1000,
    );
    assert_eq!(counted.await.unwrap().unread, 1);
}

#[tokio::test]
async fn an_entry_that_is_no_longer_a_directory_is_not_entered_by_a_count() {
    let counted = counted(
        |tree, top| {
            let odd = tree.add(top, b"odd", DIRECTORY);
            tree.add(odd, b"inside", FILE);
            tree.at(odd).turns_into = Some(FILE);
        },
        1000,
    );
    let counted = counted.await.unwrap();
    assert_eq!((counted.names, counted.unread), (2, 0));
}

#[tokio::test]
async fn a_directory_with_invalid_names_is_reported_as_uncounted() {
    for bad in [&b".."[..], b".", b"", b"a/b", b"a\0b"] {
        let counted = counted(
            |tree, top| {
                let inner = tree.add(top, b"inner", DIRECTORY);
                tree.add(inner, bad, DIRECTORY);
            },
            1000,
        );
        let counted = counted.await.unwrap();
        assert!(counted.unread > 0, "{:?}: {counted:?}", bad.escape_ascii().to_string());
        assert!(counted.names <= 2, "{counted:?}");
    }
}
