//! The suite with the simulated server: what the simulation takes for a server behaves like one.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use nfs_client::{FsId, Protocol};
use sim::nfs_server::file_system::{AttributeChanges, Caller};
use sim::nfs_server::node::Mount;
use sim::nfs_server::{Export, FileSystem, FileSystemOptions, Network, NfsServer, ServerOptions, Squash};

use super::{ServerUnderTest, check_table, run, write};

const NAME: &str = "Simulated server";

/// Starts a server with an export, on a disk of its own, for each purpose.
fn start(address: IpAddr, minor_versions: &[u32], v3: bool) -> NfsServer {
    let options = ServerOptions {
        minor_versions: minor_versions.iter().copied().collect(),
        v3,
        ..ServerOptions::default()
    };
    let server = NfsServer::start(address, options, 1);
    let disks = ["plain", "read-only", "squashed", "small", "secure", "empty"];
    for (number, disk) in (1..).zip(disks) {
        let options = FileSystemOptions {
            fsid: FsId {
                major: number,
                minor: 0,
            },
            capacity: if disk == "small" { 2 << 20 } else { 1 << 30 },
            ..FileSystemOptions::default()
        };
        server.insert_disk(disk, FileSystem::new(options));
        let mut export = Export::new(format!("/{disk}"), disk);
        export.read_only = disk == "read-only";
        export.secure = disk == "secure";
        if disk == "squashed" {
            export.squash = Squash::Root;
        }
        server.export(export);
    }
    let plain = Mount::new(&server, "administrator", "/plain", Caller::ROOT).unwrap();
    plain.make_directory("prepared").unwrap();
    plain.make_directory("prepared/directory").unwrap();
    plain.symlink("prepared/link", "directory").unwrap();
    plain.write("prepared/file", b"file").unwrap();
    let anonymous = AttributeChanges {
        uid: Some(65534),
        gid: Some(65534),
        ..AttributeChanges::default()
    };
    let owned = server.administer("squashed", |disk| {
        let root = disk.root();
        disk.set_attributes(&Caller::ROOT, root, anonymous)
    });
    owned.unwrap();
    server
}

async fn conforms(version: Protocol) {
    let [host, address, other] = [1, 2, 3].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
    let network = Network::default();
    network.add(start(address, &[0, 1, 2], true));
    let others: &[u32] = match version {
        Protocol::V4_2 => &[0, 1],
        Protocol::V4_1 => &[0, 2],
        Protocol::V4_0 => &[1, 2],
        Protocol::V3 => &[0, 1, 2],
    };
    network.add(start(other, others, false));
    let under_test = ServerUnderTest {
        name: NAME,
        transport: Arc::new(network.host(host, true)),
        server: address.to_string(),
        port: 2049,
        mount_port: None,
        plain: "/plain".into(),
        read_only: Some("/read-only".into()),
        root_squash: Some("/squashed".into()),
        small: Some("/small".into()),
        secure: Some("/secure".into()),
        empty: Some("/empty".into()),
        without_version: Some((other.to_string(), 2049, None)),
        may_fail: false,
    };
    let outcomes = run(&under_test, version).await;
    println!("{}", write(NAME, version, &outcomes).display());
    check_table(NAME, version, &outcomes);
}

#[tokio::test(start_paused = true)]
async fn the_simulated_server_conforms_to_the_table_over_4_2() {
    conforms(Protocol::V4_2).await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_server_conforms_to_the_table_over_4_1() {
    conforms(Protocol::V4_1).await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_server_conforms_to_the_table_over_4_0() {
    conforms(Protocol::V4_0).await;
}

#[tokio::test(start_paused = true)]
async fn the_simulated_server_conforms_to_the_table_over_3() {
    conforms(Protocol::V3).await;
}
