//! What the operator found out about a backend.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::orphans::OrphansStatus;
use crate::api::usage::UsageStatus;

/// What the operator found out about a backend.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NfsBackendStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reachable, Writable, CapacityAvailable, IdentityConfirmed, TrashPurged, NoOrphans, RecordsTrusted; and, once its volumes are asked for, Readopted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The export's identity, once confirmed.
    #[serde(default, rename = "exportID", skip_serializing_if = "Option::is_none")]
    pub export_id: Option<String>,
    /// The fileid of the export's root directory: a copied export has another one.
    #[serde(default, rename = "rootFileID", skip_serializing_if = "Option::is_none")]
    pub root_file_id: Option<String>,
    /// The NFS version in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs_version: Option<String>,
    /// Space and inodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityStatus>,
    /// Number of volumes on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<i64>,
    /// Number of archives on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archives: Option<i64>,
    /// Deleted directories that are still being purged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trash: Option<TrashStatus>,
    /// Directories and volumes that have lost each other, as of the last scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphans: Option<OrphansStatus>,
    /// What the volumes really hold; only where `spec.usage` asks for it. Written when all were counted, and at most once a
    /// minute meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageStatus>,
    /// When the export was last probed; written at most once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
}

/// Space and inodes of a backend, as quantities for reading; absent where the server doesn't say.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityStatus {
    /// Size of the export's file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<String>,
    /// Free space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<String>,
    /// Sum of the requests of the volumes here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<String>,
    /// Inodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<String>,
    /// Free inodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<String>,
}

/// Deleted directories that are still being purged.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrashStatus {
    /// How many.
    #[serde(default)]
    pub entries: i64,
    /// When the oldest of them was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Time>,
    /// What the last purge could not remove, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}
