//! What can go wrong between us and an NFS server.

use std::net::SocketAddr;
use std::time::Duration;

/// A status other than OK that a layer above may have to tell apart, under its name in NFSv4 (RFC 8881 section 15.1);
/// NFSv3's are the same where there are any (RFC 1813 section 2.6).
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
    /// NFS4ERR_NOSPC; whether space or inodes ran out is told by the statistics.
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
    /// NFS4ERR_SYMLINK, or WRONG_TYPE where a symbolic link was met.
    Symlink,
    /// NFS4ERR_WRONGSEC.
    WrongSecurity,
    /// NFS4ERR_MOVED.
    Moved,
    /// NFS4ERR_NOT_SAME: the name belongs to another object than the one that was meant.
    NotSame,
    /// NFS4ERR_DELAY, NFS4ERR_GRACE, still so at the deadline.
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

/// Why a call on an export failed.
///
/// The text of an error ends up in conditions: it holds nothing that differs from one attempt to the next, such as a
/// local port or a time in milliseconds, or every probe would be news.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NfsError {
    /// The server's name does not resolve.
    #[error("cannot resolve the server's name {server:?}: {cause}")]
    NameResolution {
        /// The name.
        server: String,
        /// The resolver's words.
        cause: String,
    },
    /// Nothing listens at the port.
    #[error("{peer} refused the connection")]
    ConnectionRefused {
        /// Address tried.
        peer: SocketAddr,
    },
    /// No answer to the connection request.
    #[error("no connection to {peer} within {} s", after.as_secs())]
    ConnectionTimedOut {
        /// Address tried.
        peer: SocketAddr,
        /// How long it was waited for.
        after: Duration,
    },
    /// No route, or another failure of the network below the connection.
    #[error("cannot connect to {peer}: {cause}")]
    Unreachable {
        /// Address tried.
        peer: SocketAddr,
        /// The operating system's words.
        cause: String,
    },
    /// Connected, and the call was not answered in time.
    #[error("{action}: no answer within {} s", after.as_secs())]
    NotResponding {
        /// What was asked.
        action: &'static str,
        /// How long it was waited for.
        after: Duration,
        /// Whether the call may have been carried out (it changes something and was sent).
        outcome_unknown: bool,
    },
    /// The connection or the session was lost, and the reply with it.
    #[error("{action}: the connection was lost: {cause}")]
    ConnectionLost {
        /// What was asked.
        action: &'static str,
        /// What ended the connection.
        cause: String,
        /// Whether the call may have been carried out.
        outcome_unknown: bool,
    },
    /// The server speaks none of the versions asked for.
    #[error("the server does not speak NFS {asked}: {cause}")]
    ProtocolNotSupported {
        /// The versions tried.
        asked: String,
        /// What the server said.
        cause: String,
    },
    /// The server wants Kerberos or another flavour than AUTH_SYS.
    #[error("{action}: the server does not take AUTH_SYS (sec=sys): {cause}")]
    SecurityFlavor {
        /// What was asked.
        action: &'static str,
        /// What the server said.
        cause: String,
    },
    /// The export's path does not exist.
    #[error("the export has no directory {path:?} (missing: {missing:?})")]
    ExportNotFound {
        /// The export's path.
        path: String,
        /// The component that is missing.
        missing: String,
        /// Our end of the connection.
        local: SocketAddr,
        /// Whether our port is reserved: a server that insists on that may hide the export instead of saying so.
        reserved_port: bool,
    },
    /// The export's path lies inside an export, and the server mounts only the export itself (NFSv3's MOUNT).
    #[error("the server exports {export:?}, and refuses to mount {path:?} below it")]
    SubdirectoryMountRefused {
        /// The path that was asked for.
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
    /// The server refuses us on the way to the export's root, or for any call at all.
    #[error("{action}: the server refuses access to {}", local.ip())]
    AccessDenied {
        /// What was asked.
        action: &'static str,
        /// Our end of the connection.
        local: SocketAddr,
        /// Whether our port is reserved.
        reserved_port: bool,
    },
    /// Another client took over our lease owner: a new leader, and we must stop.
    #[error("{action}: fenced off by another client with the same owner")]
    Fenced {
        /// What was asked.
        action: &'static str,
    },
    /// The server answered the call with this status.
    #[error("{action}: the server answered {status:?}")]
    Status {
        /// What was asked.
        action: &'static str,
        /// The server's answer.
        status: Status,
    },
    /// The server's bytes make no sense.
    #[error("{action}: the server's answer makes no sense: {cause}")]
    Protocol {
        /// What was asked.
        action: &'static str,
        /// What was found.
        cause: String,
        /// Whether the call may have been carried out.
        outcome_unknown: bool,
    },
    /// What was asked is over a limit of ours or of the server's.
    #[error("{action}: over a limit: {limit}")]
    Limit {
        /// What was asked.
        action: &'static str,
        /// Which.
        limit: String,
    },
}

impl NfsError {
    /// Whether the call may have been carried out although it failed here: only looking tells.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::NotResponding { outcome_unknown, .. }
            | Self::ConnectionLost { outcome_unknown, .. }
            | Self::Protocol { outcome_unknown, .. } => *outcome_unknown,
            _ => false,
        }
    }

    /// The server's status, when that is what failed the call.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the way to the server failed, or it was silent: waiting may cure that.
    pub fn is_transport(&self) -> bool {
        matches!(
            self,
            Self::NameResolution { .. }
                | Self::ConnectionRefused { .. }
                | Self::ConnectionTimedOut { .. }
                | Self::Unreachable { .. }
                | Self::NotResponding { .. }
                | Self::ConnectionLost { .. }
        )
    }

    /// Whether the server said something, if only nonsense: asked again, it would say the same.
    pub fn is_server_reply(&self) -> bool {
        matches!(self, Self::Status { .. } | Self::Protocol { .. } | Self::Limit { .. })
    }
}

/// The status as a value when that is what failed a call, any other error as an error.
pub fn refusal<T>(result: Result<T, NfsError>) -> Result<Result<T, Status>, NfsError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(NfsError::Status { status, .. }) => Ok(Err(status)),
        Err(error) => Err(error),
    }
}
