//! Servers that are killed and restarted under load, with and without their client state.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nfs_client::{Client, Protocol, Target, VersionChoice};
use rig::StableStorage;

use crate::support::{TIMEOUT, name, server, target};

const FILES: usize = 40;

async fn restarted(protocol: Protocol, recovery: StableStorage) {
    let (mut server, _run) = server(protocol).await;
    let target = Target {
        mount_port: Some(server.mount_port()),
        ..target(server.port(), VersionChoice::Exactly(protocol))
    };
    let data = server.data_dir("/data").unwrap();
    let export = Client::connect(target).await.unwrap();
    let root = Arc::new(export.root().await.unwrap().handle);
    let answered = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..FILES)
        .map(|number| {
            let (export, root, answered) = (export.clone(), root.clone(), answered.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5 * number as u64)).await;
                let name = name(&format!("file{number}"));
                let created = export.create_file(&root, &name, b"content", 0o600).await;
                answered.fetch_add(1, Ordering::Relaxed);
                created
            })
        })
        .collect();
    // On a machine that stalls, all calls may arrive at the same time, and none of them be answered before the kill.
    rig::wait::until("the first answer", TIMEOUT, async || {
        match answered.load(Ordering::Relaxed) {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .unwrap();
    server.restart(recovery).await.unwrap();
    let (mut created, mut unknown) = (0, 0);
    for (number, call) in calls.into_iter().enumerate() {
        let file = data.join(format!("file{number}"));
        match call.await.unwrap() {
            Ok(_) => {
                created += 1;
                assert_eq!(std::fs::read(file).unwrap(), b"content");
            }
            Err(error) => {
                unknown += 1;
                assert!(error.outcome_unknown(), "file{number}: {error}");
            }
        }
    }
    println!("{protocol}: {created} made, {unknown} unknown");
    assert!(created > 0);
    let root = export.root().await.unwrap().handle;
    export.create_file(&root, &name("after"), b"", 0o600).await.unwrap();
    // On a busy machine, all calls may arrive before the kill.
    assert!(export.generation() > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_that_keeps_its_state_creates_each_file_once_or_the_outcome_is_unknown() {
    for protocol in [Protocol::V3, Protocol::V4_0, Protocol::V4_1, Protocol::V4_2] {
        restarted(protocol, StableStorage::Kept).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_that_loses_its_state_creates_each_file_once_or_the_outcome_is_unknown() {
    for protocol in [Protocol::V4_0, Protocol::V4_1, Protocol::V4_2] {
        restarted(protocol, StableStorage::Lost).await;
    }
}
