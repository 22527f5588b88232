//! What an NFS error means to an administrator: its reason and its remedy, in one place.

use std::net::SocketAddr;

use nfs_client::{NfsError, Status};

/// What kind of failure an error is: coarse enough for a condition's reason, fine enough for a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The server refuses us.
    AccessDenied,
    /// The archive that a claim asks for is being purged, deleted, or restored to another claim.
    ArchiveBusy,
    /// The archive is held.
    ArchiveHeld,
    /// The archive's directory is not where it should be.
    ArchiveMissing,
    /// The archive that a claim asks for is not for its namespace.
    ArchiveNotAllowed,
    /// The archive that a claim asks for does not exist.
    ArchiveNotFound,
    /// What was looked at is another thing by now.
    ChangedMeanwhile,
    /// The connection broke, and the reply with it.
    ConnectionLost,
    /// Nothing listens at the server's port.
    ConnectionRefused,
    /// No answer to the connection request.
    ConnectionTimedOut,
    /// A copy failed, and is begun anew.
    CopyFailed,
    /// A copy keeps the owners of files, and the operator may not give files away.
    CopyNeedsChown,
    /// What was copied was removed meanwhile.
    CopySourceGone,
    /// The directory is not on the file system of the export's root.
    CrossesFileSystems,
    /// The directory is there and is not ours.
    DirectoryExists,
    /// The volume's directory is nowhere.
    DirectoryMissing,
    /// The directory would overlap another volume, archive or backend.
    DirectoryOverlaps,
    /// The export's path leads to another server.
    ExportMoved,
    /// The export's path is not there.
    ExportNotFound,
    /// Another operator took over.
    Fenced,
    /// The server maps owners by name and does not know the number.
    IdMappingRequired,
    /// The export isn't the one that it was.
    IdentityMismatch,
    /// The identity was not read yet on the present connection.
    IdentityNotConfirmed,
    /// The pattern can't be made into a directory's name.
    InvalidDirectoryName,
    /// What was asked is outside a limit.
    LimitExceeded,
    /// The server did not keep the mode.
    ModeRefused,
    /// The server's name does not resolve.
    NameResolutionFailed,
    /// No inodes left.
    NoInodes,
    /// No space left.
    NoSpace,
    /// The export's path is no directory.
    NotADirectory,
    /// The server did not keep the owner.
    OwnerRefused,
    /// The server speaks none of the versions asked for.
    ProtocolNotSupported,
    /// The server's answers make no sense.
    ProtocolViolation,
    /// The quota is used up.
    QuotaExceeded,
    /// The export is read-only.
    ReadOnly,
    /// The volume's annotations and its path contradict each other, or what is on the export.
    ReclaimUnsafe,
    /// The export has no record of the volume.
    RecordMissing,
    /// A record was not adopted (event).
    RecordNotAdopted,
    /// The volume's record on the export is damaged, another claim's, or in a state that forbids what was asked.
    RecordUnusable,
    /// `.nfs-operator` on the export is not as we made it.
    ReservedDirectoryUnsafe,
    /// The server refuses us, and we had no reserved port.
    ReservedPortRequired,
    /// Something that was asked for needs root, and the server squashes it.
    RootSquashed,
    /// The server wants another security flavour than `sys`.
    SecurityFlavorUnsupported,
    /// The server reports an error of its disks.
    ServerFault,
    /// Connected, and calls are not answered.
    ServerNotResponding,
    /// The server refuses a call for a reason that has no name of its own here.
    ServerRefused,
    /// No route to the server.
    ServerUnreachable,
    /// The server no longer knows the export's root.
    StaleHandle,
    /// The server mounts only whole exports, not directories below.
    SubdirectoryMountRefused,
    /// The export's path leads through a symbolic link.
    SymlinkInPath,
}

/// What was found out beside an NFS error, where the error alone doesn't tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorHints {
    /// Our end of the connection.
    pub local: Option<SocketAddr>,
    /// Whether our port is below 1024; absent when not known.
    pub reserved_port: Option<bool>,
    /// The server counts inodes and has none left.
    pub out_of_inodes: bool,
    /// The server makes somebody else of our credential.
    pub squashed: bool,
}

/// The reason for an NFS error, for conditions and events.
pub fn classify(error: &NfsError, circumstances: &ErrorHints) -> ErrorKind {
    match error {
        NfsError::NameResolution { .. } => ErrorKind::NameResolutionFailed,
        NfsError::ConnectionRefused { .. } => ErrorKind::ConnectionRefused,
        NfsError::ConnectionTimedOut { .. } => ErrorKind::ConnectionTimedOut,
        NfsError::Unreachable { .. } => ErrorKind::ServerUnreachable,
        NfsError::NotResponding { .. } => ErrorKind::ServerNotResponding,
        NfsError::ConnectionLost { .. } => ErrorKind::ConnectionLost,
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
        NfsError::Status { status, .. } => classify_status(*status, circumstances),
        // `NfsError` may get variants in a later version of its crate.
        _ => ErrorKind::ServerRefused,
    }
}

fn classify_status(status: Status, circumstances: &ErrorHints) -> ErrorKind {
    match status {
        // Without a reserved port this is what knfsd's `secure` looks like in NFSv4.
        Status::NotPermitted | Status::Access if circumstances.reserved_port == Some(false) => {
            ErrorKind::ReservedPortRequired
        }
        Status::NotPermitted | Status::Access => ErrorKind::AccessDenied,
        Status::NoSpace if circumstances.out_of_inodes => ErrorKind::NoInodes,
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

/// What an administrator can do about an NFS error.
pub fn remedy_of(error: &NfsError, circumstances: &ErrorHints) -> String {
    let from = match (error, &circumstances.local) {
        (NfsError::AccessDenied { local, .. }, _) | (_, Some(local)) => {
            format!(
                "the server saw us come from {}, or from another address where something between translates (SNAT)",
                local.ip()
            )
        }
        _ => "the server may see us come from another address where something between translates (SNAT)".to_owned(),
    };
    match classify(error, circumstances) {
        ErrorKind::NameResolutionFailed => "correct spec.server, or the DNS that the operator uses".into(),
        ErrorKind::ConnectionRefused => "start the NFS server, or correct spec.server or spec.nfs.port".into(),
        ErrorKind::ConnectionTimedOut | ErrorKind::ServerUnreachable => {
            "check spec.server, the network and its firewalls between the operator and the server".into()
        }
        ErrorKind::ServerNotResponding | ErrorKind::ConnectionLost => {
            "nothing to do if the server is restarting; else look after the server and the network".into()
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
        ErrorKind::ExportNotFound => "make the directory, or export it, or correct spec.path".into(),
        ErrorKind::ExportMoved => "name the server that has the export in spec.server".into(),
        ErrorKind::SymlinkInPath => "name the real path in spec.path".into(),
        ErrorKind::NotADirectory => "put a directory there, or correct spec.path".into(),
        ErrorKind::ReservedPortRequired => format!(
            "let the operator use a port below 1024 (spec.nfs.sourcePort: Reserved and the pod's sysctl \
             net.ipv4.ip_unprivileged_port_start=0), or export with `insecure`; {from}"
        ),
        ErrorKind::AccessDenied if circumstances.squashed => format!(
            "the server makes another user of the operator's: set spec.nfs.credential to who may do this, or export \
             with no_root_squash for the operator's address; {from}"
        ),
        ErrorKind::AccessDenied => format!("let that address have the export read-write; {from}"),
        ErrorKind::ReadOnly => "export it read-write, or mount the server's file system so".into(),
        ErrorKind::NoSpace => "free space, or make the file system larger".into(),
        ErrorKind::NoInodes => "remove files, or give the file system more inodes".into(),
        ErrorKind::QuotaExceeded => "raise the quota of the operator's user, group or project".into(),
        ErrorKind::StaleHandle => {
            "nothing to do if the export was just replaced or restarted; the operator looks it up again".into()
        }
        ErrorKind::ServerFault => "look after the server's disks and its log".into(),
        ErrorKind::IdMappingRequired => "let the server take owners as numbers (numeric id mapping)".into(),
        ErrorKind::InvalidDirectoryName => "choose another, or a shorter, directory pattern".into(),
        ErrorKind::CrossesFileSystems => {
            "keep the directory and the export's root on one file system of the server".into()
        }
        ErrorKind::ChangedMeanwhile => "nothing to do: the operator retries".into(),
        ErrorKind::Fenced => "another operator took the NFS lease of this backend, and this one still holds the Kubernetes \
             Lease: find the other; it runs with another --lease-name or --lease-namespace, or in a copy of this cluster"
            .into(),
        _ => "look into the server's log".into(),
    }
}
