//! A paused leader whose calls arrive after another leader took over (data-safety rule 11).

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use nfs_client::{Client, NfsError, Protocol, SetAttributes, VersionChoice};
use rig::Proxy;

use crate::support::{DedicatedServer, name, target};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_calls_of_a_paused_leader_change_nothing() {
    for protocol in [Protocol::V4_1, Protocol::V4_2] {
        let server = DedicatedServer::start().await;
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], server.port)))
            .await
            .unwrap();
        for entry in ["a", "b"] {
            std::fs::create_dir(server.data().join(entry)).unwrap();
        }
        let fileid = std::fs::metadata(server.data().join("a")).unwrap().ino();
        let version = VersionChoice::Exactly(protocol);
        let mut old_target = target(proxy.port(), version);
        old_target.owner.owner = b"leader".to_vec();
        let mut new_target = old_target.clone();
        (new_target.owner.verifier, new_target.port) = ([2; 8], server.port);
        let old = Client::connect(old_target).await.unwrap();
        let root = old.root().await.unwrap().handle;
        let there = old.lookup(&root, &name("b")).await.unwrap().unwrap().attributes.fileid;

        proxy.hang(true);
        let (one, two, root_of) = (old.clone(), old.clone(), root.clone());
        let removal = tokio::spawn(async move { one.remove_directory(&root_of, &name("b"), there).await });
        let root_of = root.clone();
        let making = tokio::spawn(async move {
            two.make_directory(&root_of, &name("late"), SetAttributes::default())
                .await
        });
        // The proxy holds the calls.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let new = Client::connect(new_target).await.unwrap();
        assert!(new.negotiated().protocol.supports_fencing());
        new.rename((&root, &name("a")), fileid, (&root, &name("kept")))
            .await
            .unwrap();
        proxy.hang(false);
        for error in [removal.await.unwrap().unwrap_err(), making.await.unwrap().unwrap_err()] {
            assert!(matches!(error, NfsError::Fenced { .. }), "{protocol}: {error}");
        }
        let mut left: Vec<_> = std::fs::read_dir(server.data())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["b", "kept"], "{protocol}");
        new.root().await.unwrap();
        assert_eq!(new.generation(), 1);
    }
}
