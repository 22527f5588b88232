//! Recreates the PersistentVolume object of a record. Pure.

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

/// State of a recorded volume's claim and namespace in the cluster.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClusterView<'a> {
    /// The UID of this cluster's kube-system namespace.
    pub(super) cluster_uid: &'a str,
    /// The UID of the claim's namespace.
    pub(super) namespace_uid: Option<&'a str>,
    /// True if the backend allows that namespace.
    pub(super) namespace_allowed: bool,
    /// The claim of that name, if the record was created in this cluster.
    pub(super) claim: Option<&'a PersistentVolumeClaim>,
    /// True if this operator serves the volume's provisioner name.
    pub(super) provisioner_served: bool,
    /// True if the administrator named the volume, and so confirms that it belongs to the claim with the recorded name.
    pub(super) requested_by_name: bool,
}

/// The claim that gets the recreated volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ownership {
    /// Any claim with the recorded name.
    ClaimName,
    /// Only the claim with the recorded UID.
    ClaimUid,
    /// No claim: the volume was Released and becomes Released again, with the reclaim policy Retain.
    Released,
    /// The claim is being provisioned, which creates the volume.
    Provisioning,
}

/// Reason why a volume is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SkipReason {
    /// This operator does not serve its claims.
    #[error("its provisioner name is {0}, which this operator does not serve: see --provisioner-name")]
    NotServed(String),
    /// The namespace does not exist. One that is created later under that name may belong to someone else.
    #[error("there is no namespace {0}: the volume is recreated when it exists")]
    NoNamespace(String),
    /// The backend allowed the namespace earlier, but no longer does.
    #[error("namespace {0} may not have volumes here: see spec.allowedNamespaces")]
    NamespaceNotAllowed(String),
    /// The namespace was deleted in this cluster, or is newer than the backup that the cluster was restored from.
    #[error(
        "namespace {0} does not have the recorded UID: it may belong to somebody else now; name the volume in the \
         annotation nfs-operator.io/readopt to recover it for the claim with the recorded name"
    )]
    OtherNamespace(String),
    /// The claim was deleted in this cluster, or is newer than the backup that the cluster was restored from.
    #[error(
        "claim {0}/{1} does not exist with the recorded UID; name the volume in the annotation nfs-operator.io/readopt to recover it for the \
         claim with that name"
    )]
    ClaimNotFound(String, String),
}

/// Decides which claim gets a recorded volume, or why the volume is left out.
pub(super) fn ownership(recorded: &RecordedVolume, view: &ClusterView<'_>) -> Result<Ownership, SkipReason> {
    let claim = &recorded.record.claim;
    let namespace = || claim.namespace.clone();
    if !view.provisioner_served {
        return Err(SkipReason::NotServed(recorded.metadata.provisioner.clone()));
    }
    if recorded.metadata.released {
        return Ok(Ownership::Released);
    }
    let same_cluster = recorded.metadata.cluster == view.cluster_uid;
    let same_namespace = !claim.namespace_uid.is_empty() && view.namespace_uid == Some(&claim.namespace_uid);
    let found = view.claim.filter(|found| found.uid().as_ref() == Some(&claim.uid));
    match found {
        Some(found) if same_cluster && same_namespace => Ok(match is_pending(found) {
            true => Ownership::Provisioning,
            false => Ownership::ClaimUid,
        }),
        // The cluster was rebuilt: neither namespace nor claim can have the recorded UID, and the administrator's request
        // refers to the names that exist now. So does a request that names the volume.
        _ if !same_cluster || view.requested_by_name => match view.namespace_uid {
            None => Err(SkipReason::NoNamespace(namespace())),
            Some(_) if !view.namespace_allowed => Err(SkipReason::NamespaceNotAllowed(namespace())),
            Some(_) => Ok(Ownership::ClaimName),
        },
        _ if !same_namespace => Err(SkipReason::OtherNamespace(namespace())),
        _ => Err(SkipReason::ClaimNotFound(namespace(), claim.name.clone())),
    }
}

fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    volume.is_none_or(str::is_empty)
}

/// Returns the volume as it was recorded, with the backend's current address.
///
/// # Errors
/// A recorded value cannot be parsed.
pub(super) fn volume_object(
    recorded: &RecordedVolume,
    ownership: &Ownership,
    backend: &NfsBackend,
) -> Result<PersistentVolume, String> {
    let (record, metadata) = (&recorded.record, &recorded.metadata);
    let affinity: Option<VolumeNodeAffinity> =
        metadata
            .node_affinity
            .clone()
            .map(serde_json::from_value)
            .transpose()
            .map_err(|error| format!("failed to parse the node affinity in its record: {error}"))?;
    let policy = match ownership {
        Ownership::Released => "Retain",
        _ => metadata.reclaim_policy.as_str(),
    };
    let some = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
    Ok(PersistentVolume {
        metadata: ObjectMeta {
            name: Some(record.volume.clone()),
            annotations: Some(annotations(recorded, ownership, backend)),
            labels: Some(names::volume_labels(&backend.name_any())),
            finalizers: (policy == "Delete").then(|| vec![names::RECLAIM_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: some(&metadata.access_modes),
            capacity: Some(BTreeMap::from([(
                "storage".to_owned(),
                Quantity(metadata.size.clone()),
            )])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: Some(record.claim.namespace.clone()),
                name: Some(record.claim.name.clone()),
                uid: (*ownership != Ownership::ClaimName).then(|| record.claim.uid.clone()),
                ..ObjectReference::default()
            }),
            mount_options: some(&metadata.mount_options),
            nfs: Some(NFSVolumeSource {
                server: backend.spec.server.to_string(),
                path: format!("{}/{}", backend.spec.path.trim_end_matches('/'), record.directory),
                read_only: None,
            }),
            node_affinity: affinity,
            persistent_volume_reclaim_policy: Some(policy.to_owned()),
            storage_class_name: metadata.class.clone(),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    })
}

fn annotations(recorded: &RecordedVolume, ownership: &Ownership, backend: &NfsBackend) -> BTreeMap<String, String> {
    let (record, metadata) = (&recorded.record, &recorded.metadata);
    let always = [
        (names::PROVISIONED_BY, metadata.provisioner.clone()),
        (names::VOLUME_BACKEND, backend.name_any()),
        (names::VOLUME_EXPORT_ID, recorded.export_id.clone()),
        (names::VOLUME_DIRECTORY, record.directory.to_string()),
        (names::VOLUME_FILE_ID, recorded.file_id.to_string()),
        (names::VOLUME_NAMESPACE_UID, record.claim.namespace_uid.clone()),
        (names::VOLUME_RECREATED, "true".to_owned()),
    ];
    let on_delete = metadata
        .on_delete
        .clone()
        .map(|policy| (names::VOLUME_ON_DELETE, policy));
    let pod_group = metadata.gid.map(|gid| (names::POD_GROUP, gid.to_string()));
    let shared = record
        .shared
        .then(|| (names::VOLUME_EXISTING, names::SHARED.to_owned()));
    // Removed once the volume is bound and its record names the claim.
    let readopted = (*ownership == Ownership::ClaimName).then(|| (names::VOLUME_READOPTED, record.claim.uid.clone()));
    always
        .into_iter()
        .chain(on_delete)
        .chain(pod_group)
        .chain(shared)
        .chain(readopted)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Reports whether an existing volume has the same directory as the one to create.
pub(super) fn is_same_volume(existing: &PersistentVolume, wanted: &PersistentVolume) -> bool {
    [
        names::VOLUME_EXPORT_ID,
        names::VOLUME_DIRECTORY,
        names::VOLUME_FILE_ID,
        names::VOLUME_BACKEND,
    ]
    .iter()
    .all(|name| existing.annotations().get(*name) == wanted.annotations().get(*name))
}

#[cfg(test)]
mod tests;
