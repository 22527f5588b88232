//! Where MOUNT listens: a port that was given, or what rpcbind says (RFC 1833 section 3, version 2: every server has
//! it, and a port number is all that we want to know).

use std::net::SocketAddr;

use tokio::time::Instant;

use super::call::{ask, senseless};
use super::numbers::{GETPORT, MOUNT_PROGRAM, MOUNT_VERSION};
use crate::rpc::connection::Connection;
use crate::xdr::{Decoder, Encoder};
use crate::{Credential, NfsError, SourcePort, connect};

const ACTION: &str = "asking rpcbind for MOUNT's port";
/// rpcbind's own port.
const PORT: u16 = 111;
/// IPPROTO_TCP.
const TCP: u32 = 6;

/// A connection to an address that is used for a few calls.
pub(super) async fn open(
    peer: SocketAddr,
    source_port: SourcePort,
    action: &'static str,
    deadline: Instant,
) -> Result<Connection, NfsError> {
    let stream = connect::connect_peer(peer, source_port, deadline).await?;
    Connection::new(stream).map_err(|error| NfsError::ConnectionLost {
        action,
        cause: error.to_string(),
        outcome_unknown: false,
    })
}

/// The TCP port of MOUNT version 3 at the server that `server` is an address of.
pub(super) async fn mount_port(server: SocketAddr, deadline: Instant) -> Result<u16, NfsError> {
    let peer = SocketAddr::new(server.ip(), PORT);
    // Anybody may ask; reserved ports are few.
    let connection = open(peer, SourcePort::Any, ACTION, deadline).await?;
    let mut arguments = Encoder::new();
    arguments.u32(MOUNT_PROGRAM).u32(MOUNT_VERSION).u32(TCP).u32(0);
    let mut results = ask(
        &connection,
        ACTION,
        GETPORT,
        Credential::default(),
        &arguments,
        deadline,
    )
    .await?;
    read_port(&mut results)
}

/// Reads GETPORT's result.
pub(super) fn read_port(results: &mut Decoder) -> Result<u16, NfsError> {
    let port = results.u32("port").map_err(|error| senseless(ACTION, &error))?;
    match u16::try_from(port) {
        Ok(0) => Err(NfsError::ProtocolNotSupported {
            asked: "3".to_owned(),
            cause: "rpcbind knows no MOUNT version 3 over TCP".to_owned(),
        }),
        Ok(port) => Ok(port),
        Err(_) => Err(NfsError::Protocol {
            action: ACTION,
            cause: format!("a port with number {port}"),
            outcome_unknown: false,
        }),
    }
}
