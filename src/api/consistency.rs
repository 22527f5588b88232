//! Whether a backup shows one moment, and what was copied.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a backup shows its claim at one moment, as only a snapshot of the server does. `Required` makes no backup without a
/// snapshot. `Preferred` then copies the data in use, and reports how many files changed meanwhile. If unset, the data in use
/// are copied.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum Consistency {
    /// Copy the newest snapshot of the server. If there is none, copy the data in use, and report the files that changed
    /// meanwhile.
    Preferred,
    /// Copy the newest snapshot of the server. If there is none, make no backup.
    Required,
}

/// Snapshot of the server that a backup was copied from.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopiedSnapshot {
    /// Name of the snapshot.
    #[schemars(length(max = 255))]
    pub name: String,
    /// Time of the last probe before the snapshot, by the server's clock: the data are at least as new. Unset if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
}

/// What a backup contains, and how much of it was copied.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopiedData {
    /// Number of files, links and directories.
    pub files: i64,
    /// Size of the files, in bytes.
    pub bytes: i64,
    /// Number of files that did not change since the previous backup and were not copied.
    pub reused_files: i64,
    /// Size of the files that were copied, in bytes.
    pub copied_bytes: i64,
}

impl From<&export_store::CopiedAmount> for CopiedData {
    fn from(amount: &export_store::CopiedAmount) -> Self {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Self {
            files: number(amount.files),
            bytes: number(amount.bytes),
            reused_files: number(amount.reused_files),
            copied_bytes: number(amount.bytes.saturating_sub(amount.reused_bytes)),
        }
    }
}
