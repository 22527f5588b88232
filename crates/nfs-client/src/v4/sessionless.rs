//! One request without a session (NFSv4.0): nothing tells the server that a request is a repetition. So what may have
//! been carried out and changes something is never sent again: it fails with its outcome unknown.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::call::CallOptions;
use super::client::{Patience, Shared};
use super::compound::{Compound, Reply};
use super::establish::{self, COMPOUND};
use super::flight::{Turn, unknown};
use super::session::{Session, Slot};
use crate::NfsError;
use crate::rpc::connection::{Connection, Ticket};
use crate::rpc::message::{self, Outcome, Rejection};

/// A call's place among those in flight. Dropped before its answer, it is kept until the answer comes or the
/// connection is lost: calls that nobody waits for any more must not pile up on a slow server.
struct Place {
    session: Arc<Session>,
    slot: Option<Slot>,
    ticket: Option<Ticket>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let sent = self.ticket.take().filter(|ticket| !ticket.withdraw());
        match (sent, tokio::runtime::Handle::try_current()) {
            (Some(mut ticket), Ok(runtime)) => {
                let session = self.session.clone();
                runtime.spawn(async move {
                    // Either way it is over.
                    let _ = ticket.reply().await;
                    session.slots.release(slot, true);
                });
            }
            _ => self.session.slots.release(slot, true),
        }
    }
}

/// Sends the request once.
pub(super) async fn turn(
    shared: &Arc<Shared>,
    session: Arc<Session>,
    slot: Slot,
    terms: CallOptions,
    compound: &Compound,
) -> Result<Turn, NfsError> {
    let (action, began) = (compound.action, Instant::now());
    let mut place = Place {
        session,
        slot: Some(slot),
        ticket: None,
    };
    let (current, connection) = shared.ready(action, terms.deadline, Patience::UntilDeadline).await?;
    if !Arc::ptr_eq(&current, &place.session) {
        return Ok(Turn::Again);
    }
    let arguments = compound.arguments(0, None);
    let ticket = place
        .ticket
        .insert(connection.submit(COMPOUND, terms.credential, &arguments));
    match timeout_at(terms.deadline, ticket.reply()).await {
        Ok(Ok(record)) => {
            place.ticket = None;
            answer(&connection, compound, record)
        }
        Ok(Err(lost)) => {
            place.ticket = None;
            shared.gone(&connection);
            if lost.sent && compound.changes() {
                return Err(unknown(compound, lost.cause.to_string()));
            }
            Ok(Turn::Again)
        }
        Err(_) => {
            let unsent = ticket.withdraw();
            if unsent {
                place.ticket = None;
            } else {
                ticket.give_up_if_silent();
            }
            Err(NfsError::NotResponding {
                action,
                after: began.elapsed(),
                outcome_unknown: compound.changes() && !unsent,
            })
        }
    }
}

fn answer(connection: &Connection, compound: &Compound, record: Bytes) -> Result<Turn, NfsError> {
    let senseless = |cause: String| NfsError::Protocol {
        action: compound.action,
        cause,
        outcome_unknown: compound.changes(),
    };
    match message::reply(record) {
        Ok(Outcome::Accepted(results)) => Reply::new(compound, results)
            .map(Turn::Answer)
            .map_err(|error| senseless(error.to_string())),
        Ok(Outcome::Rejected(rejection @ Rejection::System(_))) => Err(senseless(rejection.to_string())),
        Ok(Outcome::Rejected(rejection)) => Err(establish::rejected(connection, compound.action, &rejection)),
        Err(error) => Err(senseless(error.to_string())),
    }
}
