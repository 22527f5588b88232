//! `NfsArchive`: the data of a deleted volume, or a requested backup of a volume in use.
#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one attribute for each printer column"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backend::AllowedNamespaces;
pub use super::schema::FileId;
use super::usage::ArchiveUsage;

/// Specification of an archive.
///
/// The operator creates an archive when it archives the directory of a deleted volume, and names it after the volume. A user
/// creates one with any other name to request a backup of a claim; the operator then fills in the remaining fields.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "nfs-operator.io",
    version = "v1alpha1",
    kind = "NfsArchive",
    plural = "nfsarchives",
    shortname = "nfsa",
    status = "NfsArchiveStatus",
    derive = "PartialEq",
    doc = "NfsArchive is the archived data of a deleted claim, or a requested backup of a claim: its location, its origin and its retention. Short name: nfsa.",
    validation = ("has(self.spec.fileID) || !self.metadata.name.startsWith('pvc-')", "names that begin with `pvc-` are reserved for archives of deleted volumes: choose another name"),
    validation = ("has(self.spec.fileID) || size(self.metadata.name) <= 110", "the name must have at most 110 characters, because it is also the name of a record on the export"),
    printcolumn(name = "Claim", type_ = "string", json_path = ".spec.claim.name"),
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.claim.namespace"),
    printcolumn(name = "Backend", type_ = "string", json_path = ".spec.backend"),
    printcolumn(name = "Age", type_ = "date", json_path = ".spec.archivedAt"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".spec.expiresAt"),
    printcolumn(name = "Request", type_ = "string", json_path = ".spec.size"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.usage.size"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Directory", type_ = "string", json_path = ".spec.directory", priority = 1),
    printcolumn(name = "Held", type_ = "boolean", json_path = ".spec.legalHold", priority = 1),
    printcolumn(
        name = "On-Delete",
        type_ = "string",
        json_path = ".spec.deletionPolicy",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Available')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("has(self.backend) == has(self.exportID) && has(self.backend) == has(self.volume) && (has(self.backend) || !has(self.claim.uid))",
                  "specify only the namespace and name of the claim: backend, exportID, volume and claim.uid are written by the operator, together"),
    validation = ("has(self.directory) == has(self.fileID) && (!has(self.fileID) || has(self.backend))",
                  "directory and fileID are written by the operator once the data exist"),
    validation = ("has(self.backend) || !has(self.claim.namespaceUID)", "claim.namespaceUID is written by the operator"),
    validation = ("has(self.fileID) || (!has(self.size) && !has(self.storageClassName) && !has(self.volumeCreatedAt) && !has(self.archivedAt))",
                  "size, storageClassName, volumeCreatedAt and archivedAt are written by the operator once the data exist"),
    validation = ("has(self.backend) || (self.claim.__namespace__.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && self.claim.name.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$'))",
                  "claim must have a valid namespace and a valid name"),
    validation = ("(!has(oldSelf.backend) || has(self.backend)) && (!has(oldSelf.fileID) || has(self.fileID))",
                  "fields that the operator wrote can't be removed"),
    validation = ("!has(oldSelf.backend) || self.claim == oldSelf.claim", "claim can't be changed"),
    validation = ("!has(oldSelf.fileID) || (has(self.size) == has(oldSelf.size) && has(self.storageClassName) == has(oldSelf.storageClassName) && has(self.volumeCreatedAt) == has(oldSelf.volumeCreatedAt) && has(self.archivedAt) == has(oldSelf.archivedAt))",
                  "size, storageClassName, volumeCreatedAt and archivedAt can't be changed"),
)]
pub struct NfsArchiveSpec {
    /// Name of the NfsBackend that stores the archive. Set by the operator, like all fields down to `archivedAt` except
    /// the namespace and name of the claim.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self == oldSelf", "backend can't be changed"))]
    pub backend: String,
    /// Identity of the export that stores the archive.
    #[serde(default, rename = "exportID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = ("self == oldSelf", "exportID can't be changed"))]
    pub export_id: String,
    /// Name of the archive's directory at the root of the export. Unset while a backup is pending or in progress.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 255))]
    #[x_kube(validation = ("self == oldSelf", "directory can't be changed"))]
    pub directory: String,
    /// Fileid of the archive's directory. Unset while `directory` is unset.
    #[serde(default, rename = "fileID", skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "fileID can't be changed"))]
    pub file_id: Option<FileId>,
    /// Name of the PersistentVolume that was archived or backed up.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 110))]
    #[x_kube(validation = ("self == oldSelf", "volume can't be changed"))]
    pub volume: String,
    /// Claim that the data belonged to. To request a backup, specify the namespace and name of a claim, and nothing else.
    #[x_kube(validation = ("self.__namespace__ == oldSelf.__namespace__ && self.name == oldSelf.name", "claim can't be changed"))]
    pub claim: ArchivedClaim,
    /// Storage that the claim requested. Unset if unknown (archives of release 0.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self == oldSelf", "size can't be changed"))]
    pub size: Option<String>,
    /// StorageClass of the claim. Unset if unknown, like `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = ("self == oldSelf", "storageClassName can't be changed"))]
    pub storage_class_name: Option<String>,
    /// Time when the volume was created, which is the age of the data: `archivePolicy.keepLast` keeps the archives with the
    /// newest data. Unset if unknown, like `size`, and for volumes that were recreated from their records; such an archive is
    /// neither counted nor purged by `keepLast`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "volumeCreatedAt can't be changed"))]
    pub volume_created_at: Option<Time>,
    /// Time when the data were archived, by the API server's clock. Unset if unknown, like `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "archivedAt can't be changed"))]
    pub archived_at: Option<Time>,
    /// Time after which the archive may be purged. If unset, the archive is kept forever, unless the backend's
    /// `archivePolicy.keepLast` limits the number of archives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Protects the archive while true: it is not purged, and this object cannot be deleted.
    #[serde(default)]
    pub legal_hold: bool,
    /// What happens to the data when this object is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Namespaces, in addition to the claim's own, that may restore the archive. If unset, no other namespace may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
}

impl NfsArchive {
    /// Returns true unless this is a backup that is not complete yet.
    pub fn is_complete(&self) -> bool {
        self.spec.file_id.is_some()
    }

    /// Returns true if this is a requested backup. Archives of deleted volumes have the name of their volume, and validation
    /// keeps the name of a backup from beginning with `pvc-`.
    pub fn is_on_demand(&self) -> bool {
        self.spec.volume != self.name_any()
    }
}

/// Claim that the data of an archive belonged to.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct ArchivedClaim {
    /// Namespace of the claim.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// UID of the namespace. Unset if unknown (volumes of nfs-subdir-external-provisioner).
    #[serde(default, rename = "namespaceUID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 64))]
    pub namespace_uid: String,
    /// Name of the claim.
    #[schemars(length(max = 253))]
    pub name: String,
    /// UID of the claim.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// What happens to the data of an archive when its object is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum DeletionPolicy {
    /// Keep the data. The operator recreates the object after the next probe of the backend.
    #[default]
    Retain,
    /// Move the data to the trash, from where they are purged.
    Delete,
}

/// Observed state of an archive.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NfsArchiveStatus {
    /// Generation of the spec that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the conditions: Pending, Copying, Available, Held, Expired, Purging, Restoring, Missing or Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Conditions of the archive: Available; and, only while true, Expired, Purging, Restoring and Missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Storage that the archive uses, once counted. Set only if `spec.usage` of the backend is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ArchiveUsage>,
}
