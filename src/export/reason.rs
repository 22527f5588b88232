//! What an NFS error means to an administrator: its reason and its remedy, in one place.

use std::net::SocketAddr;

use crate::api::Reason;
use crate::nfs::{NfsError, Status};

/// What was found out beside an NFS error, where the error alone doesn't tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Circumstances {
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
pub fn reason_of(error: &NfsError, circumstances: &Circumstances) -> Reason {
    match error {
        NfsError::NameResolution { .. } => Reason::NameResolutionFailed,
        NfsError::ConnectionRefused { .. } => Reason::ConnectionRefused,
        NfsError::ConnectionTimedOut { .. } => Reason::ConnectionTimedOut,
        NfsError::Unreachable { .. } => Reason::ServerUnreachable,
        NfsError::NotResponding { .. } => Reason::ServerNotResponding,
        NfsError::ConnectionLost { .. } => Reason::ConnectionLost,
        NfsError::ProtocolNotSupported { .. } => Reason::ProtocolNotSupported,
        NfsError::SecurityFlavor { .. } => Reason::SecurityFlavorUnsupported,
        NfsError::ExportNotFound { .. } => Reason::ExportNotFound,
        NfsError::SubdirectoryMountRefused { .. } => Reason::SubdirectoryMountRefused,
        NfsError::ExportMoved { .. } => Reason::ExportMoved,
        NfsError::SymlinkInPath { .. } => Reason::SymlinkInPath,
        NfsError::NotADirectory { .. } => Reason::NotADirectory,
        NfsError::AccessDenied { reserved_port, .. } if !reserved_port => Reason::ReservedPortRequired,
        NfsError::AccessDenied { .. } => Reason::AccessDenied,
        NfsError::Fenced { .. } => Reason::Fenced,
        NfsError::Protocol { .. } => Reason::ProtocolViolation,
        NfsError::Limit { .. } => Reason::LimitExceeded,
        NfsError::Status { status, .. } => reason_of_status(*status, circumstances),
    }
}

fn reason_of_status(status: Status, circumstances: &Circumstances) -> Reason {
    match status {
        // Without a reserved port this is what knfsd's `secure` looks like in NFSv4.
        Status::NotPermitted | Status::Access if circumstances.reserved_port == Some(false) => {
            Reason::ReservedPortRequired
        }
        Status::NotPermitted | Status::Access => Reason::AccessDenied,
        Status::NoSpace if circumstances.out_of_inodes => Reason::NoInodes,
        Status::NoSpace => Reason::NoSpace,
        Status::QuotaExceeded => Reason::QuotaExceeded,
        Status::ReadOnly => Reason::ReadOnly,
        Status::Stale => Reason::StaleHandle,
        Status::Io => Reason::ServerFault,
        Status::NotSupported => Reason::ProtocolNotSupported,
        Status::Symlink => Reason::SymlinkInPath,
        Status::NotDirectory => Reason::NotADirectory,
        Status::WrongSecurity => Reason::SecurityFlavorUnsupported,
        Status::Moved => Reason::ExportMoved,
        Status::Delayed => Reason::ServerNotResponding,
        Status::BadOwner => Reason::IdMappingRequired,
        Status::BadName | Status::NameTooLong => Reason::InvalidDirectoryName,
        Status::TooBig | Status::TooManyLinks => Reason::LimitExceeded,
        Status::CrossDevice => Reason::CrossesFileSystems,
        Status::NotFound | Status::Exists | Status::IsDirectory | Status::NotEmpty | Status::NotSame => {
            Reason::ChangedMeanwhile
        }
        Status::InUse | Status::Invalid | Status::Other(_) => Reason::ServerRefused,
    }
}

/// What an administrator can do about an NFS error.
pub fn remedy_of(error: &NfsError, circumstances: &Circumstances) -> String {
    let from = match (error, &circumstances.local) {
        (NfsError::AccessDenied { local, .. }, _) | (_, Some(local)) => {
            format!(
                "the server saw us come from {}, or from another address where something between translates (SNAT)",
                local.ip()
            )
        }
        _ => "the server may see us come from another address where something between translates (SNAT)".to_owned(),
    };
    match reason_of(error, circumstances) {
        Reason::NameResolutionFailed => "correct spec.server, or the DNS that the operator uses".into(),
        Reason::ConnectionRefused => "start the NFS server, or correct spec.server or spec.nfs.port".into(),
        Reason::ConnectionTimedOut | Reason::ServerUnreachable => {
            "check spec.server, the network and its firewalls between the operator and the server".into()
        }
        Reason::ServerNotResponding | Reason::ConnectionLost => {
            "nothing to do if the server is restarting; else look after the server and the network".into()
        }
        Reason::ProtocolNotSupported => {
            "correct spec.nfs.version (spec.nfs.mountPort, where rpcbind doesn't know it), or enable that version on the \
             server"
                .into()
        }
        Reason::SubdirectoryMountRefused => {
            "let the server mount directories below its exports, as nodes mount volumes (`-alldirs` on FreeBSD and \
             TrueNAS CORE), or use NFSv4"
                .into()
        }
        Reason::SecurityFlavorUnsupported => "allow sec=sys for the operator's address on the server".into(),
        Reason::ExportNotFound => "make the directory, or export it, or correct spec.path".into(),
        Reason::ExportMoved => "name the server that has the export in spec.server".into(),
        Reason::SymlinkInPath => "name the real path in spec.path".into(),
        Reason::NotADirectory => "put a directory there, or correct spec.path".into(),
        Reason::ReservedPortRequired => format!(
            "let the operator use a port below 1024 (spec.nfs.sourcePort: Reserved and the pod's sysctl \
             net.ipv4.ip_unprivileged_port_start=0), or export with `insecure`; {from}"
        ),
        Reason::AccessDenied if circumstances.squashed => format!(
            "the server makes another user of the operator's: set spec.nfs.credential to who may do this, or export \
             with no_root_squash for the operator's address; {from}"
        ),
        Reason::AccessDenied => format!("let that address have the export read-write; {from}"),
        Reason::ReadOnly => "export it read-write, or mount the server's file system so".into(),
        Reason::NoSpace => "free space, or make the file system larger".into(),
        Reason::NoInodes => "remove files, or give the file system more inodes".into(),
        Reason::QuotaExceeded => "raise the quota of the operator's user, group or project".into(),
        Reason::StaleHandle => {
            "nothing to do if the export was just replaced or restarted; it is looked up anew".into()
        }
        Reason::ServerFault => "look after the server's disks and its log".into(),
        Reason::IdMappingRequired => "let the server take owners as numbers (numeric id mapping)".into(),
        Reason::InvalidDirectoryName => "choose another, or a shorter, directory pattern".into(),
        Reason::CrossesFileSystems => {
            "keep the directory and the export's root on one file system of the server".into()
        }
        Reason::ChangedMeanwhile => "nothing to do: it is looked at again".into(),
        Reason::Fenced => "another operator took the NFS lease of this backend, and this one still holds the Kubernetes \
             Lease: find the other; it runs with another --lease-name or --lease-namespace, or in a copy of this cluster"
            .into(),
        _ => "look into the server's log".into(),
    }
}
