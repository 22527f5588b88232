//! The volume object of a claim. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use k8s_openapi::api::core::v1::{
    NFSVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::eligibility::{ClaimRequest, class_name};
use super::volume_settings::VolumeSettings;
use crate::api::NfsBackend;
use crate::api::backend::OnDelete;
use crate::api::names::{self, SHARED};
use crate::decide::mount_options::{self, NegotiatedConnection, NfsMajorVersion};
use export_store::ProvisionedDirectory;
use nfs_client::Protocol;

/// Input for a volume object.
pub struct VolumeParts<'a> {
    /// The claim.
    pub claim: &'a PersistentVolumeClaim,
    /// The UID of its namespace.
    pub namespace_uid: &'a str,
    /// The claim's request.
    pub request: &'a ClaimRequest,
    /// The settings of directory and volume.
    pub settings: &'a VolumeSettings,
    /// Its backend.
    pub backend: &'a NfsBackend,
    /// The ID of the export.
    pub export_id: &'a str,
    /// The NFS version in use.
    pub protocol: Protocol,
    /// The server's address.
    pub peer: SocketAddr,
    /// The nodes that can mount it: those that both the backend and the class allow.
    pub node_affinity: Option<VolumeNodeAffinity>,
    /// Its directory.
    pub directory: &'a ProvisionedDirectory,
}

/// Returns the volume object for a claim.
pub fn volume_object(parts: &VolumeParts<'_>) -> PersistentVolume {
    let spec = parts.claim.spec.clone().unwrap_or_default();
    let backend = &parts.backend.spec;
    let claim_options = claim_options(&spec, &parts.settings.mount_options);
    let options = mount_options::volume_options(
        &backend.mount_options,
        &parts.request.mount_options,
        &claim_options,
        &backend.nfs,
        NegotiatedConnection {
            major: match parts.protocol {
                Protocol::V3 => NfsMajorVersion::V3,
                Protocol::V4_0 | Protocol::V4_1 | Protocol::V4_2 => NfsMajorVersion::V4,
            },
            peer: parts.peer,
        },
    );
    let storage = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref()?.get("storage").cloned())
        .unwrap_or_else(|| Quantity(parts.request.bytes.to_string()));
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(names::volume_name(&parts.claim.uid().unwrap_or_default())),
            annotations: Some(annotations(parts)),
            labels: Some(names::volume_labels(&parts.backend.name_any())),
            finalizers: (parts.request.reclaim_policy == "Delete").then(|| vec![names::RECLAIM_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some(BTreeMap::from([("storage".to_owned(), storage)])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                name: Some(parts.claim.name_any()),
                namespace: parts.claim.namespace(),
                uid: parts.claim.uid(),
                resource_version: parts.claim.resource_version(),
                ..ObjectReference::default()
            }),
            mount_options: Some(options).filter(|options| !options.is_empty()),
            nfs: Some(NFSVolumeSource {
                server: backend.server.to_string(),
                path: absolute(&backend.path, &parts.directory.directory.to_string()),
                read_only: None,
            }),
            node_affinity: parts.node_affinity.clone(),
            persistent_volume_reclaim_policy: Some(parts.request.reclaim_policy.clone()),
            storage_class_name: class_name(parts.claim),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// Returns the mount options of a claim. A claim that only reads is mounted read-only: the kubelet ignores
/// `spec.nfs.readOnly` of a PersistentVolume.
fn claim_options(spec: &PersistentVolumeClaimSpec, requested: &[String]) -> Vec<String> {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let reads_only = modes.iter().all(|mode| mode == "ReadOnlyMany") && !modes.is_empty();
    let read_only = reads_only.then(|| "ro".to_owned());
    requested.iter().cloned().chain(read_only).collect()
}

fn annotations(parts: &VolumeParts<'_>) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([
        (names::PROVISIONED_BY, parts.request.provisioner.clone()),
        (names::VOLUME_BACKEND, parts.backend.name_any()),
        (names::VOLUME_EXPORT_ID, parts.export_id.to_owned()),
        (names::VOLUME_DIRECTORY, parts.directory.directory.to_string()),
        (names::VOLUME_FILE_ID, parts.directory.file_id.to_string()),
        (names::VOLUME_NAMESPACE_UID, parts.namespace_uid.to_owned()),
    ]);
    let on_delete = match parts.directory.shared {
        true => {
            annotations.insert(names::VOLUME_EXISTING, SHARED.to_owned());
            Some(OnDelete::Retain)
        }
        false => parts.settings.on_delete,
    };
    if let Some(on_delete) = on_delete {
        annotations.insert(names::VOLUME_ON_DELETE, on_delete.annotation_value().to_owned());
    }
    // The kubelet ignores group 0.
    if let Some(gid) = parts.directory.group.filter(|gid| *gid != 0) {
        annotations.insert(names::POD_GROUP, gid.to_string());
    }
    annotations
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Returns true if this operator created the volume, and not another provisioner of the same name.
pub fn is_of_this_operator(volume: &PersistentVolume) -> bool {
    volume.annotations().contains_key(names::VOLUME_BACKEND)
}

/// Returns a directory's absolute path on the server.
fn absolute(export: &str, directory: &str) -> String {
    format!("{}/{directory}", export.trim_end_matches('/'))
}

/// Returns true if an existing volume with the name of this claim's volume belongs to the claim: it has the claim's UID
/// and this provisioner.
pub fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim, provisioner: &str) -> bool {
    let claim_uid = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
    claim_uid.is_some()
        && claim_uid == claim.uid()
        && volume
            .annotations()
            .get(names::PROVISIONED_BY)
            .is_some_and(|name| name == provisioner)
}

#[cfg(test)]
mod tests;
