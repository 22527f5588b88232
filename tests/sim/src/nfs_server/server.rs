//! A server: its controls, and the connections that it accepts.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::connection;
use super::events::{Actor, Event};
use super::exports::{Export, Place};
use super::faults::Faults;
use super::file_system::FileSystem;
use super::state::{ServerOptions, State};
use super::status::NfsResult;

/// Whether clients reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// It answers.
    Up,
    /// It refuses connections, and its connections are cut.
    Down,
    /// Nothing reaches it, and nothing comes from it: attempts to connect time out, and calls wait.
    Unreachable,
}

/// What a restart of a server preserves of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Clients, sessions and reply caches, as a server with persistent sessions does (RFC 8881 section 2.10.6.5).
    KeepingClients,
    /// Nothing: client IDs and sessions are unknown, and a grace period begins.
    LosingClients,
}

/// A simulated NFS server. Clones are the same server.
#[derive(Clone)]
pub struct NfsServer(Arc<Shared>);

struct Shared {
    address: IpAddr,
    state: Mutex<State>,
    /// Where calls are executed: they outlive the client that sent them.
    runtime: Handle,
    availability: watch::Sender<Availability>,
    /// Counts the moments at which all connections were cut.
    cuts: watch::Sender<u64>,
}

impl fmt::Debug for NfsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NfsServer")
            .field("address", &self.0.address)
            .field("availability", &*self.0.availability.borrow())
            .finish_non_exhaustive()
    }
}

impl NfsServer {
    /// Starts a server without disks at an address; chance comes from this seed. Its calls are executed on the current
    /// runtime.
    pub fn start(address: IpAddr, options: ServerOptions, seed: u64) -> Self {
        Self(Arc::new(Shared {
            address,
            state: Mutex::new(State::new(options, seed)),
            runtime: Handle::current(),
            availability: watch::Sender::new(Availability::Up),
            cuts: watch::Sender::new(0),
        }))
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        self.0.address
    }

    /// Locks the state: for what the methods below do not offer. Calls wait meanwhile, so never hold it across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Adds a disk, or puts another in the place of one with this name: a copy, or an older state of it. Returns the disk that
    /// was there. Handles stay valid as far as fsid, inode numbers and generations agree.
    pub fn insert_disk(&self, name: &str, disk: FileSystem) -> Option<FileSystem> {
        self.state().namespace.disks.insert(name.to_owned(), disk)
    }

    /// Returns a copy of a disk, as it is now.
    pub fn snapshot(&self, disk: &str) -> NfsResult<FileSystem> {
        self.state().namespace.disk(disk).cloned()
    }

    /// Looks at a disk.
    pub fn inspect<T>(&self, disk: &str, look: impl FnOnce(&FileSystem) -> T) -> NfsResult<T> {
        self.state().namespace.disk(disk).map(look)
    }

    /// Mounts a disk on a directory of another one.
    pub fn mount(&self, at: Place, disk: &str) {
        self.state().namespace.mounts.insert(at, disk.to_owned());
    }

    /// Removes a mount.
    pub fn unmount(&self, at: &Place) {
        self.state().namespace.mounts.remove(at);
    }

    /// Offers an export, or changes the one with its path.
    pub fn export(&self, export: Export) {
        self.state().namespace.offer(export);
    }

    /// Changes the faults.
    pub fn with_faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        change(&mut self.state().faults)
    }

    /// Uses a disk as the server's administrator.
    pub fn administer<T>(&self, disk: &str, work: impl FnOnce(&mut FileSystem) -> NfsResult<T>) -> NfsResult<T> {
        self.state().with_disk(&Actor::Administrator, disk, work)
    }

    /// Returns the changes of all disks since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        self.state().take_events()
    }

    /// Crashes and starts again: connections are cut, calls in progress end, and data without COMMIT is lost.
    pub fn restart(&self, restart: Restart) {
        self.state().restart(restart == Restart::LosingClients);
        self.cut_connections();
    }

    /// Cuts all connections. Calls in progress are executed nevertheless.
    pub fn cut_connections(&self) {
        self.0.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Sets whether clients reach the server.
    pub fn set_availability(&self, availability: Availability) {
        self.0.availability.send_replace(availability);
        if availability == Availability::Down {
            self.cut_connections();
        }
    }

    /// Whether clients reach the server.
    pub fn availability(&self) -> Availability {
        *self.0.availability.borrow()
    }

    /// Waits until something from a client reaches the server.
    pub(super) async fn reachable(&self) {
        if self.availability() != Availability::Unreachable {
            return;
        }
        let mut availability = self.0.availability.subscribe();
        // The sender lives as long as `self`.
        let _ = availability
            .wait_for(|availability| *availability != Availability::Unreachable)
            .await;
    }

    /// Runs a task of the server.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.runtime.spawn(task);
    }

    /// Serves a connection from `peer` until either end closes it.
    pub fn accept(&self, peer: SocketAddr, stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static) {
        // From now on: a cut before the task runs must not be missed.
        let cuts = self.0.cuts.subscribe();
        self.spawn(connection::serve(self.clone(), peer, stream, cuts));
    }
}
