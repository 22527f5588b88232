//! NFSv4.0's client id (RFC 7530 sections 9.1.1, 16.33 and 16.34): needed to create files, and for nothing else that
//! we do. It is asked for when we connect, and anew when the server has forgotten it (a restart, or a lease time
//! without a file): the open that met this is simply sent again with the new one.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::attributes::Found;
use super::call::CallOptions;
use super::client::{Client, Patience};
use super::compound::Compound;
use super::establish;
use super::numbers::{attribute, code, op};
use crate::rpc::connection::Connection;
use crate::xdr::{Decoder, XdrError};
use crate::{ClientOwner, NfsError};

const INTRODUCE: &str = "introducing ourselves (SETCLIENTID)";

/// How often introducing ourselves is begun again when the server forgets us between the two steps of it.
const RESTARTS: usize = 3;

/// What is assumed of a server that does not tell its largest READ and WRITE, in bytes: every server takes that.
const ASSUMED_SIZE: u64 = 32 << 10;

/// The largest READ and WRITE that we make use of, in bytes.
const MOST_SIZE: u64 = 1 << 20;

/// Room for what a request or reply holds besides data, in bytes.
const HEADERS: usize = 4 << 10;

/// What a server without sessions says of itself.
pub(super) struct Offer {
    pub lease: Option<Duration>,
    /// The longest request and reply, in bytes.
    pub sizes: (usize, usize),
}

/// What the server offers in NFSv4.0; `None` when it does not speak that.
pub(super) async fn offer(connection: &Connection, deadline: Instant) -> Result<Option<Offer>, NfsError> {
    let mut compound = Compound::new("asking for the server's limits");
    compound.op(op::PUTROOTFH);
    compound.attributes(&[attribute::LEASE_TIME, attribute::LONGEST_READ, attribute::LONGEST_WRITE]);
    let mut reply = establish::bare(connection, 0, &compound, deadline).await?;
    if reply.code() == code::MINOR_VERS_MISMATCH {
        return Ok(None);
    }
    let found = match reply.op(op::PUTROOTFH).and_then(|()| reply.attributes()) {
        Ok(found) => found,
        // A root that we may not look at is no reason to fail here: walking the export's path says it better.
        Err(NfsError::Status { .. }) => Found::default(),
        Err(error) => return Err(error),
    };
    let size = |told: Option<u64>| {
        let bytes = told.filter(|bytes| *bytes > 0).unwrap_or(ASSUMED_SIZE).min(MOST_SIZE);
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(HEADERS)
    };
    Ok(Some(Offer {
        lease: found.lease(),
        sizes: (size(found.longest_write), size(found.longest_read)),
    }))
}

/// Makes us known to the server (SETCLIENTID, SETCLIENTID_CONFIRM); answers our client id.
pub(super) async fn set(connection: &Connection, owner: &ClientOwner, deadline: Instant) -> Result<u64, NfsError> {
    let mut name = owner.owner.clone();
    let mut restarts = 0..RESTARTS;
    loop {
        let (id, verifier) = match ask(connection, owner, &name, deadline).await? {
            Ok(asked) => asked,
            // Another principal has the name, as when a server's squashing was changed. It frees it a lease later.
            Err(code::CLID_INUSE) if name == owner.owner => {
                name.extend(rand::random::<[u8; 8]>());
                continue;
            }
            Err(code) => return Err(establish::refused(INTRODUCE, code)),
        };
        let mut compound = Compound::new(INTRODUCE);
        compound.op(op::SETCLIENTID_CONFIRM).u64(id).fixed(&verifier);
        let reply = establish::bare(connection, 0, &compound, deadline).await?;
        match reply.code() {
            code::OK => return Ok(id),
            code::STALE_CLIENTID if restarts.next().is_some() => {}
            code => return Err(establish::refused(INTRODUCE, code)),
        }
    }
}

/// SETCLIENTID; answers the client id and what confirms it, or the code of the refusal.
async fn ask(
    connection: &Connection,
    owner: &ClientOwner,
    name: &[u8],
    deadline: Instant,
) -> Result<Result<(u64, [u8; 8]), u32>, NfsError> {
    let mut compound = Compound::new(INTRODUCE);
    compound
        .op(op::SETCLIENTID)
        .fixed(&owner.verifier)
        .opaque(name)
        // No program and a null address for callbacks: a server that cannot call back gives no delegations.
        .u32(0)
        .opaque(b"tcp")
        .opaque(b"0.0.0.0.0.0")
        .u32(0);
    let mut reply = establish::bare(connection, 0, &compound, deadline).await?;
    match reply.code() {
        code::OK => {}
        code => return Ok(Err(code)),
    }
    reply.op(op::SETCLIENTID)?;
    reply.take(read_client_id).map(Ok)
}

/// Reads SETCLIENTID's result: the client id, and what confirms it.
pub(super) fn read_client_id(results: &mut Decoder) -> Result<(u64, [u8; 8]), XdrError> {
    Ok((results.u64("client id")?, results.array("confirmation")?))
}

impl Client {
    /// Our client id; a new one if the server is not thought to know any.
    pub(super) async fn client_id(&self, terms: CallOptions) -> Result<u64, NfsError> {
        let began = Instant::now();
        let shared = &self.shared;
        let _wanted = shared.want();
        loop {
            let (_, connection) = shared.ready(INTRODUCE, terms.deadline, Patience::UntilDeadline).await?;
            let Ok(mut known) = timeout_at(terms.deadline, shared.client_id.lock()).await else {
                return Err(NfsError::NotResponding {
                    action: INTRODUCE,
                    after: began.elapsed(),
                    outcome_unknown: false,
                });
            };
            if let Some(id) = *known {
                return Ok(id);
            }
            match set(&connection, &shared.target.owner, terms.deadline).await {
                Ok(id) => {
                    *known = Some(id);
                    return Ok(id);
                }
                // Nothing of ours hangs on it: again on the next connection.
                Err(NfsError::ConnectionLost { .. }) => shared.gone(&connection),
                Err(error) => return Err(error),
            }
        }
    }

    /// The server says that it does not know this client id.
    pub(super) async fn forget_client_id(&self, id: u64) {
        let mut known = self.shared.client_id.lock().await;
        if *known == Some(id) {
            *known = None;
        }
    }
}
