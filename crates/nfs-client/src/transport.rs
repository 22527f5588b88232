//! Transport: from a server's name to a connected pair of byte streams.
//!
//! [`Transport`] is the seam below RPC. [`Tcp`] resolves the name, binds the source port, connects and sets socket
//! options. RPC-with-TLS (RFC 9289) or streams within one process are other implementations of the trait, for
//! [`Client::connect_over`](crate::Client::connect_over).

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::future::BoxFuture;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use crate::address::check_server;
use crate::{NfsError, SourcePort};

/// Source ports below 1024 that are tried: the range that other NFS clients use by default. Lower ports belong to
/// services.
const RESERVED_PORTS: std::ops::Range<u16> = 665..1024;

/// Time without an acknowledgement after which the operating system ends a connection. Calls have their own deadlines;
/// this frees sockets whose peer vanished.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// A connected pair of byte streams: what a [`Transport`] makes.
pub struct Streams {
    /// Bytes from the server.
    pub source: Box<dyn AsyncRead + Send + Unpin>,
    /// Bytes to the server.
    pub sink: Box<dyn AsyncWrite + Send + Unpin>,
    /// Address of the client's end.
    pub local: SocketAddr,
    /// Address of the server's end.
    pub peer: SocketAddr,
}

/// Makes connections to servers.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Returns the addresses of `server`, a DNS name or an IP address without brackets, before `deadline`: those that
    /// [`connect`](Self::connect) tries, in that order.
    fn resolve<'a>(&'a self, server: &'a str, deadline: Instant) -> BoxFuture<'a, Result<Vec<IpAddr>, NfsError>>;

    /// Connects to a port of `server`, a DNS name or an IP address without brackets, before `deadline`.
    fn connect<'a>(
        &'a self,
        server: &'a str,
        port: u16,
        source_port: SourcePort,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Streams, NfsError>>;
}

/// TCP, without encryption.
#[derive(Debug, Clone, Copy)]
pub struct Tcp;

impl Transport for Tcp {
    fn resolve<'a>(&'a self, server: &'a str, deadline: Instant) -> BoxFuture<'a, Result<Vec<IpAddr>, NfsError>> {
        Box::pin(resolve(server, deadline))
    }

    fn connect<'a>(
        &'a self,
        server: &'a str,
        port: u16,
        source_port: SourcePort,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Streams, NfsError>> {
        Box::pin(async move {
            let stream = connect_to_any(server, port, source_port, deadline).await?;
            let addresses = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?)));
            let (local, peer) = addresses.map_err(|error| NfsError::ConnectionLost {
                action: "connecting",
                cause: error.to_string(),
                outcome_unknown: false,
            })?;
            let (source, sink) = stream.into_split();
            Ok(Streams {
                source: Box::new(source),
                sink: Box::new(sink),
                local,
                peer,
            })
        })
    }
}

/// Resolves the server's name and connects to the first of its addresses that answers before `deadline`.
async fn connect_to_any(
    server: &str,
    port: u16,
    source_port: SourcePort,
    deadline: Instant,
) -> Result<TcpStream, NfsError> {
    let addresses = resolve(server, deadline).await?;
    let mut failure = None;
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let peer = SocketAddr::new(address, port);
        let began = Instant::now();
        // An address that does not answer must not use up the time of the others.
        let share = deadline.saturating_duration_since(began) / left.max(1);
        left = left.saturating_sub(1);
        let error = match timeout_at(began + share, connect_to(peer, source_port)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => connect_error(peer, &error, began),
            Err(_) => NfsError::ConnectionTimedOut {
                peer,
                after: began.elapsed(),
            },
        };
        failure = Some(error);
    }
    Err(failure.unwrap_or_else(|| NfsError::NameResolution {
        server: server.to_owned(),
        cause: "the name has no address".to_owned(),
    }))
}

fn connect_error(peer: SocketAddr, error: &io::Error, began: Instant) -> NfsError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => NfsError::ConnectionRefused { peer },
        io::ErrorKind::TimedOut => NfsError::ConnectionTimedOut {
            peer,
            after: began.elapsed(),
        },
        _ => NfsError::Unreachable {
            peer,
            cause: error.to_string(),
        },
    }
}

/// Returns the addresses of a server, without the resolver's search list.
///
/// Literal addresses and names in the hosts file need no resolver. Any other name is resolved with a trailing dot, which
/// makes every resolver (glibc's and musl's alike) ignore the search list: a name must mean the same here as on other
/// machines, whose search lists differ.
pub async fn resolve(server: &str, deadline: Instant) -> Result<Vec<IpAddr>, NfsError> {
    if let Ok(address) = server.parse() {
        return Ok(vec![address]);
    }
    let failed = |cause: String| NfsError::NameResolution {
        server: server.to_owned(),
        cause,
    };
    check_server(server).map_err(|error| failed(error.to_string()))?;
    let name = server.trim_end_matches('.');
    let hosts = tokio::fs::read_to_string("/etc/hosts").await.unwrap_or_default();
    let mut addresses = addresses_in_hosts(&hosts, name);
    if addresses.is_empty() && name.eq_ignore_ascii_case("localhost") {
        addresses = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    if addresses.is_empty() {
        let began = Instant::now();
        // After a timeout, the resolver's thread continues until its own limits end it.
        let found = timeout_at(deadline, tokio::net::lookup_host((format!("{name}."), 0))).await;
        let found = found.map_err(|_| failed(format!("no answer within {} s", began.elapsed().as_secs())))?;
        addresses = found
            .map_err(|error| failed(error.to_string()))?
            .map(|address| address.ip())
            .collect();
        addresses.dedup();
    }
    if addresses.is_empty() {
        Err(failed("the name has no address".to_owned()))
    } else {
        Ok(addresses)
    }
}

/// Returns the addresses that a hosts file lists for a name.
fn addresses_in_hosts(hosts: &str, name: &str) -> Vec<IpAddr> {
    let lines = hosts.lines().filter_map(|line| line.split('#').next());
    let matching = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    });
    matching.collect()
}

async fn connect_to(peer: SocketAddr, source_port: SourcePort) -> io::Result<TcpStream> {
    if source_port == SourcePort::Reserved {
        let count = RESERVED_PORTS.end - RESERVED_PORTS.start;
        // A random start spreads connections over the range, so that few attempts meet a port in use.
        let start = rand::random_range(0..count);
        for step in 0..count {
            let port = RESERVED_PORTS.start + (start + step) % count;
            let socket = match bind(peer, port) {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                // Not permitted, or none on this system: use any port.
                Err(_) => break,
            };
            match socket.connect(peer).await {
                // An earlier connection from this port to the same peer still lingers.
                Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {}
                Err(error) => return Err(error),
                Ok(stream) => return with_socket_options(stream),
            }
        }
    }
    with_socket_options(bind(peer, 0)?.connect(peer).await?)
}

fn bind(peer: SocketAddr, port: u16) -> io::Result<TcpSocket> {
    let (socket, any) = match peer {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::from(Ipv4Addr::UNSPECIFIED)),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
    };
    if port != 0 {
        // Lets connections to different servers share a reserved port: there are only 359 of them.
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(any, port))?;
    }
    Ok(socket)
}

fn with_socket_options(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_keepalive(true)?;
    // Not every kernel supports it; keep-alive is the fallback.
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    Ok(stream)
}
