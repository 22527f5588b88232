//! The client ID of NFSv4.0 (RFC 7530 sections 9.1.1, 16.33 and 16.34), which only file creation needs. It is requested
//! when the client connects, and again when the server no longer has it (after a restart, or a lease time without an open
//! file): the OPEN that failed is then sent again with the new client ID.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::attributes::DecodedAttributes;
use super::call::{call_without_session, status_error};
use super::client::Client;
use super::compound::Compound;
use super::constants::{attribute, code, op};
use crate::call_options::CallOptions;
use crate::connection_manager::RetryPolicy;
use crate::rpc::connection::Connection;
use crate::xdr::{Decoder, XdrError};
use crate::{ClientOwner, NfsError};

const SETCLIENTID: &str = "registering the client (SETCLIENTID)";

/// How often SETCLIENTID is repeated because the server dropped the client before SETCLIENTID_CONFIRM.
const MAX_RESTARTS: usize = 3;

/// Maximum READ and WRITE size of a server that does not report its own, in bytes: every server supports this.
const ASSUMED_SIZE: u64 = 32 << 10;

/// Maximum READ and WRITE size used, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Room for the parts of a request or reply other than data, in bytes.
const HEADERS: usize = 4 << 10;

/// Limits of a server without sessions.
pub(super) struct ServerLimits {
    pub lease: Option<Duration>,
    /// Maximum request and reply size, in bytes.
    pub sizes: (usize, usize),
}

/// Reads the server's limits in NFSv4.0; `None` if it does not support that version.
pub(super) async fn fetch_limits(connection: &Connection, deadline: Instant) -> Result<Option<ServerLimits>, NfsError> {
    let mut compound = Compound::new("reading the server's limits");
    compound.op(op::PUTROOTFH);
    compound.attributes(&[attribute::LEASE_TIME, attribute::MAXREAD, attribute::MAXWRITE]);
    let mut reply = call_without_session(connection, 0, &compound, deadline).await?;
    if reply.code() == code::MINOR_VERS_MISMATCH {
        return Ok(None);
    }
    let found = match reply.op(op::PUTROOTFH).and_then(|()| reply.attributes()) {
        Ok(found) => found,
        // An unreadable root is no reason to fail here: the walk along the export's path reports it better.
        Err(NfsError::Status { .. }) => DecodedAttributes::default(),
        Err(error) => return Err(error),
    };
    let size = |reported: Option<u64>| {
        let bytes = reported
            .filter(|bytes| *bytes > 0)
            .unwrap_or(ASSUMED_SIZE)
            .min(MAX_SIZE);
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(HEADERS)
    };
    Ok(Some(ServerLimits {
        lease: found.lease(),
        sizes: (size(found.max_write), size(found.max_read)),
    }))
}

/// Sends SETCLIENTID and SETCLIENTID_CONFIRM; returns the client ID.
pub(super) async fn set(connection: &Connection, owner: &ClientOwner, deadline: Instant) -> Result<u64, NfsError> {
    let mut name = owner.owner.clone();
    let mut restarts = 0..MAX_RESTARTS;
    loop {
        let (id, confirm) = match set_unconfirmed(connection, owner, &name, deadline).await? {
            Ok(unconfirmed) => unconfirmed,
            // Another principal holds the owner name, for example after a change of the server's squashing. It expires
            // with its lease; until then, use another name.
            Err(code::CLID_INUSE) if name == owner.owner => {
                name.extend(rand::random::<[u8; 8]>());
                continue;
            }
            Err(code) => return Err(status_error(SETCLIENTID, code)),
        };
        let mut compound = Compound::new(SETCLIENTID);
        compound.op(op::SETCLIENTID_CONFIRM).u64(id).fixed(&confirm);
        let reply = call_without_session(connection, 0, &compound, deadline).await?;
        match reply.code() {
            code::OK => return Ok(id),
            code::STALE_CLIENTID if restarts.next().is_some() => {}
            code => return Err(status_error(SETCLIENTID, code)),
        }
    }
}

/// Sends SETCLIENTID; returns the client ID and its confirmation verifier, or the status of the refusal.
async fn set_unconfirmed(
    connection: &Connection,
    owner: &ClientOwner,
    name: &[u8],
    deadline: Instant,
) -> Result<Result<(u64, [u8; 8]), u32>, NfsError> {
    let mut compound = Compound::new(SETCLIENTID);
    compound
        .op(op::SETCLIENTID)
        .fixed(&owner.verifier)
        .opaque(name)
        // No program and a null address for callbacks: a server that cannot call back grants no delegations.
        .u32(0)
        .opaque(b"tcp")
        .opaque(b"0.0.0.0.0.0")
        .u32(0);
    let mut reply = call_without_session(connection, 0, &compound, deadline).await?;
    match reply.code() {
        code::OK => {}
        code => return Ok(Err(code)),
    }
    reply.op(op::SETCLIENTID)?;
    reply.take(decode_client_id).map(Ok)
}

/// Decodes the result of SETCLIENTID: the client ID and its confirmation verifier.
pub(super) fn decode_client_id(results: &mut Decoder) -> Result<(u64, [u8; 8]), XdrError> {
    Ok((results.u64("client id")?, results.array("confirmation")?))
}

impl Client {
    /// Returns the client ID; requests another if none is known to be valid.
    pub(super) async fn client_id(&self, options: CallOptions) -> Result<u64, NfsError> {
        let began = Instant::now();
        let manager = &self.manager;
        let _demand = manager.demand();
        loop {
            let (_, connection) = manager
                .ready(SETCLIENTID, options.deadline, RetryPolicy::UntilDeadline)
                .await?;
            let Ok(mut current) = timeout_at(options.deadline, manager.version.client_id.lock()).await else {
                return Err(NfsError::NotResponding {
                    action: SETCLIENTID,
                    after: began.elapsed(),
                    outcome_unknown: false,
                });
            };
            if let Some(id) = *current {
                return Ok(id);
            }
            match set(&connection, &manager.target.owner, options.deadline).await {
                Ok(id) => {
                    *current = Some(id);
                    return Ok(id);
                }
                // Nothing depends on it yet: try again on the next connection.
                Err(NfsError::ConnectionLost { .. }) => manager.drop_connection(&connection),
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops a client ID that the server no longer has.
    pub(super) async fn invalidate_client_id(&self, id: u64) {
        let mut current = self.manager.version.client_id.lock().await;
        if *current == Some(id) {
            *current = None;
        }
    }
}
