//! Remote procedure calls, as a server sees them (RFC 5531).

use bytes::Bytes;
use nfs_client::wire::{AUTH_NONE, AUTH_SYS, Decoder, Encoder, XdrError};

use super::file_system::Caller;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
/// Maximum length of the body of a credential or verifier (RFC 5531 section 8.2).
const MAX_BODY: usize = 400;

/// A call message.
#[derive(Debug, Clone)]
pub struct Call {
    /// Transaction ID.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// The user of AUTH_SYS; `None` with AUTH_NONE.
    pub credential: Option<Caller>,
    /// Encoded arguments of the procedure.
    pub arguments: Bytes,
}

impl Call {
    /// Decodes a record.
    pub fn decode(record: Bytes) -> Result<Self, XdrError> {
        let mut message = Decoder::new(record.clone());
        let xid = message.u32("xid")?;
        for (what, expected) in [("message type", CALL), ("RPC version", RPC_VERSION)] {
            match message.u32(what)? {
                value if value == expected => {}
                value => return Err(XdrError::Invalid { what, value }),
            }
        }
        let (program, version) = (message.u32("program")?, message.u32("version")?);
        let procedure = message.u32("procedure")?;
        let flavor = message.u32("credential flavor")?;
        let body = message.opaque("credential", MAX_BODY)?;
        let credential = match flavor {
            AUTH_SYS => Some(auth_sys(body)?),
            AUTH_NONE => None,
            value => {
                return Err(XdrError::Invalid {
                    what: "credential flavor",
                    value,
                });
            }
        };
        message.u32("verifier flavor")?;
        message.opaque("verifier", MAX_BODY)?;
        Ok(Self {
            xid,
            program,
            version,
            procedure,
            credential,
            arguments: record.slice(record.len() - message.left()..),
        })
    }
}

/// Decodes `authsys_parms` (RFC 5531 appendix A).
fn auth_sys(body: Bytes) -> Result<Caller, XdrError> {
    let mut body = Decoder::new(body);
    body.u32("stamp")?;
    body.opaque("machine name", 255)?;
    let (uid, gid) = (body.u32("uid")?, body.u32("gid")?);
    let count = body.count("groups", 4)?;
    let groups = (0..count).map(|_| body.u32("group")).collect::<Result<_, _>>()?;
    Ok(Caller { uid, gid, groups })
}

/// Why the RPC layer does not call a procedure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// PROG_UNAVAIL.
    NoProgram,
    /// PROG_MISMATCH, with the lowest and the highest version.
    NoVersion(u32, u32),
    /// PROC_UNAVAIL.
    NoProcedure,
    /// GARBAGE_ARGS.
    Garbage,
    /// AUTH_TOOWEAK.
    TooWeak,
}

/// Encodes a reply: the results of the procedure, or why it was not called.
pub fn encode_reply(xid: u32, results: Result<&[u8], Rejection>) -> Bytes {
    let mut message = Encoder::new();
    message.u32(xid).u32(REPLY);
    if let Err(Rejection::TooWeak) = results {
        // MSG_DENIED, AUTH_ERROR, AUTH_TOOWEAK.
        message.u32(1).u32(1).u32(5);
        return message.into_bytes().into();
    }
    // MSG_ACCEPTED, with an empty verifier.
    message.u32(0).u32(AUTH_NONE).u32(0);
    match results {
        Ok(results) => message.u32(0).raw(results),
        Err(Rejection::NoProgram) => message.u32(1),
        Err(Rejection::NoVersion(lowest, highest)) => message.u32(2).u32(lowest).u32(highest),
        Err(Rejection::NoProcedure) => message.u32(3),
        Err(Rejection::Garbage | Rejection::TooWeak) => message.u32(4),
    };
    message.into_bytes().into()
}
