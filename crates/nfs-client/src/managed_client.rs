//! [`ManagedClient`]: the client of one major version.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::connection_manager::{ConnectionManager, ProtocolVersion, RetryPolicy};
use crate::transport::Transport;
use crate::unanswered_changes::UnansweredChanges;
use crate::{CallKind, CallObserver, CallOutcome, Negotiated, NfsError, Status, Target};

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
        observer: Arc<dyn CallObserver>,
        idle_timeout: Duration,
        deadline: Instant,
    ) -> Result<Self, NfsError> {
        let manager = ConnectionManager::start(target, V::default(), transport, observer, idle_timeout);
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

    /// Returns the changes that ended without a reply.
    pub fn unanswered_changes(&self) -> &Arc<UnansweredChanges> {
        &self.manager.unanswered_changes
    }

    /// Reports a call that began at `began` to the observer. `status`: the status of a reply; `None` for success.
    pub fn observe<R>(
        &self,
        kind: CallKind,
        began: Instant,
        reply: &Result<R, NfsError>,
        status: impl FnOnce(&R) -> Option<Status>,
    ) {
        let outcome = reply
            .as_ref()
            .map_or_else(CallOutcome::Failed, |reply| CallOutcome::Answered(status(reply)));
        self.manager.observer.call_ended(kind, began.elapsed(), outcome);
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
