//! Measured storage usage: the settings in the spec of a backend, and the results in the status of backends and archives.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::schema::CountInterval;

/// How often usage is measured.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct UsageSettings {
    /// Pause between the end of a scan of all volumes and the start of the next, from 1m to 720h.
    pub interval: CountInterval,
}

/// Storage that the volumes and archives of a backend use, as far as they were scanned.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageStatus {
    /// Number of volumes that were scanned at least once.
    #[serde(default)]
    pub volumes: i64,
    /// Bytes on disk that these volumes use.
    #[serde(default)]
    pub bytes: i64,
    /// The same as a readable quantity.
    #[serde(default)]
    pub size: String,
    /// Number of files, directories and links in these volumes.
    #[serde(default)]
    pub files: i64,
    /// Bytes on disk that the scanned archives use.
    #[serde(default)]
    pub archived_bytes: i64,
    /// Number of volumes and archives that the last scan could not read.
    #[serde(default)]
    pub skipped: i64,
    /// Time when the last complete scan ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_completed: Option<Time>,
    /// Position of the scan in progress, from which it resumes after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<CountUnderWay>,
}

/// Position of a usage scan. It processes first the volumes, then the archives, each ordered by name.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
pub struct CountUnderWay {
    /// True if the volumes are complete and archives are being scanned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archives: bool,
    /// Name of the last volume or archive that was scanned; empty at the start.
    #[serde(default)]
    pub after: String,
    /// Number of interrupted attempts to scan the next one, which is skipped after a few attempts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: i64,
}

/// Storage that an archive uses. It is measured once, because an archive does not change.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveUsage {
    /// Bytes on disk that the archive uses.
    pub bytes: i64,
    /// The same as a readable quantity.
    pub size: String,
    /// Sum of the file sizes in bytes, including holes.
    pub apparent_bytes: i64,
    /// Number of files, directories and links in the archive.
    pub files: i64,
    /// Number of directories that could not be read, so that the archive contains more than was counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
