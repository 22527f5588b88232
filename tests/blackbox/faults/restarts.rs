//! The server is killed and started again under load, with and without its memory of clients.

use std::sync::Arc;
use std::time::Duration;

use nfs_operator::nfs::{Export, Protocol, VersionChoice};

use super::{ALL_MINORS, NO_SQUASH, name, target};
use crate::ganesha::Ganesha;

const FILES: usize = 40;

async fn restarted(protocol: Protocol, forgets: bool) {
    let mut server = Ganesha::start_speaking(ALL_MINORS, NO_SQUASH);
    let version = VersionChoice::Exactly(protocol);
    let export = Export::connect(target(server.port, version)).await.unwrap();
    let root = Arc::new(export.root().await.unwrap().handle);
    let calls: Vec<_> = (0..FILES)
        .map(|number| {
            let (export, root) = (export.clone(), root.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5 * number as u64)).await;
                let name = name(&format!("file{number}"));
                export.create_file(&root, &name, b"content", 0o600).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(60)).await;
    server.kill();
    if forgets {
        server.forget();
    }
    server.resume();
    let (mut made, mut unknown) = (0, 0);
    for (number, call) in calls.into_iter().enumerate() {
        let file = server.data().join(format!("file{number}"));
        match call.await.unwrap() {
            Ok(_) => {
                made += 1;
                assert_eq!(std::fs::read(file).unwrap(), b"content");
            }
            Err(error) => {
                unknown += 1;
                assert!(error.outcome_unknown(), "file{number}: {error}");
            }
        }
    }
    println!("{protocol}: {made} made, {unknown} unknown");
    assert!(made > 0 && export.generation() > 1);
    let root = export.root().await.unwrap().handle;
    export.create_file(&root, &name("after"), b"", 0o600).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_that_comes_back_with_its_state_makes_each_file_once_or_unknown() {
    for protocol in [Protocol::V4_0, Protocol::V4_1, Protocol::V4_2] {
        restarted(protocol, false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_that_comes_back_without_its_state_makes_each_file_once_or_unknown() {
    for protocol in [Protocol::V4_0, Protocol::V4_1, Protocol::V4_2] {
        restarted(protocol, true).await;
    }
}
