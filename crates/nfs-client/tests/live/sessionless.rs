//! NFSv4.0 with a real server: differences from versions with sessions.

use std::net::SocketAddr;

use nfs_client::{Client, NfsError, Protocol, RemoveOutcome, SetAttributes, SourcePort, Status, Target, VersionChoice};
use rig::proxy::{encode_rename, has_bytes};

use crate::support::{self, DedicatedServer, LEASE, name};

fn target(port: u16, version: VersionChoice) -> Target {
    Target {
        source_port: SourcePort::Reserved,
        ..support::target(port, version)
    }
}

async fn connected(server: &DedicatedServer) -> Client {
    Client::connect(target(server.port, VersionChoice::Exactly(Protocol::V4_0)))
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_falls_back_to_4_0_and_reports_that_it_does_not_fence() {
    let server = DedicatedServer::speaking(&[0]).await;
    let export = Client::connect(target(server.port, VersionChoice::Auto)).await.unwrap();
    let negotiated = export.negotiated();
    assert_eq!(
        (negotiated.protocol, negotiated.protocol.supports_fencing()),
        (Protocol::V4_0, false)
    );
    assert_eq!(negotiated.lease, LEASE);
    let newer = target(server.port, VersionChoice::Exactly(Protocol::V4_1));
    let refused = Client::connect(newer).await.unwrap_err();
    assert!(matches!(refused, NfsError::ProtocolNotSupported { .. }), "{refused}");

    let both = DedicatedServer::speaking(&[0, 1]).await;
    let newest = Client::connect(target(both.port, VersionChoice::Auto)).await.unwrap();
    assert_eq!(
        (
            newest.negotiated().protocol,
            newest.negotiated().protocol.supports_fencing()
        ),
        (Protocol::V4_1, true)
    );
    let pinned = connected(&both).await;
    assert_eq!(pinned.negotiated().protocol, Protocol::V4_0);
    let without = DedicatedServer::speaking(&[1, 2]).await;
    let older = target(without.port, VersionChoice::Exactly(Protocol::V4_0));
    let refused = Client::connect(older).await.unwrap_err();
    assert!(matches!(refused, NfsError::ProtocolNotSupported { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_directories_are_created_and_removed_without_a_session() {
    let server = DedicatedServer::speaking(&[0]).await;
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    let set = SetAttributes {
        mode: Some(0o3771),
        uid: Some(1234),
        gid: Some(4321),
        ..SetAttributes::default()
    };
    let created = export.make_directory(&root, &name("one"), set).await.unwrap();
    let attributes = created.node.attributes;
    assert_eq!(
        (attributes.mode, attributes.uid, attributes.gid),
        (0o3771, Some(1234), Some(4321))
    );
    let fileid = attributes.fileid;
    let stranger = export
        .rename((&root, &name("one")), fileid + 1, (&root, &name("two")))
        .await;
    assert_eq!(stranger.unwrap_err().status(), Some(Status::NotSame));
    export
        .rename((&root, &name("one")), fileid, (&root, &name("two")))
        .await
        .unwrap();
    let wrong = export.remove_file(&root, &name("two"), fileid).await.unwrap_err();
    assert_eq!(wrong.status(), Some(Status::IsDirectory));

    // More than fits in one WRITE, and an empty file.
    for size in [2_500_000, 7, 0] {
        let content: Vec<u8> = (0..size).map(|byte: usize| byte as u8).collect();
        let file = export.create_file(&root, &name("file"), &content, 0o640).await.unwrap();
        assert_eq!((file.attributes.size, file.attributes.mode), (size as u64, 0o640));
        let again = export
            .create_file(&root, &name("file"), b"other", 0o600)
            .await
            .unwrap_err();
        assert_eq!(again.status(), Some(Status::Exists));
        let read = export.read_file(&root, &name("file"), size).await.unwrap().unwrap();
        assert_eq!(read.content, content);
        let fileid = file.attributes.fileid;
        export
            .replace_file(&root, &name("file"), &name("file.new"), b"replaced", 0o600)
            .await
            .unwrap();
        let read = export.read_file(&root, &name("file"), 100).await.unwrap().unwrap();
        assert_eq!(read.content, b"replaced");
        assert_ne!(read.node.attributes.fileid, fileid);
        export.link(&read.node.handle, &root, &name("linked")).await.unwrap();
        for name in [name("file"), name("linked")] {
            export
                .remove_file(&root, &name, read.node.attributes.fileid)
                .await
                .unwrap();
        }
    }
    assert_eq!(std::fs::read_dir(server.data()).unwrap().count(), 1);
    assert!(export.statistics().await.unwrap().total > 0);
    export.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_concurrent_file_operations_share_a_bounded_connection() {
    let server = DedicatedServer::speaking(&[0]).await;
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    let names: Vec<_> = (0..300).map(|number| name(&format!("file{number}"))).collect();
    let creations = names.iter().map(|name| {
        let (export, root, name) = (export.clone(), root.clone(), name.clone());
        tokio::spawn(async move { export.create_file(&root, &name, name.as_bytes(), 0o600).await })
    });
    for creation in creations.collect::<Vec<_>>() {
        creation.await.unwrap().unwrap();
    }
    assert_eq!(std::fs::read(server.data().join("file17")).unwrap(), b"file17");
    let outcomes = export.remove_batch(&root, &names).await.unwrap();
    assert_eq!(outcomes, vec![RemoveOutcome::Removed; 300]);
    assert_eq!(export.generation(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_that_lost_the_client_id_gets_a_new_one() {
    let mut server = DedicatedServer::speaking(&[0]).await;
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    export.create_file(&root, &name("before"), b"1", 0o600).await.unwrap();
    server.restart().await;
    export.create_file(&root, &name("after"), b"2", 0o600).await.unwrap();
    assert_eq!(export.generation(), 2);
    assert_eq!(std::fs::read(server.data().join("after")).unwrap(), b"2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_reply_is_lost_is_not_sent_again_without_a_session() {
    let server = DedicatedServer::speaking(&[0]).await;
    let proxy = rig::Proxy::start(SocketAddr::from(([127, 0, 0, 1], server.port)))
        .await
        .unwrap();
    let through = target(proxy.port(), VersionChoice::Exactly(Protocol::V4_0));
    let export = Client::connect(through).await.unwrap();
    let root = export.root().await.unwrap().handle;
    let created = export
        .make_directory(&root, &name("a"), SetAttributes::default())
        .await
        .unwrap();
    let lost = proxy.lose_reply(rig::Action::Cut, |record| has_bytes(record, &encode_rename(b"a")));
    let fileid = created.node.attributes.fileid;
    let error = export
        .rename((&root, &name("a")), fileid, (&root, &name("b")))
        .await
        .unwrap_err();
    assert!(lost.has_happened());
    assert!(error.outcome_unknown(), "{error}");
    assert!(server.data().join("b").is_dir());
    let found = export.lookup(&root, &name("b")).await.unwrap().unwrap();
    assert_eq!(found.attributes.fileid, fileid);
}
