//! Call and reply messages (RFC 5531 section 9) with AUTH_SYS (appendix A).

use bytes::Bytes;

use crate::Credential;
use crate::xdr::{Decoder, Encoder, XdrError};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// The longest authenticator (RFC 5531 section 8.2).
const LONGEST_AUTHENTICATOR: usize = 400;

/// The NFS program (RFC 8881 section 2.2).
pub const NFS_PROGRAM: u32 = 100_003;

/// Which procedure to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Procedure {
    /// The program, [`NFS_PROGRAM`] or one that helps it.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// The procedure's number.
    pub number: u32,
}

/// Why the RPC layer of the server did not carry out a call. None of these executes anything, `System` excepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// AUTH_TOOWEAK: another flavour is wanted.
    #[error("the server wants a stronger flavour than AUTH_SYS (AUTH_TOOWEAK)")]
    TooWeak,
    /// Any other authentication error, by its number.
    #[error("the server rejects our credential (auth_stat {0})")]
    Credential(u32),
    /// The program or its version isn't served here.
    #[error("the server has no such program or version ({0})")]
    Version(String),
    /// The server could not decode the call.
    #[error("the server could not decode our call")]
    Garbage,
    /// SYSTEM_ERR: the server failed; whether it did something is unknown.
    #[error("the server's RPC layer failed (accept_stat {0})")]
    System(u32),
}

/// What a reply message says.
#[derive(Debug)]
pub enum Outcome {
    /// The procedure's results follow.
    Accepted(Decoder),
    /// The call was not carried out.
    Rejected(Rejection),
}

/// Encodes a whole call message.
pub fn call(xid: u32, procedure: Procedure, credential: Credential, arguments: &[u8]) -> Vec<u8> {
    let mut message = Encoder::new();
    message
        .u32(xid)
        .u32(CALL)
        .u32(RPC_VERSION)
        .u32(procedure.program)
        .u32(procedure.version)
        .u32(procedure.number);
    let mut sys = Encoder::new();
    // Stamp, machine name, uid, gid, and no further groups.
    sys.u32(0)
        .opaque(b"nfs-operator")
        .u32(credential.uid)
        .u32(credential.gid)
        .u32(0);
    message
        .u32(AUTH_SYS)
        .opaque(sys.as_bytes())
        .u32(AUTH_NONE)
        .u32(0)
        .raw(arguments);
    message.into_bytes()
}

/// The transaction that a reply belongs to; `None` if the record is not a reply.
pub fn reply_xid(record: &Bytes) -> Option<u32> {
    let mut message = Decoder::new(record.clone());
    let xid = message.u32("xid").ok()?;
    (message.u32("message type").ok()? == REPLY).then_some(xid)
}

/// Decodes the header of a reply.
pub fn reply(record: Bytes) -> Result<Outcome, XdrError> {
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
        0 => accepted(message),
        1 => denied(message).map(Outcome::Rejected),
        value => Err(XdrError::Invalid {
            what: "reply status",
            value,
        }),
    }
}

fn accepted(mut message: Decoder) -> Result<Outcome, XdrError> {
    message.u32("verifier flavour")?;
    message.opaque("verifier", LONGEST_AUTHENTICATOR)?;
    let rejection = match message.u32("accept status")? {
        0 => return Ok(Outcome::Accepted(message)),
        1 => Rejection::Version("PROG_UNAVAIL".to_owned()),
        2 => {
            let (low, high) = (message.u32("lowest version")?, message.u32("highest version")?);
            Rejection::Version(format!("PROG_MISMATCH: versions {low} to {high}"))
        }
        3 => Rejection::Version("PROC_UNAVAIL".to_owned()),
        4 => Rejection::Garbage,
        status => Rejection::System(status),
    };
    Ok(Outcome::Rejected(rejection))
}

fn denied(mut message: Decoder) -> Result<Rejection, XdrError> {
    match message.u32("reject status")? {
        0 => Ok(Rejection::Version("RPC_MISMATCH".to_owned())),
        1 => match message.u32("authentication status")? {
            5 => Ok(Rejection::TooWeak),
            status => Ok(Rejection::Credential(status)),
        },
        value => Err(XdrError::Invalid {
            what: "reject status",
            value,
        }),
    }
}
