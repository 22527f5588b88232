//! The port of MOUNT: rpcbind version 2 (RFC 1833 section 3), which every server supports. Its GETPORT returns all that is
//! needed.

use std::net::IpAddr;

use tokio::time::Instant;

use super::call::call_once;
use super::client::V3;
use super::constants::{GETPORT, MOUNT_PROGRAM, MOUNT_VERSION};
use crate::connection_manager::ConnectionManager;
use crate::rpc::call::protocol_error;
use crate::xdr::{Decoder, Encoder};
use crate::{Credential, NfsError, SourcePort};

const ACTION: &str = "querying rpcbind for the MOUNT port (GETPORT)";
/// IPPROTO_TCP.
const TCP: u32 = 6;

/// Returns the TCP port of MOUNT version 3 on a server.
pub(super) async fn mount_port(
    manager: &ConnectionManager<V3>,
    server: IpAddr,
    deadline: Instant,
) -> Result<u16, NfsError> {
    // rpcbind accepts calls from any source port, and reserved ports are scarce.
    let connection = manager
        .open(
            &server.to_string(),
            manager.target.rpcbind_port,
            SourcePort::Any,
            deadline,
        )
        .await?;
    let mut arguments = Encoder::new();
    arguments.u32(MOUNT_PROGRAM).u32(MOUNT_VERSION).u32(TCP).u32(0);
    let credential = Credential::default();
    let mut results = call_once(&connection, ACTION, GETPORT, credential, &arguments, deadline).await?;
    decode_port(&mut results)
}

/// Decodes the result of GETPORT.
pub(super) fn decode_port(results: &mut Decoder) -> Result<u16, NfsError> {
    let port = results.u32("port").map_err(|error| protocol_error(ACTION, &error))?;
    match u16::try_from(port) {
        Ok(0) => Err(NfsError::ProtocolNotSupported {
            requested: "3".to_owned(),
            cause: "MOUNT version 3 over TCP is not registered with rpcbind".to_owned(),
        }),
        Ok(port) => Ok(port),
        Err(_) => Err(NfsError::Protocol {
            action: ACTION,
            cause: format!("invalid port {port}"),
            outcome_unknown: false,
        }),
    }
}
