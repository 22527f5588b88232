//! Classification of NFS errors for administrators: reason and remedy.

use std::fmt;
use std::net::SocketAddr;

use nfs_client::{Attributes, NfsError, Status};

/// Kind of a failure: coarse enough for a condition's reason, fine enough for a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The server refuses access.
    AccessDenied,
    /// The archive that a claim requests is being purged, deleted, or restored to another claim.
    ArchiveBusy,
    /// The archive is on legal hold.
    ArchiveHeld,
    /// The archive's directory does not exist under its name.
    ArchiveMissing,
    /// The archive that a claim requests does not exist, or is not for its namespace.
    ArchiveNotFound,
    /// The beacon is not the one that this cluster wrote.
    BeaconMismatch,
    /// The beacon is unknown, and its writer may still run.
    BeaconObserved,
    /// The directory changed during the operation.
    ChangedMeanwhile,
    /// The connection was lost before the reply.
    ConnectionLost,
    /// No process listens on the server's port.
    ConnectionRefused,
    /// The connection request timed out.
    ConnectionTimedOut,
    /// A copy failed and is restarted.
    CopyFailed,
    /// A copy preserves the owners of files, and the operator cannot change the owners of files.
    CopyNeedsChown,
    /// The source of a copy was removed meanwhile.
    CopySourceGone,
    /// The source of a copy has more content than the claim requests.
    CopyTooLarge,
    /// The directory is not on the file system of the export's root.
    CrossesFileSystems,
    /// The directory exists and does not belong to the operator.
    DirectoryExists,
    /// The volume's directory is missing.
    DirectoryMissing,
    /// The directory exists, and adopting it could expose the data of another namespace.
    DirectoryNotAdoptable,
    /// The directory is to be shared, and that could expose the data of another namespace.
    DirectoryNotShareable,
    /// The directory would overlap another volume, archive or backend.
    DirectoryOverlaps,
    /// The export's path leads to another server.
    ExportMoved,
    /// The export's path does not exist.
    ExportNotFound,
    /// Another operator process took over.
    Fenced,
    /// Each group of the backend's range is in use.
    GroupsExhausted,
    /// The server maps owners by name and does not know the number.
    IdMappingRequired,
    /// The export has another identity than the expected one.
    IdentityMismatch,
    /// The identity has not been read yet on the current connection.
    IdentityNotConfirmed,
    /// The pattern does not result in a valid directory name.
    InvalidDirectoryName,
    /// A limit is exceeded.
    LimitExceeded,
    /// The server did not set the requested mode.
    ModeRefused,
    /// The server's name does not resolve.
    NameResolutionFailed,
    /// No inodes left.
    NoInodes,
    /// No space left.
    NoSpace,
    /// The export's path is not a directory.
    NotADirectory,
    /// The server did not set the requested owner.
    OwnerRefused,
    /// The server supports none of the requested versions.
    ProtocolNotSupported,
    /// The server's replies are invalid.
    ProtocolViolation,
    /// The quota is exceeded.
    QuotaExceeded,
    /// The export is read-only.
    ReadOnly,
    /// The volume's annotations and path do not match each other or the export.
    ReclaimUnsafe,
    /// The export has no record of the volume.
    RecordMissing,
    /// A record was not adopted (event).
    RecordNotAdopted,
    /// The volume's record on the export is damaged, belongs to another claim, or has a state that does not allow the
    /// operation.
    RecordUnusable,
    /// `.nfs-operator` on the export is not as the operator created it.
    ReservedDirectoryUnsafe,
    /// The server refuses access, and the client's port was not a reserved one.
    ReservedPortRequired,
    /// The request needs root, and the server squashes root.
    RootSquashed,
    /// The server requires another security flavor than `sys`.
    SecurityFlavorUnsupported,
    /// The server reports a disk error.
    ServerFault,
    /// The connection exists, but the server does not answer calls.
    ServerNotResponding,
    /// The server refuses a call for a reason without a kind of its own.
    ServerRefused,
    /// No route to the server.
    ServerUnreachable,
    /// The server no longer knows the export's root.
    StaleHandle,
    /// The directory that volumes are to share does not exist.
    SharedDirectoryMissing,
    /// The server has no snapshot that can be copied.
    SnapshotUnavailable,
    /// The server allows mounts of whole exports only, not of directories below them.
    SubdirectoryMountRefused,
    /// The export's path leads through a symbolic link.
    SymlinkInPath,
}

/// Additional information about the cause of an NFS error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorHints {
    /// Local address of the connection.
    pub local: Option<SocketAddr>,
    /// The local port is below 1024; unset if unknown.
    pub reserved_port: Option<bool>,
    /// The server reports an inode count, and no inodes are free.
    pub out_of_inodes: bool,
    /// The server maps the operator's user to another one.
    pub squashed: bool,
    /// Who may write to the root of the export, if it could be read although the operation was refused.
    pub root: Option<RootPermissions>,
}

/// Permissions of the root of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootPermissions {
    /// Permission bits.
    pub mode: u32,
    /// Owner; absent if the server reports a name that is no number.
    pub uid: Option<u32>,
    /// Group; absent as for `uid`.
    pub gid: Option<u32>,
}

impl From<&Attributes> for RootPermissions {
    fn from(root: &Attributes) -> Self {
        Self {
            mode: root.mode,
            uid: root.uid,
            gid: root.gid,
        }
    }
}

impl fmt::Display for RootPermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |id: Option<u32>| id.map_or_else(|| "?".to_owned(), |id| id.to_string());
        let Self { mode, uid, gid } = *self;
        write!(f, "mode {mode:04o} and belongs to {}:{}", text(uid), text(gid))
    }
}

/// Returns the reason for an NFS error, for conditions and events.
pub fn classify(error: &NfsError, hints: &ErrorHints) -> ErrorKind {
    match error {
        NfsError::NameResolution { .. } => ErrorKind::NameResolutionFailed,
        NfsError::ConnectionRefused { .. } => ErrorKind::ConnectionRefused,
        NfsError::ConnectionTimedOut { .. } => ErrorKind::ConnectionTimedOut,
        NfsError::Unreachable { .. } => ErrorKind::ServerUnreachable,
        NfsError::NotResponding { .. } => ErrorKind::ServerNotResponding,
        NfsError::ConnectionLost { .. } => ErrorKind::ConnectionLost,
        NfsError::Reconnected { .. } => ErrorKind::IdentityNotConfirmed,
        NfsError::ProtocolNotSupported { .. } => ErrorKind::ProtocolNotSupported,
        NfsError::SecurityFlavor { .. } => ErrorKind::SecurityFlavorUnsupported,
        NfsError::ExportNotFound { .. } => ErrorKind::ExportNotFound,
        NfsError::SubdirectoryMountRefused { .. } => ErrorKind::SubdirectoryMountRefused,
        NfsError::ExportMoved { .. } => ErrorKind::ExportMoved,
        NfsError::SymlinkInPath { .. } => ErrorKind::SymlinkInPath,
        NfsError::NotADirectory { .. } => ErrorKind::NotADirectory,
        NfsError::AccessDenied { reserved_port, .. } if !reserved_port => ErrorKind::ReservedPortRequired,
        NfsError::AccessDenied { .. } => ErrorKind::AccessDenied,
        NfsError::Fenced { .. } => ErrorKind::Fenced,
        NfsError::Protocol { .. } => ErrorKind::ProtocolViolation,
        NfsError::Limit { .. } => ErrorKind::LimitExceeded,
        NfsError::Status { status, .. } => classify_status(*status, hints),
        // A later version of the client may add variants.
        _ => ErrorKind::ServerRefused,
    }
}

fn classify_status(status: Status, hints: &ErrorHints) -> ErrorKind {
    match status {
        // Without a reserved port, this is the error of knfsd's `secure` option in NFSv4.
        Status::NotPermitted | Status::Access if hints.reserved_port == Some(false) => ErrorKind::ReservedPortRequired,
        Status::NotPermitted | Status::Access => ErrorKind::AccessDenied,
        Status::NoSpace if hints.out_of_inodes => ErrorKind::NoInodes,
        Status::NoSpace => ErrorKind::NoSpace,
        Status::QuotaExceeded => ErrorKind::QuotaExceeded,
        Status::ReadOnly => ErrorKind::ReadOnly,
        Status::Stale => ErrorKind::StaleHandle,
        Status::Io => ErrorKind::ServerFault,
        Status::NotSupported => ErrorKind::ProtocolNotSupported,
        Status::Symlink => ErrorKind::SymlinkInPath,
        Status::NotDirectory => ErrorKind::NotADirectory,
        Status::WrongSecurity => ErrorKind::SecurityFlavorUnsupported,
        Status::Moved => ErrorKind::ExportMoved,
        Status::Delayed => ErrorKind::ServerNotResponding,
        Status::BadOwner => ErrorKind::IdMappingRequired,
        Status::BadName | Status::NameTooLong => ErrorKind::InvalidDirectoryName,
        Status::TooBig | Status::TooManyLinks => ErrorKind::LimitExceeded,
        Status::CrossDevice => ErrorKind::CrossesFileSystems,
        Status::NotFound | Status::Exists | Status::IsDirectory | Status::NotEmpty | Status::NotSame => {
            ErrorKind::ChangedMeanwhile
        }
        Status::InUse | Status::Invalid | Status::Other(_) => ErrorKind::ServerRefused,
    }
}

/// Returns what an administrator can do about an NFS error.
pub fn remedy_of(error: &NfsError, hints: &ErrorHints) -> String {
    let from = match (error, &hints.local) {
        (NfsError::AccessDenied { local, .. }, _) | (_, Some(local)) => {
            format!(
                "the server sees connections from {}, or from another address (SNAT)",
                local.ip()
            )
        }
        _ => "the server may see another source address (SNAT)".to_owned(),
    };
    match classify(error, hints) {
        ErrorKind::NameResolutionFailed => "correct spec.server, or the DNS that the operator uses".into(),
        ErrorKind::ConnectionRefused => "start the NFS server, or correct spec.server or spec.nfs.port".into(),
        ErrorKind::ConnectionTimedOut | ErrorKind::ServerUnreachable => {
            "check spec.server, the network and its firewalls between the operator and the server".into()
        }
        ErrorKind::ServerNotResponding | ErrorKind::ConnectionLost => {
            "nothing to do if the server is restarting; otherwise check the server and the network".into()
        }
        ErrorKind::ProtocolNotSupported => {
            "correct spec.nfs.version (spec.nfs.mountPort, where rpcbind doesn't know it), or enable that version on the \
             server"
                .into()
        }
        ErrorKind::SubdirectoryMountRefused => {
            "let the server mount directories below its exports, as nodes mount volumes (`-alldirs` on FreeBSD and \
             TrueNAS CORE), or use NFSv4"
                .into()
        }
        ErrorKind::SecurityFlavorUnsupported => "allow sec=sys for the operator's address on the server".into(),
        ErrorKind::ExportNotFound => "create the directory, export it, or correct spec.path".into(),
        ErrorKind::ExportMoved => "set spec.server to the server that hosts the export".into(),
        ErrorKind::SymlinkInPath => "set spec.path to the path without symbolic links".into(),
        ErrorKind::NotADirectory => "create a directory there, or correct spec.path".into(),
        ErrorKind::ReservedPortRequired => format!(
            "let the operator use a port below 1024 (spec.nfs.sourcePort: Reserved and the pod's sysctl \
             net.ipv4.ip_unprivileged_port_start=0), or export with `insecure`; {from}"
        ),
        ErrorKind::AccessDenied => {
            let squashed = hints.squashed.then_some("the server maps the operator's user to another one".to_owned());
            let root = hints.root.as_ref().map(|root| format!("the export's directory has {root}"));
            let found: Vec<String> = squashed.into_iter().chain(root).collect();
            match found.is_empty() {
                true => format!("export it read-write to that address; {from}"),
                false => format!(
                    "{}: set spec.nfs.auth.sys to a user who may write there, or export with no_root_squash for the \
                     operator's address; {from}",
                    found.join(", and ")
                ),
            }
        }
        ErrorKind::ReadOnly => "export it read-write, or mount the server's file system read-write".into(),
        ErrorKind::NoSpace => "free space, or make the file system larger".into(),
        ErrorKind::NoInodes => "remove files, or give the file system more inodes".into(),
        ErrorKind::QuotaExceeded => "raise the quota of the operator's user, group or project".into(),
        ErrorKind::StaleHandle => {
            "nothing to do if the export was just replaced or restarted; the operator retries".into()
        }
        ErrorKind::ServerFault => "check the server's disks and log".into(),
        ErrorKind::IdMappingRequired => "enable numeric owners on the server (nfs-ganesha: Only_Numeric_Owners = true; \
                                         Linux: nfs4_disable_idmapping=Y)"
            .into(),
        ErrorKind::InvalidDirectoryName => "choose another, or a shorter, directory pattern".into(),
        ErrorKind::CrossesFileSystems => {
            "keep the directory and the export's root on one file system of the server".into()
        }
        ErrorKind::ChangedMeanwhile => "nothing to do: the operator retries".into(),
        ErrorKind::Fenced => "another operator took the NFS lease of this backend, and this one still holds the Kubernetes \
             Lease: find the other operator, which uses another --cluster-lock-namespace or runs in a copy of this cluster"
            .into(),
        _ => "check the server's log".into(),
    }
}
