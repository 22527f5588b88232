//! [`ManagedClient`]: the client of one major version.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::connection_manager::{ConnectionManager, ProtocolVersion, RetryPolicy};
use crate::transport::Transport;
use crate::{Negotiated, NfsError, Target};

/// A client of one server that speaks one major version. Dropping it ends its session and closes its connection.
#[derive(Debug)]
pub struct ManagedClient<V: ProtocolVersion> {
    pub manager: Arc<ConnectionManager<V>>,
}

impl<V: ProtocolVersion> ManagedClient<V> {
    /// Starts the client and waits for its first connection; fails with the first failure.
    pub async fn connect(
        target: Target,
        transport: Arc<dyn Transport>,
        idle_timeout: Duration,
        deadline: Instant,
    ) -> Result<Self, NfsError> {
        let manager = ConnectionManager::start(target, V::default(), transport, idle_timeout);
        let client = Self { manager };
        let demand = client.manager.demand();
        client
            .manager
            .ready("connecting", deadline, RetryPolicy::FailFast)
            .await?;
        drop(demand);
        Ok(client)
    }

    /// Returns what was negotiated on the newest connection.
    pub fn negotiated(&self) -> Negotiated {
        self.manager.negotiated()
    }

    /// Returns the number of connections established so far.
    pub fn generation(&self) -> u64 {
        self.manager.generation()
    }

    /// Ends the session, if the version has sessions, and closes the connection. Waits for both.
    pub async fn close(&self) {
        self.manager.close_and_wait().await;
    }
}

impl<V: ProtocolVersion> Drop for ManagedClient<V> {
    fn drop(&mut self) {
        self.manager.close();
    }
}
