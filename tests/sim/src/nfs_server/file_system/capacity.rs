//! Space and inodes.

use super::FileSystem;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// Space and inodes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Size in bytes.
    pub total: u64,
    /// Free bytes.
    pub available: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl FileSystem {
    /// Returns space and inodes.
    pub fn statistics(&self) -> Statistics {
        let limit = self.options.quota.unwrap_or(u64::MAX).min(self.options.capacity);
        Statistics {
            total: limit,
            available: limit.saturating_sub(self.used),
            inodes: self.options.inodes,
            inodes_free: self.options.inodes.saturating_sub(self.inodes.len() as u64),
        }
    }

    /// Charges for an object that grows or shrinks; fails if there is no space.
    pub(super) fn charge(&mut self, before: u64, after: u64) -> NfsResult<()> {
        let used = self.used.saturating_sub(before).saturating_add(after);
        if after > before {
            if used > self.options.capacity {
                return Err(NfsStat::NOSPC);
            }
            if self.options.quota.is_some_and(|quota| used > quota) {
                return Err(NfsStat::DQUOT);
            }
        }
        self.used = used;
        Ok(())
    }

    /// Fails if there is no free inode.
    pub(super) fn check_inodes(&self) -> NfsResult<()> {
        if self.inodes.len() as u64 >= self.options.inodes {
            return Err(NfsStat::NOSPC);
        }
        Ok(())
    }

    /// Bytes that can still be written.
    pub(super) fn space_left(&self) -> u64 {
        self.statistics().available
    }
}
