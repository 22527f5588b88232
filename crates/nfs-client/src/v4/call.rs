//! One call: from a compound to its results, over lost connections and lost sessions, exactly once if it changes
//! anything (RFC 8881 section 2.10.6).
//!
//! A request keeps its slot and sequence number until the server has answered it. When a connection is lost, the same
//! request goes out on the next one: the server's reply cache tells a repetition from a new request. When the session
//! is lost, that cache is gone: a request that may have been carried out and changes something then fails with its
//! outcome unknown, everything else starts again in the new session.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::{Instant, timeout_at};

use super::client::{Client, Patience, Shared};
use super::compound::{Compound, Reply};
use super::flight::{Flight, Turn};
use super::numbers::code;
use super::sessionless;
pub(super) use crate::terms::{Backoff, CallOptions, LONGEST_PAUSE};
use crate::{Credential, NfsError, Protocol};

/// Operations in a compound, SEQUENCE included. ganesha promises 200 and fails above 100.
pub(super) const MOST_OPERATIONS: u32 = 100;

/// The fewest operations that we come down to: a rename and what goes with it must fit.
const FEWEST_OPERATIONS: u32 = 8;

/// What any session takes: [`establish`](super::establish) refuses smaller ones. Holds between sessions.
const SMALLEST_SIZE: usize = 4096;

impl Client {
    /// Carries out a compound. The results hold whatever status the server answered, except what could be cured by
    /// trying again within the deadline.
    pub(super) async fn call(&self, terms: CallOptions, compound: &Compound) -> Result<Reply, NfsError> {
        let wanted = self.shared.want();
        let result = run(&self.shared, terms, compound).await;
        drop(wanted);
        result
    }

    /// Whether we are connected by NFSv4.0.
    pub(super) fn is_sessionless(&self) -> bool {
        self.negotiated().protocol == Protocol::V4_0
    }

    /// Operations that a compound may have, SEQUENCE not counted.
    pub(super) fn most_operations(&self) -> usize {
        self.shared.most_operations.load(Ordering::Relaxed).saturating_sub(1) as usize
    }

    /// The longest reply that the server sends in this session, in bytes.
    pub(super) fn longest_reply(&self) -> usize {
        let way = self.shared.way.borrow();
        way.session
            .as_ref()
            .map_or(SMALLEST_SIZE, |session| session.longest_reply)
    }

    /// The longest request that the server takes in this session, in bytes.
    pub(super) fn longest_request(&self) -> usize {
        let way = self.shared.way.borrow();
        way.session
            .as_ref()
            .map_or(SMALLEST_SIZE, |session| session.longest_request)
    }

    /// Halves the number of operations in a compound; an error when there is nothing left to halve.
    pub(super) fn fewer_operations(&self, compound: &Compound) -> Result<(), NfsError> {
        let tried = u32::try_from(compound.count()).unwrap_or(u32::MAX).saturating_add(1);
        if tried <= FEWEST_OPERATIONS {
            let limit = format!("the server refuses compounds of {tried} operations");
            return Err(NfsError::Limit {
                action: compound.action,
                limit,
            });
        }
        self.shared
            .most_operations
            .fetch_min((tried / 2).max(FEWEST_OPERATIONS), Ordering::Relaxed);
        Ok(())
    }
}

/// Renews the lease with a lone SEQUENCE. What goes wrong with it, the next call finds out and cures.
pub(super) async fn renew(shared: Arc<Shared>) {
    let terms = CallOptions {
        credential: Credential::default(),
        deadline: Instant::now() + shared.target.deadline,
    };
    let _ = run(&shared, terms, &Compound::new("renewing the lease")).await;
}

async fn run(shared: &Arc<Shared>, terms: CallOptions, compound: &Compound) -> Result<Reply, NfsError> {
    let reply = answered(shared, terms, compound).await?;
    if reply.code() != code::REP_TOO_BIG_TO_CACHE || !compound.keep_reply || !reply.nothing_changed() {
        return Ok(reply);
    }
    // The reply is more than the server keeps for a slot. Without that, a lost one leaves the outcome unknown.
    let mut unkept = compound.clone();
    unkept.keep_reply = false;
    answered(shared, terms, &unkept).await
}

async fn answered(shared: &Arc<Shared>, terms: CallOptions, compound: &Compound) -> Result<Reply, NfsError> {
    let began = Instant::now();
    let action = compound.action;
    let mut pause = Backoff::new();
    loop {
        let (session, _) = shared.ready(action, terms.deadline, Patience::UntilDeadline).await?;
        // Headers and SEQUENCE take less than 512 bytes.
        if compound.len() + 512 > session.longest_request {
            let limit = format!(
                "a request of {} bytes, the server takes {}",
                compound.len(),
                session.longest_request
            );
            return Err(NfsError::Limit { action, limit });
        }
        let slot = match timeout_at(terms.deadline, session.slots.acquire()).await {
            Ok(Some(slot)) => slot,
            // The session was lost while we waited.
            Ok(None) => {
                shared.lose(&session);
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
        let turn = if session.has_slots() {
            Flight::new(shared, session, slot).turn(terms, compound).await?
        } else {
            sessionless::turn(shared, session, slot, terms, compound).await?
        };
        if let Turn::Answer(reply) = turn {
            let put_off =
                compound.repeat_delayed && matches!(reply.code(), code::DELAY | code::GRACE) && reply.nothing_changed();
            // The slot is free again by now: a pause keeps nobody else from it.
            if !put_off || !pause.until(terms.deadline).await {
                return Ok(reply);
            }
        }
    }
}
