//! The address of a backend's export, for the NFS client and for path reservations. Pure.

use std::time::Duration;

use crate::api::backend::{NfsBackendSpec, NfsVersion, SourcePort};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{GROUP, NFS_CLIENT_NAME};
use export_store::ReservedPath;
use export_store::naming::{ExportPathError, check_export_path};
use nfs_client::address::check_server;
use nfs_client::{self, Protocol, VersionChoice};

/// Values that distinguish the lease of one operator on a server from the lease of another.
pub struct LeaseOwner<'a> {
    /// The cluster ID.
    pub cluster_id: &'a str,
    /// The backend's UID.
    pub backend_uid: &'a str,
    /// New for each start of the operator.
    pub verifier: [u8; 8],
}

/// The state of a backend that restricts the choice of the NFS version.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObservedState<'a> {
    /// `status.nfsVersion`: the last version that worked.
    pub version: Option<&'a str>,
    /// True if the backend has volumes.
    pub has_volumes: bool,
}

/// Returns the versions to try. The paths and mount options of volumes depend on the major version, so that a backend with
/// volumes keeps it until an administrator pins another.
fn version(requested: NfsVersion, observed: &ObservedState<'_>) -> VersionChoice {
    let worked = observed.version.filter(|_| observed.has_volumes);
    match (requested, worked) {
        (NfsVersion::Auto, None) => VersionChoice::Auto,
        (NfsVersion::Auto, Some("3")) | (NfsVersion::V3, _) => VersionChoice::Exactly(Protocol::V3),
        (NfsVersion::Auto, Some(_)) => VersionChoice::Newest4,
        (NfsVersion::V4_2, _) => VersionChoice::Exactly(Protocol::V4_2),
        (NfsVersion::V4_1, _) => VersionChoice::Exactly(Protocol::V4_1),
        (NfsVersion::V4_0, _) => VersionChoice::Exactly(Protocol::V4_0),
    }
}

/// Reports whether a connection to `current` that negotiated `protocol` is valid for `wanted` too. The first volume of a
/// backend restricts the choice of versions and must not cause a reconnection.
pub fn is_compatible(current: &nfs_client::Target, protocol: Protocol, wanted: &nfs_client::Target) -> bool {
    let chosen = matches!(current.version, VersionChoice::Auto | VersionChoice::Newest4);
    let allowed = match wanted.version {
        VersionChoice::Auto => true,
        VersionChoice::Newest4 => protocol != Protocol::V3,
        VersionChoice::Exactly(version) => version == Protocol::V3 && protocol == Protocol::V3,
    };
    let otherwise_same = || {
        let version = wanted.version;
        nfs_client::Target {
            version,
            ..current.clone()
        } == *wanted
    };
    current == wanted || (chosen && allowed && otherwise_same())
}

fn port(number: i32, field: &str) -> Result<u16, PlannedCondition> {
    u16::try_from(number)
        .map_err(|_| PlannedCondition::fails(Reason::InvalidSpec, format!("spec.nfs.{field} is out of range")))
}

/// Returns the NFS client's target for a backend.
pub fn target(
    spec: &NfsBackendSpec,
    observed: &ObservedState<'_>,
    owner: &LeaseOwner<'_>,
    deadline: Duration,
) -> Result<nfs_client::Target, PlannedCondition> {
    let version = version(spec.nfs.version, observed);
    let number = |value: i64, field: &str| {
        u32::try_from(value).map_err(|_| {
            PlannedCondition::fails(
                Reason::InvalidSpec,
                format!("spec.nfs.auth.sys.{field} is out of range"),
            )
        })
    };
    // The schema validates this too; an object may be stored under an older schema.
    check_server(&spec.server)
        .map_err(ExportPathError::from)
        .and_then(|()| check_export_path(&spec.path))
        .map_err(|error| PlannedCondition::fails(Reason::InvalidSpec, format!("spec.server or spec.path: {error}")))?;
    Ok(nfs_client::Target {
        version,
        port: port(spec.nfs.port, "port")?,
        mount_port: spec
            .nfs
            .mount_port
            .map(|number| port(number, "mountPort"))
            .transpose()?,
        source_port: match spec.nfs.source_port {
            SourcePort::Reserved => nfs_client::SourcePort::Reserved,
            SourcePort::Any => nfs_client::SourcePort::Any,
        },
        credential: nfs_client::Credential {
            uid: number(spec.nfs.sys().uid, "uid")?,
            gid: number(spec.nfs.sys().gid, "gid")?,
            supplementary: None,
        },
        owner: nfs_client::ClientOwner {
            owner: format!("nfs-operator/{}/{}", owner.cluster_id, owner.backend_uid).into_bytes(),
            verifier: owner.verifier,
        },
        machine_name: NFS_CLIENT_NAME.to_owned(),
        implementation: Some(nfs_client::ImplementationId {
            domain: GROUP.to_owned(),
            name: NFS_CLIENT_NAME.to_owned(),
        }),
        deadline,
        ..nfs_client::Target::new(spec.server.to_string(), spec.path.to_string())
    })
}

/// Returns the paths of a backend's root, under its current and its former addresses.
pub fn roots(spec: &NfsBackendSpec) -> Vec<ReservedPath> {
    let former = spec
        .former_addresses
        .iter()
        .map(|address| (&address.server, &address.path));
    std::iter::once((&spec.server, &spec.path))
        .chain(former)
        .map(|(server, path)| ReservedPath::on_server(server, path))
        .collect()
}

/// Reports whether nodes may be unable to resolve this name, because only the cluster's DNS knows it.
pub fn only_cluster_resolves(server: &str) -> bool {
    let name = server.to_ascii_lowercase();
    name.ends_with(".svc") || name.ends_with(".cluster.local")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(requested: NfsVersion, version: Option<&str>, has_volumes: bool) -> VersionChoice {
        super::version(requested, &ObservedState { version, has_volumes })
    }

    #[test]
    fn a_backend_with_volumes_keeps_its_major_version_until_another_is_pinned() {
        use NfsVersion::{Auto, V3, V4_2};
        let pinned_3 = VersionChoice::Exactly(Protocol::V3);
        for (requested, worked, has_volumes, expected) in [
            (Auto, None, false, VersionChoice::Auto),
            (Auto, Some("3"), false, VersionChoice::Auto),
            (Auto, Some("4.1"), false, VersionChoice::Auto),
            (Auto, Some("3"), true, pinned_3),
            (Auto, Some("4.1"), true, VersionChoice::Newest4),
            // Never probed, but volumes exist: the identity recorded on them decides.
            (Auto, None, true, VersionChoice::Auto),
            (V3, Some("4.2"), true, pinned_3),
            (V4_2, Some("3"), true, VersionChoice::Exactly(Protocol::V4_2)),
        ] {
            assert_eq!(
                choice(requested, worked, has_volumes),
                expected,
                "{requested:?} {worked:?} {has_volumes}"
            );
        }
    }

    fn target(version: VersionChoice, server: &str) -> nfs_client::Target {
        nfs_client::Target {
            version,
            port: 2049,
            mount_port: None,
            source_port: nfs_client::SourcePort::Any,
            credential: nfs_client::Credential::default(),
            owner: nfs_client::ClientOwner {
                owner: Vec::new(),
                verifier: [0; 8],
            },
            deadline: Duration::from_secs(1),
            ..nfs_client::Target::new(server, "/")
        }
    }

    #[test]
    fn a_connection_is_kept_if_the_version_is_pinned_to_the_negotiated_one() {
        use Protocol::{V3, V4_1, V4_2};
        use VersionChoice::{Auto, Exactly, Newest4};
        for (current, protocol, wanted, kept) in [
            (Auto, V4_2, Newest4, true),
            (Auto, V3, Exactly(V3), true),
            (Newest4, V4_2, Auto, true),
            (Auto, V3, Newest4, false),
            (Auto, V4_2, Exactly(V3), false),
            (Auto, V4_2, Exactly(V4_1), false),
            (Exactly(V4_1), V4_1, Auto, false),
            (Exactly(V4_1), V4_1, Exactly(V4_1), true),
        ] {
            let fits = is_compatible(&target(current, "a"), protocol, &target(wanted, "a"));
            assert_eq!(fits, kept, "{current:?} {protocol} {wanted:?}");
            assert!(!is_compatible(&target(current, "a"), protocol, &target(wanted, "b")));
        }
    }
}
