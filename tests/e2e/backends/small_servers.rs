//! Servers of version 3 that share no code with nfs-ganesha and the Linux kernel.

use std::fs;

use nfs3_server::memfs::{MemFs, MemFsConfig};
use nfs3_server::tcp::{NFSTcp, NFSTcpListener};
use rig::{GoNfs, RunDir, TestEnv};
use serde_json::{Value, json};

use crate::support::shared::{self, TIMEOUT, Test, text};

/// Returns a backend's `spec` for a server with NFS and MOUNT on one port. No other test has a backend in this path: all
/// servers of the tests have the same address.
fn on_one_port(path: &str, port: u16) -> Value {
    json!({"server": "127.0.0.1", "path": path, "nfs": {"version": "3", "port": port, "mountPort": port}})
}

#[tokio::test]
async fn a_server_whose_handles_change_with_names_keeps_the_data_of_deleted_claims() -> Test {
    let env = TestEnv::new("go-nfs").await?;
    let run = RunDir::new()?;
    let server = GoNfs::start(&run).await?;
    let data = server.data_dir("empty");
    shared::backend(&env, "backend", on_one_port("/empty", server.address().port())).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    let directory = data.join(text(&volume, "/spec/nfs/path").trim_start_matches("/empty/"));
    fs::write(directory.join("data"), "precious")?;
    env.objects.delete(&claim).await?;
    // The renamed directory has another handle, so it could be another directory that got the fileid.
    let refused = shared::wait_reclaim_refused(&env, &volume).await?;
    assert!(refused.contains("is missing on the export"), "{refused}");
    let archives = shared::archives(&data)?;
    let [archive] = archives.as_slice() else {
        panic!("{archives:?}")
    };
    assert_eq!(fs::read_to_string(data.join(archive).join("data"))?, "precious");
    Ok(())
}

#[tokio::test]
async fn a_server_that_ignores_modes_is_not_ready_and_gets_no_claims() -> Test {
    let env = TestEnv::new("ignores-modes").await?;
    let files = MemFs::new(MemFsConfig::default()).unwrap();
    let mut listener = NFSTcpListener::bind("127.0.0.1:0", files).await?;
    listener.with_export_name("memory");
    let port = listener.get_listen_port();
    let serving = tokio::spawn(async move { listener.handle_forever().await });
    let backend = env
        .objects
        .create(&env.backend("backend", on_one_port("/memory", port)))
        .await?;
    let refused = Some("ReservedDirectoryUnsafe");
    let ready = env.objects.wait_condition(&backend, "Ready", "False", refused, TIMEOUT);
    ready.await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    shared::wait_refused(&env, &claim, "ReservedDirectoryUnsafe").await?;
    serving.abort();
    Ok(())
}
