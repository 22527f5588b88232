//! One call: sent until it is answered, over lost connections, as far as a repetition does no harm.

use tokio::time::{Instant, timeout_at};

use super::attributes;
use super::client::{Client, Shared};
use super::numbers::{code, nfs_procedure};
use super::status::status;
use crate::rpc::connection::{Connection, Ticket};
use crate::rpc::message::{self, Outcome, Procedure, Rejection};
use crate::terms::{Backoff, CallOptions};
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{Attributes, Credential, FileHandle, Name, NfsError};

/// What a call does on the server, and what a repetition of it would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    Looks,
    /// Something, and the same once more does no harm.
    ChangesAlike,
    /// Something that must not be done twice: once it may have arrived, it is never sent again.
    ChangesOnce,
}

/// A call in the making.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// What errors say was being done.
    pub action: &'static str,
    procedure: u32,
    effect: Effect,
    pub arguments: Encoder,
}

impl Call {
    pub(super) fn new(action: &'static str, procedure: u32, effect: Effect) -> Self {
        Self {
            action,
            procedure,
            effect,
            arguments: Encoder::new(),
        }
    }

    /// Adds a handle.
    pub(super) fn on(mut self, object: &FileHandle) -> Self {
        self.arguments.opaque(&object.0);
        self
    }

    /// Adds `diropargs3`. A [`Name`] is never `..`.
    pub(super) fn at(self, directory: &FileHandle, name: &Name) -> Self {
        let mut call = self.on(directory);
        call.arguments.opaque(name.as_bytes());
        call
    }

    fn changes(&self) -> bool {
        self.effect != Effect::Looks
    }
}

/// The answer to a call.
#[derive(Debug)]
pub(super) struct Reply {
    action: &'static str,
    changes: bool,
    /// Whether an earlier sending of the same call may have been carried out.
    pub repeated: bool,
    /// The status; what follows it depends on the procedure.
    pub code: u32,
    results: Decoder,
}

impl Reply {
    /// A reply to no call.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of(results: Decoder) -> Self {
        Self {
            action: "fuzzing",
            changes: false,
            repeated: false,
            code: code::OK,
            results,
        }
    }

    /// The status as an error.
    pub(super) fn ok(&self) -> Result<(), NfsError> {
        match self.code {
            code::OK => Ok(()),
            code => Err(NfsError::Status {
                action: self.action,
                status: status(code),
            }),
        }
    }

    /// Takes results.
    pub(super) fn take<T>(&mut self, take: impl FnOnce(&mut Decoder) -> Result<T, XdrError>) -> Result<T, NfsError> {
        take(&mut self.results).map_err(|error| self.broken(error.to_string()))
    }

    /// The attributes after a change, where the server tells them.
    pub(super) fn weak(&mut self) -> Result<Option<Attributes>, NfsError> {
        self.take(attributes::weak)
    }

    /// The error for an answer that makes no sense.
    pub(super) fn broken(&self, cause: String) -> NfsError {
        NfsError::Protocol {
            action: self.action,
            cause,
            outcome_unknown: self.changes,
        }
    }
}

/// A call on its way. Dropped before any byte of it was sent, it never will be.
struct InFlight(Ticket);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}

impl Client {
    /// Carries out a call. The reply holds whatever status the server answered, JUKEBOX excepted.
    pub(super) async fn call(&self, terms: CallOptions, call: &Call) -> Result<Reply, NfsError> {
        let _wanted = self.shared.want();
        let began = Instant::now();
        let late = |outcome_unknown| NfsError::NotResponding {
            action: call.action,
            after: began.elapsed(),
            outcome_unknown,
        };
        let Ok(Ok(_slot)) = timeout_at(terms.deadline, self.shared.slots.acquire()).await else {
            return Err(late(false));
        };
        let mut pause = Backoff::new();
        let mut perhaps_done = false;
        loop {
            let connection = match self.shared.ready(call.action, terms.deadline, true).await {
                Ok(connection) => connection,
                Err(error) if perhaps_done => return Err(lost(call, error.to_string())),
                Err(error) => return Err(error),
            };
            let ticket = connection.submit(
                nfs_procedure(call.procedure),
                terms.credential,
                call.arguments.as_bytes(),
            );
            let mut flight = InFlight(ticket);
            let record = match timeout_at(terms.deadline, flight.0.reply()).await {
                Ok(Ok(record)) => record,
                Ok(Err(ended)) => {
                    self.shared.gone(&connection);
                    perhaps_done |= ended.sent && call.changes();
                    if perhaps_done && call.effect == Effect::ChangesOnce {
                        return Err(lost(call, ended.cause.to_string()));
                    }
                    continue;
                }
                Err(_) => {
                    let unsent = flight.0.withdraw();
                    if !unsent {
                        flight.0.give_up_if_silent();
                    }
                    return Err(late(call.changes() && (!unsent || perhaps_done)));
                }
            };
            let mut reply = self.answered(call, &connection, message::reply(record))?;
            reply.repeated = perhaps_done;
            // JUKEBOX: not done, ask again later (RFC 1813 section 2.6).
            if reply.code != code::JUKEBOX || !pause.until(terms.deadline).await {
                return Ok(reply);
            }
        }
    }

    fn answered(
        &self,
        call: &Call,
        connection: &Connection,
        outcome: Result<Outcome, XdrError>,
    ) -> Result<Reply, NfsError> {
        let senseless = |cause: String| NfsError::Protocol {
            action: call.action,
            cause,
            outcome_unknown: call.changes(),
        };
        let mut results = match outcome {
            Ok(Outcome::Accepted(results)) => results,
            Ok(Outcome::Rejected(Rejection::System(code))) => {
                return Err(senseless(Rejection::System(code).to_string()));
            }
            Ok(Outcome::Rejected(rejection)) => return Err(rejected(connection, call.action, &rejection)),
            Err(error) => return Err(senseless(error.to_string())),
        };
        let code = results.u32("status").map_err(|error| senseless(error.to_string()))?;
        Ok(Reply {
            action: call.action,
            changes: call.changes(),
            repeated: false,
            code,
            results,
        })
    }
}

/// The error for a change of which nobody knows whether it was carried out.
pub(super) fn lost(call: &Call, cause: String) -> NfsError {
    NfsError::ConnectionLost {
        action: call.action,
        cause,
        outcome_unknown: call.changes(),
    }
}

/// What a rejection by the RPC layer means.
pub(super) fn rejected(connection: &Connection, action: &'static str, rejection: &Rejection) -> NfsError {
    let cause = rejection.to_string();
    let reserved_port = connection.local().port() < 1024;
    match rejection {
        Rejection::TooWeak if reserved_port => NfsError::SecurityFlavor { action, cause },
        // From a port that anybody may have, this is what knfsd's `secure` says.
        Rejection::TooWeak | Rejection::Credential(_) => NfsError::AccessDenied {
            action,
            local: connection.local(),
            reserved_port,
        },
        Rejection::Version(_) => NfsError::ProtocolNotSupported {
            asked: "3".to_owned(),
            cause,
        },
        Rejection::Garbage | Rejection::System(_) => NfsError::Protocol {
            action,
            cause,
            outcome_unknown: false,
        },
    }
}

/// One call that changes nothing, on a connection that is not kept: for MOUNT, rpcbind, and the first call of all.
pub(super) async fn ask(
    connection: &Connection,
    action: &'static str,
    procedure: Procedure,
    credential: Credential,
    arguments: &Encoder,
    deadline: Instant,
) -> Result<Decoder, NfsError> {
    let began = Instant::now();
    let mut ticket = connection.submit(procedure, credential, arguments.as_bytes());
    let record = match timeout_at(deadline, ticket.reply()).await {
        Ok(Ok(record)) => record,
        Ok(Err(ended)) => {
            return Err(NfsError::ConnectionLost {
                action,
                cause: ended.cause.to_string(),
                outcome_unknown: false,
            });
        }
        Err(_) => {
            return Err(NfsError::NotResponding {
                action,
                after: began.elapsed(),
                outcome_unknown: false,
            });
        }
    };
    match message::reply(record) {
        Ok(Outcome::Accepted(results)) => Ok(results),
        Ok(Outcome::Rejected(rejection)) => Err(rejected(connection, action, &rejection)),
        Err(error) => Err(senseless(action, &error)),
    }
}

/// The error for bytes that make no sense where nothing was changed.
pub(super) fn senseless(action: &'static str, error: &XdrError) -> NfsError {
    NfsError::Protocol {
        action,
        cause: error.to_string(),
        outcome_unknown: false,
    }
}

/// The connection of a shared way, as long as nobody gave it up.
impl Shared {
    /// The keeper hears of a lost connection by itself; until then, no call shall try that one again.
    pub(super) fn gone(&self, connection: &std::sync::Arc<Connection>) {
        self.way.send_if_modified(|way| {
            let current = way
                .connection
                .as_ref()
                .is_some_and(|current| std::sync::Arc::ptr_eq(current, connection));
            if current {
                way.connection = None;
            }
            current
        });
    }
}
