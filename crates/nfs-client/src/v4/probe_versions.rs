//! Probes the versions that a server offers, without leaving state on it.

use std::sync::Arc;

use tokio::time::Instant;

use super::call::call_without_session;
use super::compound::Compound;
use super::constants::{code, op};
use crate::auth::Auth;
use crate::rpc::call as rpc;
use crate::rpc::connection::Connection;
use crate::rpc::message::{NFS_PROGRAM, Procedure, RpcReply};
use crate::transport::Transport;
use crate::{Credential, NfsError, OfferedVersions, Target};

const ACTION: &str = "probing NFS versions";

/// NULL of NFSv3 (RFC 1813 section 3.3.0).
const NULL_V3: Procedure = Procedure {
    program: NFS_PROGRAM,
    version: 3,
    number: 0,
};

/// Returns the versions that the server offers at the target's port. Uses a connection of its own.
pub async fn probe_versions(
    target: &Target,
    transport: &dyn Transport,
    deadline: Instant,
) -> Result<OfferedVersions, NfsError> {
    let streams = transport
        .connect(&target.server, target.port, target.source_port, deadline)
        .await?;
    let connection = Connection::new(streams, Auth::sys(&target.machine_name), Arc::default());
    let mut offered = OfferedVersions::default();
    for minor in 0..=2 {
        let mut compound = Compound::new(ACTION);
        compound.op(op::PUTROOTFH);
        let supported = match call_without_session(&connection, minor, &compound, deadline).await {
            // Without a session, 4.1 and 4.2 answer OP_NOT_IN_SESSION: they support the version.
            Ok(reply) => reply.code() != code::MINOR_VERS_MISMATCH,
            Err(NfsError::ProtocolNotSupported { .. }) => false,
            Err(error) => return Err(error),
        };
        match minor {
            0 => offered.v4_0 = supported,
            1 => offered.v4_1 = supported,
            _ => offered.v4_2 = supported,
        }
    }
    let reply = rpc::call_once(&connection, ACTION, NULL_V3, Credential::default(), &[], deadline).await?;
    offered.v3 = matches!(reply, Ok(RpcReply::Success(_)));
    Ok(offered)
}
