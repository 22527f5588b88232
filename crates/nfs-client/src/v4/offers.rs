//! Which versions a server offers, asked without leaving anything behind on it.

use tokio::time::Instant;

use super::compound::Compound;
use super::establish;
use super::numbers::{code, op};
use crate::rpc::connection::Connection;
use crate::rpc::message::{NFS_PROGRAM, Outcome, Procedure, reply};
use crate::{Credential, NfsError, OfferedVersions, Target, connect};

/// NULL of NFSv3 (RFC 1813 section 3.3.0).
const NULL_V3: Procedure = Procedure {
    program: NFS_PROGRAM,
    version: 3,
    number: 0,
};

/// Asks a server for the versions that it offers at the target's port, on a connection of its own.
pub async fn offered(target: &Target, deadline: Instant) -> Result<OfferedVersions, NfsError> {
    let stream = connect::connect(target, deadline).await?;
    let action = "asking for versions";
    let lost = |cause: String| NfsError::ConnectionLost {
        action,
        cause,
        outcome_unknown: false,
    };
    let connection = Connection::new(stream).map_err(|error| lost(error.to_string()))?;
    let mut offered = OfferedVersions::default();
    for minor in 0..=2 {
        let mut compound = Compound::new(action);
        compound.op(op::PUTROOTFH);
        let answer = establish::bare(&connection, minor, &compound, deadline).await;
        let known = match answer {
            // Without a session 4.1 and 4.2 answer OP_NOT_IN_SESSION: they know the version.
            Ok(reply) => reply.code() != code::MINOR_VERS_MISMATCH,
            Err(NfsError::ProtocolNotSupported { .. }) => false,
            Err(error) => return Err(error),
        };
        match minor {
            0 => offered.v4_0 = known,
            1 => offered.v4_1 = known,
            _ => offered.v4_2 = known,
        }
    }
    let mut ticket = connection.submit(NULL_V3, Credential::default(), &[]);
    let record = match tokio::time::timeout_at(deadline, ticket.reply()).await {
        Ok(Ok(record)) => record,
        Ok(Err(ended)) => return Err(lost(ended.cause.to_string())),
        Err(_) => {
            return Err(NfsError::NotResponding {
                action,
                after: target.deadline,
                outcome_unknown: false,
            });
        }
    };
    offered.v3 = matches!(reply(record), Ok(Outcome::Accepted(_)));
    Ok(offered)
}
