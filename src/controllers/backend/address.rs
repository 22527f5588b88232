//! Where a backend's export is, as the NFS client and the ledger want it. Pure.

use std::time::Duration;

use crate::api::backend::{NfsBackendSpec, NfsVersion, SourcePort};
use crate::api::conditions::{Reason, Verdict};
use crate::export::Place;
use crate::naming::address::{check_server, export_names};
use crate::nfs;

/// What distinguishes one operator's lease on a server from another's.
pub struct Owner<'a> {
    /// The cluster's id.
    pub cluster_id: &'a str,
    /// The backend's uid.
    pub backend_uid: &'a str,
    /// New for each start of the operator.
    pub verifier: [u8; 8],
}

/// The NFS client's target for a backend.
pub fn target(spec: &NfsBackendSpec, owner: &Owner<'_>, deadline: Duration) -> Result<nfs::Target, Verdict> {
    let version = match spec.nfs.version {
        NfsVersion::Auto => nfs::VersionChoice::Auto,
        NfsVersion::V4_2 => nfs::VersionChoice::Exactly(nfs::Protocol::V4_2),
        NfsVersion::V4_1 => nfs::VersionChoice::Exactly(nfs::Protocol::V4_1),
        NfsVersion::V4_0 | NfsVersion::V3 => {
            return Err(Verdict::no(
                Reason::VersionNotImplemented,
                "this release speaks NFS 4.2 and 4.1: set spec.nfs.version to Auto, \"4.2\" or \"4.1\"",
            ));
        }
    };
    let number = |value: i64, field: &str| {
        u32::try_from(value).map_err(|_| {
            Verdict::no(
                Reason::InvalidSpec,
                format!("spec.nfs.credential.{field} is out of range"),
            )
        })
    };
    // The schema says the same; an object that was stored under another one doesn't get round it.
    check_server(&spec.server)
        .and_then(|()| export_names(&spec.path))
        .map_err(|error| Verdict::no(Reason::InvalidSpec, format!("spec.server or spec.path: {error}")))?;
    Ok(nfs::Target {
        server: spec.server.to_string(),
        path: spec.path.to_string(),
        version,
        port: u16::try_from(spec.nfs.port)
            .map_err(|_| Verdict::no(Reason::InvalidSpec, "spec.nfs.port is out of range"))?,
        source_port: match spec.nfs.source_port {
            SourcePort::Reserved => nfs::SourcePort::Reserved,
            SourcePort::Any => nfs::SourcePort::Any,
        },
        credential: nfs::Credential {
            uid: number(spec.nfs.credential.uid, "uid")?,
            gid: number(spec.nfs.credential.gid, "gid")?,
        },
        owner: nfs::ClientOwner {
            owner: format!("nfs-operator/{}/{}", owner.cluster_id, owner.backend_uid).into_bytes(),
            verifier: owner.verifier,
        },
        deadline,
    })
}

/// The places of a backend's root, under its address and its former ones.
pub fn roots(spec: &NfsBackendSpec) -> Vec<Place> {
    let former = spec
        .former_addresses
        .iter()
        .map(|address| (&address.server, &address.path));
    std::iter::once((&spec.server, &spec.path))
        .chain(former)
        .map(|(server, path)| Place::on_server(server, path))
        .collect()
}

/// Whether nodes may be unable to resolve this name, because only the cluster's DNS knows it.
pub fn only_cluster_resolves(server: &str) -> bool {
    let name = server.to_ascii_lowercase();
    name.ends_with(".svc") || name.ends_with(".cluster.local")
}
