//! Calls: from a compound to its results, across lost connections and lost sessions, exactly once if it changes
//! anything (RFC 8881 section 2.10.6).
//!
//! A request keeps its slot and sequence ID until the server has answered it. When a connection is lost, the same
//! request is sent on the next one: the server's reply cache distinguishes a retransmission from a new request. When the
//! session is lost, its reply cache is lost too: a request that may have been executed and changes something then fails with its
//! outcome unknown; everything else starts over in the new session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::client::{Client, Manager};
use super::compound::{Compound, Reply};
use super::constants::code;
use super::sessionless;
use super::slot_request::{CallStep, SlotRequest};
use super::status::status;
use crate::call_options::{Backoff, CallOptions};
use crate::connection_manager::RetryPolicy;
use crate::rpc::call::{self as rpc, protocol_error, rejection_error};
use crate::rpc::connection::Connection;
use crate::rpc::message::{NFS_PROGRAM, Procedure, RpcReply};
use crate::{Credential, NfsError, Protocol};

/// The major version.
pub(super) const MAJOR: u32 = 4;

/// COMPOUND (RFC 8881 section 16.2).
pub const COMPOUND: Procedure = Procedure {
    program: NFS_PROGRAM,
    version: MAJOR,
    number: 1,
};

/// Principal of leases, whatever the credential of the calls: a server compares principals when a client returns
/// (CLID_INUSE), and the credential of a target may change.
const LEASE_PRINCIPAL: Credential = Credential {
    uid: 0,
    gid: 0,
    supplementary: None,
};

/// Pause before a call outside the sessions' machinery is repeated after DELAY or GRACE.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of operations in a compound, SEQUENCE included. ganesha announces 200 and fails above 100.
pub(super) const MAX_OPERATIONS: u32 = 100;

/// Minimum number of operations in a compound: a rename with VERIFY must fit.
const MIN_OPERATIONS: u32 = 8;

/// Request and reply size between sessions: [`session`](super::session) refuses smaller sessions.
const MIN_SIZE: usize = 4096;

impl Client {
    /// Sends a compound. The reply may hold any status that retrying within the deadline did not resolve.
    pub(super) async fn call(&self, options: CallOptions, compound: &Compound) -> Result<Reply, NfsError> {
        let _demand = self.manager.demand();
        let began = Instant::now();
        let reply = call(&self.manager, options, compound).await;
        self.observe(compound.kind(), began, &reply, Reply::failure);
        reply
    }

    /// Whether the version in use is NFSv4.0.
    pub(super) fn is_sessionless(&self) -> bool {
        self.negotiated().protocol == Protocol::V4_0
    }

    /// Maximum number of operations in a compound, SEQUENCE not counted.
    pub(super) fn max_operations(&self) -> usize {
        self.manager
            .version
            .max_operations
            .load(Ordering::Relaxed)
            .saturating_sub(1) as usize
    }

    /// Maximum size of a reply in this session, in bytes.
    pub(super) fn max_reply(&self) -> usize {
        self.manager.session().map_or(MIN_SIZE, |session| session.max_reply)
    }

    /// Maximum size of a request in this session, in bytes.
    pub(super) fn max_request(&self) -> usize {
        self.manager.session().map_or(MIN_SIZE, |session| session.max_request)
    }

    /// Halves the maximum number of operations after the server refused this compound; fails once it is at the minimum.
    pub(super) fn reduce_max_operations(&self, compound: &Compound) -> Result<(), NfsError> {
        let tried = u32::try_from(compound.count()).unwrap_or(u32::MAX).saturating_add(1);
        if tried <= MIN_OPERATIONS {
            let limit = format!("the server refuses compounds of {tried} operations");
            return Err(NfsError::Limit {
                action: compound.action,
                limit,
            });
        }
        self.manager
            .version
            .max_operations
            .fetch_min((tried / 2).max(MIN_OPERATIONS), Ordering::Relaxed);
        Ok(())
    }
}

/// Renews the lease with a lone SEQUENCE. The next call detects and handles a failure.
pub(super) async fn renew_lease(manager: Arc<Manager>) {
    let options = CallOptions {
        credential: Credential::default(),
        deadline: Instant::now() + manager.target.deadline,
        generation: None,
    };
    let _ = call(&manager, options, &Compound::new("renewing the lease")).await;
}

async fn call(manager: &Arc<Manager>, options: CallOptions, compound: &Compound) -> Result<Reply, NfsError> {
    let reply = call_until_answered(manager, options, compound).await?;
    if reply.code() != code::REP_TOO_BIG_TO_CACHE || !compound.cache_reply || !reply.made_no_change() {
        return Ok(reply);
    }
    // The reply exceeds what the server caches for a slot. Without the cache, a lost reply leaves the outcome unknown.
    let mut uncached = compound.clone();
    uncached.cache_reply = false;
    call_until_answered(manager, options, &uncached).await
}

async fn call_until_answered(
    manager: &Arc<Manager>,
    options: CallOptions,
    compound: &Compound,
) -> Result<Reply, NfsError> {
    let began = Instant::now();
    let action = compound.action;
    let mut backoff = Backoff::new();
    loop {
        let (session, _) = manager
            .ready_on(options.generation, action, options.deadline, RetryPolicy::UntilDeadline)
            .await?;
        // Headers and SEQUENCE take less than 512 bytes.
        if compound.len() + 512 > session.max_request {
            let limit = format!(
                "a request of {} bytes; the server accepts {}",
                compound.len(),
                session.max_request
            );
            return Err(NfsError::Limit { action, limit });
        }
        let slot = match timeout_at(options.deadline, session.slots.acquire()).await {
            Ok(Some(slot)) => slot,
            // The session was lost in the meantime.
            Ok(None) => {
                manager.invalidate_session(&session);
                continue;
            }
            Err(_) => {
                return Err(NfsError::NotResponding {
                    action,
                    after: began.elapsed(),
                    outcome_unknown: false,
                });
            }
        };
        let step = if session.has_slot_table() {
            SlotRequest::new(manager, session, slot).send(options, compound).await?
        } else {
            sessionless::send(manager, session, slot, options, compound).await?
        };
        if let CallStep::Answered(reply) = step {
            let delayed =
                compound.retry_on_delay && matches!(reply.code(), code::DELAY | code::GRACE) && reply.made_no_change();
            // The slot is free again by now: the pause blocks no other call.
            if !delayed || !backoff.pause_before(options.deadline).await {
                return Ok(reply);
            }
        }
    }
}

/// Sends a compound outside any session, and repeats it after DELAY and GRACE until `deadline`.
pub async fn call_without_session(
    connection: &Connection,
    minor: u32,
    compound: &Compound,
    deadline: Instant,
) -> Result<Reply, NfsError> {
    loop {
        let reply = call_once(connection, minor, compound, None, deadline).await?;
        let again = Instant::now() + PAUSE;
        if !matches!(reply.code(), code::DELAY | code::GRACE) || again >= deadline {
            return Ok(reply);
        }
        sleep_until(again).await;
    }
}

/// Sends a compound once, with `sequence` (encoded) as its first operation if given.
pub(super) async fn call_once(
    connection: &Connection,
    minor: u32,
    compound: &Compound,
    sequence: Option<&[u8]>,
    deadline: Instant,
) -> Result<Reply, NfsError> {
    let action = compound.action;
    let arguments = compound.arguments(minor, sequence);
    let reply = rpc::call_once(connection, action, COMPOUND, LEASE_PRINCIPAL, &arguments, deadline).await?;
    match reply.map_err(|error| protocol_error(action, &error))? {
        RpcReply::Success(results) => Reply::new(compound, results).map_err(|error| protocol_error(action, &error)),
        RpcReply::Rejected(rejection) => Err(rejection_error(connection, action, MAJOR, &rejection)),
    }
}

/// Returns the error for a status that the caller cannot recover from.
pub fn status_error(action: &'static str, code: u32) -> NfsError {
    NfsError::Status {
        action,
        status: status(code),
    }
}
