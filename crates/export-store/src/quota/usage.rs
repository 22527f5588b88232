use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sealed::{QuotaFile, check_volume};
use crate::layout;
use crate::signature::Purpose;

/// Maximum size of the usage file in bytes, including its signature: 100,000 volumes with the longest names.
pub const MAX_USAGE_LEN: usize = 20 * 1024 * 1024;

/// Usage of all volumes: the file `usage`, rewritten at an interval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Instance of the agent; see [`super::Heartbeat`].
    pub instance: String,
    /// Sequence of the agent's heartbeat before the usage was read.
    pub sequence: u64,
    /// Usage by volume. A volume whose files are still being added is missing.
    pub volumes: BTreeMap<String, VolumeUsage>,
}

/// Usage of one volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUsage {
    /// Bytes that the files occupy, as the file system accounts them.
    pub bytes: u64,
    /// Number of files and directories, including the volume's directory.
    pub inodes: u64,
}

impl QuotaFile for Usage {
    const MAX_LEN: usize = MAX_USAGE_LEN;
    const PURPOSE: Purpose = Purpose::QuotaUsage;

    fn name(&self) -> &str {
        layout::QUOTA_USAGE
    }

    fn check(&self, _: &str) -> Result<(), String> {
        self.volumes.keys().try_for_each(|volume| check_volume(volume))
    }
}
