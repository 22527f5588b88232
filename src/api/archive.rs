//! `NfsArchive`: a directory that is kept after its volume was deleted.
#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one attribute for each printer column"
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backend::AllowedNamespaces;
pub use super::schema::FileId;
use super::usage::ArchiveUsage;

/// A directory that is kept on an export after its volume was deleted. Made by the operator, named after the volume.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "nfs-operator.io",
    version = "v1alpha1",
    kind = "NfsArchive",
    plural = "nfsarchives",
    shortname = "nfsa",
    status = "NfsArchiveStatus",
    derive = "PartialEq",
    doc = "Data that was kept when its claim went: where it lies, whose it was, and how long it stays. Short name: nfsa.",
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
pub struct NfsArchiveSpec {
    /// The backend that it lies on.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self == oldSelf", "backend can't be changed"))]
    pub backend: String,
    /// The identity of the export that it lies on.
    #[serde(rename = "exportID")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = ("self == oldSelf", "exportID can't be changed"))]
    pub export_id: String,
    /// Its name at the export's root.
    #[schemars(length(min = 1, max = 255))]
    #[x_kube(validation = ("self == oldSelf", "directory can't be changed"))]
    pub directory: String,
    /// The fileid of its directory.
    #[serde(rename = "fileID")]
    #[x_kube(validation = ("self == oldSelf", "fileID can't be changed"))]
    pub file_id: FileId,
    /// The volume that it was.
    #[schemars(length(min = 1, max = 110))]
    #[x_kube(validation = ("self == oldSelf", "volume can't be changed"))]
    pub volume: String,
    /// The claim that the volume was for.
    #[x_kube(validation = ("self == oldSelf", "claim can't be changed"))]
    pub claim: ArchivedClaim,
    /// The size that the claim had asked for; absent when it is not known any more (archives of release 0.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self == oldSelf", "size can't be changed"))]
    pub size: Option<String>,
    /// The StorageClass of the claim; absent as for `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = ("self == oldSelf", "storageClassName can't be changed"))]
    pub storage_class_name: Option<String>,
    /// When it was archived; absent as for `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "archivedAt can't be changed"))]
    pub archived_at: Option<Time>,
    /// When it may be purged. Absent: never, or when the backend's `archivePolicy.keepLast` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// As long as this is true, nobody purges it, and the object can't be deleted.
    #[serde(default)]
    pub legal_hold: bool,
    /// What becomes of the data when this object is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Namespaces, beside the one that it came from, into which it may be restored. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
}

/// The claim that an archive came from.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct ArchivedClaim {
    /// Its namespace.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// The uid of its namespace; empty when it is not known (volumes of nfs-subdir-external-provisioner).
    #[serde(default, rename = "namespaceUID")]
    #[schemars(length(max = 64))]
    pub namespace_uid: String,
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its uid.
    #[schemars(length(max = 64))]
    pub uid: String,
}

/// What becomes of an archive's data when its object is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum DeletionPolicy {
    /// They stay; the object comes back with the backend's next probe.
    #[default]
    Retain,
    /// They are purged through the trash.
    Delete,
}

/// What the operator found out about an archive.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NfsArchiveStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// One word for all: Available, Held, Expired, Purging, Restoring, Missing, Unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Available; and, only while they hold, Expired, Purging, Restoring, Missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// What it takes, once counted: only where the backend's `spec.usage` asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ArchiveUsage>,
}
