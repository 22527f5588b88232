use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::sealed::{QuotaFile, check_message};
use crate::layout;
use crate::signature::Purpose;

/// Maximum size of a heartbeat in bytes, including its signature.
pub const MAX_HEARTBEAT_LEN: usize = 4096;
/// Time for which a heartbeat shows that the agent runs: it writes one at least every 10 seconds, and two may be missed.
pub const MAX_HEARTBEAT_AGE: Duration = Duration::from_secs(30);
/// Maximum length of a name in a heartbeat, in bytes.
const MAX_NAME_LEN: usize = 64;

/// Sign of life and abilities of the quota agent: the file `agent`, written at least every 10 s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// Random for each process.
    pub instance: String,
    /// Grows with each heartbeat of the instance.
    pub sequence: u64,
    /// Version of the agent.
    pub agent_version: String,
    /// Type of the file system, such as `xfs`.
    pub file_system: String,
    /// The file system enforces sizes.
    pub enforced: bool,
    /// The file system also limits the number of files.
    pub inodes_counted: bool,
    /// Number of order files of this cluster that the agent ignores: unsigned, forged, or damaged.
    pub ignored_orders: u64,
    /// Number of reports of this cluster that the instance completed: limits that are in force, or cannot be. The heartbeat
    /// is written again with the same sequence as soon as it grew, so that an operator that waits for reports reads one file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reported: u64,
    /// What prevents the agent from enforcing sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<AgentProblem>,
    /// What happened, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What prevents an agent from enforcing the sizes of all volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AgentProblem {
    /// The file system is mounted without project quotas.
    QuotasOff,
    /// The export's root passes its project on to new directories, so they cannot be moved to the trash.
    RootInheritsProject,
    /// The type of the file system is not supported. For adapters: the agent for Linux does not start on such a file system.
    FileSystemUnsupported,
    /// A tool is missing or failed.
    ToolFailed,
    /// The agent has no key of this cluster.
    KeyMissing,
    /// A reason of a newer release.
    #[serde(other)]
    Unknown,
}

impl QuotaFile for Heartbeat {
    const MAX_LEN: usize = MAX_HEARTBEAT_LEN;
    const PURPOSE: Purpose = Purpose::QuotaHeartbeat;

    fn name(&self) -> &str {
        layout::QUOTA_AGENT
    }

    fn check(&self, _: &str) -> Result<(), String> {
        let printable = |text: &str| text.len() <= MAX_NAME_LEN && text.bytes().all(|byte| byte.is_ascii_graphic());
        for (field, text) in [
            ("instance", &self.instance),
            ("agentVersion", &self.agent_version),
            ("fileSystem", &self.file_system),
        ] {
            if !printable(text) {
                return Err(format!("{field} must have at most {MAX_NAME_LEN} printable characters"));
            }
        }
        self.message.as_deref().map_or(Ok(()), check_message)
    }
}
