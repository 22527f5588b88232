//! One request on its slot, until it is answered or its session is lost (RFC 8881 section 2.10.6).

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::call::{Backoff, CallOptions, LONGEST_PAUSE};
use super::client::{Patience, Shared, Way};
use super::compound::{Compound, Reply};
use super::establish::{self, COMPOUND};
use super::numbers::code;
use super::session::{Session, Slot};
use crate::rpc::connection::{Connection, Ticket};
use crate::rpc::message::{self, Outcome};
use crate::xdr::{Decoder, XdrError};
use crate::{Credential, NfsError, Status};

/// What became of a request on its slot.
pub(super) enum Turn {
    /// It was answered.
    Answer(Reply),
    /// The server carried nothing out that matters: the call may start again.
    Again,
}

/// A request that holds a slot. Dropped before its answer, it leaves the slot to [`settle`].
pub(super) struct Flight<'a> {
    shared: &'a Arc<Shared>,
    session: Arc<Session>,
    slot: Option<Slot>,
    ticket: Option<Ticket>,
    /// Whether the server may have carried it out, on a connection that is lost.
    perhaps_done: bool,
}

impl<'a> Flight<'a> {
    /// A request that is about to be sent on `slot`.
    pub(super) fn new(shared: &'a Arc<Shared>, session: Arc<Session>, slot: Slot) -> Self {
        Self {
            shared,
            session,
            slot: Some(slot),
            ticket: None,
            perhaps_done: false,
        }
    }

    /// Sends the request until it is answered, the session is lost, or the deadline has come.
    pub(super) async fn turn(&mut self, terms: CallOptions, compound: &Compound) -> Result<Turn, NfsError> {
        let action = compound.action;
        let began = Instant::now();
        let mut pause = Backoff::new();
        loop {
            let way = self.shared.ready(action, terms.deadline, Patience::UntilDeadline).await;
            let connection = match way {
                Ok((session, connection)) if Arc::ptr_eq(&session, &self.session) => connection,
                Ok(_) => return self.lost(compound, "the session ended with the connection"),
                Err(error) if self.perhaps_done && compound.changes() => {
                    return Err(unknown(compound, error.to_string()));
                }
                Err(error) => return Err(error),
            };
            let Some(slot) = &self.slot else { return Ok(Turn::Again) };
            let sequence = self.session.sequence(slot, compound.keep_reply);
            let arguments = compound.arguments(self.session.minor, Some(&sequence));
            let ticket = self
                .ticket
                .insert(connection.submit(COMPOUND, terms.credential, &arguments));
            let record = match timeout_at(terms.deadline, ticket.reply()).await {
                Ok(Ok(record)) => record,
                Ok(Err(lost)) => {
                    self.ticket = None;
                    self.perhaps_done |= lost.sent;
                    self.shared.gone(&connection);
                    continue;
                }
                Err(_) => {
                    let unsent = ticket.withdraw();
                    if unsent {
                        self.ticket = None;
                    } else {
                        ticket.give_up_if_silent();
                    }
                    let outcome_unknown = compound.changes() && (!unsent || self.perhaps_done);
                    return Err(NfsError::NotResponding {
                        action,
                        after: began.elapsed(),
                        outcome_unknown,
                    });
                }
            };
            self.ticket = None;
            match self.answered(compound, &connection, record)? {
                Some(turn) => return Ok(turn),
                // The server works on it still, or puts everything off: the same request again.
                None if pause.until(terms.deadline).await => {}
                None if self.perhaps_done => return Err(unknown(compound, "the server puts us off".to_owned())),
                None => {
                    return Err(NfsError::Status {
                        action,
                        status: Status::Delayed,
                    });
                }
            }
        }
    }

    /// Judges the answer to the request; `None` when SEQUENCE itself was put off.
    fn answered(
        &mut self,
        compound: &Compound,
        connection: &Arc<Connection>,
        record: Bytes,
    ) -> Result<Option<Turn>, NfsError> {
        let action = compound.action;
        let results = match message::reply(record) {
            Ok(Outcome::Accepted(results)) => results,
            Ok(Outcome::Rejected(rejection)) => {
                if matches!(rejection, message::Rejection::System(_)) {
                    return self.senseless(compound, rejection.to_string());
                }
                self.unused(compound)?;
                return Err(establish::rejected(connection, action, &rejection));
            }
            Err(error) => return self.senseless(compound, error.to_string()),
        };
        let mut reply = match Reply::new(compound, results) {
            Ok(reply) => reply,
            Err(error) => return self.senseless(compound, error.to_string()),
        };
        let whole = reply.code();
        let status = match reply.sequence() {
            // Another server has the address now, or this one was reconfigured.
            Ok(None) if whole == code::MINOR_VERS_MISMATCH => {
                self.shared.lose(&self.session);
                return self.lost(compound, "the server no longer speaks our version").map(Some);
            }
            // Refused before SEQUENCE: the slot was not used.
            Ok(None) => {
                self.unused(compound)?;
                return Ok(Some(Turn::Answer(reply)));
            }
            Ok(Some((code::OK, results))) => match self.is_ours(results) {
                Ok(true) => code::OK,
                Ok(false) => return self.senseless(compound, "an answer to another request".to_owned()),
                Err(error) => return self.senseless(compound, error.to_string()),
            },
            Ok(Some((status, _))) => status,
            Err(error) => return self.senseless(compound, error.to_string()),
        };
        match status {
            code::OK => {
                self.session.renew();
                self.release(true);
                if reply.code() == code::RETRY_UNCACHED_REP {
                    return self.uncached(compound).map(Some);
                }
                Ok(Some(Turn::Answer(reply)))
            }
            code::DELAY => Ok(None),
            code::RETRY_UNCACHED_REP | code::SEQ_FALSE_RETRY => {
                self.release(true);
                self.uncached(compound).map(Some)
            }
            // The slot was not used; the caller has to ask for less.
            code::TOO_MANY_OPS | code::REQ_TOO_BIG | code::REP_TOO_BIG | code::REP_TOO_BIG_TO_CACHE => {
                self.unused(compound)?;
                Ok(Some(Turn::Answer(reply)))
            }
            code::CONN_NOT_BOUND_TO_SESSION => {
                connection.end("the server does not bind it to our session");
                self.shared.gone(connection);
                Ok(None)
            }
            // The server shrank its table; the slot is not used again.
            code::BADSLOT if self.slot.as_ref().is_some_and(|slot| slot.id > 0) => {
                self.slot = None;
                Ok(Some(Turn::Again))
            }
            // BADSESSION, DEADSESSION, STALE_CLIENTID, SEQ_MISORDERED, and whatever else a session can die of.
            status => {
                self.shared.lose(&self.session);
                self.lost(compound, &format!("the session was lost (status {status})"))
                    .map(Some)
            }
        }
    }

    /// Whether SEQUENCE's result is for this session, slot and sequence number.
    fn is_ours(&self, results: &mut Decoder) -> Result<bool, XdrError> {
        let id = results.array::<16>("session id")?;
        let sequence = results.u32("sequence")?;
        let slot_id = results.u32("slot")?;
        // Highest slots and status flags: we hold no state that could be revoked, and BADSLOT tells of a smaller table.
        results.array::<12>("SEQUENCE")?;
        let asked = self.slot.as_ref().map(|slot| (slot.sequence, slot.id));
        Ok(id == self.session.id && asked == Some((sequence, slot_id)))
    }

    /// The server carried the request out before, and did not keep its reply.
    fn uncached(&self, compound: &Compound) -> Result<Turn, NfsError> {
        if compound.changes() {
            return Err(unknown(compound, "the server did not keep the reply".to_owned()));
        }
        Ok(Turn::Again)
    }

    /// The session is gone, and with it what the server knew of the request.
    fn lost(&mut self, compound: &Compound, cause: &str) -> Result<Turn, NfsError> {
        self.slot = None;
        if self.perhaps_done && compound.changes() {
            return Err(unknown(compound, cause.to_owned()));
        }
        Ok(Turn::Again)
    }

    /// An answer that cannot be understood: neither is the slot's state known.
    fn senseless(&mut self, compound: &Compound, cause: String) -> Result<Option<Turn>, NfsError> {
        self.slot = None;
        self.shared.lose(&self.session);
        Err(NfsError::Protocol {
            action: compound.action,
            cause,
            outcome_unknown: compound.changes(),
        })
    }

    /// The server refused the request before it looked at the slot. A former copy of it may have been carried out:
    /// then its outcome stays unknown, and the slot is left to [`settle`].
    fn unused(&mut self, compound: &Compound) -> Result<(), NfsError> {
        if !self.perhaps_done {
            self.release(false);
        } else if compound.changes() {
            return Err(unknown(
                compound,
                "the reply was lost, and the server refuses its repetition".to_owned(),
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

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        self.ticket.take_if(|ticket| ticket.withdraw());
        if self.ticket.is_none() && !self.perhaps_done {
            // Nothing of it was ever sent: the sequence number is still the next one.
            return self.session.slots.release(slot, false);
        }
        // Without a runtime everything ends, the session included.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let way = self.shared.way.subscribe();
            runtime.spawn(settle(way, self.session.clone(), slot, self.ticket.take()));
        }
    }
}

/// Waits for the answer to a request that nobody waits for any more, and frees its slot. If the connection is lost, a
/// lone SEQUENCE with the same sequence number on the next one tells that the server is done with it: whether it was
/// carried out or not, from then on it never will be.
async fn settle(mut way: watch::Receiver<Way>, session: Arc<Session>, slot: Slot, mut ticket: Option<Ticket>) {
    loop {
        if let Some(ticket) = &mut ticket
            && let Ok(record) = ticket.reply().await
        {
            match sequence_status(record) {
                Some(code::OK | code::RETRY_UNCACHED_REP | code::SEQ_FALSE_RETRY) => {
                    return session.slots.release(slot, true);
                }
                Some(code::DELAY) => sleep(LONGEST_PAUSE).await,
                // The session's end, or nonsense: the slot stays out of use.
                _ => return,
            }
        }
        let connection = {
            let usable = |way: &Way| {
                let ours = way
                    .session
                    .as_ref()
                    .is_some_and(|current| Arc::ptr_eq(current, &session));
                way.ended.is_some() || !ours || way.connection.as_ref().is_some_and(|connection| !connection.ended())
            };
            let Ok(way) = way.wait_for(usable).await else { return };
            let ours = way
                .session
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, &session));
            match way.connection.clone().filter(|_| ours && way.ended.is_none()) {
                Some(connection) => connection,
                None => return,
            }
        };
        let alone = Compound::new("settling a slot");
        let arguments = alone.arguments(session.minor, Some(&session.sequence(&slot, false)));
        ticket = Some(connection.submit(COMPOUND, Credential::default(), &arguments));
    }
}

/// The status of SEQUENCE in a reply.
fn sequence_status(record: Bytes) -> Option<u32> {
    let Ok(Outcome::Accepted(results)) = message::reply(record) else {
        return None;
    };
    let mut reply = Reply::new(&Compound::new("settling a slot"), results).ok()?;
    reply.sequence().ok()?.map(|(status, _)| status)
}

/// The error for a call that may have been carried out.
pub(super) fn unknown(compound: &Compound, cause: String) -> NfsError {
    NfsError::ConnectionLost {
        action: compound.action,
        cause,
        outcome_unknown: compound.changes(),
    }
}
