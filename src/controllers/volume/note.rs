//! What a volume is, written into its record on the export for the day when the object is lost.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use super::reclaim::request;
use crate::api::names::{PROVISIONED_BY, VOLUME_BACKEND, VOLUME_ON_DELETE};
use crate::decide::policy::is_released;
use crate::state::context::Context;
use export_store::VolumeMetadata;

/// What is to be written down of a volume. None when it has no size, or too much to say to fit into a record: then it
/// can't be made again. `cluster`: the uid of the kube-system namespace.
pub fn volume_metadata(volume: &PersistentVolume, cluster: &str) -> Option<VolumeMetadata> {
    let spec = volume.spec.clone()?;
    let annotation = |name: &str| volume.annotations().get(name).cloned();
    let affinity = spec.node_affinity.map(serde_json::to_value).transpose();
    let note = VolumeMetadata {
        cluster: cluster.to_owned(),
        provisioner: annotation(PROVISIONED_BY)?,
        size: spec.capacity?.get("storage")?.0.clone(),
        class: spec.storage_class_name.filter(|name| !name.is_empty()),
        access_modes: spec.access_modes.unwrap_or_default(),
        mount_options: spec.mount_options.unwrap_or_default(),
        // Kubernetes' default for volumes (core/v1 `persistentVolumeReclaimPolicy`).
        reclaim_policy: spec
            .persistent_volume_reclaim_policy
            .unwrap_or_else(|| "Retain".to_owned()),
        on_delete: annotation(VOLUME_ON_DELETE),
        node_affinity: affinity.ok()?,
        released: is_released(volume),
    };
    note.if_it_fits()
}

/// Writes down what a volume of ours is by now. What can't be written now is written by the next scan that finds it
/// missing: nothing waits for it.
pub async fn keep(ctx: &Context, volume: &PersistentVolume) {
    let Some(note) = volume_metadata(volume, &ctx.cluster_uid()) else {
        return;
    };
    let backend = volume.annotations().get(VOLUME_BACKEND);
    let Some(backend) = backend.and_then(|name| ctx.backends.get(name)) else {
        return;
    };
    let known = backend.known();
    let (Some(export), Ok(request)) = (&known.export, request(volume, &backend, &known)) else {
        return;
    };
    if let Err(error) = export.save_volume_metadata(&request, &note).await {
        tracing::info!(
            volume = request.volume,
            backend = backend.name,
            "what the volume is can't be written into its record now: {error}"
        );
    }
}

/// Whether a volume's claim is gone and the volume is kept, which its record is to say.
pub fn is_kept_without_claim(volume: &PersistentVolume) -> bool {
    let policy = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    is_released(volume) && policy == Some("Retain") && volume.annotations().contains_key(VOLUME_BACKEND)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(change: Value) -> PersistentVolume {
        let mut object = json!({
            "metadata": {"name": "pvc-u", "annotations": {PROVISIONED_BY: "p", VOLUME_ON_DELETE: "delete"}},
            "spec": {
                "capacity": {"storage": "1500M"}, "accessModes": ["ReadWriteMany"], "mountOptions": ["hard"],
                "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["a"]}]}]}},
            },
        });
        json_patch(&mut object, &change);
        serde_json::from_value(object).unwrap()
    }

    fn json_patch(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => from
                .iter()
                .for_each(|(key, value)| json_patch(into.entry(key).or_insert(Value::Null), value)),
            (into, from) => *into = from.clone(),
        }
    }

    #[test]
    fn a_note_says_all_that_the_volume_was() {
        let note = volume_metadata(&volume(json!({})), "c").unwrap();
        let said = serde_json::to_value(&note).unwrap();
        assert_eq!(
            said,
            json!({
                "cluster": "c", "provisioner": "p", "size": "1500M", "class": "fast", "accessModes": ["ReadWriteMany"],
                "mountOptions": ["hard"], "reclaimPolicy": "Delete", "onDelete": "delete",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["a"]}]}]}},
            })
        );
        assert_eq!(serde_json::from_value::<VolumeMetadata>(said).unwrap(), note);
    }

    #[test]
    fn a_volume_whose_claim_is_gone_is_noted_as_released() {
        let released =
            volume(json!({"status": {"phase": "Released"}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
        assert!(volume_metadata(&released, "c").unwrap().released);
        assert!(!is_kept_without_claim(&released), "no backend of ours");
        let ours = json!({
            "metadata": {"annotations": {VOLUME_BACKEND: "main"}},
            "status": {"phase": "Released"}, "spec": {"persistentVolumeReclaimPolicy": "Retain"},
        });
        assert!(is_kept_without_claim(&volume(ours.clone())));
        let mut deleted = volume(ours);
        deleted.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Delete".into());
        assert!(!is_kept_without_claim(&deleted), "it is reclaimed");
    }

    #[test]
    fn what_does_not_fit_is_not_noted_and_the_volume_is_made_all_the_same() {
        let long: Vec<String> = (0..1000).map(|n| format!("option-{n}")).collect();
        assert_eq!(
            volume_metadata(&volume(json!({"spec": {"mountOptions": long}})), "c"),
            None
        );
        assert_eq!(volume_metadata(&volume(json!({"spec": {"capacity": null}})), "c"), None);
    }
}
