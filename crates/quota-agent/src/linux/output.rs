//! Parsers of what the tools print. Pure.

use std::collections::{BTreeMap, HashMap};

use super::BLOCK;
use super::tool::{XFS_QUOTA, excerpt};
use crate::quotas::{Accounted, Limits, QuotasError, Tag};

/// Parses `report -n -N -b -i` of `xfs_quota`: a line for each project, with used, soft limit, hard limit, number of warnings
/// and grace period in brackets, of blocks and of inodes.
pub(super) fn accounted(text: &str) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
    let mut accounted = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (project, entry) = project(line).ok_or_else(|| QuotasError::Output {
            tool: XFS_QUOTA.name,
            output: excerpt(line),
        })?;
        accounted.insert(project, entry);
    }
    Ok(accounted)
}

fn project(line: &str) -> Option<(u32, Accounted)> {
    let (id, rest) = line.trim().strip_prefix('#')?.split_once(' ')?;
    let (blocks, rest) = rest.split_once('[')?;
    let (_, inodes) = rest.split_once(']')?;
    let (inodes, _) = inodes.split_once('[')?;
    let (used, limit) = used_and_limit(blocks)?;
    let (inodes, max_inodes) = used_and_limit(inodes)?;
    let entry = Accounted {
        bytes: used.saturating_mul(BLOCK),
        inodes,
        limits: Limits {
            bytes: limit.map(|blocks| blocks.saturating_mul(BLOCK)),
            inodes: max_inodes,
        },
    };
    Some((id.parse().ok()?, entry))
}

/// Parses used, soft limit, hard limit, and number of warnings.
fn used_and_limit(text: &str) -> Option<(u64, Option<u64>)> {
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let [used, _, hard, _] = *numbers.as_slice() else {
        return None;
    };
    Some((used, Some(hard).filter(|limit| *limit > 0)))
}

/// Parses `state -p` of `xfs_quota`, which prints `Enforcement: ON` if limits are enforced.
pub(super) fn is_enforced(text: &str) -> bool {
    text.lines().any(|line| line.trim() == "Enforcement: ON")
}

/// Parses what `lsproj` and `lsattr` of `xfs_io` print for each file: `projid = ID`, then `FLAGS PATH`.
pub(super) fn tags(text: &str) -> HashMap<&str, Tag> {
    let mut tags = HashMap::new();
    let mut project = None;
    for line in text.lines() {
        if let Some(id) = line.strip_prefix("projid = ") {
            project = id.trim().parse().ok();
        } else if let Some((flags, path)) = line.trim_end().split_once(' ')
            && let Some(project) = project.take()
        {
            let inherits = flags.contains('P');
            tags.insert(path, Tag { project, inherits });
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn usage_and_limits_are_parsed_whatever_the_grace_period_is() {
        let printed = "\
#0                    12          0          0     00 [--------]          9          0          0     00 [--------]
#1900000000        4096          0       4096     00 [-none-]         17          0       1000     02 [6 days]
#1900000001           4          0          0     00 [--------]          1          0          0     00 [--------]

";
        let found = accounted(printed).unwrap();
        let entry = |bytes, inodes, limits| Accounted { bytes, inodes, limits };
        let limited = Limits {
            bytes: Some(4 << 20),
            inodes: Some(1000),
        };
        assert_eq!(found.len(), 3);
        assert_eq!(found.get(&1_900_000_000), Some(&entry(4 << 20, 17, limited)));
        assert_eq!(found.get(&1_900_000_001), Some(&entry(4096, 1, Limits::default())));
        for wrong in [
            "xfs_quota: foreign mount active",
            "#1 2 3 4 5 [-]",
            "#x 1 2 3 4 [-] 1 2 3 4 [-]",
        ] {
            assert!(accounted(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quotas_that_are_off_or_only_counted_are_not_enforced() {
        let printed = |accounting: &str, enforcement: &str| {
            format!(
                "Project quota state on /srv/nfs (/dev/sdb1)\n  Accounting: {accounting}\n  Enforcement: {enforcement}\n  \
                 Inode: #12 (12 blocks, 1 extents)\nBlocks grace time: [7 days]\n"
            )
        };
        assert!(is_enforced(&printed("ON", "ON")));
        assert!(!is_enforced(&printed("ON", "OFF")));
        assert!(!is_enforced(&printed("OFF", "OFF")));
        assert!(!is_enforced("xfs_quota: cannot find mount point for path `/srv/nfs'\n"));
    }
}
