//! Memory that a malicious server can make the client use. This test has its own process, so that nothing else is
//! measured.
//!
//! All data of the server is created before the measurement. Two values of the kernel are compared: the peak of
//! resident memory shows what was used, and the peak of the address space what was reserved.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::time::Duration;

use nfs_client::{Client, ClientOwner, Credential, NfsError, Protocol, SourcePort, Target, VersionChoice};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

#[path = "support/hostile/wire.rs"]
#[allow(dead_code, reason = "the other test takes requests apart with it too")]
mod wire;
use wire::Writer;

/// Maximum growth: the largest accepted record (1 MiB and headers), doubled while its buffer grows, and the result of
/// decoding it.
const MAX_GROWTH_KIB: u64 = 8 << 10;

/// Timeout for a connection, which takes milliseconds on a machine that does not stall.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(90);

/// The largest reply within the limit for records.
const MAX_REPLY: usize = 1 << 20;

/// Returns a value of /proc/self/status in KiB.
fn proc_status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns a reply without its record mark and transaction id.
fn reply(results: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut message = Writer::default();
    message.u32(1).u32(0).u32(0).u32(0).u32(0);
    results(&mut message);
    message.0
}

/// Returns the replies until the client is connected: limits, client id, its confirmation, the root.
fn until_connected() -> Vec<Vec<u8>> {
    let mut root = Writer::default();
    root.bitmap(&[1, 4, 8, 20, 33, 35, 36, 37]);
    let mut values = Writer::default();
    values
        .u32(2)
        .u64(0)
        .u64(1)
        .u64(1)
        .u64(1)
        .u32(0o755)
        .u32(1)
        .opaque(b"0")
        .opaque(b"0");
    root.opaque(&values.0);
    let root = reply(|message| {
        message
            .u32(0)
            .u32(0)
            .u32(3)
            .u32(24)
            .u32(0)
            .u32(10)
            .u32(0)
            .opaque(b"root");
        message.u32(9).u32(0).raw(&root.0);
    });
    vec![
        reply(|message| {
            message
                .u32(0)
                .u32(0)
                .u32(2)
                .u32(24)
                .u32(0)
                .u32(9)
                .u32(0)
                .bitmap(&[])
                .u32(0);
        }),
        reply(|message| {
            message.u32(0).u32(0).u32(1).u32(35).u32(0).u64(1).u64(1);
        }),
        reply(|message| {
            message.u32(0).u32(0).u32(1).u32(36).u32(0);
        }),
        // The client sends this request when it connects, and the test sends it again.
        root.clone(),
        root,
    ]
}

/// Returns a READDIR reply with the maximum number of entries.
fn largest_page() -> Vec<u8> {
    reply(|message| {
        message.u32(0).u32(0).u32(2).u32(22).u32(0).u32(26).u32(0).u64(0);
        let mut cookie = 10;
        while message.0.len() < MAX_REPLY - 100 {
            message.u32(1).u64(cookie).opaque(b"n").u32(0).u32(0);
            cookie += 1;
        }
        message.u32(0).u32(0);
    })
}

/// Returns the name of each attack, the record mark, and the bytes after it.
fn attacks() -> Vec<(&'static str, u32, Vec<u8>)> {
    let whole = |bytes: &Vec<u8>| 1 << 31 | (bytes.len() + 4) as u32;
    let flood = vec![0xff; 32 << 20];
    let page = largest_page();
    let many = reply(|message| {
        message.u32(0).u32(0).u32(1 << 30).raw(&vec![0; MAX_REPLY]);
    });
    let name = reply(|message| {
        message.u32(0).u32(0).u32(2).u32(22).u32(0).u32(26).u32(0).u64(0);
        message.u32(1).u64(10).opaque(&vec![b'x'; MAX_REPLY]);
    });
    let announced = reply(|message| {
        message.u32(0).u32(0).u32(2).u32(22).u32(0).u32(26).u32(0).u64(0);
        message.u32(1).u64(10).u32(u32::MAX);
    });
    vec![
        ("a record of 2 GiB", u32::MAX, flood.clone()),
        ("endless fragments", u32::MAX >> 1, flood.clone()),
        ("empty endless fragments", 0, vec![0; 1 << 20]),
        ("a record at the limit", 1 << 31 | (1 << 20), flood),
        ("a page with every entry that fits", whole(&page), page),
        ("a billion results", whole(&many), many),
        ("a name of 1 MiB", whole(&name), name),
        ("a name with a length of 4 GiB", whole(&announced), announced),
    ]
}

async fn serve(listener: TcpListener, honest: &'static [Vec<u8>], attack: &'static (&'static str, u32, Vec<u8>)) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut call = vec![0; 4096];
            for answer in 0.. {
                let Ok(header) = stream.read_u32().await else { return };
                let length = (header & 0x7fff_ffff) as usize;
                stream.read_exact(&mut call[..length]).await.unwrap();
                let xid = [call[0], call[1], call[2], call[3]];
                let (mark, rest) = match honest.get(answer) {
                    Some(rest) => (1 << 31 | (rest.len() + 4) as u32, rest),
                    None => (attack.1, &attack.2),
                };
                let head = [mark.to_be_bytes(), xid].concat();
                if stream.write_all(&head).await.is_err() || stream.write_all(rest).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test]
async fn no_reply_makes_the_client_use_more_than_a_few_mebibytes() {
    let honest: &'static [Vec<u8>] = until_connected().leak();
    for attack in attacks().leak() as &'static [_] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let target = Target {
            version: VersionChoice::Exactly(Protocol::V4_0),
            port: listener.local_addr().unwrap().port(),
            mount_port: None,
            source_port: SourcePort::Any,
            credential: Credential::default(),
            owner: ClientOwner {
                owner: b"memory".to_vec(),
                verifier: [1; 8],
            },
            deadline: Duration::from_secs(3),
            ..Target::new("127.0.0.1", "/")
        };
        let server = tokio::spawn(serve(listener, honest, attack));
        // The deadline is short for the attacks, which are repeated until then, and a machine may stall for longer.
        let connected = rig::wait::until("a connection", CONNECT_TIMEOUT, async || {
            let connected = async {
                let export = Client::connect(target.clone()).await?;
                let root = export.root().await?.handle;
                Ok::<_, NfsError>((export, root))
            };
            connected.await.map_err(|error| error.to_string())
        });
        let (export, root) = connected.await.unwrap();
        let (resident, reserved) = (proc_status_kib("VmHWM:"), proc_status_kib("VmPeak:"));
        let listed = export.list(&root, None).await;
        assert!(listed.is_err(), "{}", attack.0);
        let growth = (
            proc_status_kib("VmHWM:") - resident,
            proc_status_kib("VmPeak:") - reserved,
        );
        println!("{}: {} KiB resident, {} KiB reserved", attack.0, growth.0, growth.1);
        assert!(
            growth.0 <= MAX_GROWTH_KIB && growth.1 <= MAX_GROWTH_KIB,
            "{}: {growth:?}",
            attack.0
        );
        server.abort();
    }
}
