//! The network between clients and servers: names, addresses, and the client's transport.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use nfs_client::{NfsError, SourcePort, Streams, Transport};
use parking_lot::Mutex;
use tokio::io::duplex;
use tokio::time::{Instant, sleep_until};

use super::server::{Availability, NfsServer};

/// Bytes in flight in each direction of a connection.
const WINDOW: usize = 256 << 10;
/// Ports below 1024 that clients use, and those above.
const RESERVED_PORTS: std::ops::Range<u16> = 665..1024;
const OTHER_PORTS: std::ops::Range<u16> = 32_768..61_000;
/// Port of NFS, and of rpcbind.
const NFS_PORT: u16 = 2049;
const RPCBIND_PORT: u16 = 111;

#[derive(Debug, Default)]
struct Directory {
    servers: BTreeMap<IpAddr, NfsServer>,
    names: BTreeMap<String, IpAddr>,
}

/// A network. Clones are the same network.
#[derive(Debug, Clone, Default)]
pub struct Network(Arc<Mutex<Directory>>);

impl Network {
    /// Adds a server; one with the same address is replaced, as when an address moves.
    pub fn add(&self, server: NfsServer) {
        self.0.lock().servers.insert(server.address(), server);
    }

    /// Takes a server off the network.
    pub fn remove(&self, address: IpAddr) {
        self.0.lock().servers.remove(&address);
    }

    /// Lets a name mean an address.
    pub fn name(&self, name: &str, address: IpAddr) {
        self.0.lock().names.insert(name.to_owned(), address);
    }

    /// Returns the transport of the programs on a host. `may_bind_reserved`: whether they may use ports below 1024.
    pub fn host(&self, address: IpAddr, may_bind_reserved: bool) -> Host {
        Host {
            network: self.clone(),
            address,
            may_bind_reserved,
            next: Arc::default(),
        }
    }

    /// Returns the address of a server, by name or as text.
    pub fn resolve(&self, server: &str) -> Result<IpAddr, NfsError> {
        let named = || self.0.lock().names.get(server.trim_end_matches('.')).copied();
        server
            .parse()
            .ok()
            .or_else(named)
            .ok_or_else(|| NfsError::NameResolution {
                server: server.to_owned(),
                cause: "the name has no address".to_owned(),
            })
    }
}

/// The transport of the programs on one host.
#[derive(Debug, Clone)]
pub struct Host {
    network: Network,
    address: IpAddr,
    may_bind_reserved: bool,
    /// Numbers of the next reserved port and the next other port.
    next: Arc<Mutex<(u16, u16)>>,
}

impl Host {
    /// Takes the next port.
    fn bind(&self, source_port: SourcePort) -> u16 {
        let mut next = self.next.lock();
        let (range, next) = match source_port {
            SourcePort::Reserved if self.may_bind_reserved => (RESERVED_PORTS, &mut next.0),
            _ => (OTHER_PORTS, &mut next.1),
        };
        let count = range.end - range.start;
        let port = range.start + *next % count;
        *next = (*next + 1) % count;
        port
    }

    async fn connect(
        &self,
        name: &str,
        port: u16,
        source_port: SourcePort,
        deadline: Instant,
    ) -> Result<Streams, NfsError> {
        let address = self.network.resolve(name)?;
        let peer = SocketAddr::new(address, port);
        let server = self.network.0.lock().servers.get(&address).cloned();
        let began = Instant::now();
        let Some(server) = server.filter(|server| server.availability() != Availability::Unreachable) else {
            sleep_until(deadline).await;
            return Err(NfsError::ConnectionTimedOut {
                peer,
                after: began.elapsed(),
            });
        };
        let listens = {
            let mut state = server.state();
            let ports = [NFS_PORT, RPCBIND_PORT, state.options.mount_port];
            ports.contains(&port) && !state.faults.refuses_connection()
        };
        if !listens || server.availability() == Availability::Down {
            return Err(NfsError::ConnectionRefused { peer });
        }
        let local = SocketAddr::new(self.address, self.bind(source_port));
        let (near, far) = duplex(WINDOW);
        server.accept(local, far);
        let (source, sink) = tokio::io::split(near);
        Ok(Streams {
            source: Box::new(source),
            sink: Box::new(sink),
            local,
            peer,
        })
    }
}

impl Transport for Host {
    fn resolve<'a>(&'a self, server: &'a str, _deadline: Instant) -> BoxFuture<'a, Result<Vec<IpAddr>, NfsError>> {
        Box::pin(async move { Ok(vec![self.network.resolve(server)?]) })
    }

    fn connect<'a>(
        &'a self,
        server: &'a str,
        port: u16,
        source_port: SourcePort,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Streams, NfsError>> {
        Box::pin(self.connect(server, port, source_port, deadline))
    }
}
