//! Calls on connections that are not managed, and the errors of calls.

use tokio::time::{Instant, timeout_at};

use super::connection::Connection;
use super::message::{Procedure, Rejection, RpcReply};
use crate::xdr::XdrError;
use crate::{Credential, NfsError};

/// Sends a call that changes nothing, once, and waits for its reply until `deadline`.
pub async fn call_once(
    connection: &Connection,
    action: &'static str,
    procedure: Procedure,
    credential: Credential,
    arguments: &[u8],
    deadline: Instant,
) -> Result<Result<RpcReply, XdrError>, NfsError> {
    let began = Instant::now();
    let mut pending = connection.submit(procedure, credential, arguments, None);
    match timeout_at(deadline, pending.reply()).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(ended)) => Err(NfsError::ConnectionLost {
            action,
            cause: ended.cause.to_string(),
            outcome_unknown: false,
        }),
        Err(_) => Err(NfsError::NotResponding {
            action,
            after: began.elapsed(),
            outcome_unknown: false,
        }),
    }
}

/// Returns the error for an invalid reply to a call that changes nothing.
pub fn protocol_error(action: &'static str, error: &XdrError) -> NfsError {
    NfsError::Protocol {
        action,
        cause: error.to_string(),
        outcome_unknown: false,
    }
}

/// Returns the error for a call that the server's RPC layer rejected. `major`: the version of NFS.
pub fn rejection_error(connection: &Connection, action: &'static str, major: u32, rejection: &Rejection) -> NfsError {
    let cause = rejection.to_string();
    let reserved_port = connection.has_reserved_port();
    match rejection {
        Rejection::TooWeak if major > 3 || reserved_port => NfsError::SecurityFlavor { action, cause },
        // NFSv3 from a port above 1023: this is the answer of knfsd's `secure` option.
        Rejection::TooWeak | Rejection::AuthError(_) => NfsError::AccessDenied {
            action,
            local: connection.local(),
            reserved_port,
        },
        Rejection::Unavailable(_) => NfsError::ProtocolNotSupported {
            requested: major.to_string(),
            cause,
        },
        Rejection::GarbageArgs | Rejection::SystemError(_) => NfsError::Protocol {
            action,
            cause,
            outcome_unknown: false,
        },
    }
}
