//! From a server's name to a connected TCP stream: resolution, source port, every address in turn.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use super::{NfsError, Reached, SourcePort, Target};
use crate::address::check_server;

/// The reserved ports that we use: the range that other NFS clients take by default. Lower ones belong to services.
const RESERVED_PORTS: std::ops::Range<u16> = 665..1024;

/// How long the operating system may go without an acknowledgement before it ends a connection. Calls have their own
/// deadlines; this frees sockets whose peer vanished.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// Resolves the target's server and connects to the first of its addresses that answers before `deadline`.
pub async fn connect(target: &Target, deadline: Instant) -> Result<TcpStream, NfsError> {
    let addresses = resolve(&target.server, deadline).await?;
    let mut failure = None;
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let peer = SocketAddr::new(address, target.port);
        let began = Instant::now();
        // An address that doesn't answer must not use up the others' time.
        let share = deadline.saturating_duration_since(began) / left.max(1);
        left = left.saturating_sub(1);
        match connect_peer(peer, target.source_port, began + share).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| NfsError::NameResolution {
        server: target.server.clone(),
        cause: "the name has no address".to_owned(),
    }))
}

/// Connects to an address.
pub async fn connect_peer(peer: SocketAddr, source_port: SourcePort, deadline: Instant) -> Result<TcpStream, NfsError> {
    let began = Instant::now();
    match timeout_at(deadline, connect_to(peer, source_port)).await {
        Ok(connected) => connected.map_err(|error| connect_error(peer, &error, began)),
        Err(_) => Err(NfsError::ConnectionTimedOut {
            peer,
            after: began.elapsed(),
        }),
    }
}

/// Connects, and says which address answered; the connection is closed again.
pub async fn reach(target: &Target, deadline: Instant) -> Result<Reached, NfsError> {
    let began = Instant::now();
    let stream = connect(target, deadline).await?;
    let took = began.elapsed();
    let ends = stream.peer_addr().and_then(|peer| Ok((peer, stream.local_addr()?)));
    let (peer, local) = ends.map_err(|error| NfsError::ConnectionLost {
        action: "connecting",
        cause: error.to_string(),
        outcome_unknown: false,
    })?;
    Ok(Reached { peer, local, took })
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

/// The addresses of a name that needs no search list to be understood.
///
/// Literal addresses and names in the hosts file need no resolver. Any other name is asked for with a trailing dot,
/// which tells every resolver (glibc's and musl's alike) to leave out the search list: a name must mean the same here
/// as on the nodes, which don't have the cluster's list.
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
    let mut addresses = in_hosts(&hosts, name);
    if addresses.is_empty() && name.eq_ignore_ascii_case("localhost") {
        addresses = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    if addresses.is_empty() {
        let began = Instant::now();
        // The resolver's own thread goes on after a timeout, until its own limits end it.
        let found = timeout_at(deadline, tokio::net::lookup_host((format!("{name}."), 0))).await;
        let found = found.map_err(|_| failed(format!("no answer within {:?}", began.elapsed())))?;
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

/// The addresses that a hosts file gives a name.
fn in_hosts(hosts: &str, name: &str) -> Vec<IpAddr> {
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
        // Starting anywhere spreads connections over the range, so that few tries meet a port in use.
        let start = rand::random_range(0..count);
        for step in 0..count {
            let port = RESERVED_PORTS.start + (start + step) % count;
            let socket = match bound(peer, port) {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                // Not permitted, or none on this system: any port must do.
                Err(_) => break,
            };
            match socket.connect(peer).await {
                // This port's former connection to the same peer still lingers.
                Err(error) if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {}
                Err(error) => return Err(error),
                Ok(stream) => return prepared(stream),
            }
        }
    }
    prepared(bound(peer, 0)?.connect(peer).await?)
}

fn bound(peer: SocketAddr, port: u16) -> io::Result<TcpSocket> {
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

fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_keepalive(true)?;
    // Not every kernel has it; keep-alive is the fallback.
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    Ok(stream)
}
