//! Making, binding and ending sessions, and the first calls in one (RFC 8881 sections 18.34, 18.36, 18.37, 18.50 and
//! 18.51).

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::client_id;
use super::compound::{Compound, Reply};
use super::establish::{self, Client, bare};
use super::numbers::{attribute, code, op};
use super::session::Session;
use crate::NfsError;
use crate::rpc::connection::Connection;
use crate::xdr::{Decoder, XdrError};

/// Slots that we ask for: enough to keep a server busy over a round trip of milliseconds.
const WANTED_SLOTS: u32 = 64;

/// The most slots that we take, whatever the server offers.
const MOST_SLOTS: u32 = 256;

/// Sizes of requests and replies that we ask for: 1 MiB of payload and its headers.
const WANTED_SIZE: u32 = (1 << 20) + (4 << 10);

/// Cached replies hold handles and attributes of a few objects. knfsd gives no more than 2,048 bytes.
const WANTED_CACHED: u32 = 2048;

/// Operations a compound that we ask for.
const WANTED_OPERATIONS: u32 = 100;

/// The smallest request and reply that a session is of any use with.
const SMALLEST_SIZE: u32 = 4096;

/// What CREATE_SESSION came to.
pub enum Created {
    /// A session, and the most operations that the server says it takes in a compound.
    Session(Session, u32),
    /// The server refused, with this code: STALE_CLIENTID and SEQ_MISORDERED have cures.
    Refused(u32),
}

/// CREATE_SESSION.
pub async fn create_session(
    connection: &Connection,
    client: &Client,
    sequence: u32,
    deadline: Instant,
) -> Result<Created, NfsError> {
    let mut compound = Compound::new("making a session (CREATE_SESSION)");
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
    // Back channel: none is bound to the connection; the sizes are what servers insist on at least.
    message.u32(0).u32(4096).u32(4096).u32(0).u32(8).u32(1).u32(0);
    // Callback program, and AUTH_NONE for it.
    message.u32(0x4000_0000).u32(1).u32(0);
    let mut reply = bare(connection, client.minor, &compound, deadline).await?;
    let code = reply.code();
    if reply.op(op::CREATE_SESSION).is_err() && code != code::OK {
        return Ok(Created::Refused(code));
    }
    let granted = reply.take(read_session)?;
    let Granted {
        request,
        answer,
        operations,
        slots,
        ..
    } = granted;
    let limits = format!("sizes {request} and {answer}, {operations} operations, {slots} slots");
    if request < SMALLEST_SIZE || answer < SMALLEST_SIZE || operations < 8 || slots == 0 {
        return Err(reply.broken(format!("a session too small to work with: {limits}")));
    }
    let sizes = (request.min(WANTED_SIZE) as usize, answer.min(WANTED_SIZE) as usize);
    Ok(Created::Session(
        Session::new(granted.id, client.id, client.minor, sizes, slots.min(MOST_SLOTS)),
        operations,
    ))
}

/// What a server grants with a session, as it says it.
pub(super) struct Granted {
    id: [u8; 16],
    request: u32,
    answer: u32,
    operations: u32,
    slots: u32,
}

/// Reads CREATE_SESSION's result, as far as we use it: the fore channel's sizes.
pub(super) fn read_session(results: &mut Decoder) -> Result<Granted, XdrError> {
    let id = results.array("session id")?;
    results.u32("session sequence")?;
    results.u32("session flags")?;
    results.u32("header padding")?;
    let request = results.u32("longest request")?;
    let answer = results.u32("longest reply")?;
    results.u32("longest cached reply")?;
    Ok(Granted {
        id,
        request,
        answer,
        operations: results.u32("operations")?,
        slots: results.u32("slots")?,
    })
}

/// One compound in a new session, before anybody else has its slots; `None` when the session was lost meanwhile.
async fn first(
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
        let mut reply = establish::once(connection, session.minor, compound, Some(&sequence), deadline).await?;
        match reply.sequence() {
            Ok(Some((code::OK, results))) => results.array::<36>("SEQUENCE").map(drop),
            Ok(Some((code, _))) => return Err(establish::refused(compound.action, code)),
            Ok(None) => return Err(establish::refused(compound.action, reply.code())),
            Err(error) => Err(error),
        }
        .map_err(|error| establish::senseless(compound.action, &error))?;
        // Also when it was put off: the repetition is another request, or the server's cache would answer it.
        session.slots.release(slot, true);
        session.renew();
        let again = Instant::now() + establish::PAUSE;
        if !matches!(reply.code(), code::DELAY | code::GRACE) || again >= deadline {
            return Ok(Some(reply));
        }
        sleep_until(again).await;
    }
}

/// RECLAIM_COMPLETE as the first request of a new session: we have nothing to reclaim, and a server in its grace
/// period would refuse to open files before it is told (RFC 8881 section 18.51).
pub async fn reclaim_complete(connection: &Connection, session: &Session, deadline: Instant) -> Result<(), NfsError> {
    let mut compound = Compound::new("starting afresh (RECLAIM_COMPLETE)");
    compound.op(op::RECLAIM_COMPLETE).boolean(false);
    // COMPLETE_ALREADY and the like: then it was said before.
    first(connection, session, &compound, deadline).await.map(drop)
}

/// Asks for the lease time; `None` when the server doesn't say.
pub async fn lease(
    connection: &Connection,
    session: &Session,
    deadline: Instant,
) -> Result<Option<Duration>, NfsError> {
    let mut compound = Compound::new("asking for the lease time");
    compound.op(op::PUTROOTFH);
    compound.attributes(&[attribute::LEASE_TIME]);
    let Some(mut reply) = first(connection, session, &compound, deadline).await? else {
        return Ok(None);
    };
    // A root that we may not look at is no reason to fail here: walking the export's path says it better.
    let found = reply.op(op::PUTROOTFH).and_then(|()| reply.attributes());
    Ok(found.ok().and_then(|found| found.lease()))
}

/// Whether the session lives on, and this connection now belongs to it (BIND_CONN_TO_SESSION).
pub async fn bind(connection: &Connection, session: &Session, deadline: Instant) -> Result<bool, NfsError> {
    if !session.has_slots() {
        return Ok(client_id::offer(connection, deadline).await?.is_some());
    }
    let mut compound = Compound::new("returning to the session (BIND_CONN_TO_SESSION)");
    // Fore channel only, no RDMA.
    compound
        .op(op::BIND_CONN_TO_SESSION)
        .fixed(&session.id)
        .u32(1)
        .boolean(false);
    Ok(bare(connection, session.minor, &compound, deadline).await?.code() == code::OK)
}

/// DESTROY_SESSION and DESTROY_CLIENTID. Best effort: what is left, the server forgets when the lease runs out.
pub async fn destroy(connection: &Connection, session: &Session, deadline: Instant) {
    if !session.has_slots() {
        return;
    }
    let mut compound = Compound::new("ending the session (DESTROY_SESSION)");
    compound.op(op::DESTROY_SESSION).fixed(&session.id);
    if bare(connection, session.minor, &compound, deadline).await.is_ok() {
        let mut compound = Compound::new("ending the lease (DESTROY_CLIENTID)");
        compound.op(op::DESTROY_CLIENTID).u64(session.client_id);
        // Busy while another connection of ours has a session under the same owner.
        let _ = bare(connection, session.minor, &compound, deadline).await;
    }
}
