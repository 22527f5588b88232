//! The directory of a volume, from the volume object and its backend. Pure.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::api::NfsBackend;
use crate::api::conditions::PlannedCondition;
use crate::api::names::{VOLUME_CLAIM_UID, VOLUME_DIRECTORY, VOLUME_NAMESPACE_UID, VOLUME_RECREATED};
use crate::decide::reclaim::{ExpectedLocation, annotation, check_address, locate};
use export_store::naming::DirectoryPath;
use export_store::{ArchiveMetadata, ClaimRef, VolumeDirectory};

/// Returns the directory of a volume, if the volume's address, annotations and backend agree.
///
/// `export_id` is the identity confirmed on the backend's export.
///
/// # Errors
/// The condition that explains the disagreement; the data stays.
pub fn volume_directory(
    volume: &PersistentVolume,
    backend: &NfsBackend,
    export_id: Option<&str>,
) -> Result<VolumeDirectory, PlannedCondition> {
    let addresses = addresses(backend);
    let expected = ExpectedLocation {
        backend: &backend.name_any(),
        export_id,
        addresses: &addresses,
    };
    let location =
        locate(volume, &expected).map_err(|refusal| PlannedCondition::fails(refusal.reason, refusal.message))?;
    Ok(VolumeDirectory {
        claim: claim_ref(volume),
        volume: volume.name_any(),
        directory: location.directory,
        file_id: Some(location.file_id),
        archive_metadata: archive_metadata(volume),
    })
}

/// Returns the current and the former addresses of a backend: server and path.
fn addresses(backend: &NfsBackend) -> Vec<(&str, &str)> {
    let spec = &backend.spec;
    let own = std::iter::once((&*spec.server, &*spec.path));
    let former = spec
        .former_addresses
        .iter()
        .map(|address| (&*address.server, &*address.path));
    own.chain(former).collect()
}

/// Returns true if the address of a volume of a backend is neither the backend's nor a former one: it cannot be reclaimed.
pub fn has_other_address(volume: &PersistentVolume, backend: &NfsBackend) -> bool {
    let Some(directory) = annotation(volume, VOLUME_DIRECTORY).and_then(|text| DirectoryPath::parse(text).ok()) else {
        return false;
    };
    check_address(volume, &directory, &backend.name_any(), &addresses(backend)).is_err()
}

/// Returns the metadata of the volume for the record of its archive. The time of archiving and the retention, which like
/// the policy is the one in effect at the time of deletion, are added when the directory is archived.
pub fn archive_metadata(volume: &PersistentVolume) -> ArchiveMetadata {
    // An administrator created the object of a recreated volume later than the data, and pods of another claim wrote the
    // data of a transferred volume, perhaps long after the volume was created.
    let of_unknown_age = [VOLUME_RECREATED, VOLUME_CLAIM_UID];
    let created = volume.creation_timestamp().filter(|_| {
        let annotations = volume.annotations();
        !of_unknown_age.iter().any(|name| annotations.contains_key(*name))
    });
    let spec = volume.spec.clone().unwrap_or_default();
    ArchiveMetadata {
        size: spec
            .capacity
            .and_then(|capacity| capacity.get("storage").map(|size| size.0.clone())),
        class: spec.storage_class_name.filter(|name| !name.is_empty()),
        volume_created: created.map(|created| created.0.as_second()),
        ..ArchiveMetadata::default()
    }
}

/// Returns the claim that a volume is bound to.
pub fn claim_ref(volume: &PersistentVolume) -> ClaimRef {
    let claim = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.clone())
        .unwrap_or_default();
    let namespace_uid = volume.annotations().get(VOLUME_NAMESPACE_UID);
    ClaimRef {
        namespace: claim.namespace.unwrap_or_default(),
        namespace_uid: namespace_uid.cloned().unwrap_or_default(),
        name: claim.name.unwrap_or_default(),
        uid: claim.uid.unwrap_or_default(),
    }
}

/// Returns true if the volume is bound to this claim. The claim's own `spec.volumeName` proves nothing: its author may have
/// written it.
pub fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let uid = claim_ref(volume).uid;
    !uid.is_empty() && Some(uid) == claim.uid()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_age_of_the_data_of_a_recreated_or_transferred_volume_is_unknown() {
        let created = |annotations: Value| {
            let volume = json!({"metadata": {"name": "pvc-1", "creationTimestamp": "2024-01-01T00:00:00Z",
                "annotations": annotations}});
            let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
            archive_metadata(&volume).volume_created
        };
        assert_eq!(created(json!({})), Some(1_704_067_200));
        assert_eq!(created(json!({VOLUME_RECREATED: "true"})), None);
        assert_eq!(created(json!({VOLUME_CLAIM_UID: "another claim"})), None);
    }
}
