use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;

/// Serves on free ports of loopback, and returns the options with the addresses.
async fn served(token_file: Option<PathBuf>) -> HttpOptions {
    served_with(token_file, Probed::default()).await
}

async fn served_with(token_file: Option<PathBuf>, probed: Probed) -> HttpOptions {
    let (http, probe) = (reserved_port(), reserved_port());
    let options = HttpOptions {
        http_addr: http.local_addr().unwrap(),
        probe_addr: probe.local_addr().unwrap(),
        metrics_token_file: token_file,
    };
    let metrics = Arc::new(Metrics::default());
    serve(options.clone(), probed, metrics).await.unwrap();
    options
}

/// Returns a socket with a free port. While it exists, nobody else is given the port, but a server that names it can
/// listen on it.
fn reserved_port() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket
}

/// Keeps the paused time of a test from passing until the result is dropped, so that no time limit is reached, however
/// slow the machine is.
fn stop_time() -> std::sync::mpsc::Sender<()> {
    let (running, stopped) = std::sync::mpsc::channel();
    // Paused time passes only while the runtime has nothing to do, and no blocking task runs.
    tokio::task::spawn_blocking(move || stopped.recv());
    running
}

/// Sends a text, and returns everything until the server closes the connection.
async fn exchange(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    // A reset is an end, too.
    let _ended = stream.read_to_end(&mut reply).await;
    String::from_utf8(reply).unwrap()
}

async fn get_path(address: SocketAddr, path: &str, header: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_liveness_probe_fails_while_a_loop_blocks_its_thread() {
    let probed = Probed::default();
    let watchdog = probed.watchdog.clone();
    let options = served_with(None, probed).await;
    let (blocks, blocked) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = tokio::sync::oneshot::channel();
    let work = async move {
        begins.send(()).unwrap();
        blocked.recv()
    };
    let stuck = tokio::spawn(watchdog.watch("the test", work));
    begun.await.unwrap();
    assert!(get_path(options.probe_addr, "/healthz", "").await.ends_with("\r\nok\n"));
    for _ in 0..100 {
        watchdog.beat();
    }
    let answer = get_path(options.probe_addr, "/healthz", "").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.ends_with("made no progress for 120 s: the test\n"), "{answer}");
    drop(blocks);
    let _ended = stuck.await;
    assert!(get_path(options.probe_addr, "/healthz", "").await.ends_with("\r\nok\n"));
}

#[tokio::test]
async fn probes_are_served_on_both_addresses_and_metrics_on_one() {
    let options = served(None).await;
    for address in [options.http_addr, options.probe_addr] {
        assert!(get_path(address, "/healthz", "").await.starts_with("HTTP/1.1 200"));
        assert!(get_path(address, "/readyz", "").await.starts_with("HTTP/1.1 503"));
    }
    let metrics = get_path(options.http_addr, "/metrics", "").await;
    assert!(metrics.contains("nfs_operator_build_info"), "{metrics}");
    assert!(
        get_path(options.probe_addr, "/metrics", "")
            .await
            .starts_with("HTTP/1.1 404")
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_closes_the_oldest_one_beyond_the_limit() {
    let _stopped = stop_time();
    let options = served(None).await;
    let mut held = Vec::new();
    for _ in 0..=MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(options.probe_addr).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ").await.unwrap();
        held.push(stream);
    }
    assert!(
        get_path(options.probe_addr, "/healthz", "")
            .await
            .starts_with("HTTP/1.1 200")
    );
    for closed in held.iter_mut().take(2) {
        let read = closed.read(&mut [0; 64]).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    // It is the limit that closed them, and not the time limit of the header, which is the same for all.
    for open in held.iter_mut().skip(2) {
        open.write_all(b"y\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut reply = String::new();
        open.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_of_one_client_do_not_close_those_of_another() {
    let _stopped = stop_time();
    let options = served(None).await;
    let mut scrape = TcpStream::connect(options.http_addr).await.unwrap();
    scrape.write_all(b"GET /healthz HTTP/1.1\r\nX: ").await.unwrap();
    let mut held = Vec::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into()).unwrap();
        held.push(socket.connect(options.http_addr).await.unwrap());
    }
    // All of them have been accepted once a later connection is answered.
    get_path(options.http_addr, "/healthz", "").await;
    scrape.write_all(b"y\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    scrape.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_header_is_answered_by_the_end_of_the_connection() {
    let options = served(None).await;
    for unfinished in ["", "GET /healthz HTTP/1.1\r\nX: y"] {
        let reply = exchange(options.http_addr, unfinished).await;
        assert!(!reply.contains(" 200 "), "{reply}");
    }
}

#[tokio::test]
async fn a_header_that_never_ends_is_refused_after_8_kib() {
    let options = served(None).await;
    let reply = exchange(
        options.http_addr,
        &format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(64 * 1024)),
    )
    .await;
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431"), "{reply}");
}

#[tokio::test]
async fn metrics_require_the_token_that_the_file_contains_now() {
    let file = std::env::temp_dir().join(format!("nfs-operator-token-{}", rand::random::<u64>()));
    std::fs::write(&file, "first\n").unwrap();
    let options = served(Some(file.clone())).await;
    let status = async |header: &str| {
        let reply = get_path(options.http_addr, "/metrics", header).await;
        reply.get(9..12).unwrap_or_default().to_owned()
    };
    assert_eq!(status("Authorization: Bearer first\r\n").await, "200");
    assert_eq!(status("authorization: bearer first\r\n").await, "200");
    for wrong in [
        "",
        "Authorization: Bearer second\r\n",
        "Authorization: Basic first\r\n",
        "Authorization: Bearer \r\n",
    ] {
        assert_eq!(status(wrong).await, "401", "{wrong}");
    }
    std::fs::write(&file, "second").unwrap();
    assert_eq!(status("Authorization: Bearer first\r\n").await, "401");
    assert_eq!(status("Authorization: Bearer second\r\n").await, "200");
    // Without a token, nobody has access.
    std::fs::write(&file, " \n").unwrap();
    assert_eq!(status("Authorization: Bearer \r\n").await, "500");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(status("Authorization: Bearer second\r\n").await, "500");
    assert!(
        get_path(options.http_addr, "/healthz", "")
            .await
            .starts_with("HTTP/1.1 200")
    );
    let failed = MetricsToken::open(file).await.unwrap_err().to_string();
    assert!(failed.contains("--metrics-token-file"), "{failed}");
}
