//! What a backend's spec and status, and an archive's status, say of what is really there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::schema::CountInterval;

/// How often what volumes hold is counted.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct UsageSettings {
    /// From the end of a count of all volumes to the beginning of the next: from 1m to 720h.
    pub interval: CountInterval,
}

/// What the volumes of a backend hold, as far as they were counted.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageStatus {
    /// Volumes that were counted at least once.
    #[serde(default)]
    pub volumes: i64,
    /// Bytes that they take on the server's disk.
    #[serde(default)]
    pub bytes: i64,
    /// The same, for reading.
    #[serde(default)]
    pub size: String,
    /// Names in them: files, directories, links.
    #[serde(default)]
    pub files: i64,
    /// Bytes that those archives take which were counted.
    #[serde(default)]
    pub archived_bytes: i64,
    /// Volumes and archives that could not be counted the last time.
    #[serde(default)]
    pub skipped: i64,
    /// When all of them were counted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_completed: Option<Time>,
    /// How far the count is that goes on; after a restart it goes on from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<CountUnderWay>,
}

/// A count of all volumes and archives that goes on: first the volumes, then the archives, each in the order of their names.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
pub struct CountUnderWay {
    /// The volumes are done, and it is at the archives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archives: bool,
    /// The volume or archive that was counted last, by name; empty at the beginning.
    #[serde(default)]
    pub after: String,
    /// How often the next one was begun and cut off: after a few times it is left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: i64,
}

/// What an archive takes. It is counted once: it does not change.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveUsage {
    /// Bytes that it takes on the server's disk.
    pub bytes: i64,
    /// The same, for reading.
    pub size: String,
    /// Bytes that its files say they have, holes included.
    pub apparent_bytes: i64,
    /// Names in it: files, directories, links.
    pub files: i64,
    /// Directories that could not be read: when there are any, it holds more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
