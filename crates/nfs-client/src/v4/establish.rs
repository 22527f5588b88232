//! Making a client on the server (RFC 8881 section 18.35), and calls outside of any session; see [`super::sessions`]
//! for what comes next.
//!
//! # Fencing
//!
//! A client that comes with our owner and another verifier replaces us: its CREATE_SESSION ends our sessions. That is
//! how a new leader fences off the old one (RFC 8881 section 18.35.4, client restart). Two clients that both came
//! back that way after each loss would evict each other for ever. So one leadership's client does it at most once, when it
//! connects first. Whenever it comes back later, it asks before it takes: EXCHANGE_ID with UPD_CONFIRMED_REC_A
//! changes nothing on the server unless the confirmed record of this owner carries our verifier. The answers:
//!
//! - OK: the record is still ours, only the session went: a new session under the same client.
//! - NOT_SAME: somebody with another verifier holds the owner: fenced, for good.
//! - NOENT: there is no confirmed record: the server restarted, our lease ran out, we were idle and let go ourselves,
//!   or a successor came and went again. A restart cuts the connection, and a lease that was renewed less than a lease
//!   time ago does not run out: a session that is lost although the connection stood and the lease was fresh was taken
//!   from us, so that is fenced too. Otherwise we come back as a new client.
//!
//! Any other answer (a server that does not know the flag) is treated as NOENT. The number of evictions is thus bounded by the
//! number of clients that ever connect, one for each leadership.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::compound::{Compound, Reply};
use super::numbers::{code, op};
use super::status::status;
use crate::rpc::connection::Connection;
use crate::rpc::message::{self, NFS_PROGRAM, Outcome, Procedure, Rejection};
use crate::xdr::{Decoder, XdrError};
use crate::{ClientOwner, Credential, NfsError, Protocol};

/// COMPOUND (RFC 8881 section 16.2).
pub const COMPOUND: Procedure = Procedure {
    program: NFS_PROGRAM,
    version: 4,
    number: 1,
};

/// Leases belong to this principal, whatever credential the calls have: a server compares principals when a client
/// comes back (CLID_INUSE), and a backend's credential may be edited.
const LEASE_PRINCIPAL: Credential = Credential { uid: 0, gid: 0 };

/// Pause before a call is repeated that the server put off.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// eia_flags: we use no pNFS.
const USE_NON_PNFS: u32 = 0x0001_0000;
/// eia_flags: update a confirmed record, change nothing otherwise.
const UPD_CONFIRMED: u32 = 0x4000_0000;
/// eir_flags: the record is confirmed.
const CONFIRMED: u32 = 0x8000_0000;

/// A client record on the server.
#[derive(Debug, Clone)]
pub struct Client {
    pub id: u64,
    pub confirmed: bool,
    pub sequence: u32,
    pub minor: u32,
    /// Name of the server's program, in its own words; empty when it doesn't say.
    pub implementation: String,
}

/// A compound outside of any session. Puts off as the server asks, until `deadline`.
pub async fn bare(
    connection: &Connection,
    minor: u32,
    compound: &Compound,
    deadline: Instant,
) -> Result<Reply, NfsError> {
    loop {
        let reply = once(connection, minor, compound, None, deadline).await?;
        let again = Instant::now() + PAUSE;
        if !matches!(reply.code(), code::DELAY | code::GRACE) || again >= deadline {
            return Ok(reply);
        }
        sleep_until(again).await;
    }
}

pub(super) async fn once(
    connection: &Connection,
    minor: u32,
    compound: &Compound,
    before: Option<&[u8]>,
    deadline: Instant,
) -> Result<Reply, NfsError> {
    let action = compound.action;
    let began = Instant::now();
    let mut ticket = connection.submit(COMPOUND, LEASE_PRINCIPAL, &compound.arguments(minor, before));
    let record = match timeout_at(deadline, ticket.reply()).await {
        Ok(Ok(record)) => record,
        Ok(Err(lost)) => {
            return Err(NfsError::ConnectionLost {
                action,
                cause: lost.cause.to_string(),
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
    let results = accepted(connection, action, message::reply(record))?;
    Reply::new(compound, results).map_err(|error| senseless(action, &error))
}

pub(super) fn senseless(action: &'static str, error: &XdrError) -> NfsError {
    NfsError::Protocol {
        action,
        cause: error.to_string(),
        outcome_unknown: false,
    }
}

/// The results of an accepted call, or what the rejection means.
pub fn accepted(
    connection: &Connection,
    action: &'static str,
    outcome: Result<Outcome, XdrError>,
) -> Result<Decoder, NfsError> {
    match outcome.map_err(|error| senseless(action, &error))? {
        Outcome::Accepted(results) => Ok(results),
        Outcome::Rejected(rejection) => Err(rejected(connection, action, &rejection)),
    }
}

/// What a rejection by the RPC layer means.
pub fn rejected(connection: &Connection, action: &'static str, rejection: &Rejection) -> NfsError {
    let cause = rejection.to_string();
    match rejection {
        Rejection::TooWeak => NfsError::SecurityFlavor { action, cause },
        Rejection::Credential(_) => NfsError::AccessDenied {
            action,
            local: connection.local(),
            reserved_port: connection.local().port() < 1024,
        },
        Rejection::Version(_) => NfsError::ProtocolNotSupported {
            asked: "4".to_owned(),
            cause,
        },
        Rejection::Garbage | Rejection::System(_) => NfsError::Protocol {
            action,
            cause,
            outcome_unknown: false,
        },
    }
}

/// EXCHANGE_ID in the newest of `minors` that the server speaks. `update`: only if the record is ours already.
pub async fn exchange_id(
    connection: &Connection,
    owner: &ClientOwner,
    minors: &[Protocol],
    update: bool,
    deadline: Instant,
) -> Result<Client, NfsError> {
    for protocol in minors {
        let minor = match protocol {
            Protocol::V3 | Protocol::V4_0 => continue,
            Protocol::V4_1 => 1,
            Protocol::V4_2 => 2,
        };
        let mut compound = Compound::new("introducing ourselves (EXCHANGE_ID)");
        let message = compound.op(op::EXCHANGE_ID);
        message.fixed(&owner.verifier).opaque(&owner.owner);
        message.u32(USE_NON_PNFS | if update { UPD_CONFIRMED } else { 0 });
        // SP4_NONE: no state protection. One implementation id, without a build time.
        message
            .u32(0)
            .u32(1)
            .opaque(b"nfs-operator.io")
            .opaque(b"nfs-operator")
            .u64(0)
            .u32(0);
        let mut reply = bare(connection, minor, &compound, deadline).await?;
        // A server that does not know the operation does not know the version either, whatever it says of that.
        if !matches!(
            reply.code(),
            code::MINOR_VERS_MISMATCH | code::NOTSUPP | code::OP_ILLEGAL
        ) {
            reply.op(op::EXCHANGE_ID)?;
            return reply.take(|results| read_client(results, minor));
        }
    }
    let asked: Vec<_> = minors.iter().map(Protocol::to_string).collect();
    Err(NfsError::ProtocolNotSupported {
        asked: asked.join(" or "),
        cause: "NFS4ERR_MINOR_VERS_MISMATCH".to_owned(),
    })
}

/// Reads EXCHANGE_ID's result.
pub(super) fn read_client(results: &mut Decoder, minor: u32) -> Result<Client, XdrError> {
    let id = results.u64("client id")?;
    let sequence = results.u32("client sequence")?;
    let flags = results.u32("flags")?;
    match results.u32("state protection")? {
        0 => {}
        value => {
            return Err(XdrError::Invalid {
                what: "state protection",
                value,
            });
        }
    }
    results.u64("server owner, minor")?;
    results.opaque("server owner, major", 1024)?;
    results.opaque("server scope", 1024)?;
    let mut implementation = String::new();
    for _ in 0..results.count("implementations", 20)? {
        results.opaque("implementation's domain", 1024)?;
        let name = results.opaque("implementation's name", 1024)?;
        implementation = String::from_utf8_lossy(&name).into_owned();
        results.array::<12>("implementation's date")?;
    }
    Ok(Client {
        id,
        confirmed: flags & CONFIRMED != 0,
        sequence,
        minor,
        implementation,
    })
}

/// The error for a refusal without a cure.
pub fn refused(action: &'static str, code: u32) -> NfsError {
    NfsError::Status {
        action,
        status: status(code),
    }
}
