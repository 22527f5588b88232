//! One request of NFSv4.0, which has no sessions: the server cannot recognize a retransmission. So a request that changes
//! something and may have been executed is never sent again: it fails with its outcome unknown.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::call::{COMPOUND, MAJOR};
use super::client::Manager;
use super::compound::{Compound, Reply};
use super::session::{Session, Slot};
use super::slot_request::{CallStep, outcome_unknown};
use crate::NfsError;
use crate::call_options::CallOptions;
use crate::connection_manager::RetryPolicy;
use crate::rpc::call::rejection_error;
use crate::rpc::connection::{Connection, PendingCall};
use crate::rpc::message::{Rejection, RpcReply};
use crate::xdr::XdrError;

/// The slot of a request. If it is dropped before the reply, the slot is freed once the reply arrives or the connection
/// is lost: cancelled calls must not pile up on a slow server.
struct SlotGuard {
    session: Arc<Session>,
    slot: Option<Slot>,
    pending: Option<PendingCall>,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let sent = self.pending.take().filter(|pending| !pending.withdraw());
        if let Some(pending) = &sent {
            pending.abandon();
        }
        match (sent, tokio::runtime::Handle::try_current()) {
            (Some(mut pending), Ok(runtime)) => {
                let session = self.session.clone();
                runtime.spawn(async move {
                    // Answered or lost: it no longer puts load on the server.
                    let _ = pending.reply().await;
                    session.slots.release(slot, true);
                });
            }
            _ => self.session.slots.release(slot, true),
        }
    }
}

/// Sends the request once.
pub(super) async fn send(
    manager: &Arc<Manager>,
    session: Arc<Session>,
    slot: Slot,
    options: CallOptions,
    compound: &Compound,
) -> Result<CallStep, NfsError> {
    let (action, began) = (compound.action, Instant::now());
    let mut guard = SlotGuard {
        session,
        slot: Some(slot),
        pending: None,
    };
    let (current, connection) = manager
        .ready_on(options.generation, action, options.deadline, RetryPolicy::UntilDeadline)
        .await?;
    if !Arc::ptr_eq(&current, &guard.session) {
        return Ok(CallStep::Restart);
    }
    let arguments = compound.arguments(0, None);
    let executable_for = compound.is_modifying().then_some(manager.target.deadline);
    let pending = guard
        .pending
        .insert(connection.submit(COMPOUND, options.credential, &arguments, executable_for));
    match timeout_at(options.deadline, pending.reply()).await {
        Ok(Ok(reply)) => {
            guard.pending = None;
            process_reply(&connection, compound, reply)
        }
        Ok(Err(lost)) => {
            guard.pending = None;
            manager.drop_connection(&connection);
            if lost.sent && compound.is_modifying() {
                return Err(outcome_unknown(compound, lost.cause.to_string()));
            }
            Ok(CallStep::Restart)
        }
        Err(_) => {
            let unsent = pending.withdraw();
            if unsent {
                guard.pending = None;
            } else {
                pending.end_connection_if_silent();
            }
            Err(NfsError::NotResponding {
                action,
                after: began.elapsed(),
                outcome_unknown: compound.is_modifying() && !unsent,
            })
        }
    }
}

fn process_reply(
    connection: &Connection,
    compound: &Compound,
    reply: Result<RpcReply, XdrError>,
) -> Result<CallStep, NfsError> {
    let protocol_error = |cause: String| NfsError::Protocol {
        action: compound.action,
        cause,
        outcome_unknown: compound.is_modifying(),
    };
    match reply {
        Ok(RpcReply::Success(results)) => Reply::new(compound, results)
            .map(CallStep::Answered)
            .map_err(|error| protocol_error(error.to_string())),
        Ok(RpcReply::Rejected(rejection @ Rejection::SystemError(_))) => Err(protocol_error(rejection.to_string())),
        Ok(RpcReply::Rejected(rejection)) => Err(rejection_error(connection, compound.action, MAJOR, &rejection)),
        Err(error) => Err(protocol_error(error.to_string())),
    }
}
