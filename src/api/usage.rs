//! Measured storage usage: the settings in the spec of a backend, and the results in the status of backends and archives.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{Duration, exact_quantity, usage_interval};

/// How often usage is measured.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct UsageSettings {
    /// Pause between the end of a scan of all volumes and the start of the next, from 1m to 720h.
    #[schemars(schema_with = "usage_interval")]
    pub interval: Duration,
}

/// Storage that the volumes and archives of a backend use, as far as they were scanned.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageStatus {
    /// Number of volumes that were scanned at least once.
    #[serde(default)]
    pub volumes: i64,
    /// Disk space that these volumes use.
    #[serde(default = "zero")]
    #[schemars(schema_with = "exact_quantity")]
    pub size: Quantity,
    /// Number of files, directories and links in these volumes.
    #[serde(default)]
    pub files: i64,
    /// Disk space that the scanned archives use.
    #[serde(default = "zero")]
    #[schemars(schema_with = "exact_quantity")]
    pub archived_size: Quantity,
    /// Number of volumes and archives that the last scan could not read.
    #[serde(default)]
    pub skipped: i64,
    /// Time when the last complete scan ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_completion_time: Option<Time>,
}

/// Storage that an archive uses. It is measured once, because an archive does not change.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveUsage {
    /// Disk space that the archive uses.
    #[schemars(schema_with = "exact_quantity")]
    pub size: Quantity,
    /// Sum of the file sizes, including holes.
    #[schemars(schema_with = "exact_quantity")]
    pub apparent_size: Quantity,
    /// Number of files, directories and links in the archive.
    pub files: i64,
    /// Number of directories that could not be read, so that the archive contains more than was counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread_directories: i64,
}

fn zero() -> Quantity {
    Quantity("0".to_owned())
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
