//! The proxy, with a small server that echoes each record.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails"
)]

use std::{
    io::ErrorKind,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rig::{
    Action, Direction, Proxy,
    proxy::{encode_rename, has_bytes},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

const SHORT: Duration = Duration::from_millis(200);
/// Timeout for what takes milliseconds on a machine that does not stall.
const LONG: Duration = Duration::from_secs(60);

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    address
}

async fn proxy() -> (Proxy, Client) {
    let proxy = Proxy::start(echo().await).await.unwrap();
    let client = Client::new(&proxy).await;
    (proxy, client)
}

struct Client(TcpStream);

impl Client {
    async fn new(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    async fn send(&mut self, record: &[u8]) {
        let mark = (0x8000_0000 | u32::try_from(record.len()).unwrap()).to_be_bytes();
        self.0.write_all(&[&mark, record].concat()).await.unwrap();
    }

    async fn receive(&mut self) -> std::io::Result<Vec<u8>> {
        let mark = timeout(LONG, self.0.read_u32()).await.unwrap()?;
        let mut record = vec![0; (mark & 0x7fff_ffff) as usize];
        timeout(LONG, self.0.read_exact(&mut record)).await.unwrap()?;
        Ok(record)
    }

    async fn call(&mut self, record: &[u8]) -> Vec<u8> {
        self.send(record).await;
        self.receive().await.unwrap()
    }

    async fn assert_no_reply(&mut self) {
        assert!(timeout(SHORT, self.0.read_u8()).await.is_err(), "unexpected reply");
    }
}

#[tokio::test]
async fn records_and_the_end_of_a_connection_are_forwarded() {
    let (_proxy, mut client) = proxy().await;
    assert_eq!(client.call(b"hello").await, b"hello");
    let large = vec![7; 3 << 20];
    let (mut from, mut to) = client.0.split();
    let mark = (0x8000_0000 | (3_u32 << 20)).to_be_bytes();
    let (sent, ()) = tokio::join!(async { to.write_all(&[&mark[..], &large].concat()).await }, async {
        let mut back = vec![0; large.len() + 4];
        from.read_exact(&mut back).await.unwrap();
        assert_eq!(&back[4..], large);
    });
    sent.unwrap();
    client.0.write_all(b"un").await.unwrap();
    client.0.shutdown().await.unwrap();
    let mut rest = Vec::new();
    client.0.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"un");
}

#[tokio::test]
async fn a_delay_adds_latency_and_does_not_limit_throughput() {
    /// So many that one after the other would take longer than a machine stalls.
    const RECORDS: u8 = 200;
    const DELAY: Duration = Duration::from_millis(500);
    let (proxy, mut client) = proxy().await;
    proxy.delay(DELAY, DELAY);
    let start = Instant::now();
    for number in 0..RECORDS {
        client.send(&[number]).await;
    }
    for number in 0..RECORDS {
        assert_eq!(client.receive().await.unwrap(), [number]);
    }
    let took = start.elapsed();
    // If one direction sent one record after the other, it would take 100 s.
    assert!((2 * DELAY..LONG).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_cut_resets_open_connections_and_accepts_new_ones() {
    let (proxy, mut client) = proxy().await;
    client.call(b"x").await;
    proxy.cut().await;
    assert_eq!(client.receive().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(Client::new(&proxy).await.call(b"y").await, b"y");
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn new_connections_are_refused_and_accepted_again_while_open_ones_continue() {
    let (proxy, mut client) = proxy().await;
    client.call(b"x").await;
    proxy.refuse(true).await.unwrap();
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(client.call(b"still").await, b"still");
    proxy.refuse(false).await.unwrap();
    assert_eq!(Client::new(&proxy).await.call(b"y").await, b"y");
}

#[tokio::test]
async fn a_hang_holds_open_and_new_connections_until_it_ends() {
    let (proxy, mut client) = proxy().await;
    client.call(b"x").await;
    proxy.hang(true);
    client.send(b"held").await;
    let mut second = Client::new(&proxy).await;
    second.send(b"too").await;
    client.assert_no_reply().await;
    second.assert_no_reply().await;
    proxy.hang(false);
    assert_eq!(client.receive().await.unwrap(), b"held");
    assert_eq!(second.receive().await.unwrap(), b"too");
}

#[tokio::test]
async fn a_connection_is_closed_in_the_middle_of_a_record() {
    let (proxy, mut client) = proxy().await;
    client.call(b"x").await;
    proxy.cut_after(Direction::Down, 6);
    client.send(b"abcdef").await;
    let mut got = Vec::new();
    // The proxy closes while the peer has not read everything, so this may fail with a reset.
    let _ = timeout(LONG, client.0.read_to_end(&mut got)).await.unwrap();
    assert_eq!(got, [&0x8000_0006_u32.to_be_bytes()[..], b"ab"].concat());
    assert_eq!(Client::new(&proxy).await.call(b"only once").await, b"only once");
}

#[tokio::test]
async fn single_records_are_dropped_delayed_and_cut() {
    let (proxy, mut client) = proxy().await;
    proxy.on_record(Direction::Up, |record| match record {
        b"drop" => Action::Drop,
        b"late" => Action::Delay(Duration::from_millis(150)),
        b"cut" => Action::Cut,
        _ => Action::Forward,
    });
    client.send(b"drop").await;
    assert_eq!(client.call(b"next").await, b"next");
    let start = Instant::now();
    assert_eq!(client.call(b"late").await, b"late");
    assert!(start.elapsed() >= Duration::from_millis(150));
    client.send(b"cut").await;
    assert_eq!(client.receive().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    proxy.clear_hooks();
    assert_eq!(Client::new(&proxy).await.call(b"drop").await, b"drop");
}

#[tokio::test]
async fn the_reply_of_one_request_is_lost_on_its_own_connection() {
    let (proxy, mut client) = proxy().await;
    let mut other = Client::new(&proxy).await;
    let mut lost = proxy.lose_reply(Action::Drop, |request| has_bytes(request, &encode_rename(b"volume")));
    let rename = [&b"id-1"[..], &encode_rename(b"volume")].concat();
    assert!(!lost.has_happened());
    // The request is delayed, so that the other reply arrives first.
    let held = rename.clone();
    proxy.on_record(Direction::Up, move |request| match request == held {
        true => Action::Delay(SHORT),
        false => Action::Forward,
    });
    client.send(&rename).await;
    tokio::time::sleep(SHORT / 4).await;
    // The same transaction id on another connection is another request.
    assert_eq!(other.call(b"id-1 other").await, b"id-1 other");
    lost.wait(LONG).await.unwrap();
    client.assert_no_reply().await;
    assert_eq!(client.call(&rename).await, rename, "lost only once");
}

#[tokio::test]
async fn without_a_server_behind_it_a_connection_is_reset() {
    // Bound, so that nobody else gets the port, but not listening.
    let unused = TcpSocket::new_v4().unwrap();
    unused.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let proxy = Proxy::start(unused.local_addr().unwrap()).await.unwrap();
    let mut client = Client::new(&proxy).await;
    assert_eq!(client.receive().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn bytes_that_are_no_records_are_forwarded_with_the_delay() {
    let proxy = Proxy::start_for_bytes(echo().await).await.unwrap();
    proxy.on_record(Direction::Up, |_| Action::Cut);
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    // As a record, this would be larger than 64 MiB.
    let hello = [22, 3, 1, 0, 5];
    for delay in [0, 20].map(Duration::from_millis) {
        proxy.delay(delay / 2, delay / 2);
        let started = Instant::now();
        stream.write_all(&hello).await.unwrap();
        let mut echoed = [0; 5];
        timeout(LONG, stream.read_exact(&mut echoed)).await.unwrap().unwrap();
        assert_eq!(echoed, hello);
        assert!(started.elapsed() >= delay, "{:?}", started.elapsed());
    }
    stream.shutdown().await.unwrap();
    assert_eq!(timeout(LONG, stream.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
}
