//! Project quotas of ZFS, through the tools `zfs` and `zpool`. `xfs_io` gives files their projects: unlike `zfs project`, it
//! opens them with O_NONBLOCK. The inheriting tag of a directory can only be read and set by `zfs project`, because ZFS has
//! another number for it.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use export_store::quota::AgentProblem;

use super::mount::Mount;
use super::output;
use super::tool::{Printed, Tool, XFS_IO, excerpt};
use super::{BATCH, path_of, script_of};
use crate::error::AgentError;
use crate::quotas::{Accounted, Assignment, Capabilities, Changed, Limits, Quotas, QuotasError, Tag};

const ZFS: Tool = Tool::new("zfs", "zfsutils-linux");
const ZPOOL: Tool = Tool::new("zpool", "zfsutils-linux");
/// The feature of a pool that project quotas need, which OpenZFS 0.8 introduced.
const FEATURE: &str = "feature@project_quota";

/// Project quotas of one file system of ZFS.
#[derive(Debug)]
pub struct ZfsQuotas {
    export: PathBuf,
    device: u64,
    mount_point: PathBuf,
}

impl ZfsQuotas {
    /// `mount` is that of the export, on a file system with this device number. Checks that the tools are there.
    pub(super) fn new(export: &Path, device: u64, mount: Mount) -> Result<Self, AgentError> {
        for tool in [ZFS, ZPOOL, XFS_IO] {
            tool.find()?;
        }
        Ok(Self {
            export: export.to_owned(),
            device,
            mount_point: mount.point,
        })
    }

    pub(super) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Returns the name of the file system, which an administrator may change.
    fn name(&self) -> Result<String, AgentError> {
        Ok(Mount::of(&self.export, self.device)?.source)
    }

    /// Runs a subcommand of `zfs` with operands and the name of the file system at the end.
    async fn zfs(&self, arguments: &[&str], operands: &[String]) -> Result<Printed, QuotasError> {
        let name = self.name().map_err(|error| ZFS.failed(error.to_string()))?;
        let arguments: Vec<&str> = arguments
            .iter()
            .copied()
            .chain(operands.iter().map(String::as_str))
            .chain([name.as_str()])
            .collect();
        ZFS.run(&arguments, None, String::new()).await
    }

    async fn problem(&self) -> Option<(AgentProblem, String)> {
        let name = match self.name() {
            Ok(name) => name,
            Err(error) => return Some((AgentProblem::QuotasOff, error.to_string())),
        };
        let pool = name.split('/').next().unwrap_or_default();
        let arguments = ["get", "-H", "-o", "value", FEATURE, pool];
        match ZPOOL.run(&arguments, None, String::new()).await {
            Ok(Printed { text, errors: None }) if matches!(text.trim(), "enabled" | "active") => None,
            Ok(printed) => Some((
                AgentProblem::QuotasOff,
                format!(
                    "pool {pool} has no project quotas: run zpool set {FEATURE}=enabled {pool} ({})",
                    excerpt(printed.errors.as_deref().unwrap_or(&printed.text))
                ),
            )),
            Err(error) => Some((AgentProblem::ToolFailed, error.to_string())),
        }
    }

    /// Sets limits, and returns why some of them were refused. One that is refused hinders the others of the same call.
    async fn set(&self, limits: &[(u32, Limits)]) -> Result<Option<String>, QuotasError> {
        let value = |limit: Option<u64>| limit.map_or("none".to_owned(), |limit| limit.to_string());
        let properties = limits.iter().flat_map(|(project, limits)| {
            [
                format!("projectquota@{project}={}", value(limits.bytes)),
                format!("projectobjquota@{project}={}", value(limits.inodes)),
            ]
        });
        let properties: Vec<String> = properties.collect();
        Ok(self.zfs(&["set"], &properties).await?.errors)
    }
}

impl Quotas for ZfsQuotas {
    async fn capabilities(&self) -> Capabilities {
        let problem = self.problem().await;
        let enforced = problem.is_none();
        Capabilities {
            file_system: "zfs".to_owned(),
            enforced,
            inodes_counted: enforced,
            problem,
        }
    }

    async fn accounted(&self) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
        let columns = "name,used,quota,objused,objquota";
        let printed = self.zfs(&["projectspace", "-H", "-p", "-o", columns], &[]).await?;
        match printed.errors {
            Some(errors) => Err(ZFS.failed(errors)),
            None => accounted(&printed.text),
        }
    }

    async fn set_limits(&self, limits: &[(u32, Limits)]) -> Result<Changed<BTreeMap<u32, Accounted>>, QuotasError> {
        let mut refused = None;
        for batch in limits.chunks(BATCH) {
            if self.set(batch).await?.is_none() {
                continue;
            }
            for limit in batch {
                let error = self.set(std::slice::from_ref(limit)).await?;
                refused = refused.or(error);
            }
        }
        let mut found = self.accounted().await?;
        found.retain(|project, _| limits.iter().any(|(limited, _)| limited == project));
        Ok(Changed { found, refused })
    }

    async fn tags(&self, directories: &[BorrowedFd<'_>]) -> Result<Vec<Option<Tag>>, QuotasError> {
        let mut tags = Vec::new();
        for batch in directories.chunks(BATCH) {
            let paths: Vec<String> = batch.iter().map(path_of).collect();
            let found = directory_tags(&paths).await?;
            tags.extend(paths.iter().map(|path| found.get(path).copied()));
        }
        Ok(tags)
    }

    async fn assign(&self, assignments: &[Assignment<'_>]) -> Result<Changed<Vec<Option<Tag>>>, QuotasError> {
        let mut changed = Changed::<Vec<Option<Tag>>>::default();
        for batch in assignments.chunks(BATCH) {
            let (found, refused) = assign(batch).await?;
            changed.found.extend(found);
            changed.refused = changed.refused.or(refused);
        }
        Ok(changed)
    }
}

async fn assign(batch: &[Assignment<'_>]) -> Result<(Vec<Option<Tag>>, Option<String>), QuotasError> {
    let (mut script, mut directories) = (String::new(), BTreeMap::<u32, Vec<String>>::new());
    for assignment in batch {
        let path = path_of(&assignment.file);
        match assignment.inherits {
            true => directories.entry(assignment.project).or_default().push(path),
            false => script += &script_of(&path, &format!("chproj {}\n", assignment.project)),
        }
    }
    let mut tags = HashMap::new();
    let mut refused = None;
    if !script.is_empty() {
        let printed = XFS_IO.run(&[], None, script).await?;
        let found = output::tags(&printed.text);
        tags.extend(found.into_iter().map(|(path, tag)| (path.to_owned(), tag)));
        refused = printed.errors;
    }
    for (project, paths) in directories {
        let id = project.to_string();
        let arguments: Vec<&str> = ["project", "-p", &id, "-s"]
            .into_iter()
            .chain(paths.iter().map(String::as_str))
            .collect();
        let printed = ZFS.run(&arguments, None, String::new()).await?;
        refused = refused.or(printed.errors);
        tags.extend(directory_tags(&paths).await?);
    }
    let found = batch
        .iter()
        .map(|assignment| tags.get(&path_of(&assignment.file)).copied());
    Ok((found.collect(), refused))
}

/// Reads the tags of directories. Those that cannot be read are missing in the result.
async fn directory_tags(paths: &[String]) -> Result<HashMap<String, Tag>, QuotasError> {
    let arguments: Vec<&str> = ["project", "-d"]
        .into_iter()
        .chain(paths.iter().map(String::as_str))
        .collect();
    let printed = ZFS.run(&arguments, None, String::new()).await?;
    Ok(printed.text.lines().filter_map(parse_tag).collect())
}

/// Parses a line of `zfs project -d`: the project, `P` for the inheriting tag or `-`, and the path.
fn parse_tag(line: &str) -> Option<(String, Tag)> {
    let (project, rest) = line.trim_start().split_once(' ')?;
    let (flag, path) = rest.split_once(' ')?;
    let tag = Tag {
        project: project.parse().ok()?,
        inherits: flag == "P",
    };
    Some((path.to_owned(), tag))
}

/// Parses `zfs projectspace -H -p`: a line for each project, with used and quota of bytes, and of files.
fn accounted(text: &str) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [project, used, quota, inodes, max_inodes] = *fields.as_slice() else {
            return None;
        };
        // 0 is printed where there is no limit, `-` where there is no value.
        let number = |text: &str| match text {
            "-" | "none" => Some(0),
            text => text.parse::<u64>().ok(),
        };
        let limit = |text: &str| number(text).map(|limit| Some(limit).filter(|limit| *limit > 0));
        let limits = Limits {
            bytes: limit(quota)?,
            inodes: limit(max_inodes)?,
        };
        let entry = Accounted {
            bytes: number(used)?,
            inodes: number(inodes)?,
            limits,
        };
        Some((project.parse().ok()?, entry))
    };
    text.lines()
        .map(|line| {
            parse(line).ok_or_else(|| QuotasError::Output {
                tool: ZFS.name,
                output: excerpt(line),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn usage_and_limits_are_parsed() {
        let printed = "0\t1024\t0\t2\t0\n1900000002\t13251072\t10485760\t4\t100\n5\t0\tnone\t-\t7\n";
        let found = accounted(printed).unwrap();
        let entry = |bytes, inodes, limits| Accounted { bytes, inodes, limits };
        let limited = |bytes, inodes| Limits { bytes, inodes };
        assert_eq!(found.get(&0), Some(&entry(1024, 2, Limits::default())));
        assert_eq!(
            found.get(&1_900_000_002),
            Some(&entry(13_251_072, 4, limited(Some(10_485_760), Some(100))))
        );
        assert_eq!(found.get(&5), Some(&entry(0, 0, limited(None, Some(7)))));
        for wrong in ["user\t1\t2\t3\t4", "5\t1\t2\t3", "5\t1\t2M\t3\t4"] {
            assert!(accounted(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tags_of_directories_are_parsed() {
        let tag = |project, inherits| Tag { project, inherits };
        assert_eq!(
            parse_tag("1900000002 P /proc/1/fd/7"),
            Some(("/proc/1/fd/7".to_owned(), tag(1_900_000_002, true)))
        );
        assert_eq!(
            parse_tag("    0 - /proc/1/fd/8"),
            Some(("/proc/1/fd/8".to_owned(), tag(0, false)))
        );
        assert_eq!(parse_tag("'-d' option on non-dir target p/f"), None);
    }
}
