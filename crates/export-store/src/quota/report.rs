use serde::{Deserialize, Serialize};

use super::sealed::{QuotaFile, check_message, check_volume};
use crate::signature::Purpose;

/// Maximum size of a report in bytes, including its signature.
pub const MAX_REPORT_LEN: usize = 4096;

/// Maximum number of directories in [`Report::visit`]: two numbers of 20 digits each.
pub const MAX_VISIT_PLACE: usize = 50;

/// What is in force for one volume: the file `reports/<volume>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the volume, and of the file.
    pub volume: String,
    /// Fileid of the directory in the order.
    #[serde(rename = "fileID")]
    pub file_id: u64,
    /// Generation of the order.
    pub generation: u64,
    /// Project ID of the directory, once the agent has chosen it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<u32>,
    /// Whether the limits of that order are in force.
    #[serde(flatten)]
    pub state: LimitState,
    /// How far the existing files are added, for the agent itself: the inode of each directory from the volume's to the one
    /// that is being listed, and the position in it. Empty unless pending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub visit: Vec<(u64, i64)>,
}

/// Whether the limits of an order are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all_fields = "camelCase")]
pub enum LimitState {
    /// The file system enforces the limits for everything in the directory.
    InForce,
    /// The file system enforces the limits for new files. Files that existed before are being added.
    Pending {
        /// Number of files and directories that were visited so far.
        visited: u64,
    },
    /// The limits are not in force.
    Failed {
        /// Kind of problem.
        reason: SizeProblem,
        /// What happened, and the remedy.
        message: String,
    },
}

/// Why the size of a volume cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SizeProblem {
    /// A segment of the path does not exist.
    DirectoryMissing,
    /// A segment of the path is not a directory, for example a symbolic link.
    NotADirectory,
    /// The directory has another fileid than the order.
    DirectoryReplaced,
    /// The directory is on another file system than the export's root.
    OtherFileSystem,
    /// Another order is for the same directory, or for one that contains it or is in it.
    DirectoryTaken,
    /// The directory has a project that the agent did not give it.
    ForeignProject,
    /// No project ID in the agent's range is free.
    ProjectsExhausted,
    /// The file system refused a change.
    ChangeRefused,
    /// A reason of a newer release.
    #[serde(other)]
    Unknown,
}

impl QuotaFile for Report {
    const MAX_LEN: usize = MAX_REPORT_LEN;
    const PURPOSE: Purpose = Purpose::QuotaReport;

    fn name(&self) -> &str {
        &self.volume
    }

    fn check(&self, _: &str) -> Result<(), String> {
        check_volume(&self.volume)?;
        if self.visit.len() > MAX_VISIT_PLACE {
            return Err(format!("visit must have at most {MAX_VISIT_PLACE} directories"));
        }
        match &self.state {
            LimitState::Failed { message, .. } => check_message(message),
            LimitState::InForce if self.project.is_none() => Err("it has no project".into()),
            LimitState::InForce | LimitState::Pending { .. } => Ok(()),
        }
    }
}
