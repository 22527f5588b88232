//! The client for NFSv4: what its calls share, and what the connection manager does for it.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tokio::time::Instant;

use super::call::{self, MAX_OPERATIONS};
use super::handshake::{ClientState, handshake};
use super::session::{self, Session};
use crate::connection_manager::{ConnectionManager, HandshakeResult, ManagerHandle, ProtocolVersion};
use crate::rpc::connection::Connection;
use crate::transport::Transport;
use crate::{Negotiated, NfsError, Target};

/// What the calls of one client share, beyond the connection and the session.
#[derive(Debug)]
pub struct V4 {
    /// Operations that the server accepts in a compound, SEQUENCE included.
    pub max_operations: AtomicU32,
    /// NFSv4.0: the client ID, while the server is believed to know it. Locked while a new one is requested.
    pub client_id: tokio::sync::Mutex<Option<u64>>,
}

/// The connection manager of an NFSv4 client.
pub type Manager = ConnectionManager<V4>;

impl ProtocolVersion for V4 {
    type Session = Session;
    type ClientState = ClientState;

    async fn establish(
        manager: &Manager,
        state: &mut ClientState,
        connection: &Connection,
        previous: Option<Arc<Session>>,
        deadline: Instant,
    ) -> Result<(Arc<Session>, HandshakeResult), NfsError> {
        let session = match previous {
            Some(session) if session::bind(connection, &session, deadline).await? => session,
            lost => {
                if let Some(session) = lost {
                    manager.invalidate_session(&session);
                }
                Arc::new(handshake(manager, state, connection, deadline).await?)
            }
        };
        let agreement = state.agreement(&session);
        Ok((session, agreement))
    }

    async fn end_session(session: &Session, connection: &Connection, deadline: Instant) {
        session::destroy(connection, session, deadline).await;
    }

    fn lease(state: &ClientState) -> Option<Duration> {
        Some(state.lease())
    }

    fn renew_lease(manager: &Arc<Manager>, session: &Session, lease: Duration, interval: Duration) {
        // Without a session there is nothing to renew: an open lives no longer than the call that needs it.
        if session.has_slot_table() && session.since_renewal() + interval >= lease / 2 {
            tokio::spawn(call::renew_lease(manager.clone()));
        }
    }

    fn session_invalidated(state: &mut ClientState, session: &Session, connection: &Connection) {
        // See `handshake` on fencing: a restart cuts the connection, and an old lease may have expired.
        state.taken = !connection.has_ended() && session.since_renewal() < state.lease();
    }

    fn close_session(session: &Session) {
        session.slots.close();
    }
}

/// A client of one server. Dropping it ends its session.
#[derive(Debug)]
pub struct Client {
    pub(super) manager: ManagerHandle<V4>,
}

impl Client {
    /// Connects and creates a session; fails with the first failure.
    pub async fn connect(
        target: Target,
        transport: Arc<dyn Transport>,
        idle_timeout: Duration,
        deadline: Instant,
    ) -> Result<Self, NfsError> {
        let version = V4 {
            max_operations: AtomicU32::new(MAX_OPERATIONS),
            client_id: tokio::sync::Mutex::new(None),
        };
        let manager = ConnectionManager::connect(target, version, transport, idle_timeout, deadline).await?;
        Ok(Self { manager })
    }

    /// What was negotiated on the newest connection.
    pub fn negotiated(&self) -> Negotiated {
        self.manager.negotiated()
    }

    /// Number of connections established so far.
    pub fn generation(&self) -> u64 {
        self.manager.generation()
    }

    /// Ends session and lease on the server, and waits for it.
    pub async fn close(&self) {
        self.manager.close_and_wait().await;
    }
}
