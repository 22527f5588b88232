//! The client for NFSv3: what its calls share, and what the connection manager does for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::call::call_once;
use super::constants::{nfs, nfs_procedure};
use super::mount::CachedRoot;
use crate::connection_manager::{ConnectionManager, HandshakeResult, ProtocolVersion};
use crate::managed_client::ManagedClient;
use crate::rpc::connection::Connection;
use crate::xdr::Encoder;
use crate::{NfsError, Protocol};

/// Maximum number of calls in flight. A server processes as many as it has threads; the others wait in its socket. At a
/// round trip of 10 ms this still allows 12,800 calls per second.
const SLOTS: u32 = 128;

/// What the calls of one client share, beyond the connection.
#[derive(Debug)]
pub struct V3 {
    pub slots: Semaphore,
    /// The newest root handle from MOUNT. Locked during the request, so that concurrent calls send one.
    pub root: tokio::sync::Mutex<Option<CachedRoot>>,
    pub limits: Mutex<Limits>,
}

impl Default for V3 {
    fn default() -> Self {
        Self {
            slots: Semaphore::new(SLOTS as usize),
            root: tokio::sync::Mutex::new(None),
            limits: Mutex::new(Limits::UNKNOWN),
        }
    }
}

/// The server's limits (FSINFO, PATHCONF), clamped to safe values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of the data in a READ or a listing, in bytes.
    pub read: u32,
    /// Maximum size of the data in a WRITE, in bytes.
    pub write: u32,
    /// Maximum length of a name, in bytes.
    pub name: usize,
}

impl Limits {
    /// Values that every server accepts, until the server has reported its limits.
    pub const UNKNOWN: Self = Self {
        read: 8192,
        write: 8192,
        name: 255,
    };
}

/// NFSv3 has no sessions and no leases.
impl ProtocolVersion for V3 {
    type Session = ();
    type ClientState = ();

    async fn establish(
        manager: &ConnectionManager<Self>,
        (): &mut (),
        connection: &Connection,
        _previous: Option<Arc<()>>,
        deadline: Instant,
    ) -> Result<(Arc<()>, HandshakeResult), NfsError> {
        // Fails if the server does not support the version.
        let null = nfs_procedure(nfs::NULL);
        let credential = manager.target.credential;
        call_once(connection, "connecting", null, credential, &Encoder::new(), deadline).await?;
        let result = HandshakeResult {
            protocol: Protocol::V3,
            implementation: String::new(),
            lease: Duration::ZERO,
            max_operations: 1,
            slots: SLOTS,
        };
        Ok((Arc::new(()), result))
    }

    async fn end_session((): &(), _connection: &Connection, _deadline: Instant) {}

    fn lease((): &()) -> Option<Duration> {
        None
    }

    fn renew_lease(_manager: &Arc<ConnectionManager<Self>>, (): &(), _lease: Duration, _interval: Duration) {}

    fn session_invalidated((): &mut (), (): &(), _connection: &Connection) {}

    fn close_session((): &()) {}
}

/// A client of one server that speaks NFSv3.
pub type Client = ManagedClient<V3>;

impl Client {
    pub(super) fn limits(&self) -> Limits {
        *self.manager.version.limits.lock()
    }
}
