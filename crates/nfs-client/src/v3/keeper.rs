//! The task that keeps one client's connection: it connects when a call wants it, comes back after a loss, and lets go
//! when idle.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::call::ask;
use super::client::Shared;
use super::numbers::{nfs, nfs_procedure};
use crate::connect;
use crate::rpc::connection::Connection;
use crate::xdr::Encoder;
use crate::{NfsError, Protocol};

/// A connection that nobody used for this long is closed. Longer than the usual probe interval of 30 s, so that probes
/// find it open.
const IDLE: Duration = Duration::from_secs(60);

/// First pause between attempts to connect; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Short enough for work to go on within seconds after a server came back.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Runs until the client is closed.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    while wait_until_wanted(&shared).await {
        let number = shared.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        match attempt(&shared).await {
            Ok(connection) => {
                pause = FIRST_PAUSE;
                stay(&shared, &connection).await;
            }
            Err(error) => {
                tracing::debug!(server = shared.target.server, %error, "cannot connect");
                shared.way.send_modify(|way| way.failure = Some((number, error)));
                // Some jitter keeps many clients of one server from coming back in step.
                sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
    shared.way.send_modify(|way| {
        if let Some(connection) = way.connection.take() {
            connection.end("closed by us");
        }
    });
}

/// True when a call wants a connection, false when the client is to end.
async fn wait_until_wanted(shared: &Shared) -> bool {
    let mut way = shared.way.subscribe();
    loop {
        if way.borrow_and_update().closed {
            return false;
        }
        if shared.wanted.load(Ordering::Acquire) > 0 {
            return true;
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            _ = way.wait_for(|way| way.closed) => {}
        }
    }
}

/// Connects and publishes the connection.
async fn attempt(shared: &Shared) -> Result<Arc<Connection>, NfsError> {
    const ACTION: &str = "connecting";
    let began = Instant::now();
    // A little less than a call has, so that its error can be this attempt's specific one.
    let deadline = began + shared.target.deadline.mul_f64(0.9);
    let stream = connect::connect(&shared.target, deadline).await?;
    let connection = Connection::new(stream).map_err(|error| NfsError::ConnectionLost {
        action: ACTION,
        cause: error.to_string(),
        outcome_unknown: false,
    })?;
    // Whether the server speaks the version at all.
    let null = nfs_procedure(nfs::NULL);
    ask(
        &connection,
        ACTION,
        null,
        shared.target.credential,
        &Encoder::new(),
        deadline,
    )
    .await?;
    let connection = Arc::new(connection);
    let generation = shared.generation.fetch_add(1, Ordering::AcqRel) + 1;
    tracing::debug!(server = shared.target.server, generation, took = ?began.elapsed(), "connected");
    {
        let mut negotiated = shared.negotiated.lock().unwrap_or_else(PoisonError::into_inner);
        negotiated.protocol = Protocol::V3;
        negotiated.local = connection.local();
        negotiated.peer = connection.peer();
        negotiated.reserved_port = connection.local().port() < 1024;
        negotiated.connected_in = began.elapsed();
    }
    shared.way.send_modify(|way| {
        way.connection = Some(connection.clone());
        way.failure = None;
    });
    Ok(connection)
}

/// Stays with a working connection until it is lost, idle, or no longer wanted.
async fn stay(shared: &Shared, connection: &Arc<Connection>) {
    let mut way = shared.way.subscribe();
    let (mut calls, mut used) = (shared.calls.load(Ordering::Relaxed), Instant::now());
    loop {
        tokio::select! {
            cause = connection.closed() => {
                tracing::debug!(server = shared.target.server, %cause, "connection lost");
                return shared.gone(connection);
            }
            _ = way.wait_for(|way| way.closed) => return,
            () = sleep(IDLE / 6) => {}
        }
        let now = shared.calls.load(Ordering::Relaxed);
        if now != calls || shared.wanted.load(Ordering::Acquire) > 0 {
            (calls, used) = (now, Instant::now());
        }
        if used.elapsed() >= IDLE && let_go(shared, connection) {
            return;
        }
    }
}

/// Closes an idle connection, unless a call came just now.
fn let_go(shared: &Shared, connection: &Arc<Connection>) -> bool {
    shared.gone(connection);
    // A call is counted before it looks for a connection: so it is counted here, or it found none.
    if shared.wanted.load(Ordering::Acquire) > 0 {
        shared
            .way
            .send_modify(|way| way.connection = Some(Arc::clone(connection)));
        return false;
    }
    connection.end("idle");
    true
}
