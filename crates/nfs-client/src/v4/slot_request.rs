//! One request on its slot, until it is answered or its session is lost (RFC 8881 section 2.10.6).

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::call::{COMPOUND, MAJOR};
use super::client::Manager;
use super::compound::{Compound, Reply};
use super::constants::code;
use super::session::{Session, Slot};
use crate::call_options::{Backoff, CallOptions, MAX_PAUSE};
use crate::connection_manager::{ConnectionState, RetryPolicy};
use crate::rpc::call::rejection_error;
use crate::rpc::connection::{Connection, PendingCall};
use crate::rpc::message::{Rejection, RpcReply};
use crate::xdr::{Decoder, XdrError};
use crate::{Credential, NfsError, Status};

/// Result of sending a request.
pub(super) enum CallStep {
    /// The server answered it.
    Answered(Reply),
    /// The server executed nothing, or nothing that changes anything: the call may be sent again as a new request.
    Restart,
}

/// A request that occupies a slot. If it is dropped before its reply, [`recover_slot`] frees the slot.
pub(super) struct SlotRequest<'a> {
    manager: &'a Arc<Manager>,
    session: Arc<Session>,
    slot: Option<Slot>,
    pending: Option<PendingCall>,
    /// Whether the server may have executed the request on a connection that is lost.
    maybe_executed: bool,
    /// Whether the request changes something.
    is_modifying: bool,
}

impl<'a> SlotRequest<'a> {
    /// Prepares a request on `slot`.
    pub(super) fn new(manager: &'a Arc<Manager>, session: Arc<Session>, slot: Slot) -> Self {
        Self {
            manager,
            session,
            slot: Some(slot),
            pending: None,
            maybe_executed: false,
            is_modifying: false,
        }
    }

    /// Sends the request until it is answered, the session is lost, or the deadline has passed.
    pub(super) async fn send(&mut self, options: CallOptions, compound: &Compound) -> Result<CallStep, NfsError> {
        let action = compound.action;
        self.is_modifying = compound.is_modifying();
        let began = Instant::now();
        let mut backoff = Backoff::new();
        loop {
            // A session that survived its connection is that of the server that may have executed the request, and only
            // its reply cache knows the outcome.
            let generation = options.generation.filter(|_| !self.maybe_executed);
            let ready = self
                .manager
                .ready_on(generation, action, options.deadline, RetryPolicy::UntilDeadline)
                .await;
            let connection = match ready {
                Ok((session, connection)) if Arc::ptr_eq(&session, &self.session) => connection,
                Ok(_) => return self.session_lost(compound, "the session ended with the connection"),
                Err(error) if self.maybe_executed && compound.is_modifying() => {
                    return Err(outcome_unknown(compound, error.to_string()));
                }
                Err(error) => return Err(error),
            };
            let Some(slot) = &self.slot else {
                return Ok(CallStep::Restart);
            };
            let sequence = self.session.sequence(slot, compound.cache_reply);
            let arguments = compound.arguments(self.session.minor, Some(&sequence));
            let pending = self
                .pending
                .insert(connection.submit(COMPOUND, options.credential, &arguments, None));
            let reply = match timeout_at(options.deadline, pending.reply()).await {
                Ok(Ok(reply)) => reply,
                Ok(Err(lost)) => {
                    self.pending = None;
                    self.maybe_executed |= lost.sent;
                    self.manager.drop_connection(&connection);
                    continue;
                }
                Err(_) => {
                    let unsent = pending.withdraw();
                    if unsent {
                        self.pending = None;
                    } else {
                        pending.end_connection_if_silent();
                    }
                    let outcome_unknown = compound.is_modifying() && (!unsent || self.maybe_executed);
                    return Err(NfsError::NotResponding {
                        action,
                        after: began.elapsed(),
                        outcome_unknown,
                    });
                }
            };
            self.pending = None;
            match self.process_reply(compound, &connection, reply)? {
                Some(step) => return Ok(step),
                // The server is still processing it, or delays every request: send the same request again.
                None if backoff.pause_before(options.deadline).await => {}
                None if self.maybe_executed => {
                    return Err(outcome_unknown(
                        compound,
                        "the server keeps answering NFS4ERR_DELAY".to_owned(),
                    ));
                }
                None => {
                    return Err(NfsError::Status {
                        action,
                        status: Status::Delayed,
                    });
                }
            }
        }
    }

    /// Processes the reply to the request; `None` if the same request must be sent again.
    fn process_reply(
        &mut self,
        compound: &Compound,
        connection: &Arc<Connection>,
        reply: Result<RpcReply, XdrError>,
    ) -> Result<Option<CallStep>, NfsError> {
        let action = compound.action;
        let results = match reply {
            Ok(RpcReply::Success(results)) => results,
            Ok(RpcReply::Rejected(rejection)) => {
                if matches!(rejection, Rejection::SystemError(_)) {
                    return self.protocol_error(compound, rejection.to_string());
                }
                self.slot_not_used(compound)?;
                return Err(rejection_error(connection, action, MAJOR, &rejection));
            }
            Err(error) => return self.protocol_error(compound, error.to_string()),
        };
        let mut reply = match Reply::new(compound, results) {
            Ok(reply) => reply,
            Err(error) => return self.protocol_error(compound, error.to_string()),
        };
        let compound_status = reply.code();
        let status = match reply.sequence() {
            // Another server took over the address, or this one was reconfigured.
            Ok(None) if compound_status == code::MINOR_VERS_MISMATCH => {
                self.manager.invalidate_session(&self.session);
                return self
                    .session_lost(compound, "the server no longer supports the minor version")
                    .map(Some);
            }
            // Refused before SEQUENCE: the slot was not used.
            Ok(None) => {
                self.slot_not_used(compound)?;
                return Ok(Some(CallStep::Answered(reply)));
            }
            Ok(Some((code::OK, results))) => match self.matches_request(results) {
                Ok(true) => code::OK,
                Ok(false) => return self.protocol_error(compound, "the reply belongs to another request".to_owned()),
                Err(error) => return self.protocol_error(compound, error.to_string()),
            },
            Ok(Some((status, _))) => status,
            Err(error) => return self.protocol_error(compound, error.to_string()),
        };
        match status {
            code::OK => {
                self.session.record_renewal();
                self.release(true);
                if reply.code() == code::RETRY_UNCACHED_REP {
                    return self.reply_not_cached(compound).map(Some);
                }
                Ok(Some(CallStep::Answered(reply)))
            }
            code::DELAY => Ok(None),
            code::RETRY_UNCACHED_REP | code::SEQ_FALSE_RETRY => {
                self.release(true);
                self.reply_not_cached(compound).map(Some)
            }
            // The slot was not used; the caller must send a smaller compound.
            code::TOO_MANY_OPS | code::REQ_TOO_BIG | code::REP_TOO_BIG | code::REP_TOO_BIG_TO_CACHE => {
                self.slot_not_used(compound)?;
                Ok(Some(CallStep::Answered(reply)))
            }
            code::CONN_NOT_BOUND_TO_SESSION => {
                connection.end("not bound to the session (NFS4ERR_CONN_NOT_BOUND_TO_SESSION)");
                self.manager.drop_connection(connection);
                Ok(None)
            }
            // The server reduced its slot table; this slot is not used again.
            code::BADSLOT if self.slot.as_ref().is_some_and(|slot| slot.id > 0) => {
                self.slot = None;
                Ok(Some(CallStep::Restart))
            }
            // BADSESSION, DEADSESSION, STALE_CLIENTID, SEQ_MISORDERED, and any other status that ends a session.
            status => {
                self.manager.invalidate_session(&self.session);
                self.session_lost(compound, &format!("the session was lost (status {status})"))
                    .map(Some)
            }
        }
    }

    /// Whether the result of SEQUENCE is for this session, slot and sequence ID.
    fn matches_request(&self, results: &mut Decoder) -> Result<bool, XdrError> {
        let id = results.array::<16>("session id")?;
        let sequence = results.u32("sequence")?;
        let slot_id = results.u32("slot")?;
        // Highest slot IDs and status flags: this client holds no state that could be revoked, and BADSLOT reports a
        // smaller slot table.
        results.array::<12>("SEQUENCE")?;
        let expected = self.slot.as_ref().map(|slot| (slot.sequence, slot.id));
        Ok(id == self.session.id && expected == Some((sequence, slot_id)))
    }

    /// Handles a retransmission that the server recognized, but whose reply it did not cache.
    fn reply_not_cached(&self, compound: &Compound) -> Result<CallStep, NfsError> {
        if compound.is_modifying() {
            return Err(outcome_unknown(
                compound,
                "the server did not cache the reply".to_owned(),
            ));
        }
        Ok(CallStep::Restart)
    }

    /// Handles the loss of the session, and with it of the reply cache.
    fn session_lost(&mut self, compound: &Compound, cause: &str) -> Result<CallStep, NfsError> {
        self.slot = None;
        if self.maybe_executed && compound.is_modifying() {
            return Err(outcome_unknown(compound, cause.to_owned()));
        }
        Ok(CallStep::Restart)
    }

    /// Handles an invalid reply, which leaves the state of the slot unknown.
    fn protocol_error(&mut self, compound: &Compound, cause: String) -> Result<Option<CallStep>, NfsError> {
        self.slot = None;
        self.manager.invalidate_session(&self.session);
        Err(NfsError::Protocol {
            action: compound.action,
            cause,
            outcome_unknown: compound.is_modifying(),
        })
    }

    /// Handles a request that the server rejected before it processed SEQUENCE. If an earlier transmission may have been
    /// executed, the outcome remains unknown and [`recover_slot`] frees the slot.
    fn slot_not_used(&mut self, compound: &Compound) -> Result<(), NfsError> {
        if !self.maybe_executed {
            self.release(false);
        } else if compound.is_modifying() {
            return Err(outcome_unknown(
                compound,
                "the reply was lost, and the server rejects the retransmission".to_owned(),
            ));
        }
        Ok(())
    }

    fn release(&mut self, used: bool) {
        if let Some(slot) = self.slot.take() {
            self.session.slots.release(slot, used);
        }
    }
}

impl Drop for SlotRequest<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        self.pending.take_if(|pending| pending.withdraw());
        if self.pending.is_none() && !self.maybe_executed {
            // No byte of it was sent: the sequence ID is unused.
            return self.session.slots.release(slot, false);
        }
        // Without a runtime, the session ends too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (link, session, pending) = (self.manager.subscribe(), self.session.clone(), self.pending.take());
            let until = Instant::now() + self.manager.target.deadline;
            let change = self.is_modifying.then(|| self.manager.unanswered_changes.add(until));
            runtime.spawn(async move {
                let is_over = recover_slot(link, session, slot, pending).await;
                if let Some(change) = change.filter(|_| !is_over) {
                    change.lose();
                }
            });
        }
    }
}

/// Waits for the reply to a cancelled request, and frees its slot. If the connection is lost, a lone SEQUENCE
/// with the same sequence ID on the next connection proves that the server no longer processes the request: executed or not, it
/// is never executed later. Returns whether that is proven.
async fn recover_slot(
    mut link: watch::Receiver<ConnectionState<Session>>,
    session: Arc<Session>,
    slot: Slot,
    mut pending: Option<PendingCall>,
) -> bool {
    loop {
        if let Some(pending) = &mut pending
            && let Ok(reply) = pending.reply().await
        {
            match sequence_status(reply) {
                Some(code::OK | code::RETRY_UNCACHED_REP | code::SEQ_FALSE_RETRY) => {
                    session.slots.release(slot, true);
                    return true;
                }
                Some(code::DELAY) => sleep(MAX_PAUSE).await,
                // The session has ended, or the reply is invalid: the slot remains out of use.
                _ => return false,
            }
        }
        let connection = {
            let is_decided = |link: &ConnectionState<Session>| {
                let usable = |connection: &Arc<Connection>| !connection.has_ended();
                link.ended.is_some() || !link.has_session(&session) || link.connection.as_ref().is_some_and(usable)
            };
            let Ok(link) = link.wait_for(is_decided).await else {
                return false;
            };
            match &link.connection {
                Some(connection) if link.has_session(&session) && link.ended.is_none() => connection.clone(),
                _ => return false,
            }
        };
        let sequence_only = Compound::new("recovering a slot");
        let arguments = sequence_only.arguments(session.minor, Some(&session.sequence(&slot, false)));
        pending = Some(connection.submit(COMPOUND, Credential::default(), &arguments, None));
    }
}

/// Returns the status of SEQUENCE in a reply.
fn sequence_status(reply: Result<RpcReply, XdrError>) -> Option<u32> {
    let Ok(RpcReply::Success(results)) = reply else {
        return None;
    };
    let mut reply = Reply::new(&Compound::new("recovering a slot"), results).ok()?;
    reply.sequence().ok()?.map(|(status, _)| status)
}

/// Returns the error for a call that may have been executed.
pub(super) fn outcome_unknown(compound: &Compound, cause: String) -> NfsError {
    NfsError::ConnectionLost {
        action: compound.action,
        cause,
        outcome_unknown: compound.is_modifying(),
    }
}
