//! The suite with two releases of nfs-ganesha.

use std::os::unix::fs::{chown, symlink};
use std::sync::Arc;

use nfs_client::{Protocol, Tcp};
use rig::{Access, Assets, Export, NfsOptions, NfsServer, RunDir, Squash};

use super::{ServerUnderTest, check_table, run, write};

/// The release of Debian 12, which all other tests use, and that of Debian 13.
#[derive(Clone, Copy)]
enum Release {
    V4_3,
    V6_5,
}

impl Release {
    fn name(self) -> &'static str {
        match self {
            Self::V4_3 => "nfs-ganesha 4.3",
            Self::V6_5 => "nfs-ganesha 6.5",
        }
    }
}

/// Starts a server with an export for each purpose.
async fn start(release: Release, folder: &RunDir, minor_versions: Vec<u8>, v3: bool) -> NfsServer {
    let mut options = NfsOptions {
        exports: vec![
            Export::new("/plain"),
            Export::new("/read-only").access(Access::ReadOnly),
            Export::new("/squashed").squash(Squash::Root),
            // A newer nfs-ganesha does not export file systems in memory.
            Export::new("/small").ext4(4 << 20),
            Export::new("/secure").extra("PrivilegedPort", "true"),
            Export::new("/empty"),
        ],
        minor_versions,
        v3,
        ..NfsOptions::default()
    };
    let program = match release {
        Release::V4_3 => Assets::find_or_install_ganesha().await.unwrap(),
        Release::V6_5 => {
            let newer = Assets::find_or_download_newer_ganesha().await.unwrap();
            options.core_params = newer.core_params;
            newer.program
        }
    };
    let server = NfsServer::start_with(folder, options, &program).await.unwrap();
    let prepared = server.data_dir("/plain").unwrap().join("prepared");
    std::fs::create_dir_all(prepared.join("directory")).unwrap();
    symlink("directory", prepared.join("link")).unwrap();
    std::fs::write(prepared.join("file"), "file").unwrap();
    chown(server.data_dir("/squashed").unwrap(), Some(65534), Some(65534)).unwrap();
    server
}

async fn conforms(release: Release, version: Protocol) {
    let folder = RunDir::new().unwrap();
    let server = start(release, &folder, vec![0, 1, 2], version == Protocol::V3).await;
    let others = match version {
        Protocol::V4_2 => vec![0, 1],
        Protocol::V4_1 => vec![0, 2],
        Protocol::V4_0 => vec![1, 2],
        Protocol::V3 => vec![0, 1, 2],
    };
    let other = start(release, &folder, others, false).await;
    let under_test = ServerUnderTest {
        name: release.name(),
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
    println!("{}", write(release.name(), version, &outcomes).display());
    check_table(release.name(), version, &outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_4_conforms_to_the_table_over_4_2() {
    conforms(Release::V4_3, Protocol::V4_2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_4_conforms_to_the_table_over_4_1() {
    conforms(Release::V4_3, Protocol::V4_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_4_conforms_to_the_table_over_4_0() {
    conforms(Release::V4_3, Protocol::V4_0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_4_conforms_to_the_table_over_3() {
    conforms(Release::V4_3, Protocol::V3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_6_conforms_to_the_table_over_4_2() {
    conforms(Release::V6_5, Protocol::V4_2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_6_conforms_to_the_table_over_4_1() {
    conforms(Release::V6_5, Protocol::V4_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_6_conforms_to_the_table_over_4_0() {
    conforms(Release::V6_5, Protocol::V4_0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_ganesha_6_conforms_to_the_table_over_3() {
    conforms(Release::V6_5, Protocol::V3).await;
}
