//! `NfsArchive`: the data of a deleted volume, or a requested backup of a volume in use.
#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one attribute for each printer column"
)]

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backend::{AllowedNamespaces, BackupDestination};
use super::consistency::{Consistency, CopiedData, CopiedSnapshot};
use super::names::{ARCHIVE_BACKEND, ARCHIVE_EXPORT_ID};
pub use super::schema::FileId;
use super::schema::{Duration, max_snapshot_age};
use super::usage::ArchiveUsage;

/// What is requested of an archive.
///
/// The operator creates an archive when it archives the directory of a deleted volume, and names it after the volume. A user
/// creates one to request a backup of a claim, or to import a released archive again.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "nfs-operator.io",
    version = "v1alpha1",
    kind = "NfsArchive",
    plural = "nfsarchives",
    shortname = "nfsa",
    category = "storage",
    status = "NfsArchiveStatus",
    selectable = ".spec.claimRef.namespace",
    selectable = ".status.backendName",
    derive = "PartialEq",
    doc = "NfsArchive is the archived data of a deleted claim, or a requested backup of a claim. Its spec has its claim and its retention, its status has its location and its origin. Short name: nfsa.",
    validation = ("size(self.metadata.name) <= 110", "metadata.name must have at most 110 characters, because it is also the name of a record on the export: choose a shorter name"),
    printcolumn(name = "Claim", type_ = "string", json_path = ".spec.claimRef.name"),
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.claimRef.namespace"),
    printcolumn(name = "Backend", type_ = "string", json_path = ".status.printed.backend"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.printed.size"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.printed.expires"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Deletion-Policy",
        type_ = "string",
        json_path = ".spec.deletionPolicy",
        priority = 1
    ),
    printcolumn(name = "Archived", type_ = "date", json_path = ".status.archiveTime", priority = 1),
    printcolumn(name = "Hold", type_ = "boolean", json_path = ".spec.legalHold", priority = 1),
    printcolumn(name = "Directory", type_ = "string", json_path = ".status.directory", priority = 1),
    printcolumn(name = "Used", type_ = "string", json_path = ".status.usage.size", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Available')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.maxSnapshotAge) || has(self.consistency)", "maxSnapshotAge requires consistency: set consistency to Required or Preferred"))]
pub struct NfsArchiveSpec {
    /// Claim that the data belonged to. For a backup, the claim to copy.
    #[x_kube(validation = ("self == oldSelf", "claimRef can't be changed: create an archive with another name"))]
    pub claim_ref: ArchivedClaim,
    /// Time after which the archive may be purged. If unset, the archive is kept forever, unless the backend's
    /// `archivePolicy.keepLast` limits the number of archives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<Time>,
    /// Protects the archive while true: it is not purged, and this object cannot be deleted.
    #[serde(default)]
    pub legal_hold: bool,
    /// What happens to the data when this object is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Namespaces, in addition to the claim's own, that may restore the archive. If unset, no other namespace may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Backend that gets the backup. If unset, `spec.backups.destination` of the backend of the claim decides when the backup
    /// begins. Has no effect on archives of deleted claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "destination can't be changed: create an archive with another name"))]
    pub destination: Option<BackupDestination>,
    /// Whether the backup shows the claim at one moment. If unset, the data in use are copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "consistency can't be changed: create an archive with another name"))]
    pub consistency: Option<Consistency>,
    /// Maximum age of the snapshot, such as `1h`, counted from the last probe before it. An older one counts as none. If unset,
    /// the newest snapshot is copied, whatever its age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "max_snapshot_age")]
    #[x_kube(validation = ("self == oldSelf", "maxSnapshotAge can't be changed: create an archive with another name"))]
    pub max_snapshot_age: Option<Duration>,
    /// NfsBackup of the claim's namespace that the operator created this archive for. Deleting the NfsBackup deletes the
    /// archive, unless it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "backupRef can't be changed: create an archive with another name"))]
    pub backup_ref: Option<BackupReference>,
}

/// NfsBackup that an archive was created for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct BackupReference {
    /// Name of the NfsBackup.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// UID of the NfsBackup.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

impl NfsArchive {
    /// Returns the observed state, which is empty before the operator wrote it.
    pub fn observed(&self) -> &NfsArchiveStatus {
        self.status.as_ref().unwrap_or(&UNOBSERVED)
    }

    /// Returns true if the data exist and their location is known. False for a backup that is not complete yet, and while
    /// the status is lost.
    pub fn is_complete(&self) -> bool {
        self.file_id().is_some()
    }

    /// Returns the fileid of the directory, if it is known.
    pub fn file_id(&self) -> Option<u64> {
        self.observed().file_id.as_ref()?.parse().ok()
    }

    /// Returns true if the data exist and stay: the archive is complete, was found where it is recorded, and has not expired.
    pub fn is_good(&self) -> bool {
        self.is_complete()
            && self.metadata.deletion_timestamp.is_none()
            && matches!(
                self.observed().state,
                Some(ArchiveSummary::Available | ArchiveSummary::Held)
            )
    }

    /// Returns the backend, also while the status is lost. Empty if it is not known.
    pub fn backend_name(&self) -> &str {
        self.location(&self.observed().backend_name, ARCHIVE_BACKEND)
    }

    /// Returns the identity of the export, also while the status is lost. Empty if it is not known.
    pub fn export_id(&self) -> &str {
        self.location(&self.observed().export_id, ARCHIVE_EXPORT_ID)
    }

    fn location<'a>(&'a self, observed: &'a str, annotation: &str) -> &'a str {
        match (observed, self.annotations().get(annotation)) {
            ("", Some(annotated)) => annotated,
            _ => observed,
        }
    }

    /// Returns true if this is a requested backup. Archives of deleted volumes have the name of their volume.
    pub fn is_on_demand(&self) -> bool {
        match self.observed().volume_name.as_str() {
            "" => !self.has_reserved_name(),
            volume => volume != self.name_any(),
        }
    }

    /// Returns true if the name is reserved for archives of deleted volumes.
    pub fn has_reserved_name(&self) -> bool {
        self.name_any().starts_with(VOLUME_PREFIX)
    }
}

/// Prefix of the names of volumes, and therefore of the archives of deleted volumes.
const VOLUME_PREFIX: &str = "pvc-";

static UNOBSERVED: NfsArchiveStatus = NfsArchiveStatus {
    observed_generation: None,
    state: None,
    backend_name: String::new(),
    export_id: String::new(),
    directory: String::new(),
    file_id: None,
    volume_name: String::new(),
    claim_uid: String::new(),
    namespace_uid: String::new(),
    requested_size: None,
    storage_class_name: None,
    volume_creation_time: None,
    archive_time: None,
    snapshot: None,
    copied: None,
    printed: None,
    usage: None,
    conditions: Vec::new(),
};

/// Claim that the data of an archive belonged to.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
pub struct ArchivedClaim {
    /// Namespace of the claim.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", "claimRef.namespace must be a valid name of a namespace: lower case letters, digits and `-`"))]
    pub namespace: String,
    /// Name of the claim.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')", "claimRef.name must be a valid name of a claim: lower case letters, digits, `-` and `.`"))]
    pub name: String,
}

/// What happens to the data of an archive when its object is deleted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum DeletionPolicy {
    /// Keep the data on the export, without an object. An archive that is created with the same name and claim imports them
    /// again.
    #[default]
    Retain,
    /// Move the data to the trash, from where they are purged.
    Delete,
}

/// State of an archive, for printing. Programs use the conditions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum ArchiveSummary {
    /// A backup waits for something.
    Pending,
    /// A backup is being copied.
    Copying,
    /// The data exist.
    Available,
    /// The data exist, and have a legal hold.
    Held,
    /// The data exist, and will be purged.
    Expired,
    /// The data are being moved to the trash.
    Purging,
    /// The data are being restored to a volume.
    Restoring,
    /// The data do not exist at the recorded location.
    Missing,
    /// The data cannot be observed, or do not match the record, or the operator has not seen the object yet.
    Unknown,
}

/// Observed state of an archive. The record on the export is its source: a lost status is written again.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NfsArchiveStatus {
    /// Generation of the spec that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the conditions, for printing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Unknown"))]
    pub state: Option<ArchiveSummary>,
    /// Name of the NfsBackend that stores the archive.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub backend_name: String,
    /// Identity of the export that stores the archive.
    #[serde(default, rename = "exportID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub export_id: String,
    /// Name of the archive's directory at the root of the export. Unset while a backup is pending or in progress.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 255))]
    pub directory: String,
    /// Fileid of the archive's directory. Unset while `directory` is unset.
    #[serde(default, rename = "fileID", skip_serializing_if = "Option::is_none")]
    pub file_id: Option<FileId>,
    /// Name of the PersistentVolume that was archived or backed up.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub volume_name: String,
    /// UID of the claim.
    #[serde(default, rename = "claimUID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub claim_uid: String,
    /// UID of the claim's namespace. Unset if unknown (volumes of nfs-subdir-external-provisioner).
    #[serde(default, rename = "namespaceUID", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub namespace_uid: String,
    /// Storage that the claim requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_size: Option<Quantity>,
    /// StorageClass of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// Time when the volume was created, which is the age of the data: `archivePolicy.keepLast` keeps the archives with the
    /// newest data. Unset if unknown, and for volumes that were recreated from their records; such an archive is neither
    /// counted nor purged by `keepLast`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_creation_time: Option<Time>,
    /// Time when the data were archived, by the API server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_time: Option<Time>,
    /// Snapshot of the server that was copied. Unset if the data were copied while in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<CopiedSnapshot>,
    /// What the backup contains, and how much of it was copied. Unset until it is complete, and for archives of deleted claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<CopiedData>,
    /// Columns of `kubectl get`. Programs use the fields that the columns are made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub printed: Option<PrintedArchive>,
    /// Storage that the archive uses, once counted. Set only if `spec.usage` of the backend is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ArchiveUsage>,
    /// Conditions of the archive: Available and Retained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Columns of `kubectl get` of an archive. Each has a text in every state: `Unknown` if nothing else is known, which is also the
/// default of the definition, for an object that the operator has not seen yet.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrintedArchive {
    /// `status.backendName`, or `Unknown`.
    #[serde(default = "unknown")]
    #[schemars(length(max = 253))]
    pub backend: String,
    /// `status.requestedSize`, or `Unknown`.
    #[serde(default = "unknown")]
    #[schemars(length(max = 64))]
    pub size: String,
    /// `spec.expirationTime`, `never`, `keepLast` if only the newer archives of the claim decide, or `Unknown`.
    #[serde(default = "unknown")]
    #[schemars(length(max = 64))]
    pub expires: String,
}

/// Returns the text of a column whose value is not known.
pub fn unknown() -> String {
    "Unknown".to_owned()
}
