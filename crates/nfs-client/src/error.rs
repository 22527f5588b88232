//! Errors of calls.

use std::net::SocketAddr;
use std::time::Duration;

/// A status other than OK, under its name in NFSv4 (RFC 8881 section 15.1). Those of NFSv3 have the same meaning (RFC 1813
/// section 2.6).
///
/// Complete: a status without a variant is [`Other`](Self::Other).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// NFS4ERR_PERM.
    NotPermitted,
    /// NFS4ERR_NOENT.
    NotFound,
    /// NFS4ERR_IO, NFS4ERR_NXIO.
    Io,
    /// NFS4ERR_ACCESS.
    Access,
    /// NFS4ERR_EXIST.
    Exists,
    /// NFS4ERR_XDEV.
    CrossDevice,
    /// NFS4ERR_NOTDIR.
    NotDirectory,
    /// NFS4ERR_ISDIR.
    IsDirectory,
    /// NFS4ERR_INVAL.
    Invalid,
    /// NFS4ERR_FBIG.
    TooBig,
    /// NFS4ERR_NOSPC: no space or no inodes; the statistics show which.
    NoSpace,
    /// NFS4ERR_ROFS.
    ReadOnly,
    /// NFS4ERR_MLINK.
    TooManyLinks,
    /// NFS4ERR_NAMETOOLONG.
    NameTooLong,
    /// NFS4ERR_NOTEMPTY.
    NotEmpty,
    /// NFS4ERR_DQUOT.
    QuotaExceeded,
    /// NFS4ERR_STALE, NFS4ERR_FHEXPIRED, NFS4ERR_BADHANDLE.
    Stale,
    /// NFS4ERR_NOTSUPP, NFS4ERR_ATTRNOTSUPP, NFS4ERR_OP_ILLEGAL.
    NotSupported,
    /// NFS4ERR_SYMLINK, or NFS4ERR_WRONG_TYPE for a symbolic link.
    Symlink,
    /// NFS4ERR_WRONGSEC.
    WrongSecurity,
    /// NFS4ERR_MOVED.
    Moved,
    /// NFS4ERR_NOT_SAME: the name belongs to another object than the expected one.
    NotSame,
    /// NFS4ERR_DELAY, NFS4ERR_GRACE, repeated until the deadline.
    Delayed,
    /// NFS4ERR_BADOWNER: the server maps names, not numbers.
    BadOwner,
    /// NFS4ERR_BADNAME, NFS4ERR_BADCHAR.
    BadName,
    /// NFS4ERR_FILE_OPEN, NFS4ERR_LOCKED, NFS4ERR_SHARE_DENIED.
    InUse,
    /// Any other, by number.
    Other(u32),
}

impl Status {
    /// Returns the status for a code other than OK that NFSv3 and NFSv4 have in common (RFC 1813 section 2.6, RFC 8881
    /// section 15.1).
    pub(crate) fn from_common_code(code: u32) -> Self {
        match code {
            1 => Self::NotPermitted,
            2 => Self::NotFound,
            5 | 6 => Self::Io,
            13 => Self::Access,
            17 => Self::Exists,
            18 => Self::CrossDevice,
            20 => Self::NotDirectory,
            21 => Self::IsDirectory,
            22 => Self::Invalid,
            27 => Self::TooBig,
            28 => Self::NoSpace,
            30 => Self::ReadOnly,
            31 => Self::TooManyLinks,
            63 => Self::NameTooLong,
            66 => Self::NotEmpty,
            69 => Self::QuotaExceeded,
            // STALE, BADHANDLE.
            70 | 10_001 => Self::Stale,
            10_004 => Self::NotSupported,
            // DELAY, called JUKEBOX in NFSv3.
            10_008 => Self::Delayed,
            other => Self::Other(other),
        }
    }
}

/// Why a call failed.
///
/// The text of an error is stable: it contains nothing that differs from one attempt to the next, such as a local port or
/// a time in milliseconds. A monitor can compare it to detect a change.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NfsError {
    /// The server's name cannot be resolved.
    #[error("cannot resolve the server's name {server:?}: {cause}")]
    NameResolution {
        /// The name.
        server: String,
        /// The resolver's error.
        cause: String,
    },
    /// Nothing listens on the port.
    #[error("{peer} refused the connection")]
    ConnectionRefused {
        /// Address of the server.
        peer: SocketAddr,
    },
    /// The connection was not established in time.
    #[error("no connection to {peer} within {} s", after.as_secs())]
    ConnectionTimedOut {
        /// Address of the server.
        peer: SocketAddr,
        /// Duration of the attempt.
        after: Duration,
    },
    /// There is no route to the server, or the network failed in another way.
    #[error("cannot connect to {peer}: {cause}")]
    Unreachable {
        /// Address of the server.
        peer: SocketAddr,
        /// The operating system's error.
        cause: String,
    },
    /// The server did not answer a call in time.
    #[error("{action}: no answer within {} s", after.as_secs())]
    NotResponding {
        /// What was attempted.
        action: &'static str,
        /// Duration of the call.
        after: Duration,
        /// Whether the call may have been executed: it changes something and was sent.
        outcome_unknown: bool,
    },
    /// The connection or the session was lost before the reply arrived.
    #[error("{action}: the connection was lost: {cause}")]
    ConnectionLost {
        /// What was attempted.
        action: &'static str,
        /// What ended the connection.
        cause: String,
        /// Whether the call may have been executed.
        outcome_unknown: bool,
    },
    /// The server supports none of the requested versions.
    #[error("the server does not support NFS {requested}: {cause}")]
    ProtocolNotSupported {
        /// The requested versions.
        requested: String,
        /// The server's reply.
        cause: String,
    },
    /// The server requires Kerberos or another flavor than AUTH_SYS.
    #[error("{action}: the server does not accept AUTH_SYS (sec=sys): {cause}")]
    SecurityFlavor {
        /// What was attempted.
        action: &'static str,
        /// The server's reply.
        cause: String,
    },
    /// The export's path does not exist.
    #[error("the export has no directory {path:?} (missing: {missing:?})")]
    ExportNotFound {
        /// The export's path.
        path: String,
        /// The component that is missing.
        missing: String,
        /// Address of the client's end of the connection.
        local: SocketAddr,
        /// Whether the client's port is below 1024: a server that requires one may hide the export instead of denying access.
        reserved_port: bool,
    },
    /// The path lies below an export, and the server mounts only the export itself (NFSv3's MOUNT).
    #[error("the server exports {export:?}, and refuses to mount {path:?} below it")]
    SubdirectoryMountRefused {
        /// The requested path.
        path: String,
        /// The export that it lies in.
        export: String,
    },
    /// The export's path leads to another server.
    #[error("{path:?} is a referral to another server")]
    ExportMoved {
        /// The export's path.
        path: String,
    },
    /// The export's path leads through a symbolic link.
    #[error("{component:?} in the export's path {path:?} is a symbolic link")]
    SymlinkInPath {
        /// The export's path.
        path: String,
        /// The component.
        component: String,
    },
    /// A component of the export's path is no directory.
    #[error("{component:?} in the export's path {path:?} is not a directory")]
    NotADirectory {
        /// The export's path.
        path: String,
        /// The component.
        component: String,
    },
    /// The server denies access on the way to the export's root, or to every call.
    #[error("{action}: the server refuses access to {}", local.ip())]
    AccessDenied {
        /// What was attempted.
        action: &'static str,
        /// Address of the client's end of the connection.
        local: SocketAddr,
        /// Whether the client's port is below 1024.
        reserved_port: bool,
    },
    /// Another client with the same owner replaced this one, which can make no further call.
    #[error("{action}: fenced off by another client with the same owner")]
    Fenced {
        /// What was attempted.
        action: &'static str,
    },
    /// The call was not sent, because the only connection that it may be sent on was replaced by a newer one.
    #[error("{action}: the connection is not the one that was checked")]
    Reconnected {
        /// What was attempted.
        action: &'static str,
    },
    /// The server answered with this status.
    #[error("{action}: the server answered {status:?}")]
    Status {
        /// What was attempted.
        action: &'static str,
        /// The status.
        status: Status,
    },
    /// The server's reply violates the protocol.
    #[error("{action}: invalid reply from the server: {cause}")]
    Protocol {
        /// What was attempted.
        action: &'static str,
        /// What is invalid.
        cause: String,
        /// Whether the call may have been executed.
        outcome_unknown: bool,
    },
    /// The request exceeds a limit of the client or the server.
    #[error("{action}: limit exceeded: {limit}")]
    Limit {
        /// What was attempted.
        action: &'static str,
        /// The limit.
        limit: String,
    },
}

impl NfsError {
    /// Whether the call may have been executed although it failed. Only a lookup on the server shows whether it was.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::NotResponding { outcome_unknown, .. }
            | Self::ConnectionLost { outcome_unknown, .. }
            | Self::Protocol { outcome_unknown, .. } => *outcome_unknown,
            _ => false,
        }
    }

    /// Returns the server's status, if that is why the call failed.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the server could not be reached or did not answer. A retry may succeed.
    pub fn is_transport(&self) -> bool {
        matches!(
            self,
            Self::NameResolution { .. }
                | Self::ConnectionRefused { .. }
                | Self::ConnectionTimedOut { .. }
                | Self::Unreachable { .. }
                | Self::NotResponding { .. }
                | Self::ConnectionLost { .. }
                | Self::Reconnected { .. }
        )
    }

    /// Whether the server answered this call, even if with an invalid reply. A retry most likely fails in the same way.
    pub fn is_server_reply(&self) -> bool {
        matches!(self, Self::Status { .. } | Self::Protocol { .. } | Self::Limit { .. })
    }
}

/// Returns the status as a value if that is why a call failed, and any other error as an error.
pub fn split_status<T>(result: Result<T, NfsError>) -> Result<Result<T, Status>, NfsError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(NfsError::Status { status, .. }) => Ok(Err(status)),
        Err(error) => Err(error),
    }
}
