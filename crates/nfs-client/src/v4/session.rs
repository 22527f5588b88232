//! Sessions and their slots (RFC 8881 section 2.10): creating, binding and destroying them, and the first calls in one
//! (sections 18.34, 18.36, 18.37, 18.50 and 18.51).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::call::{self, call_without_session, status_error};
use super::client_id;
use super::compound::{Compound, Reply};
use super::constants::{attribute, code, op};
use super::handshake::ClientRecord;
use crate::NfsError;
use crate::rpc::call::protocol_error;
use crate::rpc::connection::Connection;
use crate::xdr::{Decoder, Encoder, XdrError};

/// What errors report as the action.
pub const CREATE_SESSION: &str = "creating a session (CREATE_SESSION)";

/// Calls in flight on a connection without a session: servers process at least that many for one client.
const CALLS_WITHOUT_SESSION: u32 = 32;

/// Slots requested: enough to keep a server busy over a round trip of milliseconds.
const WANTED_SLOTS: u32 = 64;

/// Maximum number of slots used, whatever the server grants.
const MAX_SLOTS: u32 = 256;

/// Request and reply sizes requested: 1 MiB of payload and its headers.
const WANTED_SIZE: u32 = (1 << 20) + (4 << 10);

/// Size of cached replies requested: they hold handles and attributes of a few objects. knfsd grants 2,048 bytes at most.
const WANTED_CACHED: u32 = 2048;

/// Operations per compound requested.
const WANTED_OPERATIONS: u32 = 100;

/// Minimum request and reply size of a usable session.
const MIN_SIZE: u32 = 4096;

/// A session on the server; it outlives connections.
#[derive(Debug)]
pub struct Session {
    /// Session ID.
    pub id: [u8; 16],
    /// ID of the client that it belongs to.
    pub client_id: u64,
    /// Minor version.
    pub minor: u32,
    /// Maximum size of a request, in bytes.
    pub max_request: usize,
    /// Maximum size of a reply, in bytes.
    pub max_reply: usize,
    /// Number of slots.
    pub slot_count: u32,
    /// Free slots.
    pub slots: Slots,
    created: Instant,
    /// Milliseconds from `created` to the newest SEQUENCE that succeeded, which renewed the lease.
    renewed: AtomicU64,
}

impl Session {
    /// Returns a session that was just created.
    pub fn new(
        id: [u8; 16],
        client_id: u64,
        minor: u32,
        (max_request, max_reply): (usize, usize),
        slot_count: u32,
    ) -> Self {
        Self {
            id,
            client_id,
            minor,
            max_request,
            max_reply,
            slot_count,
            slots: Slots::new(slot_count),
            created: Instant::now(),
            renewed: AtomicU64::new(0),
        }
    }

    /// Returns the placeholder for a session in NFSv4.0: its slots only limit the number of calls in flight.
    pub fn sessionless(sizes: (usize, usize)) -> Self {
        Self::new([0; 16], 0, 0, sizes, CALLS_WITHOUT_SESSION)
    }

    /// Whether the server has a slot table for the session. False in NFSv4.0.
    pub fn has_slot_table(&self) -> bool {
        self.minor > 0
    }

    /// Records that the lease was renewed now.
    pub fn record_renewal(&self) {
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.renewed.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns the time since the lease was renewed.
    pub fn since_renewal(&self) -> Duration {
        self.created
            .elapsed()
            .saturating_sub(Duration::from_millis(self.renewed.load(Ordering::Relaxed)))
    }

    /// Encodes SEQUENCE.
    pub fn sequence(&self, slot: &Slot, cache_reply: bool) -> Vec<u8> {
        let mut message = Encoder::new();
        message
            .u32(op::SEQUENCE)
            .fixed(&self.id)
            .u32(slot.sequence)
            .u32(slot.id);
        message.u32(self.slot_count.saturating_sub(1)).boolean(cache_reply);
        message.into_bytes()
    }
}

/// A slot in use by a request. Dropping it without [`Slots::release`] retires it for the rest of the session, as is
/// necessary for a slot whose sequence ID is no longer known.
#[derive(Debug)]
pub struct Slot {
    /// Slot ID.
    pub id: u32,
    /// Sequence ID of the next request.
    pub sequence: u32,
}

/// The free slots of a session.
#[derive(Debug)]
pub struct Slots {
    permits: Semaphore,
    /// (slot ID, sequence ID), lowest first, so that the server can shrink its slot table (RFC 8881 section 2.10.6.1).
    free: Mutex<BinaryHeap<Reverse<(u32, u32)>>>,
}

impl Slots {
    fn new(count: u32) -> Self {
        Self {
            permits: Semaphore::new(count as usize),
            // The first request on a new slot has sequence ID 1 (RFC 8881 section 2.10.6.1).
            free: Mutex::new((0..count).map(|id| Reverse((id, 1))).collect()),
        }
    }

    /// Waits for a free slot; `None` once the session is closed.
    pub async fn acquire(&self) -> Option<Slot> {
        let permit = self.permits.acquire().await.ok()?;
        permit.forget();
        let Reverse((id, sequence)) = self.free.lock().pop()?;
        Some(Slot { id, sequence })
    }

    /// Returns a slot. `used`: the server accepted the request, so the next request has the next sequence ID.
    pub fn release(&self, slot: Slot, used: bool) {
        let sequence = if used {
            slot.sequence.wrapping_add(1)
        } else {
            slot.sequence
        };
        self.free.lock().push(Reverse((slot.id, sequence)));
        self.permits.add_permits(1);
    }

    /// Closes the table: no further request gets a slot.
    pub fn close(&self) {
        self.permits.close();
    }
}

/// Result of CREATE_SESSION.
pub enum CreateSessionResult {
    /// A session, and the maximum number of operations in a compound that the server announces.
    Created(Session, u32),
    /// The server's status: the caller can recover from STALE_CLIENTID and SEQ_MISORDERED.
    Refused(u32),
}

/// CREATE_SESSION.
pub async fn create_session(
    connection: &Connection,
    client: &ClientRecord,
    sequence: u32,
    deadline: Instant,
) -> Result<CreateSessionResult, NfsError> {
    let mut compound = Compound::new(CREATE_SESSION);
    let message = compound.op(op::CREATE_SESSION);
    message.u64(client.id).u32(sequence).u32(0);
    // Fore channel: header padding, sizes, operations, slots, no RDMA.
    message
        .u32(0)
        .u32(WANTED_SIZE)
        .u32(WANTED_SIZE)
        .u32(WANTED_CACHED)
        .u32(WANTED_OPERATIONS)
        .u32(WANTED_SLOTS)
        .u32(0);
    // Back channel: none is bound to the connection; the sizes are the minimum that servers accept.
    message.u32(0).u32(4096).u32(4096).u32(0).u32(8).u32(1).u32(0);
    // Callback program, with AUTH_NONE.
    message.u32(0x4000_0000).u32(1).u32(0);
    let mut reply = call_without_session(connection, client.minor, &compound, deadline).await?;
    let code = reply.code();
    if reply.op(op::CREATE_SESSION).is_err() && code != code::OK {
        return Ok(CreateSessionResult::Refused(code));
    }
    let granted = reply.take(decode_session)?;
    let GrantedSession {
        request,
        reply_size,
        operations,
        slots,
        ..
    } = granted;
    let limits = format!("sizes {request} and {reply_size}, {operations} operations, {slots} slots");
    if request < MIN_SIZE || reply_size < MIN_SIZE || operations < 8 || slots == 0 {
        return Err(reply.protocol_error(format!("session limits too small: {limits}")));
    }
    let sizes = (request.min(WANTED_SIZE) as usize, reply_size.min(WANTED_SIZE) as usize);
    Ok(CreateSessionResult::Created(
        Session::new(granted.id, client.id, client.minor, sizes, slots.min(MAX_SLOTS)),
        operations,
    ))
}

/// What a server grants with a session.
pub(super) struct GrantedSession {
    id: [u8; 16],
    request: u32,
    reply_size: u32,
    operations: u32,
    slots: u32,
}

/// Decodes the result of CREATE_SESSION, as far as it is used: the fore channel.
pub(super) fn decode_session(results: &mut Decoder) -> Result<GrantedSession, XdrError> {
    let id = results.array("session id")?;
    results.u32("session sequence")?;
    results.u32("session flags")?;
    results.u32("header padding")?;
    let request = results.u32("longest request")?;
    let reply_size = results.u32("longest reply")?;
    results.u32("longest cached reply")?;
    Ok(GrantedSession {
        id,
        request,
        reply_size,
        operations: results.u32("operations")?,
        slots: results.u32("slots")?,
    })
}

/// Sends a compound in a new session, before calls use its slots; `None` if the session was lost in the meantime.
async fn call_in_new_session(
    connection: &Connection,
    session: &Session,
    compound: &Compound,
    deadline: Instant,
) -> Result<Option<Reply>, NfsError> {
    loop {
        let Some(slot) = session.slots.acquire().await else {
            return Ok(None);
        };
        let sequence = session.sequence(&slot, false);
        let mut reply = call::call_once(connection, session.minor, compound, Some(&sequence), deadline).await?;
        match reply.sequence() {
            Ok(Some((code::OK, results))) => results.array::<36>("SEQUENCE").map(drop),
            Ok(Some((code, _))) => return Err(status_error(compound.action, code)),
            Ok(None) => return Err(status_error(compound.action, reply.code())),
            Err(error) => Err(error),
        }
        .map_err(|error| protocol_error(compound.action, &error))?;
        // Also after DELAY: the next attempt is a new request; with the same sequence ID, the reply cache would answer it.
        session.slots.release(slot, true);
        session.record_renewal();
        let again = Instant::now() + call::PAUSE;
        if !matches!(reply.code(), code::DELAY | code::GRACE) || again >= deadline {
            return Ok(Some(reply));
        }
        sleep_until(again).await;
    }
}

/// Sends RECLAIM_COMPLETE as the first request of a new session: there is nothing to reclaim, and a server in its grace
/// period refuses to open files until it arrives (RFC 8881 section 18.51).
pub async fn reclaim_complete(connection: &Connection, session: &Session, deadline: Instant) -> Result<(), NfsError> {
    let mut compound = Compound::new("ending lock reclaim (RECLAIM_COMPLETE)");
    compound.op(op::RECLAIM_COMPLETE).boolean(false);
    // COMPLETE_ALREADY and the like: an earlier RECLAIM_COMPLETE was received.
    call_in_new_session(connection, session, &compound, deadline)
        .await
        .map(drop)
}

/// Reads the lease time; `None` if the server does not report it.
pub async fn fetch_lease(
    connection: &Connection,
    session: &Session,
    deadline: Instant,
) -> Result<Option<Duration>, NfsError> {
    let mut compound = Compound::new("reading the lease time");
    compound.op(op::PUTROOTFH);
    compound.attributes(&[attribute::LEASE_TIME]);
    let Some(mut reply) = call_in_new_session(connection, session, &compound, deadline).await? else {
        return Ok(None);
    };
    // An unreadable root is no reason to fail here: the walk along the export's path reports it better.
    let found = reply.op(op::PUTROOTFH).and_then(|()| reply.attributes());
    Ok(found.ok().and_then(|found| found.lease()))
}

/// Binds a connection to a session (BIND_CONN_TO_SESSION). Returns whether the session still exists.
pub async fn bind(connection: &Connection, session: &Session, deadline: Instant) -> Result<bool, NfsError> {
    if !session.has_slot_table() {
        return Ok(client_id::fetch_limits(connection, deadline).await?.is_some());
    }
    let mut compound = Compound::new("binding the connection to the session (BIND_CONN_TO_SESSION)");
    // Fore channel only, no RDMA.
    compound
        .op(op::BIND_CONN_TO_SESSION)
        .fixed(&session.id)
        .u32(1)
        .boolean(false);
    Ok(call_without_session(connection, session.minor, &compound, deadline)
        .await?
        .code()
        == code::OK)
}

/// Sends DESTROY_SESSION and DESTROY_CLIENTID. Best effort: the server drops the rest when the lease expires.
pub async fn destroy(connection: &Connection, session: &Session, deadline: Instant) {
    if !session.has_slot_table() {
        return;
    }
    let mut compound = Compound::new("destroying the session (DESTROY_SESSION)");
    compound.op(op::DESTROY_SESSION).fixed(&session.id);
    if call_without_session(connection, session.minor, &compound, deadline)
        .await
        .is_ok()
    {
        let mut compound = Compound::new("destroying the client ID (DESTROY_CLIENTID)");
        compound.op(op::DESTROY_CLIENTID).u64(session.client_id);
        // CLIENTID_BUSY while another client with the same owner has a session.
        let _ = call_without_session(connection, session.minor, &compound, deadline).await;
    }
}
