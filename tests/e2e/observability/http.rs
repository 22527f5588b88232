//! Clients of the HTTP endpoints that are slow, or never finish a request.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::Test;

/// The memory that any number of connections may cost, measured with a generous margin: 300 connections to a server
/// without limits cost 139 MiB.
const MEMORY: u64 = 24 << 20;

/// Opens connections that send the beginning of a request's header. The server may close them.
async fn hold(address: SocketAddr, count: usize, header: &[u8]) -> std::io::Result<Vec<TcpStream>> {
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").await?;
        // What the buffers take: the server may refuse to read it.
        let _written = stream.try_write(header);
        held.push(stream);
    }
    Ok(held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_never_finish_a_request_cost_little_and_probes_are_still_answered() -> Test {
    let env = DedicatedCluster::start(json!({})).await?;
    let before = env.operator.resident_bytes()?;
    let mut held = Vec::new();
    for address in env.operator.http_addresses() {
        held.extend(hold(address, 300, &[b'y'; 400 << 10]).await?);
        held.extend(hold(address, 2000, b"y").await?);
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(env.operator.probe(path).await?, "ok\n");
    }
    assert!(env.operator.metrics().await?.contains("nfs_operator_leader 1"));
    let grown = env.operator.peak_resident_bytes()?.saturating_sub(before);
    assert!(grown < MEMORY, "{held} connections: {grown} bytes", held = held.len());
    Ok(())
}
