//! The suite with two small NFSv3 servers that share no code with the others.

use std::os::unix::fs::symlink;
use std::sync::Arc;

use nfs_client::{Protocol, Tcp};
use nfs3_server::memfs::{MemFs, MemFsConfig};
use nfs3_server::tcp::{NFSTcp, NFSTcpListener};
use rig::{GoNfs, RunDir};

use super::{ServerUnderTest, check_table, run, write};

async fn conforms(under_test: ServerUnderTest) {
    let outcomes = run(&under_test, Protocol::V3).await;
    println!("{}", write(under_test.name, Protocol::V3, &outcomes).display());
    check_table(under_test.name, Protocol::V3, &outcomes);
}

/// Returns a server on the loopback address with NFS and MOUNT on one port.
fn on_one_port(name: &'static str, port: u16) -> ServerUnderTest {
    ServerUnderTest {
        name,
        transport: Arc::new(Tcp),
        server: "127.0.0.1".into(),
        port,
        mount_port: Some(port),
        plain: "/plain".into(),
        read_only: None,
        root_squash: None,
        small: None,
        secure: None,
        empty: None,
        without_version: None,
        may_fail: true,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_nfs_conforms_to_the_table() {
    let folder = RunDir::new().unwrap();
    let server = GoNfs::start(&folder).await.unwrap();
    let prepared = server.data_dir("plain").join("prepared");
    std::fs::create_dir_all(prepared.join("directory")).unwrap();
    symlink("directory", prepared.join("link")).unwrap();
    std::fs::write(prepared.join("file"), "file").unwrap();
    conforms(ServerUnderTest {
        read_only: Some("/read-only".into()),
        empty: Some("/empty".into()),
        ..on_one_port("go-nfs 0.0.4", server.address().port())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs3_server_conforms_to_the_table() {
    let mut files = MemFsConfig::default();
    files.add_dir("/prepared");
    files.add_dir("/prepared/directory");
    files.add_file("/prepared/file", b"file".as_slice());
    let files = MemFs::new(files).unwrap();
    let mut listener = NFSTcpListener::bind("127.0.0.1:0", files).await.unwrap();
    listener.with_export_name("plain");
    let port = listener.get_listen_port();
    let serving = tokio::spawn(async move { listener.handle_forever().await });
    conforms(on_one_port("nfs3_server 0.11", port)).await;
    serving.abort();
}
