//! Keeps capacity and path reservations in sync with the volumes of the cluster.

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::names;
use crate::decide::quantity::bytes;
use crate::decide::reclaim::is_released;
use crate::state::capacity::CapacityTracker;
use crate::state::context::{Context, Settings};
use crate::state::relist_diff::RelistDiff;
use export_store::path_reservations::FileKey;
use export_store::{Holder, PathReservations, ReservedPath, Sharing};

/// Name of csi-driver-nfs in `spec.csi.driver`.
const CSI_DRIVER_NFS: &str = "nfs.csi.k8s.io";

/// Indexes the volumes of the volume watch: counts each one and reserves its directory as soon as it is observed.
#[derive(Default)]
pub struct VolumeIndexer {
    relist: RelistDiff,
}

impl VolumeIndexer {
    /// Handles one event of the watch.
    pub fn observe(&mut self, event: &Event<PersistentVolume>, ctx: &Context) {
        match event {
            Event::Init => {
                // Volumes with neither capacity nor path need no cleanup.
                self.relist = RelistDiff::default();
                ctx.capacity.for_each_volume(|name| self.relist.expect(name));
                ctx.path_reservations.for_each_volume(|name| self.relist.expect(name));
            }
            // After a list, the backends are probed anyway.
            Event::InitApply(volume) => {
                self.relist.insert(volume.metadata.name.as_deref().unwrap_or_default());
                add(volume, ctx);
            }
            Event::InitDone => {
                for name in self.relist.deleted() {
                    // The list does not show if it was reclaimed.
                    vanish(&name, ctx);
                    remove(&name, ctx);
                }
            }
            Event::Apply(volume) => {
                if let Some(backend) = add(volume, ctx) {
                    ctx.changed_backends.insert(&backend);
                }
            }
            Event::Delete(volume) => {
                let uid = volume.uid().unwrap_or_default();
                ctx.forget_volume(&ObjectRef::from_obj(volume));
                ctx.volume_retries.reset(&uid);
                ctx.last_reported.forget(&uid);
                let name = volume.name_any();
                if !is_released(volume) {
                    vanish(&name, ctx);
                }
                if let Some(backend) = ctx.capacity.backend_of(&name) {
                    ctx.changed_backends.insert(&backend);
                }
                remove(&name, ctx);
            }
        }
    }
}

/// Indexes a volume that exists, and returns the name of its backend.
fn add(volume: &PersistentVolume, ctx: &Context) -> Option<String> {
    index_volume(volume, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
    ctx.recovery_holds.observe(volume);
    let name = volume.name_any();
    let backend = ctx.capacity.backend_of(&name);
    match &backend {
        Some(backend) => ctx.usage.observe(volume, backend),
        None => ctx.usage.forget(&name),
    }
    backend
}

/// Has the records of the backend of a volume read again: it may be in use, and only its object was lost.
fn vanish(name: &str, ctx: &Context) {
    let backend = ctx.capacity.backend_of(name).and_then(|name| ctx.backends.get(&name));
    if let Some(backend) = backend {
        backend.count_lost_volume();
        ctx.request_probe(&backend.name);
    }
}

/// Forgets a deleted volume, and wakes the claims that may wait for its capacity or for the volume itself.
fn remove(name: &str, ctx: &Context) {
    if let Some(backend) = ctx.capacity.backend_of(name).and_then(|name| ctx.backends.get(&name)) {
        backend.quota.forget_reported(name);
    }
    if ctx.capacity.remove(name) {
        ctx.waiting_claims.capacity_freed();
    }
    if let Some((namespace, claim)) = ctx.recovery_holds.remove(name) {
        ctx.waiting_claims.wake(ObjectRef::new(&claim).within(&namespace));
    }
    ctx.usage.forget(name);
    ctx.path_reservations.remove(&Holder::Volume(name.to_owned()));
    ctx.path_reservations.groups.forget_volume(name);
}

/// Indexes a volume that exists. A volume of this operator counts on its backend; any volume reserves its directory.
pub fn index_volume(
    volume: &PersistentVolume,
    settings: &Settings,
    capacity: &CapacityTracker,
    path_reservations: &PathReservations,
) {
    let name = volume.name_any();
    let annotations = volume.annotations();
    let provisioner = annotations.get(names::PROVISIONED_BY);
    let ours = provisioner.is_some_and(|provisioner| settings.serves(provisioner));
    // A volume that nfs-subdir provisioned under an alias counts on the alias's backend, where it can be reclaimed.
    let aliased = provisioner.and_then(|provisioner| settings.served.aliases.get(provisioner));
    let backend = annotations.get(names::VOLUME_BACKEND).or(aliased);
    if let Some(backend) = backend.filter(|_| ours) {
        let export_id = annotations.get(names::VOLUME_EXPORT_ID).map(String::as_str);
        capacity.record_volume(&name, backend, size_of(volume), export_id);
        if is_released(volume) {
            // A released volume cannot be expanded. The deletion of its claim may have been missed.
            capacity.finish_expansion(&name);
        }
    }
    if let Some(export) = annotations.get(names::VOLUME_EXPORT_ID) {
        let group = annotations.get(names::POD_GROUP).and_then(|group| group.parse().ok());
        path_reservations.groups.observe_volume(&name, export, group);
    }
    let paths = paths(volume, ours);
    if !paths.is_empty() {
        let sharing = match ours && names::is_shared(volume) {
            true => Sharing::Shared,
            false => Sharing::Exclusive,
        };
        let file = file_key(volume).filter(|_| ours);
        path_reservations.insert_as(Holder::Volume(name), paths, file, sharing);
    }
}

/// Returns the paths that a volume reserves: its absolute path on its server, and its directory on its export.
fn paths(volume: &PersistentVolume, ours: bool) -> Vec<ReservedPath> {
    let mut paths = Vec::new();
    if let Some(nfs) = volume.spec.as_ref().and_then(|spec| spec.nfs.as_ref()) {
        paths.push(ReservedPath::on_server(&nfs.server, &nfs.path));
    }
    if let Some(csi) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) {
        paths.extend(csi_path(volume, csi));
    }
    let annotations = volume.annotations();
    let recorded = (
        annotations.get(names::VOLUME_EXPORT_ID),
        annotations.get(names::VOLUME_DIRECTORY),
    );
    if let (true, (Some(export), Some(directory))) = (ours, recorded) {
        paths.push(ReservedPath::on_export(export, directory));
    }
    paths
}

/// Returns the path of a volume of csi-driver-nfs. What the volume's attributes omit is read from its handle:
/// `server#share#subdir#…`, or `server/share/subdir` in early releases.
fn csi_path(volume: &PersistentVolume, csi: &CSIPersistentVolumeSource) -> Option<ReservedPath> {
    if csi.driver != CSI_DRIVER_NFS {
        return None;
    }
    let attribute = |wanted: &str| {
        let attributes = csi.volume_attributes.iter().flatten();
        attributes
            .filter(|(key, value)| key.eq_ignore_ascii_case(wanted) && !value.is_empty())
            .map(|(_, value)| value.as_str())
            .next()
    };
    let (server, share, subdir) = match (attribute("server"), attribute("share")) {
        (Some(server), Some(share)) => (server, share, attribute("subdir")),
        _ => csi_handle(&csi.volume_handle)?,
    };
    let subdir = expand_subdir(volume, subdir.unwrap_or_default());
    Some(ReservedPath::on_server(server, &format!("{share}/{subdir}")))
}

/// Returns server, share and subdirectory of a volume handle.
fn csi_handle(handle: &str) -> Option<(&str, &str, Option<&str>)> {
    if let Some((server, rest)) = handle.split_once('#') {
        let mut parts = rest.split('#');
        return Some((server, parts.next()?, parts.next()));
    }
    let (server, share) = handle.split_once('/')?;
    Some((server, share, None))
}

/// Expands the variables of a subdirectory as csi-driver-nfs does for a mount. Cuts the path at any other variable, so
/// that it contains whatever that stands for.
fn expand_subdir(volume: &PersistentVolume, subdir: &str) -> String {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let name = claim.and_then(|claim| claim.name.as_deref());
    let namespace = claim.and_then(|claim| claim.namespace.as_deref());
    let known = [
        ("${pvc.metadata.name}", name),
        ("${pvc.metadata.namespace}", namespace),
        ("${pv.metadata.name}", volume.metadata.name.as_deref()),
    ];
    let expanded = known
        .iter()
        .fold(subdir.to_owned(), |path, (variable, value)| match value {
            Some(value) => path.replace(variable, value),
            None => path,
        });
    let segments = expanded.split('/').take_while(|segment| !segment.contains("${"));
    segments.collect::<Vec<_>>().join("/")
}

fn file_key(volume: &PersistentVolume) -> Option<FileKey> {
    let annotations = volume.annotations();
    let file_id = annotations.get(names::VOLUME_FILE_ID)?.parse().ok()?;
    Some((annotations.get(names::VOLUME_EXPORT_ID)?.clone(), file_id))
}

/// Returns the size of a volume in bytes. Returns 0 if the size is missing or invalid; the volumes of this operator
/// always have a valid size.
fn size_of(volume: &PersistentVolume) -> u128 {
    volume
        .spec
        .as_ref()
        .and_then(|spec| spec.capacity.as_ref()?.get("storage"))
        .and_then(|quantity| bytes(&quantity.0))
        .unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::state::server_addresses::ServerAddresses;

    fn settings() -> Settings {
        Settings::for_tests("p", &[])
    }

    #[test]
    fn a_released_volume_reserves_nothing_for_an_expansion_that_nobody_requests_anymore() {
        let volume = |phase: &str| -> PersistentVolume {
            let annotations = BTreeMap::from([(names::PROVISIONED_BY, "p"), (names::VOLUME_BACKEND, "a")]);
            serde_json::from_value(json!({
                "metadata": {"name": "v", "annotations": annotations},
                "spec": {"capacity": {"storage": "5"}}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        let (settings, capacity, paths) = (settings(), CapacityTracker::default(), PathReservations::default());
        let see = |phase| index_volume(&volume(phase), &settings, &capacity, &paths);
        see("Bound");
        capacity.expand("v", 15, |_| Ok::<(), ()>(())).unwrap();
        see("Bound");
        assert_eq!(capacity.totals("a").bytes, 15, "its size before the expansion");
        // Its claim was deleted while the watch of claims was disconnected.
        see("Released");
        assert_eq!(capacity.totals("a").bytes, 5);
    }

    #[tokio::test]
    async fn volumes_of_csi_driver_nfs_reserve_their_directory() {
        let attributes = json!({"server": "nas", "share": "/export", "subDir": "team/data"});
        let upper_case = json!({"Server": "nas", "SHARE": "/export/", "subdir": "/team/data"});
        let variables = json!({
            "server": "nas", "share": "/export", "subdir": "${pvc.metadata.namespace}/${pvc.metadata.name}",
        });
        let unknown = json!({"server": "nas", "share": "/export", "subdir": "${other}/data"});
        for (driver, handle, attributes, within) in [
            (CSI_DRIVER_NFS, "any", &attributes, true),
            (CSI_DRIVER_NFS, "any", &upper_case, true),
            (CSI_DRIVER_NFS, "any", &variables, true),
            (CSI_DRIVER_NFS, "any", &unknown, true),
            (CSI_DRIVER_NFS, "nas#export#team/data#uid#delete", &json!({}), true),
            (
                CSI_DRIVER_NFS,
                "nas#export#team/data#uid",
                &json!({"server": "nas"}),
                true,
            ),
            (CSI_DRIVER_NFS, "nas/export/team/data", &json!({}), true),
            (CSI_DRIVER_NFS, "any", &json!({}), false),
            ("other.example.org", "nas#export#team/data", &attributes, false),
        ] {
            let volume: PersistentVolume = serde_json::from_value(json!({
                "metadata": {"name": "v"},
                "spec": {
                    "claimRef": {"namespace": "team", "name": "data"},
                    "csi": {"driver": driver, "volumeHandle": handle, "volumeAttributes": attributes},
                },
            }))
            .unwrap();
            let (capacity, paths) = (CapacityTracker::default(), PathReservations::default());
            index_volume(&volume, &settings(), &capacity, &paths);
            let directory = [ReservedPath::on_server("nas", "/export/team/data")];
            let expected = within.then(|| Holder::Volume("v".to_owned()));
            let holder = paths.enclosing_holder(&directory, &ServerAddresses::default()).await;
            assert_eq!(holder, expected.map(|holder| (holder, None)), "{handle} {attributes}");
        }
    }
}
