//! The suite with nfs-ganesha.

use std::os::unix::fs::{chown, symlink};
use std::sync::Arc;

use nfs_client::{Protocol, Tcp};
use rig::{Access, Export, NfsOptions, NfsServer, RunDir, Squash};

use super::{ServerUnderTest, check_table, run, write};

const NAME: &str = "nfs-ganesha 4.3";

/// Starts a server with an export for each purpose.
async fn start(folder: &RunDir, minor_versions: Vec<u8>, v3: bool) -> NfsServer {
    let options = NfsOptions {
        exports: vec![
            Export::new("/plain"),
            Export::new("/read-only").access(Access::ReadOnly),
            Export::new("/squashed").squash(Squash::Root),
            Export::new("/small").tmpfs(2 << 20, None),
            Export::new("/secure").extra("PrivilegedPort", "true"),
            Export::new("/empty"),
        ],
        minor_versions,
        v3,
        ..NfsOptions::default()
    };
    let server = NfsServer::start(folder, options).await.unwrap();
    let prepared = server.data_dir("/plain").unwrap().join("prepared");
    std::fs::create_dir_all(prepared.join("directory")).unwrap();
    symlink("directory", prepared.join("link")).unwrap();
    std::fs::write(prepared.join("file"), "file").unwrap();
    chown(server.data_dir("/squashed").unwrap(), Some(65534), Some(65534)).unwrap();
    server
}

async fn conforms(version: Protocol) {
    let folder = RunDir::new().unwrap();
    let server = start(&folder, vec![0, 1, 2], version == Protocol::V3).await;
    let others = match version {
        Protocol::V4_2 => vec![0, 1],
        Protocol::V4_1 => vec![0, 2],
        Protocol::V4_0 => vec![1, 2],
        Protocol::V3 => vec![0, 1, 2],
    };
    let other = start(&folder, others, false).await;
    let under_test = ServerUnderTest {
        name: NAME,
        transport: Arc::new(Tcp),
        server: server.address().ip().to_string(),
        port: server.port(),
        mount_port: Some(server.mount_port()),
        plain: "/plain".into(),
        read_only: Some("/read-only".into()),
        root_squash: Some("/squashed".into()),
        small: Some("/small".into()),
        secure: Some("/secure".into()),
        empty: Some("/empty".into()),
        without_version: Some((other.address().ip().to_string(), other.port(), Some(other.mount_port()))),
        may_fail: false,
    };
    let outcomes = run(&under_test, version).await;
    println!("{}", write(NAME, version, &outcomes).display());
    check_table(NAME, version, &outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_conforms_to_the_table_over_4_2() {
    conforms(Protocol::V4_2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_conforms_to_the_table_over_4_1() {
    conforms(Protocol::V4_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_conforms_to_the_table_over_4_0() {
    conforms(Protocol::V4_0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_conforms_to_the_table_over_3() {
    conforms(Protocol::V3).await;
}
