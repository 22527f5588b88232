//! The NFS server of the rig, tested with a minimal client that sends LOOKUPs of NFSv4.0, which need no session.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails"
)]

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use rig::{Access, Export, NfsOptions, NfsServer, RunDir, StableStorage, proxy::encode_opaque};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const OK: u32 = 0;
const NOENT: u32 = 2;
const ACCESS: u32 = 13;
const ROFS: u32 = 30;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Sends a COMPOUND of PUTROOTFH and `operations` (RFC 7530 section 16), and returns its status.
async fn compound(server: SocketAddr, operations: &[Vec<u8>]) -> std::io::Result<u32> {
    let name = encode_opaque(b"rig");
    let credential = [words(&[0]), name, words(&[0, 0, 0])].concat();
    let count = u32::try_from(operations.len() + 1).unwrap();
    let call = [
        // id, CALL, RPC 2, NFS 4, COMPOUND, AUTH_SYS as root, no verifier, no tag, minor version 0
        words(&[1, 0, 2, 100_003, 4, 1, 1]),
        encode_opaque(&credential),
        words(&[0, 0, 0, 0, count, 24]),
        operations.concat(),
    ]
    .concat();
    let mut stream = TcpStream::connect(server).await?;
    let mark = 0x8000_0000 | u32::try_from(call.len()).unwrap();
    stream.write_all(&[words(&[mark]), call].concat()).await?;
    let length = stream.read_u32().await? & 0x7fff_ffff;
    let mut reply = vec![0; length as usize];
    stream.read_exact(&mut reply).await?;
    // id, REPLY, accepted, verifier (flavor, length 0), success, status
    Ok(u32::from_be_bytes(reply[24..28].try_into().unwrap()))
}

/// Encodes a LOOKUP (operation 15) of each component of a path.
fn lookups(path: &str) -> Vec<Vec<u8>> {
    let lookup = |name: &str| [words(&[15]), encode_opaque(name.as_bytes())].concat();
    path.split('/').map(lookup).collect()
}

async fn lookup(server: &NfsServer, path: &str) -> u32 {
    compound(server.address(), &lookups(path)).await.unwrap()
}

/// Returns whether the server reports this mode of a file (VERIFY of attribute 33).
async fn has_mode(server: &NfsServer, path: &str, mode: u32) -> bool {
    let mut operations = lookups(path);
    operations.push(words(&[37, 2, 0, 1 << 1, 4, mode]));
    compound(server.address(), &operations).await.unwrap() == OK
}

async fn create_directory(server: &NfsServer, export: &str, name: &str) -> u32 {
    let mut operations = lookups(export);
    // CREATE of a directory (type 2) without attributes.
    operations.push([words(&[6, 2]), encode_opaque(name.as_bytes()), words(&[0, 0])].concat());
    compound(server.address(), &operations).await.unwrap()
}

#[tokio::test]
async fn changes_on_disk_and_of_exports_are_visible_immediately() {
    let run = RunDir::new().unwrap();
    let mut server = NfsServer::start(&run, NfsOptions::default()).await.unwrap();
    let data = server.data_dir("/export").unwrap();
    assert_eq!(lookup(&server, "export").await, OK);
    assert_eq!(lookup(&server, "export/new").await, NOENT);
    fs::create_dir(data.join("new")).unwrap();
    assert_eq!(lookup(&server, "export/new").await, OK, "visible immediately");
    for mode in [0o700, 0o2775] {
        fs::set_permissions(data.join("new"), fs::Permissions::from_mode(mode)).unwrap();
        assert!(
            has_mode(&server, "export/new", mode).await,
            "{mode:o} visible immediately"
        );
    }
    assert_eq!(create_directory(&server, "export", "created").await, OK);
    assert!(data.join("created").is_dir());
    fs::remove_dir(data.join("created")).unwrap();
    assert_eq!(lookup(&server, "export/created").await, NOENT, "deleted immediately");

    assert_eq!(lookup(&server, "second").await, NOENT);
    let second = server.add_export(Export::new("/second")).await.unwrap();
    assert_eq!(create_directory(&server, "second", "created").await, OK);
    assert!(second.join("created").is_dir());
    server
        .change_export("/second", |export| export.access = Access::ReadOnly)
        .await
        .unwrap();
    assert_eq!(create_directory(&server, "second", "more").await, ROFS);
    server
        .change_export("/second", |export| export.access = Access::Denied)
        .await
        .unwrap();
    assert!([ACCESS, NOENT].contains(&lookup(&server, "second/created").await));
    server.remove_export("/second").await.unwrap();
    assert_eq!(lookup(&server, "second").await, NOENT);
    assert_eq!(lookup(&server, "export/new").await, OK);
}

#[tokio::test]
async fn it_pauses_and_restarts_on_the_same_port() {
    let run = RunDir::new().unwrap();
    let mut server = NfsServer::start(&run, NfsOptions::default()).await.unwrap();
    let address = server.address();
    server.pause().unwrap();
    let operations = lookups("export");
    assert!(
        timeout(Duration::from_millis(300), compound(address, &operations))
            .await
            .is_err()
    );
    server.resume().unwrap();
    assert_eq!(lookup(&server, "export").await, OK);
    server.kill9().await.unwrap();
    assert!(compound(address, &operations).await.is_err());
    server.restart(StableStorage::Lost).await.unwrap();
    assert_eq!(server.address(), address);
    assert_eq!(lookup(&server, "export").await, OK);
    server.restart(StableStorage::Kept).await.unwrap();
    assert_eq!(lookup(&server, "export").await, OK);
    server.stop().await.unwrap();
    assert!(!Path::new(&format!("/proc/{}", server.pid())).exists());
}

#[tokio::test]
async fn two_servers_run_at_the_same_time_and_a_full_export_leaves_no_mount() {
    let run = RunDir::new().unwrap();
    let first = NfsServer::start(&run, NfsOptions::default()).await.unwrap();
    let options = NfsOptions {
        private_mounts: true,
        ..NfsOptions::default()
    };
    let mut second = NfsServer::start(&run, options).await.unwrap();
    let small = second
        .add_export(Export::new("/small").tmpfs(1 << 20, Some(4)))
        .await
        .unwrap();
    assert_eq!(
        (lookup(&first, "small").await, lookup(&second, "small").await),
        (NOENT, OK)
    );
    let mut statuses = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        statuses.push(create_directory(&second, "small", name).await);
    }
    assert_eq!(statuses, [OK, OK, OK, 28, 28], "NOSPC without free inodes");
    assert!(small.join("c").is_dir());
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&run.path().display().to_string()), "{mounts}");
    second.restart(StableStorage::Lost).await.unwrap();
    assert_eq!(
        lookup(&second, "small/c").await,
        OK,
        "the file system outlives the server"
    );
}
