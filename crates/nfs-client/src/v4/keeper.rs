//! The task that keeps one client's connection and session: it connects when a call wants it, comes back after a
//! loss, renews the lease while in use, and lets go when idle.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::call;
use super::client::{Dial, Ended, Shared};
use super::introduction::{ASSUMED_LEASE, Memory, introduce};
use super::numbers::code;
use super::session::Session;
use super::sessions;
use crate::connect;
use crate::rpc::connection::Connection;
use crate::{Negotiated, NfsError, Status};

/// A session that nobody used for this long is ended, and its connection closed: a thousand idle backends then cost
/// neither side anything. Longer than the usual probe interval of 30 s, so that probes find the connection open.
pub(super) const IDLE: Duration = Duration::from_secs(60);

/// First pause between attempts to connect; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// A connection that is lost sooner than this was of no use; the next is made after a pause.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Short enough for work to go on within seconds after a server came back.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Goodbyes are best effort; an unreachable server gets no more time than this.
const GOODBYE: Duration = Duration::from_secs(2);

/// How often making a session is begun again at once when the server forgot the client in between.
const RESTARTS: usize = 3;

/// Runs until the client is closed or fenced.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut memory = Memory::default();
    let mut pause = FIRST_PAUSE;
    loop {
        if !wait_until_wanted(&shared).await {
            return end(&shared).await;
        }
        match attempt(&shared, &mut memory).await {
            Ok(()) => {}
            Err((_, NfsError::Fenced { .. })) => {
                shared.way.send_modify(|way| way.ended = Some(Ended::Fenced));
                return end(&shared).await;
            }
            Err((number, error)) => {
                tracing::debug!(server = shared.target.server, %error, "cannot connect");
                shared.way.send_modify(|way| {
                    // Whatever failed on it: a new one is a better start.
                    way.connection = None;
                    way.failure = Some((number, error));
                });
                // Some jitter keeps many clients of one server from coming back in step.
                sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                continue;
            }
        }
        let since = Instant::now();
        stay(&shared, &mut memory).await;
        if since.elapsed() >= AT_ONCE {
            pause = FIRST_PAUSE;
        } else if !ended(&shared) {
            // A server that answers us and then hangs up, again and again, is not to be stormed.
            sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn ended(shared: &Shared) -> bool {
    shared.way.borrow().ended.is_some()
}

/// True when a call wants a connection, false when the client is to end.
async fn wait_until_wanted(shared: &Shared) -> bool {
    let mut way = shared.way.subscribe();
    loop {
        if ended(shared) {
            return false;
        }
        if shared.wanted.load(Ordering::Acquire) > 0 {
            return true;
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            _ = way.wait_for(|way| way.ended.is_some()) => {}
        }
    }
}

/// Connects if need be, and returns to the session or makes a new one.
async fn attempt(shared: &Arc<Shared>, memory: &mut Memory) -> Result<(), (u64, NfsError)> {
    let number = shared.attempts.fetch_add(1, Ordering::AcqRel) + 1;
    let began = Instant::now();
    // A little less than a call has, so that its error can be this attempt's specific one.
    let deadline = began + shared.target.deadline.mul_f64(0.9);
    let failed = |error| (number, error);
    let (session, standing) = {
        let way = shared.way.borrow();
        (
            way.session.clone(),
            way.connection.clone().filter(|connection| !connection.ended()),
        )
    };
    let connection = match standing {
        Some(connection) => connection,
        None => Arc::new(open(shared, deadline).await.map_err(failed)?),
    };
    let session = match session {
        Some(session) if sessions::bind(&connection, &session, deadline).await.map_err(failed)? => session,
        lost => {
            if let Some(session) = lost {
                shared.lose(&session);
            }
            let mut session = introduce(shared, memory, &connection, deadline).await;
            // Another client of the same owner, on its way out, took the lease record with it: begin again.
            for _ in 0..RESTARTS {
                let Err(NfsError::Status {
                    status: Status::Other(code),
                    ..
                }) = &session
                else {
                    break;
                };
                if !matches!(
                    *code,
                    code::EXPIRED | code::STALE_CLIENTID | code::BADSESSION | code::DEADSESSION
                ) {
                    break;
                }
                session = introduce(shared, memory, &connection, deadline).await;
            }
            Arc::new(session.map_err(failed)?)
        }
    };
    let generation = shared.generation.fetch_add(1, Ordering::AcqRel) + 1;
    tracing::debug!(server = shared.target.server, generation, took = ?began.elapsed(), "connected");
    publish(shared, memory, &session, &connection, began.elapsed());
    shared.way.send_modify(|way| {
        way.session = Some(session);
        way.connection = Some(connection);
        way.failure = None;
    });
    Ok(())
}

async fn open(shared: &Shared, deadline: Instant) -> Result<Connection, NfsError> {
    match &shared.dial {
        Dial::Network => {}
        #[cfg(test)]
        Dial::Scripted(server) => return Ok(server.dial()),
    }
    let stream = connect::connect(&shared.target, deadline).await?;
    let lost = |error: std::io::Error| NfsError::ConnectionLost {
        action: "connecting",
        cause: error.to_string(),
        outcome_unknown: false,
    };
    Connection::new(stream).map_err(lost)
}

/// Publishes what `negotiated` answers.
fn publish(shared: &Shared, memory: &Memory, session: &Session, connection: &Connection, took: Duration) {
    let Some(protocol) = memory.protocol else { return };
    let mut negotiated = shared.negotiated.lock().unwrap_or_else(PoisonError::into_inner);
    *negotiated = Negotiated {
        protocol,
        local: connection.local(),
        peer: connection.peer(),
        reserved_port: connection.local().port() < 1024,
        implementation: memory.implementation.clone(),
        lease: memory.lease.unwrap_or(ASSUMED_LEASE),
        most_operations: memory.operations,
        slots: session.slot_count,
        connected_in: took,
    };
}

/// Stays with a working connection until it is lost, idle, or no longer wanted.
async fn stay(shared: &Arc<Shared>, memory: &mut Memory) {
    let (Some(session), Some(connection)) = ({
        let way = shared.way.borrow();
        (way.session.clone(), way.connection.clone())
    }) else {
        return;
    };
    let lease = memory.lease.unwrap_or(ASSUMED_LEASE);
    // Often enough to renew by half of the lease, and to notice idleness without much delay.
    let tick = (lease / 4).min(shared.idle / 6);
    let mut way = shared.way.subscribe();
    let (mut calls, mut used) = (shared.calls.load(Ordering::Relaxed), Instant::now());
    loop {
        tokio::select! {
            cause = connection.closed() => {
                tracing::debug!(server = shared.target.server, %cause, "connection lost");
                shared.way.send_modify(|way| way.connection = None);
                return;
            }
            _ = way.wait_for(|way| way.session.is_none() || way.ended.is_some()) => {
                // See `establish` on fencing: a restart cuts the connection, an old lease may have run out.
                memory.taken = !connection.ended() && session.since_renewal() < lease;
                return;
            }
            () = sleep(tick) => {}
        }
        let now = shared.calls.load(Ordering::Relaxed);
        if now != calls || shared.wanted.load(Ordering::Acquire) > 0 {
            (calls, used) = (now, Instant::now());
        }
        if used.elapsed() >= shared.idle && let_go(shared, &session, &connection).await {
            return;
        }
        // Without a session there is nothing to keep: an open lives no longer than the call that it is for.
        if session.has_slots() && session.since_renewal() + tick >= lease / 2 {
            tokio::spawn(call::renew(shared.clone()));
        }
    }
}

/// Ends an idle session, unless a call came just now.
async fn let_go(shared: &Shared, session: &Arc<Session>, connection: &Arc<Connection>) -> bool {
    shared
        .way
        .send_modify(|way| (way.session, way.connection) = (None, None));
    // A call is counted before it looks for a session: so it is counted here, or it found none.
    if shared.wanted.load(Ordering::Acquire) > 0 {
        shared.way.send_modify(|way| {
            (way.session, way.connection) = (Some(session.clone()), Some(connection.clone()));
        });
        return false;
    }
    session.slots.close();
    sessions::destroy(connection, session, Instant::now() + GOODBYE).await;
    connection.end("idle");
    true
}

/// Ends session, lease and connection.
async fn end(shared: &Shared) {
    let (session, connection) = {
        let way = shared.way.borrow();
        (way.session.clone(), way.connection.clone())
    };
    if let Some(session) = &session {
        session.slots.close();
        if let Some(connection) = connection.as_ref().filter(|connection| !connection.ended()) {
            sessions::destroy(connection, session, Instant::now() + GOODBYE).await;
        }
    }
    if let Some(connection) = connection {
        connection.end("closed by us");
    }
    shared
        .way
        .send_modify(|way| (way.session, way.connection) = (None, None));
}
