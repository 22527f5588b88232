//! Call and reply messages (RFC 5531 section 9).

use bytes::Bytes;

use crate::Credential;
use crate::auth::{Auth, ReplyVerifier};
use crate::xdr::{Decoder, Encoder, XdrError};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;

/// Program number of NFS (RFC 8881 section 2.2).
pub const NFS_PROGRAM: u32 = 100_003;

/// A remote procedure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Procedure {
    /// Program number: [`NFS_PROGRAM`], MOUNT or rpcbind.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub number: u32,
}

/// Why the server's RPC layer rejected a call. A rejected call was not executed, except perhaps after `SystemError`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// AUTH_TOOWEAK: the server requires another flavor.
    #[error("the server requires a stronger flavor than AUTH_SYS (AUTH_TOOWEAK)")]
    TooWeak,
    /// Any other authentication error, by number.
    #[error("the server rejected the credential (auth_stat {0})")]
    AuthError(u32),
    /// PROG_UNAVAIL, PROG_MISMATCH, PROC_UNAVAIL or RPC_MISMATCH.
    #[error("the server has no such program or version ({0})")]
    Unavailable(String),
    /// GARBAGE_ARGS: the server could not decode the call.
    #[error("the server could not decode the call (GARBAGE_ARGS)")]
    GarbageArgs,
    /// SYSTEM_ERR or an unknown status: the call may have been executed.
    #[error("the server's RPC layer failed (accept_stat {0})")]
    SystemError(u32),
}

/// A reply message.
#[derive(Debug)]
pub enum RpcReply {
    /// The procedure was called; its results follow.
    Success(Decoder),
    /// The procedure was not called.
    Rejected(Rejection),
}

/// Encodes a call message; returns it with the check for the verifier of its reply.
pub fn encode_call(
    xid: u32,
    procedure: Procedure,
    auth: &Auth,
    credential: Credential,
    arguments: &[u8],
) -> (Vec<u8>, ReplyVerifier) {
    let mut message = Encoder::new();
    message
        .u32(xid)
        .u32(CALL)
        .u32(RPC_VERSION)
        .u32(procedure.program)
        .u32(procedure.version)
        .u32(procedure.number);
    let verifier = auth.encode(credential, &mut message);
    message.raw(arguments);
    (message.into_bytes(), verifier)
}

/// Returns the transaction ID of a reply; `None` if the record is not a reply.
pub fn reply_xid(record: &Bytes) -> Option<u32> {
    let mut message = Decoder::new(record.clone());
    let xid = message.u32("xid").ok()?;
    (message.u32("message type").ok()? == REPLY).then_some(xid)
}

/// Decodes the header of a reply and checks its verifier.
pub fn decode_reply(record: Bytes, verifier: ReplyVerifier) -> Result<RpcReply, XdrError> {
    let mut message = Decoder::new(record);
    message.u32("xid")?;
    match message.u32("message type")? {
        REPLY => {}
        value => {
            return Err(XdrError::Invalid {
                what: "message type",
                value,
            });
        }
    }
    match message.u32("reply status")? {
        0 => accepted(message, verifier),
        1 => denied(message).map(RpcReply::Rejected),
        value => Err(XdrError::Invalid {
            what: "reply status",
            value,
        }),
    }
}

fn accepted(mut message: Decoder, verifier: ReplyVerifier) -> Result<RpcReply, XdrError> {
    verifier.check(&mut message)?;
    let rejection = match message.u32("accept status")? {
        0 => return Ok(RpcReply::Success(message)),
        1 => Rejection::Unavailable("PROG_UNAVAIL".to_owned()),
        2 => {
            let (low, high) = (message.u32("lowest version")?, message.u32("highest version")?);
            Rejection::Unavailable(format!("PROG_MISMATCH: versions {low} to {high}"))
        }
        3 => Rejection::Unavailable("PROC_UNAVAIL".to_owned()),
        4 => Rejection::GarbageArgs,
        status => Rejection::SystemError(status),
    };
    Ok(RpcReply::Rejected(rejection))
}

fn denied(mut message: Decoder) -> Result<Rejection, XdrError> {
    match message.u32("reject status")? {
        0 => Ok(Rejection::Unavailable("RPC_MISMATCH".to_owned())),
        1 => match message.u32("authentication status")? {
            5 => Ok(Rejection::TooWeak),
            status => Ok(Rejection::AuthError(status)),
        },
        value => Err(XdrError::Invalid {
            what: "reject status",
            value,
        }),
    }
}
