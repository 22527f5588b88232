//! The handshake on a new connection: EXCHANGE_ID and CREATE_SESSION in NFSv4.1 and 4.2 (RFC 8881 sections 18.35 and
//! 18.36), SETCLIENTID in NFSv4.0 (RFC 7530 section 9.1.1). It selects the newest minor version that works.
//!
//! # Fencing
//!
//! A client with the same owner and another verifier replaces this one: its CREATE_SESSION ends this client's sessions
//! (RFC 8881 section 18.35.4, client restart). This is how a new process fences off the old one. Two clients that both
//! registered this way after each loss would evict each other forever. So a client does it at most once, when it connects
//! first. Later it only updates its own record: EXCHANGE_ID with UPD_CONFIRMED_REC_A changes nothing on the server unless
//! the confirmed record of the owner has this client's verifier. The results:
//!
//! - OK: the record is still this client's and only the session was lost: create a session under the same client ID.
//! - NOT_SAME: a client with another verifier holds the owner: fenced off, permanently.
//! - NOENT: there is no confirmed record. The server restarted, the lease expired, this client ended its own idle session,
//!   or another client took the owner and ended since. A restart cuts the connection, and a lease does not expire within a
//!   lease time of its renewal: if a session is lost while the connection is up and the lease is valid, another client
//!   took the owner, so this client is fenced off too. Otherwise it registers as a new client.
//!
//! Any other status (a server that does not support the flag) is treated as NOENT. The number of evictions is thus bounded by
//! the number of clients that ever connect with one owner.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::call::{MAX_OPERATIONS, call_without_session, status_error};
use super::client::Manager;
use super::client_id;
use super::compound::Compound;
use super::constants::{code, op};
use super::session::{self, CreateSessionResult, Session};
use crate::connection_manager::HandshakeResult;
use crate::rpc::connection::Connection;
use crate::xdr::{Decoder, XdrError};
use crate::{NfsError, Protocol, Status, Target, VersionChoice};

const EXCHANGE_ID: &str = "registering the client (EXCHANGE_ID)";

/// Lease time until the server has reported its own (the server chooses it, RFC 8881 section 5.8.1.11; 90 s is usual).
const ASSUMED_LEASE: Duration = Duration::from_secs(90);

/// Initial number of operations in a compound without a session, which would announce it: knfsd's limit. It is halved
/// each time a server answers RESOURCE.
const OPERATIONS_WITHOUT_SESSION: u32 = 50;

/// How often the handshake is restarted at once because the server dropped the client in between.
const MAX_RESTARTS: usize = 3;

/// eia_flags: no pNFS.
const USE_NON_PNFS: u32 = 0x0001_0000;
/// eia_flags: update a confirmed record; do nothing if there is none.
const UPD_CONFIRMED: u32 = 0x4000_0000;
/// eir_flags: the record is confirmed.
const CONFIRMED: u32 = 0x8000_0000;

/// The server's record of a client.
#[derive(Debug, Clone)]
pub struct ClientRecord {
    pub id: u64,
    pub confirmed: bool,
    pub sequence: u32,
    pub minor: u32,
    /// The server's implementation name; empty if unknown.
    pub implementation: String,
}

/// State of the connection manager's task that outlives sessions.
#[derive(Debug, Default)]
pub struct ClientState {
    /// Whether a session was ever created: from then on this client checks who holds the owner before it takes it.
    pub registered: bool,
    /// The minor version that was negotiated.
    pub protocol: Option<Protocol>,
    /// The client ID, and the sequence ID of its next CREATE_SESSION.
    pub client: Option<(u64, u32)>,
    /// Whether the session was lost in a way that only another client with the same owner explains.
    pub owner_taken_over: bool,
    /// Lease time, if the server reported it.
    pub lease: Option<Duration>,
    /// Maximum number of operations in a compound, as the server announced it.
    pub operations: u32,
    /// The server's implementation name.
    pub implementation: String,
}

impl ClientState {
    /// Returns the lease time, or the usual one if the server does not report it.
    pub fn lease(&self) -> Duration {
        self.lease.unwrap_or(ASSUMED_LEASE)
    }

    /// Returns what was negotiated with the server.
    pub fn handshake_result(&self, session: &Session) -> HandshakeResult {
        HandshakeResult {
            protocol: self.protocol.unwrap_or(Protocol::V4_1),
            implementation: self.implementation.clone(),
            lease: self.lease(),
            max_operations: self.operations,
            slots: session.slot_count,
        }
    }
}

/// Returns the versions to try, best first. The version that worked before comes first: after an upgrade of the server,
/// a new client gets the new version.
fn versions_to_try(choice: VersionChoice, known: Option<Protocol>) -> Vec<Protocol> {
    let newest_first = [Protocol::V4_2, Protocol::V4_1, Protocol::V4_0];
    match choice {
        VersionChoice::Exactly(protocol) => vec![protocol],
        VersionChoice::Auto | VersionChoice::Newest4 => {
            let others = newest_first.into_iter().filter(|protocol| Some(*protocol) != known);
            known.into_iter().chain(others).collect()
        }
    }
}

/// Creates a session, or its stand-in in NFSv4.0.
pub(super) async fn handshake(
    manager: &Manager,
    state: &mut ClientState,
    connection: &Connection,
    deadline: Instant,
) -> Result<Session, NfsError> {
    let mut restarts = 0..MAX_RESTARTS;
    loop {
        let result = handshake_once(manager, state, connection, deadline).await;
        match &result {
            // Another client with the same owner is ending and destroyed the client record: start again.
            Err(NfsError::Status {
                status: Status::Other(code::EXPIRED | code::STALE_CLIENTID | code::BADSESSION | code::DEADSESSION),
                ..
            }) if restarts.next().is_some() => {}
            _ => return result,
        }
    }
}

async fn handshake_once(
    manager: &Manager,
    state: &mut ClientState,
    connection: &Connection,
    deadline: Instant,
) -> Result<Session, NfsError> {
    let versions = versions_to_try(manager.target.version, state.protocol);
    let mut refused = None;
    for versions in versions.chunk_by(|one, other| (*one == Protocol::V4_0) == (*other == Protocol::V4_0)) {
        let result = match versions {
            [Protocol::V4_0, ..] => set_client_id(manager, state, connection, deadline).await,
            minors => create_session(manager, state, connection, minors, deadline).await,
        };
        match result {
            Err(NfsError::ProtocolNotSupported { cause, .. }) => refused = Some(cause),
            result => return result,
        }
    }
    let requested: Vec<_> = versions.iter().map(Protocol::to_string).collect();
    Err(NfsError::ProtocolNotSupported {
        requested: requested.join(" or "),
        cause: refused.unwrap_or_default(),
    })
}

/// The handshake of NFSv4.0.
async fn set_client_id(
    manager: &Manager,
    state: &mut ClientState,
    connection: &Connection,
    deadline: Instant,
) -> Result<Session, NfsError> {
    let Some(limits) = client_id::fetch_limits(connection, deadline).await? else {
        return Err(NfsError::ProtocolNotSupported {
            requested: Protocol::V4_0.to_string(),
            cause: "NFS4ERR_MINOR_VERS_MISMATCH".to_owned(),
        });
    };
    // Now, not when the first file is created: the server closes the files of an earlier client with the same owner before
    // this client's first change, and rejects the OPENs that the earlier client still sends.
    let id = client_id::set(connection, &manager.target.owner, deadline).await?;
    *manager.version.client_id.lock().await = Some(id);
    state.protocol = Some(Protocol::V4_0);
    state.lease = limits.lease;
    (state.operations, state.implementation) = (0, String::new());
    manager
        .version
        .max_operations
        .fetch_min(OPERATIONS_WITHOUT_SESSION, Ordering::Relaxed);
    Ok(Session::sessionless(limits.sizes))
}

/// The handshake of NFSv4.1 and 4.2, by the rules of fencing above.
async fn create_session(
    manager: &Manager,
    state: &mut ClientState,
    connection: &Connection,
    minors: &[Protocol],
    deadline: Instant,
) -> Result<Session, NfsError> {
    let target = &manager.target;
    let mut record = None;
    if state.registered {
        match exchange_id(connection, target, minors, true, deadline).await {
            Ok(current) if current.confirmed => record = Some(current),
            Err(NfsError::Status {
                action,
                status: Status::NotSame,
            }) => {
                return Err(NfsError::Fenced { action });
            }
            Ok(_) | Err(NfsError::Status { .. }) if state.owner_taken_over => {
                return Err(NfsError::Fenced { action: EXCHANGE_ID });
            }
            Ok(_) | Err(NfsError::Status { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let record = match record {
        Some(record) => record,
        None => exchange_id(connection, target, minors, false, deadline).await?,
    };
    let (session, operations) = create_session_in_sequence(state, connection, &record, deadline).await?;
    session::reclaim_complete(connection, &session, deadline).await?;
    state.registered = true;
    state.owner_taken_over = false;
    state.protocol = Some(if record.minor == 2 {
        Protocol::V4_2
    } else {
        Protocol::V4_1
    });
    state.lease = session::fetch_lease(connection, &session, deadline).await?;
    let max = operations.min(MAX_OPERATIONS);
    manager.version.max_operations.fetch_min(max, Ordering::Relaxed);
    (state.operations, state.implementation) = (operations, record.implementation);
    Ok(session)
}

/// Sends CREATE_SESSION with the right sequence ID. For a confirmed client, the one that follows this client's last
/// CREATE_SESSION; the value from EXCHANGE_ID is the fallback (undefined then, RFC 8881 section 18.35.3).
async fn create_session_in_sequence(
    state: &mut ClientState,
    connection: &Connection,
    record: &ClientRecord,
    deadline: Instant,
) -> Result<(Session, u32), NfsError> {
    let known = state
        .client
        .filter(|(id, _)| *id == record.id)
        .map(|(_, sequence)| sequence);
    let candidates = known
        .into_iter()
        .chain([record.sequence, record.sequence.wrapping_add(1)]);
    let mut refusal = code::SEQ_MISORDERED;
    for sequence in candidates {
        match session::create_session(connection, record, sequence, deadline).await? {
            CreateSessionResult::Created(session, operations) => {
                state.client = Some((record.id, sequence.wrapping_add(1)));
                return Ok((session, operations));
            }
            CreateSessionResult::Refused(code) => refusal = code,
        }
        if refusal != code::SEQ_MISORDERED {
            break;
        }
    }
    state.client = None;
    Err(status_error(session::CREATE_SESSION, refusal))
}

/// Sends EXCHANGE_ID in the first of `minors` that the server supports. `update`: succeeds only if the confirmed record of
/// the owner has this client's verifier.
pub async fn exchange_id(
    connection: &Connection,
    target: &Target,
    minors: &[Protocol],
    update: bool,
    deadline: Instant,
) -> Result<ClientRecord, NfsError> {
    for protocol in minors {
        let minor = match protocol {
            Protocol::V3 | Protocol::V4_0 => continue,
            Protocol::V4_1 => 1,
            Protocol::V4_2 => 2,
        };
        let mut compound = Compound::new(EXCHANGE_ID);
        let message = compound.op(op::EXCHANGE_ID);
        message.fixed(&target.owner.verifier).opaque(&target.owner.owner);
        message.u32(USE_NON_PNFS | if update { UPD_CONFIRMED } else { 0 });
        // SP4_NONE: no state protection.
        message.u32(0);
        match &target.implementation {
            None => message.u32(0),
            // One implementation ID, without a build time.
            Some(implementation) => message
                .u32(1)
                .opaque(implementation.domain.as_bytes())
                .opaque(implementation.name.as_bytes())
                .u64(0)
                .u32(0),
        };
        let mut reply = call_without_session(connection, minor, &compound, deadline).await?;
        // A server that does not support the operation does not support the version either, whatever its status.
        if !matches!(
            reply.code(),
            code::MINOR_VERS_MISMATCH | code::NOTSUPP | code::OP_ILLEGAL
        ) {
            reply.op(op::EXCHANGE_ID)?;
            return reply.take(|results| decode_exchange_id(results, minor));
        }
    }
    let requested: Vec<_> = minors.iter().map(Protocol::to_string).collect();
    Err(NfsError::ProtocolNotSupported {
        requested: requested.join(" or "),
        cause: "NFS4ERR_MINOR_VERS_MISMATCH".to_owned(),
    })
}

/// Decodes the result of EXCHANGE_ID.
pub(super) fn decode_exchange_id(results: &mut Decoder, minor: u32) -> Result<ClientRecord, XdrError> {
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
    Ok(ClientRecord {
        id,
        confirmed: flags & CONFIRMED != 0,
        sequence,
        minor,
        implementation,
    })
}
