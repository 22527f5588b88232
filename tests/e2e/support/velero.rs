//! Backup and restore of claims and volumes with the changes that Velero 1.18 makes to the objects, in its order
//! (`pkg/restore/restore.go`, `pkg/restore/actions/pvc_action.go`): volumes first, then claims. None of the volumes has a
//! snapshot or a backup of its files.

use rig::Objects;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use crate::support::shared::{Failure, text};

/// Set by the volume binder.
const BINDING: [&str; 2] = [
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
];
/// Removed from claims, in addition.
const REQUESTS: [&str; 3] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/selected-node",
];

/// The claims and volumes of a backup.
pub struct VeleroBackup {
    claims: Vec<Value>,
    volumes: Vec<Value>,
}

impl VeleroBackup {
    /// Saves claims and their volumes.
    pub async fn create(objects: &Objects, claims: &[&Value]) -> Result<Self, Failure> {
        let (mut saved, mut volumes) = (Vec::new(), Vec::new());
        for claim in claims {
            let claim = objects.get(claim).await?.ok_or("no claim")?;
            let volume = reference("v1", "PersistentVolume", None, text(&claim, "/spec/volumeName"));
            volumes.push(objects.get(&volume).await?.ok_or("no volume")?);
            saved.push(claim);
        }
        Ok(Self { claims: saved, volumes })
    }

    /// Restores everything. `modify` makes the changes of a resource modifier to each claim.
    pub async fn restore(&self, objects: &Objects, modify: impl Fn(&mut Value)) -> Result<(), Failure> {
        self.restore_volumes(objects).await?;
        self.restore_claims(objects, modify).await
    }

    /// Restores the volumes: those with the reclaim policy Delete are left to their provisioner.
    pub async fn restore_volumes(&self, objects: &Objects) -> Result<(), Failure> {
        for volume in self.volumes.iter().filter(|volume| !is_deleted_with_claim(volume)) {
            let mut volume = volume.clone();
            reset_metadata(&mut volume);
            merge(
                &mut volume,
                &json!({"spec": {"claimRef": {"uid": null, "resourceVersion": null}}}),
            );
            remove_annotations(&mut volume, &BINDING);
            create_if_missing(objects, &volume).await?;
        }
        Ok(())
    }

    /// Restores the claims.
    pub async fn restore_claims(&self, objects: &Objects, modify: impl Fn(&mut Value)) -> Result<(), Failure> {
        for (claim, volume) in self.claims.iter().zip(&self.volumes) {
            let mut claim = claim.clone();
            reset_metadata(&mut claim);
            remove_annotations(&mut claim, &BINDING);
            remove_annotations(&mut claim, &REQUESTS);
            if is_deleted_with_claim(volume) {
                merge(&mut claim, &json!({"spec": {"volumeName": null}}));
            }
            modify(&mut claim);
            create_if_missing(objects, &claim).await?;
        }
        Ok(())
    }
}

fn is_deleted_with_claim(volume: &Value) -> bool {
    volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
}

/// Removes what Velero does not restore: metadata that the API server sets, owners, and the status.
pub fn reset_metadata(object: &mut Value) {
    let labels = json!({"velero.io/backup-name": "nightly", "velero.io/restore-name": "nightly-1"});
    let reset = json!({
        "metadata": {
            "uid": null, "resourceVersion": null, "generation": null, "creationTimestamp": null,
            "deletionTimestamp": null, "deletionGracePeriodSeconds": null, "ownerReferences": null,
            "labels": labels,
        },
        "status": null,
    });
    merge(object, &reset);
}

fn remove_annotations(object: &mut Value, names: &[&str]) {
    for name in names {
        merge(object, &json!({"metadata": {"annotations": {*name: null}}}));
    }
}

/// An object that exists is left as it is. Velero patches the managers of the fields after it created an object.
async fn create_if_missing(objects: &Objects, object: &Value) -> Result<(), Failure> {
    if objects.get(object).await?.is_some() {
        return Ok(());
    }
    let managers = object["metadata"]["managedFields"].clone();
    let mut created = object.clone();
    merge(&mut created, &json!({"metadata": {"managedFields": null}}));
    let created = objects.create(&created).await?;
    objects
        .patch(&created, json!({"metadata": {"managedFields": managers}}))
        .await?;
    Ok(())
}
