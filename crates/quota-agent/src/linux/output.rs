//! Parsers of what the tools print. Pure.

use std::collections::{BTreeMap, HashMap};

use super::BLOCK;
use super::tool::{REPQUOTA, excerpt};
use crate::quotas::{Accounted, Limits, QuotasError, Tag};

/// Parses `repquota -O csv -n`: a line of names, then one line for each project.
pub(super) fn accounted(text: &str) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
    let unexpected = |line: &str| QuotasError::Output {
        tool: REPQUOTA.name,
        output: excerpt(line),
    };
    let mut lines = text.lines().skip_while(|line| !line.starts_with("Project,"));
    let names: Vec<&str> = lines.next().ok_or_else(|| unexpected(text))?.split(',').collect();
    let column = |name: &str| {
        let place = names.iter().position(|found| *found == name);
        place.ok_or_else(|| unexpected(&names.join(",")))
    };
    let (used, limit) = (column("BlockUsed")?, column("BlockHardLimit")?);
    let (files, file_limit) = (column("FileUsed")?, column("FileHardLimit")?);
    let mut accounted = BTreeMap::new();
    // Statistics follow after an empty line.
    for line in lines.take_while(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').collect();
        let project = fields.first().and_then(|first| first.strip_prefix('#')?.parse().ok());
        let project: u32 = project.ok_or_else(|| unexpected(line))?;
        let number = |place: usize| {
            let number = fields.get(place).and_then(|field| field.parse::<u64>().ok());
            number.ok_or_else(|| unexpected(line))
        };
        let limit_at = |place: usize| number(place).map(|limit| Some(limit).filter(|limit| *limit > 0));
        let entry = Accounted {
            bytes: number(used)?.saturating_mul(BLOCK),
            inodes: number(files)?,
            limits: Limits {
                bytes: limit_at(limit)?.map(|blocks| blocks.saturating_mul(BLOCK)),
                inodes: limit_at(file_limit)?,
            },
        };
        accounted.insert(project, entry);
    }
    Ok(accounted)
}

/// Parses `xfs_quota -c "state -p"`, which prints `Enforcement: ON` if limits are enforced.
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
    use super::*;

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
