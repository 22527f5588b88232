//! Enforced sizes: the settings in the spec of a backend (ADR 17).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the sizes of volumes are enforced.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaSettings {
    /// What happens to claims while the agent has not set the limit of their volume. `Required` provisions a volume only once
    /// its limit is in force, and expands it only once the new one is; while the agent does not respond, the backend accepts
    /// no new volumes. `Preferred` provisions and expands at once, and reports in the condition
    /// `nfs-operator.io/SizeEnforced` of the claim when the limit is in force.
    pub enforce: QuotaEnforcement,
    /// Maximum number of inodes of each volume: files, directories and links. If unset, the number is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub inodes: Option<i64>,
    /// Whether archives keep the limit of their volume. `Lift` removes it; a volume that the archive is restored to has a
    /// limit again.
    #[serde(default)]
    pub archives: ArchiveQuota,
}

/// What happens to claims while the limit of their volume is not in force.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum QuotaEnforcement {
    /// They wait.
    Required,
    /// They get their volume, and report whether its limit is in force.
    Preferred,
}

/// What happens to the limit of a volume that becomes an archive.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
pub enum ArchiveQuota {
    /// The archive keeps it.
    #[default]
    Keep,
    /// The archive has none.
    Lift,
}

impl QuotaSettings {
    /// Returns true if no volume is handed out without a limit in force.
    pub fn is_required(&self) -> bool {
        self.enforce == QuotaEnforcement::Required
    }

    /// Returns the maximum number of inodes of each volume.
    pub fn max_inodes(&self) -> Option<u64> {
        self.inodes.and_then(|inodes| u64::try_from(inodes).ok())
    }
}
