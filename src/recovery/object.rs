//! A volume's object, made again of its record. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NFSVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::api::NfsBackend;
use crate::api::names;
use export_store::RecordedVolume;

/// What the cluster has where the volume's claim was.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterView<'a> {
    /// The uid of this cluster's kube-system namespace.
    pub home: &'a str,
    /// The uid of the claim's namespace.
    pub namespace_uid: Option<&'a str>,
    /// The backend is for that namespace.
    pub admitted: bool,
    /// The claim of that name, if this is the cluster that it was in.
    pub claim: Option<&'a PersistentVolumeClaim>,
    /// The volume's provisioner name is served here.
    pub served: bool,
}

/// Whose the volume becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// The claim of that name, whenever it comes.
    Named,
    /// The claim with the uid that the record knows, and no other.
    Known,
    /// It was nobody's any more, and stays that: Released, and kept.
    Nobodys,
    /// The claim is just being provisioned: that makes the volume.
    Pending,
}

/// Why a volume is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkippedVolume {
    /// No claim of it can be served here.
    #[error("it was made under the provisioner name {0}, which this operator does not serve: see --provisioner-name")]
    NotServed(String),
    /// Whoever makes a namespace of that name one day is not who is meant now.
    #[error("there is no namespace {0}: it is made again when that is there")]
    NoNamespace(String),
    /// It came to the backend when that was for other namespaces.
    #[error("namespace {0} may not have volumes here: see spec.allowedNamespaces")]
    NotAdmitted(String),
    /// The namespace was deleted in this cluster.
    #[error("namespace {0} is not the one that it was: it may be somebody else's now")]
    OtherNamespace(String),
    /// The claim was deleted in this cluster.
    #[error("claim {0}/{1} was deleted in this cluster")]
    Deleted(String, String),
}

impl SkippedVolume {
    /// Whether claims of that name have to wait for a word about it. What is somebody else's holds up nobody.
    pub fn holds(&self) -> bool {
        !matches!(self, Self::OtherNamespace(_) | Self::Deleted(..))
    }
}

/// Decides it, or says why the volume is left out.
pub fn whose(kept: &RecordedVolume, there: &ClusterView<'_>) -> Result<Ownership, SkippedVolume> {
    let claim = &kept.record.claim;
    let namespace = || claim.namespace.clone();
    if !there.served {
        return Err(SkippedVolume::NotServed(kept.note.provisioner.clone()));
    }
    if kept.note.released {
        return Ok(Ownership::Nobodys);
    }
    if kept.note.cluster != there.home {
        // Rebuilt: neither its namespace nor its claim can be the same, and the administrator's word is for the names that
        // are there now.
        return match there.namespace_uid {
            None => Err(SkippedVolume::NoNamespace(namespace())),
            Some(_) if !there.admitted => Err(SkippedVolume::NotAdmitted(namespace())),
            Some(_) => Ok(Ownership::Named),
        };
    }
    if claim.namespace_uid.is_empty() || there.namespace_uid != Some(&claim.namespace_uid) {
        return Err(SkippedVolume::OtherNamespace(namespace()));
    }
    match there.claim.filter(|found| found.uid().as_ref() == Some(&claim.uid)) {
        Some(found) if is_pending(found) => Ok(Ownership::Pending),
        Some(_) => Ok(Ownership::Known),
        None => Err(SkippedVolume::Deleted(namespace(), claim.name.clone())),
    }
}

fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    volume.is_none_or(str::is_empty)
}

/// The object as it was, on the backend's present address.
///
/// # Errors
/// What in the note cannot be understood.
pub fn object(kept: &RecordedVolume, whose: &Ownership, backend: &NfsBackend) -> Result<PersistentVolume, String> {
    let (record, note) = (&kept.record, &kept.note);
    let affinity: Option<VolumeNodeAffinity> = note
        .node_affinity
        .clone()
        .map(serde_json::from_value)
        .transpose()
        .map_err(|error| format!("the node affinity in its record can't be read: {error}"))?;
    let policy = match whose {
        Ownership::Nobodys => "Retain",
        _ => note.reclaim_policy.as_str(),
    };
    let some = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
    Ok(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(record.volume.clone()),
            annotations: Some(annotations(kept, whose, backend)),
            finalizers: (policy == "Delete").then(|| vec![names::RECLAIM_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: some(&note.access_modes),
            capacity: Some(BTreeMap::from([("storage".to_owned(), Quantity(note.size.clone()))])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: Some(record.claim.namespace.clone()),
                name: Some(record.claim.name.clone()),
                uid: (*whose != Ownership::Named).then(|| record.claim.uid.clone()),
                ..ObjectReference::default()
            }),
            mount_options: some(&note.mount_options),
            nfs: Some(NFSVolumeSource {
                server: backend.spec.server.to_string(),
                path: format!("{}/{}", backend.spec.path.trim_end_matches('/'), record.directory),
                read_only: None,
            }),
            node_affinity: affinity,
            persistent_volume_reclaim_policy: Some(policy.to_owned()),
            storage_class_name: note.class.clone(),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    })
}

fn annotations(kept: &RecordedVolume, whose: &Ownership, backend: &NfsBackend) -> BTreeMap<String, String> {
    let (record, note) = (&kept.record, &kept.note);
    let always = [
        (names::PROVISIONED_BY, note.provisioner.clone()),
        (names::VOLUME_BACKEND, backend.name_any()),
        (names::VOLUME_EXPORT_ID, kept.export_id.clone()),
        (names::VOLUME_DIRECTORY, record.directory.to_string()),
        (names::VOLUME_FILE_ID, kept.file_id.to_string()),
        (names::VOLUME_NAMESPACE_UID, record.claim.namespace_uid.clone()),
    ];
    let on_delete = note.on_delete.clone().map(|policy| (names::VOLUME_ON_DELETE, policy));
    // Until its claim has it, and the record says so.
    let readopted = (*whose == Ownership::Named).then(|| (names::VOLUME_READOPTED, record.claim.uid.clone()));
    always
        .into_iter()
        .chain(on_delete)
        .chain(readopted)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Whether the volume that has the name is the one that was to be made.
pub fn is_it(there: &PersistentVolume, wanted: &PersistentVolume) -> bool {
    [
        names::VOLUME_EXPORT_ID,
        names::VOLUME_DIRECTORY,
        names::VOLUME_FILE_ID,
        names::VOLUME_BACKEND,
    ]
    .iter()
    .all(|name| there.annotations().get(*name) == wanted.annotations().get(*name))
}

#[cfg(test)]
mod tests;
