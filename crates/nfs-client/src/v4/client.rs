//! The client for NFSv4: what its calls share, and what the connection manager does for it.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tokio::time::Instant;

use super::call::{self, MAX_OPERATIONS};
use super::handshake::{ClientState, handshake};
use super::session::{self, Session};
use crate::NfsError;
use crate::connection_manager::{ConnectionManager, HandshakeResult, ProtocolVersion};
use crate::managed_client::ManagedClient;
use crate::rpc::connection::Connection;

/// What the calls of one client share, beyond the connection and the session.
#[derive(Debug)]
pub struct V4 {
    /// Operations that the server accepts in a compound, SEQUENCE included.
    pub max_operations: AtomicU32,
    /// NFSv4.0: the client ID, as far as the server is known to have it. Locked while a new one is requested.
    pub client_id: tokio::sync::Mutex<Option<u64>>,
}

impl Default for V4 {
    fn default() -> Self {
        Self {
            max_operations: AtomicU32::new(MAX_OPERATIONS),
            client_id: tokio::sync::Mutex::new(None),
        }
    }
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
        let result = state.handshake_result(&session);
        Ok((session, result))
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
        // See `handshake` on fencing: a server restart cuts the connection, and an old lease may have expired.
        state.owner_taken_over = !connection.has_ended() && session.since_renewal() < state.lease();
    }

    fn close_session(session: &Session) {
        session.slots.close();
    }
}

/// A client of one server that speaks NFSv4.
pub type Client = ManagedClient<V4>;
