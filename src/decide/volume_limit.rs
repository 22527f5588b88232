//! The limit of a volume or an archive on the server (`spec.quota` of its backend). Pure.

use crate::api::backend::{ArchiveQuota, QuotaSettings};
use export_store::VolumeLimit;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::backend::QuotaEnforcement;

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
