//! The client against a scripted server: faults that no well-behaved server shows on demand.

use std::time::Duration;

use super::constants::nfs;
use super::scripted::{Answer, Server, attributes, found, handle, on, status, within};
use crate::client::LOOKUP;
use crate::xdr::Encoder;
use crate::{FileKind, Name, NfsError, RemoveOutcome, Status};

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn a_rename_whose_reply_is_lost_is_never_sent_again() {
    let server = Server::start(|before, request| match request.procedure {
        nfs::RENAME => Answer::Cut,
        // The target is free, the source is there.
        nfs::LOOKUP if before % 2 == 1 => found(2, 5),
        _ => Answer::Usual,
    })
    .await;
    let client = crate::Client::connect(server.target()).await.unwrap();
    let (root, one, two) = (handle("root"), name("one"), name("two"));
    let lost = client.rename((&root, &one), 5, (&root, &two)).await.unwrap_err();
    assert!(lost.outcome_unknown(), "{lost}");
    assert!(matches!(lost, NfsError::ConnectionLost { .. }), "{lost}");
    // The connection comes back for the next call.
    client.root().await.unwrap();
    assert_eq!(server.count(nfs::RENAME), 1);
    assert_eq!(client.generation(), 2);
}

#[tokio::test]
async fn every_change_that_must_not_be_done_twice_is_sent_once() {
    let server = Server::start(|before, request| match request.procedure {
        nfs::MKDIR | nfs::REMOVE | nfs::RMDIR | nfs::LINK => Answer::Cut,
        nfs::LOOKUP if before == 0 => found(1, 5),
        nfs::LOOKUP => found(2, 5),
        _ => Answer::Usual,
    })
    .await;
    let client = crate::Client::connect(server.target()).await.unwrap();
    let (root, one) = (handle("root"), name("one"));
    let removed = client.remove_file(&root, &one, 5).await.unwrap_err();
    let emptied = client.remove_directory(&root, &one, 5).await.unwrap_err();
    let created = client.make_directory(&root, &one, Default::default()).await;
    let linked = client.link(&root, &root, &one).await;
    for lost in [removed, emptied, created.unwrap_err(), linked.unwrap_err()] {
        assert!(lost.outcome_unknown(), "{lost}");
    }
    for procedure in [nfs::MKDIR, nfs::REMOVE, nfs::RMDIR, nfs::LINK] {
        assert_eq!(server.count(procedure), 1);
    }
}

#[tokio::test]
async fn calls_that_do_no_harm_twice_go_on_after_a_cut() {
    let server = Server::start(|before, request| match request.procedure {
        nfs::GETATTR | nfs::CREATE | nfs::WRITE | nfs::REMOVE if before == 0 => Answer::Cut,
        nfs::REMOVE => status(2),
        _ => Answer::Usual,
    })
    .await;
    let client = server.client().await;
    client.attributes(&handle("root"), within(60)).await.unwrap();
    let created = client
        .create_file(&handle("root"), &name("f"), b"content", 0o600, within(60))
        .await
        .unwrap();
    assert_eq!((created.attributes.fileid, created.attributes.size), (5, 7));
    // In the trash, a name that no longer exists counts as removed.
    let removed = client.remove_batch(&handle("root"), &[name("one")], within(60)).await;
    assert_eq!(removed.unwrap(), [RemoveOutcome::Absent]);
    assert_eq!(server.count(nfs::REMOVE), 2);
}

#[tokio::test]
async fn a_change_is_sent_only_on_the_connection_that_was_checked() {
    let server = Server::start(|before, request| match request.procedure {
        nfs::CREATE if before == 0 => Answer::Cut,
        _ => Answer::Usual,
    })
    .await;
    let client = crate::Client::connect(server.target()).await.unwrap();
    let (root, file) = (handle("root"), name("f"));
    let create = async |client: &crate::Client| client.create_file(&root, &file, b"content", 0o600).await;
    let checked = client.on_connection(client.generation());
    // A client that is not bound to a connection repeats it: see above.
    let lost = create(&checked).await.unwrap_err();
    assert!(lost.outcome_unknown(), "{lost}");
    let refused = create(&checked).await.unwrap_err();
    assert!(matches!(refused, NfsError::Reconnected { .. }), "{refused}");
    assert_eq!((client.generation(), server.count(nfs::CREATE)), (2, 1));
    create(&client.on_connection(2)).await.unwrap();
}

#[tokio::test]
async fn jukebox_is_waited_out_and_told_at_the_deadline() {
    let server = Server::start(|before, request| match request.procedure {
        nfs::GETATTR if before < 2 => status(10_008),
        nfs::LOOKUP => status(10_008),
        _ => Answer::Usual,
    })
    .await;
    let client = server.client().await;
    client.attributes(&handle("root"), within(60)).await.unwrap();
    assert_eq!(server.count(nfs::GETATTR), 3);
    let late = client
        .lookup(LOOKUP, &handle("root"), &name("one"), within(4))
        .await
        .unwrap_err();
    assert_eq!(late.status(), Some(Status::Delayed));
}

#[tokio::test]
async fn a_silent_server_is_told_by_the_deadline_and_a_cancelled_call_leaves_the_connection_usable() {
    let server = Server::start(|before, request| match request.procedure {
        nfs::MKDIR => Answer::Silence,
        nfs::GETATTR if before == 0 => Answer::Silence,
        _ => Answer::Usual,
    })
    .await;
    let client = server.client().await;
    let (root, one) = (handle("root"), name("one"));
    let cancelled = tokio::time::timeout(Duration::from_millis(50), client.attributes(&root, within(60)));
    assert!(cancelled.await.is_err());
    client.attributes(&root, within(60)).await.unwrap();
    assert_eq!(client.generation(), 1);
    let late = client
        .create_directory(&root, &one, Default::default(), within(4))
        .await
        .unwrap_err();
    assert!(
        matches!(
            &late,
            NfsError::NotResponding {
                outcome_unknown: true,
                ..
            }
        ),
        "{late}"
    );
}

/// One entry of a listing, without what READDIRPLUS adds.
fn entry(to: &mut Encoder, name: &[u8], cookie: u64) {
    to.boolean(true).u64(9).opaque(name).u64(cookie);
}

fn listing(entries: &[(&[u8], u64)], end: bool) -> Answer {
    let mut results = Encoder::new();
    results.u32(0).boolean(false).fixed(&[1; 8]);
    for (name, cookie) in entries {
        entry(&mut results, name, *cookie);
        // Neither attributes nor handle.
        results.boolean(false).boolean(false);
    }
    results.boolean(false).boolean(end);
    Answer::Results(results)
}

#[tokio::test]
async fn a_server_without_readdirplus_is_asked_for_names_and_for_each_of_them() {
    let server = Server::start(|_, request| match request.procedure {
        nfs::READDIRPLUS => status(10_004),
        nfs::READDIR => {
            let mut results = Encoder::new();
            results.u32(0).boolean(true);
            attributes(&mut results, 2, 1);
            results.fixed(&[1; 8]);
            entry(&mut results, b".", 1);
            entry(&mut results, b"..", 2);
            entry(&mut results, b"one", 3);
            results.boolean(false).boolean(true);
            Answer::Results(results)
        }
        nfs::LOOKUP => found(2, 9),
        _ => Answer::Usual,
    })
    .await;
    let page = server
        .client()
        .await
        .list(&handle("root"), None, within(60))
        .await
        .unwrap();
    assert_eq!(page.next, None);
    let [one] = page.entries.as_slice() else {
        unreachable!("{page:?}")
    };
    assert_eq!(
        (one.name.as_bytes(), one.kind, one.fileid),
        (&b"one"[..], Some(FileKind::Directory), Some(9))
    );
    assert_eq!(one.fsid.map(|fsid| fsid.major), Some(77));
    // `.` and `..` are never looked up.
    assert_eq!(server.count(nfs::LOOKUP), 1);
}

#[tokio::test]
async fn a_listing_with_hostile_names_or_in_circles_is_refused_and_dots_alone_are_passed_over() {
    for hostile in [&b""[..], b"a/b", b"a\0b", &[b'n'; 256]] {
        let server = Server::start(move |_, request| match request.procedure {
            nfs::READDIRPLUS => listing(&[(hostile, 1)], true),
            _ => Answer::Usual,
        })
        .await;
        let refused = server.client().await.list(&handle("root"), None, within(60)).await;
        assert!(matches!(refused, Err(NfsError::Protocol { .. })), "{hostile:?}");
    }
    let circles = Server::start(|_, request| match request.procedure {
        nfs::READDIRPLUS => listing(&[(b"a", 1), (b"b", 1)], false),
        _ => Answer::Usual,
    })
    .await;
    let refused = circles.client().await.list(&handle("root"), None, within(60)).await;
    assert!(matches!(refused, Err(NfsError::Protocol { .. })), "{refused:?}");
    let dots = Server::start(|before, request| match request.procedure {
        nfs::READDIRPLUS if before == 0 => listing(&[(b".", 1), (b"..", 2)], false),
        nfs::READDIRPLUS => listing(&[(b"one", 3)], true),
        _ => Answer::Usual,
    })
    .await;
    let page = dots
        .client()
        .await
        .list(&handle("root"), None, within(60))
        .await
        .unwrap();
    assert_eq!(page.entries.len(), 1);
    let stale = Server::start(|_, request| match on(nfs::READDIRPLUS, request) {
        true => status(10_003),
        false => Answer::Usual,
    })
    .await;
    let again = stale.client().await.list(&handle("root"), None, within(60)).await;
    assert_eq!(again.unwrap_err().status(), Some(Status::NotSame));
}

#[tokio::test]
async fn what_remove_refuses_as_a_directory_is_removed_as_one() {
    for code in [1, 13, 21, 22] {
        let server = Server::start(move |_, request| match request.procedure {
            nfs::REMOVE => status(code),
            _ => Answer::Usual,
        })
        .await;
        let removed = server
            .client()
            .await
            .remove_batch(&handle("root"), &[name("d")], within(60))
            .await;
        assert_eq!(removed.unwrap(), [RemoveOutcome::Removed], "{code}");
        assert_eq!(server.count(nfs::RMDIR), 1);
    }
    // It was a file after all: the first refusal is the answer.
    let server = Server::start(|_, request| match request.procedure {
        nfs::REMOVE => status(13),
        nfs::RMDIR => status(20),
        _ => Answer::Usual,
    })
    .await;
    let refused = server
        .client()
        .await
        .remove_batch(&handle("root"), &[name("f")], within(60))
        .await;
    assert_eq!(refused.unwrap(), [RemoveOutcome::Refused(Status::Access)]);
}

#[tokio::test]
async fn a_server_without_exclusive_creates_gets_a_guarded_one() {
    let server = Server::start(|before, request| match request.procedure {
        nfs::CREATE if before == 0 => status(10_004),
        _ => Answer::Usual,
    })
    .await;
    let client = server.client().await;
    client
        .create_file(&handle("root"), &name("f"), b"content", 0o600, within(60))
        .await
        .unwrap();
    assert_eq!(server.count(nfs::CREATE), 2);
}

#[tokio::test]
async fn a_taken_name_belongs_to_another_client_for_certain_only_if_the_call_was_sent_once() {
    for cuts in [0, 1] {
        let server = Server::start(move |before, request| match request.procedure {
            nfs::CREATE if before < cuts => Answer::Cut,
            nfs::CREATE => status(17),
            _ => Answer::Usual,
        })
        .await;
        let client = server.client().await;
        let taken = client
            .create_file(&handle("root"), &name("f"), b"content", 0o600, within(60))
            .await
            .unwrap_err();
        assert_eq!(taken.outcome_unknown(), cuts > 0, "{taken}");
        assert_eq!(taken.status() == Some(Status::Exists), cuts == 0, "{taken}");
    }
}

#[tokio::test]
async fn a_file_that_could_not_be_filled_is_removed_again() {
    let server = Server::start(|_, request| match request.procedure {
        nfs::WRITE => status(28),
        nfs::LOOKUP => found(1, 5),
        _ => Answer::Usual,
    })
    .await;
    let client = server.client().await;
    let full = client
        .create_file(&handle("root"), &name("f"), b"content", 0o600, within(60))
        .await;
    assert_eq!(full.unwrap_err().status(), Some(Status::NoSpace));
    assert_eq!(server.count(nfs::REMOVE), 1);
}
