//! Metadata of a volume in its record on the export, used to recreate the volume if its object is lost.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use crate::api::names::{POD_GROUP, PROVISIONED_BY, VOLUME_BACKEND, VOLUME_ON_DELETE};
use crate::decide::reclaim::is_released;
use crate::state::context::Context;
use export_store::VolumeMetadata;

/// Returns the metadata to record for a volume. Returns `None` if the volume has no size, or if its metadata does not
/// fit into a record; the volume then cannot be recreated. `cluster_uid` is the UID of the kube-system namespace.
pub fn volume_metadata(volume: &PersistentVolume, cluster_uid: &str) -> Option<VolumeMetadata> {
    let spec = volume.spec.clone()?;
    let annotation = |name: &str| volume.annotations().get(name).cloned();
    let affinity = spec.node_affinity.map(serde_json::to_value).transpose();
    let metadata = VolumeMetadata {
        cluster: cluster_uid.to_owned(),
        provisioner: annotation(PROVISIONED_BY)?,
        size: spec.capacity?.get("storage")?.0.clone(),
        class: spec.storage_class_name.filter(|name| !name.is_empty()),
        access_modes: spec.access_modes.unwrap_or_default(),
        mount_options: spec.mount_options.unwrap_or_default(),
        // Default of Kubernetes for volumes (core/v1 `persistentVolumeReclaimPolicy`).
        reclaim_policy: spec
            .persistent_volume_reclaim_policy
            .unwrap_or_else(|| "Retain".to_owned()),
        on_delete: annotation(VOLUME_ON_DELETE),
        gid: annotation(POD_GROUP).and_then(|gid| gid.parse().ok()),
        node_affinity: affinity.ok()?,
        released: is_released(volume),
    };
    metadata.within_size_limit()
}

/// Saves the current metadata of a volume in its record. A failure is only logged: the next scan that finds outdated
/// metadata saves it.
pub async fn save(ctx: &Context, volume: &PersistentVolume) {
    let Some(metadata) = volume_metadata(volume, &ctx.cluster_uid()) else {
        return;
    };
    let backend = volume.annotations().get(VOLUME_BACKEND);
    let Some(backend) = backend.and_then(|name| ctx.backends.get(name)) else {
        return;
    };
    let snapshot = backend.last_probe();
    let (Some(export), Ok(directory)) = (&snapshot.store, snapshot.volume_directory(volume)) else {
        return;
    };
    if let Err(error) = export.save_volume_metadata(&directory, &metadata).await {
        tracing::info!(
            volume = directory.volume,
            backend = backend.name,
            "failed to save the volume's metadata in its record: {error}"
        );
    }
}

/// Returns true if the volume is retained after its claim was deleted, which its record must show.
pub fn is_retained_without_claim(volume: &PersistentVolume) -> bool {
    let policy = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    is_released(volume) && policy == Some("Retain") && volume.annotations().contains_key(VOLUME_BACKEND)
}
