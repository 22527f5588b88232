//! Calls: sent until they are answered, across lost connections, as far as they may be executed twice.

use tokio::time::{Instant, timeout_at};

use super::attributes;
use super::client::Client;
use super::constants::{code, nfs, nfs_procedure};
use super::status::status;
use crate::call_options::{Backoff, CallOptions};
use crate::connection_manager::RetryPolicy;
use crate::rpc::call::{self, protocol_error, rejection_error};
use crate::rpc::connection::Connection;
use crate::rpc::message::{Procedure, Rejection, RpcReply};
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{Attributes, CallKind, Credential, FileHandle, Name, NfsError, Status};

/// The major version.
const MAJOR: u32 = 3;

/// What a call does on the server, and so whether it may be sent again after its reply was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Changes nothing.
    ReadOnly,
    /// Changes something; executing it twice has the same effect as once.
    Idempotent,
    /// Changes something and must not be executed twice: once it may have been executed, it is never sent again.
    NonIdempotent,
}

/// A call that is being built.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// What errors report as the action.
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

    /// Appends a file handle.
    pub(super) fn on(mut self, object: &FileHandle) -> Self {
        self.arguments.opaque(&object.0);
        self
    }

    /// Appends `diropargs3`. A [`Name`] is never `..`.
    pub(super) fn at(self, directory: &FileHandle, name: &Name) -> Self {
        let mut call = self.on(directory);
        call.arguments.opaque(name.as_bytes());
        call
    }

    fn kind(&self) -> CallKind {
        match self.procedure {
            nfs::READ => CallKind::Read,
            nfs::WRITE | nfs::COMMIT => CallKind::Write,
            nfs::READDIR | nfs::READDIRPLUS => CallKind::List,
            _ if self.is_modifying() => CallKind::Change,
            _ => CallKind::Lookup,
        }
    }

    fn is_modifying(&self) -> bool {
        self.effect != Effect::ReadOnly
    }
}

/// The reply to a call.
#[derive(Debug)]
pub(super) struct Reply {
    action: &'static str,
    modifying: bool,
    /// Whether an earlier transmission of the same call may have been executed.
    pub repeated: bool,
    /// The status; the results that follow it depend on the procedure.
    pub code: u32,
    results: Decoder,
}

impl Reply {
    /// A reply without a call.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of(results: Decoder) -> Self {
        Self {
            action: "fuzzing",
            modifying: false,
            repeated: false,
            code: code::OK,
            results,
        }
    }

    /// Fails unless the status is OK.
    pub(super) fn ok(&self) -> Result<(), NfsError> {
        match self.code {
            code::OK => Ok(()),
            code => Err(NfsError::Status {
                action: self.action,
                status: status(code),
            }),
        }
    }

    /// Returns the status, unless it is OK.
    fn failure(&self) -> Option<Status> {
        (self.code != code::OK).then(|| status(self.code))
    }

    /// Decodes results.
    pub(super) fn take<T>(&mut self, take: impl FnOnce(&mut Decoder) -> Result<T, XdrError>) -> Result<T, NfsError> {
        take(&mut self.results).map_err(|error| self.protocol_error(error.to_string()))
    }

    /// Decodes `wcc_data`: the attributes after a change, if the server reports them.
    pub(super) fn wcc_data(&mut self) -> Result<Option<Attributes>, NfsError> {
        self.take(attributes::wcc_data)
    }

    /// Returns the error for invalid results.
    pub(super) fn protocol_error(&self, cause: String) -> NfsError {
        NfsError::Protocol {
            action: self.action,
            cause,
            outcome_unknown: self.modifying,
        }
    }
}

impl Client {
    /// Sends a call. The reply may hold any status except JUKEBOX, which is retried until the deadline.
    pub(super) async fn call(&self, options: CallOptions, call: &Call) -> Result<Reply, NfsError> {
        let _demand = self.manager.demand();
        let began = Instant::now();
        let reply = self.call_until_answered(options, call, began).await;
        self.observe(call.kind(), began, &reply, Reply::failure);
        reply
    }

    async fn call_until_answered(&self, options: CallOptions, call: &Call, began: Instant) -> Result<Reply, NfsError> {
        let not_responding = |outcome_unknown| NfsError::NotResponding {
            action: call.action,
            after: began.elapsed(),
            outcome_unknown,
        };
        let Ok(Ok(_slot)) = timeout_at(options.deadline, self.manager.version.slots.acquire()).await else {
            return Err(not_responding(false));
        };
        let mut backoff = Backoff::new();
        let mut maybe_executed = false;
        loop {
            let ready = self
                .manager
                .ready_on(
                    options.generation,
                    call.action,
                    options.deadline,
                    RetryPolicy::UntilDeadline,
                )
                .await;
            let connection = match ready {
                Ok((_, connection)) => connection,
                Err(error) if maybe_executed => return Err(outcome_unknown(call, error.to_string())),
                Err(error) => return Err(error),
            };
            let mut pending = connection.submit(
                nfs_procedure(call.procedure),
                options.credential,
                call.arguments.as_bytes(),
                call.is_modifying().then_some(self.manager.target.deadline),
            );
            let reply = match timeout_at(options.deadline, pending.reply()).await {
                Ok(Ok(reply)) => reply,
                Ok(Err(ended)) => {
                    self.manager.drop_connection(&connection);
                    maybe_executed |= ended.sent && call.is_modifying();
                    if maybe_executed && call.effect == Effect::NonIdempotent {
                        return Err(outcome_unknown(call, ended.cause.to_string()));
                    }
                    continue;
                }
                Err(_) => {
                    let unsent = pending.withdraw();
                    if !unsent {
                        pending.end_connection_if_silent();
                    }
                    return Err(not_responding(call.is_modifying() && (!unsent || maybe_executed)));
                }
            };
            let mut reply = decode_status(call, &connection, reply)?;
            reply.repeated = maybe_executed;
            // JUKEBOX: not executed, retry later (RFC 1813 section 2.6).
            if reply.code != code::JUKEBOX || !backoff.pause_before(options.deadline).await {
                return Ok(reply);
            }
        }
    }
}

fn decode_status(call: &Call, connection: &Connection, reply: Result<RpcReply, XdrError>) -> Result<Reply, NfsError> {
    let protocol_error = |cause: String| NfsError::Protocol {
        action: call.action,
        cause,
        outcome_unknown: call.is_modifying(),
    };
    let mut results = match reply {
        Ok(RpcReply::Success(results)) => results,
        Ok(RpcReply::Rejected(rejection @ Rejection::SystemError(_))) => {
            return Err(protocol_error(rejection.to_string()));
        }
        Ok(RpcReply::Rejected(rejection)) => return Err(rejection_error(connection, call.action, MAJOR, &rejection)),
        Err(error) => return Err(protocol_error(error.to_string())),
    };
    let code = results
        .u32("status")
        .map_err(|error| protocol_error(error.to_string()))?;
    Ok(Reply {
        action: call.action,
        modifying: call.is_modifying(),
        repeated: false,
        code,
        results,
    })
}

/// Returns the error for a change that may have been executed.
pub(super) fn outcome_unknown(call: &Call, cause: String) -> NfsError {
    NfsError::ConnectionLost {
        action: call.action,
        cause,
        outcome_unknown: call.is_modifying(),
    }
}

/// Sends a call that changes nothing once, on a connection that is not managed: for MOUNT, rpcbind, and the first call
/// on a connection.
pub(super) async fn call_once(
    connection: &Connection,
    action: &'static str,
    procedure: Procedure,
    credential: Credential,
    arguments: &Encoder,
    deadline: Instant,
) -> Result<Decoder, NfsError> {
    match call::call_once(
        connection,
        action,
        procedure,
        credential,
        arguments.as_bytes(),
        deadline,
    )
    .await?
    {
        Ok(RpcReply::Success(results)) => Ok(results),
        Ok(RpcReply::Rejected(rejection)) => Err(rejection_error(connection, action, MAJOR, &rejection)),
        Err(error) => Err(protocol_error(action, &error)),
    }
}
