use serde::{Deserialize, Serialize};

use super::directory::QuotaDirectory;
use super::sealed::{QuotaFile, check_volume};
use crate::signature::Purpose;

/// Maximum size of an order in bytes, including its signature: a path of 1,024 bytes, a volume's name, and numbers.
pub const MAX_ORDER_LEN: usize = 4096;

/// What the operator wants for one volume: the file `orders/<volume>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// Name of the volume, and of the file.
    pub volume: String,
    /// The volume's directory.
    pub directory: QuotaDirectory,
    /// Fileid (inode number) of the directory.
    #[serde(rename = "fileID")]
    pub file_id: u64,
    /// Number of this order. A greater one replaces a smaller one, never the other way round.
    pub generation: u64,
    /// Maximum size of all files, in bytes; at least 1. Unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Maximum number of files and directories; at least 1. Unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
}

impl QuotaFile for Order {
    const MAX_LEN: usize = MAX_ORDER_LEN;
    const PURPOSE: Purpose = Purpose::QuotaOrder;

    fn name(&self) -> &str {
        &self.volume
    }

    fn check(&self, cluster_id: &str) -> Result<(), String> {
        check_volume(&self.volume)?;
        if !self.directory.may_be_named_by(cluster_id) {
            return Err(format!("{} belongs to another cluster", self.directory));
        }
        // Tools and file systems take 0 for "no limit".
        for (field, limit) in [("bytes", self.bytes), ("inodes", self.inodes)] {
            if limit == Some(0) {
                return Err(format!("{field} must be at least 1; omit it for no limit"));
            }
        }
        Ok(())
    }
}
