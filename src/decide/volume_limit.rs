//! The limit of a volume or an archive on the server (`spec.quota` of its backend). Pure.

use std::fmt;

use crate::api::backend::{ArchiveQuota, QuotaSettings};
use export_store::VolumeLimit;
use export_store::quota::VolumeUsage;
use export_store::text::format_bytes_up;

/// Returns the limit of a volume of this size.
pub fn volume_limit(settings: &QuotaSettings, bytes: u128) -> VolumeLimit {
    VolumeLimit {
        // A size that is larger than any file system is no limit. 0 would mean none, too.
        bytes: u64::try_from(bytes.max(1)).ok(),
        inodes: settings.max_inodes(),
    }
}

/// Returns the limit of an archive of a volume of this size.
pub fn archive_limit(settings: &QuotaSettings, bytes: u128) -> VolumeLimit {
    match settings.archives {
        ArchiveQuota::Keep => volume_limit(settings, bytes),
        ArchiveQuota::Lift => VolumeLimit::default(),
    }
}

/// What a volume holds beyond a limit. A copy with that limit cannot hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    /// More bytes.
    Bytes {
        /// What the volume holds.
        used: u64,
        /// What the limit allows.
        limit: u64,
    },
    /// More files, directories and links.
    Inodes {
        /// What the volume holds.
        used: u64,
        /// What the limit allows.
        limit: u64,
    },
}

impl Excess {
    /// Returns what a volume holds beyond a limit, if it does.
    pub fn of(used: VolumeUsage, limit: VolumeLimit) -> Option<Self> {
        let exceeded = |used: u64, limit: Option<u64>| Some((used, limit.filter(|limit| used > *limit)?));
        exceeded(used.bytes, limit.bytes)
            .map(|(used, limit)| Self::Bytes { used, limit })
            .or_else(|| exceeded(used.inodes, limit.inodes).map(|(used, limit)| Self::Inodes { used, limit }))
    }
}

impl fmt::Display for Excess {
    /// Writes what the volume holds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes { used, .. } => write!(f, "uses {} on its server", format_bytes_up(u128::from(*used))),
            Self::Inodes { used, .. } => write!(f, "has {used} files, directories and links"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::backend::QuotaEnforcement;

    #[test]
    fn a_volume_exceeds_a_limit_in_bytes_or_in_inodes() {
        let excess = |bytes, inodes, limit| Excess::of(VolumeUsage { bytes, inodes }, limit);
        let limit = VolumeLimit {
            bytes: Some(10),
            inodes: Some(3),
        };
        assert_eq!(excess(10, 3, limit), None);
        assert_eq!(excess(11, 4, limit), Some(Excess::Bytes { used: 11, limit: 10 }));
        assert_eq!(excess(10, 4, limit), Some(Excess::Inodes { used: 4, limit: 3 }));
        assert_eq!(excess(u64::MAX, u64::MAX, VolumeLimit::default()), None);
    }

    #[test]
    fn a_volume_has_the_limit_of_its_size_and_an_archive_the_one_that_the_backend_asks_for() {
        let settings = |archives| QuotaSettings {
            enforce: QuotaEnforcement::Required,
            inodes: Some(1000),
            archives,
        };
        let limit = |bytes| VolumeLimit {
            bytes,
            inodes: Some(1000),
        };
        let keep = settings(ArchiveQuota::Keep);
        assert_eq!(volume_limit(&keep, 5 << 30), limit(Some(5 << 30)));
        assert_eq!(volume_limit(&keep, 0), limit(Some(1)), "0 means no limit");
        assert_eq!(volume_limit(&keep, u128::from(u64::MAX) + 1), limit(None));
        assert_eq!(archive_limit(&keep, 7), limit(Some(7)));
        assert_eq!(archive_limit(&settings(ArchiveQuota::Lift), 7), VolumeLimit::default());
    }
}
