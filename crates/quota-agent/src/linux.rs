//! Project quotas of file systems of Linux. Those of XFS and ext4 are set through the tools `xfs_quota` and `xfs_io`, which
//! both work on ext4, too, and stay running between two polls; those of ZFS in [`zfs`].
//!
//! Files are passed to `xfs_io` as `/proc/PID/fd/N` of this process: nobody can replace what such a path names, unlike
//! a name in a directory in which a tenant writes. `chattr` cannot be used: it does not follow such paths, and by name it
//! may follow a symbolic link that replaced the file. They are opened with `-n` (O_NONBLOCK): without it, opening a file
//! for which an NFS client has a delegation waits until the client returns it, so one client could stop the agent.

mod kept;
mod mount;
mod output;
mod tool;
mod zfs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use export_store::quota::AgentProblem;

use self::kept::KeptTool;
use self::mount::Mount;
use self::tool::{XFS_IO, XFS_QUOTA};
pub use self::zfs::ZfsQuotas;
use crate::error::AgentError;
use crate::quotas::{Accounted, Assignment, Capabilities, Changed, Limits, Quotas, QuotasError, Tag};

/// Number of files for one run of a tool. Each one is open in this process.
const BATCH: usize = 200;
/// Unit of what `xfs_quota` reports, in bytes.
const BLOCK: u64 = 1024;
/// Prints usage and limits of projects in lines without names, also those in which nothing is used.
const REPORT: &str = "report -p -n -N -b -i";

/// Project quotas of one file system of this machine.
#[derive(Debug)]
pub enum LinuxQuotas {
    /// On XFS or ext4.
    Xfs(XfsQuotas),
    /// On ZFS.
    Zfs(ZfsQuotas),
}

impl LinuxQuotas {
    /// Finds the file system of an export, and checks that the tools are there.
    ///
    /// # Errors
    /// The type is not supported, or a tool is missing.
    pub fn new(export: &Path, device: u64) -> Result<Self, AgentError> {
        let mount = Mount::of(export, device)?;
        match &*mount.file_system {
            "xfs" | "ext4" => XfsQuotas::new(export, device, mount).map(Self::Xfs),
            "zfs" => ZfsQuotas::new(export, device, mount).map(Self::Zfs),
            _ => Err(mount.unsupported(export)),
        }
    }

    /// Returns the mount point of the file system.
    pub fn mount_point(&self) -> &Path {
        match self {
            Self::Xfs(quotas) => &quotas.mount_point,
            Self::Zfs(quotas) => quotas.mount_point(),
        }
    }
}

impl Quotas for LinuxQuotas {
    async fn capabilities(&self) -> Capabilities {
        match self {
            Self::Xfs(quotas) => quotas.capabilities().await,
            Self::Zfs(quotas) => quotas.capabilities().await,
        }
    }

    async fn accounted(&self) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
        match self {
            Self::Xfs(quotas) => quotas.accounted().await,
            Self::Zfs(quotas) => quotas.accounted().await,
        }
    }

    async fn accounted_for(&self, projects: &[u32]) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
        match self {
            Self::Xfs(quotas) => quotas.accounted_for(projects).await,
            Self::Zfs(quotas) => quotas.accounted_for(projects).await,
        }
    }

    async fn set_limits(&self, limits: &[(u32, Limits)]) -> Result<Changed<BTreeMap<u32, Accounted>>, QuotasError> {
        match self {
            Self::Xfs(quotas) => quotas.set_limits(limits).await,
            Self::Zfs(quotas) => quotas.set_limits(limits).await,
        }
    }

    async fn tags(&self, directories: &[BorrowedFd<'_>]) -> Result<Vec<Option<Tag>>, QuotasError> {
        match self {
            Self::Xfs(quotas) => quotas.tags(directories).await,
            Self::Zfs(quotas) => quotas.tags(directories).await,
        }
    }

    async fn assign(&self, assignments: &[Assignment<'_>]) -> Result<Changed<Vec<Option<Tag>>>, QuotasError> {
        match self {
            Self::Xfs(quotas) => quotas.assign(assignments).await,
            Self::Zfs(quotas) => quotas.assign(assignments).await,
        }
    }
}

/// Project quotas of one XFS or ext4 file system.
#[derive(Debug)]
pub struct XfsQuotas {
    export: PathBuf,
    device: u64,
    mount_point: PathBuf,
    quota: KeptTool,
    io: KeptTool,
}

impl XfsQuotas {
    fn new(export: &Path, device: u64, mount: Mount) -> Result<Self, AgentError> {
        for tool in [XFS_QUOTA, XFS_IO] {
            tool.find()?;
        }
        Ok(Self {
            export: export.to_owned(),
            device,
            // `-x`: for administrators. `-f`: also on ext4.
            quota: KeptTool::new(XFS_QUOTA, &["-x", "-f"], Some(mount.point.clone())),
            io: KeptTool::new(XFS_IO, &[], None),
            mount_point: mount.point,
        })
    }

    /// Returns why limits are not enforced. On ext4, the option of the mount stays when somebody runs `quotaoff`.
    async fn problem(&self, mount: &Mount) -> Option<(AgentProblem, String)> {
        if !mount.has_quotas() {
            return Some((AgentProblem::QuotasOff, mount.remedy()));
        }
        match self.quota.run("state -p\n".to_owned()).await {
            Ok(printed) if output::is_enforced(&printed.text) => None,
            Ok(printed) => Some((
                AgentProblem::QuotasOff,
                format!(
                    "limits are not enforced at {0}, which is mounted with project quotas: run quotaon -P {0} ({1})",
                    self.mount_point.display(),
                    tool::excerpt(match printed.text.is_empty() {
                        true => printed.errors.as_deref().unwrap_or_default(),
                        false => &printed.text,
                    })
                ),
            )),
            Err(error) => Some((AgentProblem::ToolFailed, error.to_string())),
        }
    }
}

impl Quotas for XfsQuotas {
    async fn capabilities(&self) -> Capabilities {
        // Mounts and tools may be others by now.
        self.quota.restart();
        self.io.restart();
        let (file_system, problem) = match Mount::of(&self.export, self.device) {
            Ok(mount) => {
                let problem = self.problem(&mount).await;
                (mount.file_system, problem)
            }
            Err(error) => ("unknown".to_owned(), Some((AgentProblem::QuotasOff, error.to_string()))),
        };
        let enforced = problem.is_none();
        Capabilities {
            file_system,
            enforced,
            inodes_counted: enforced,
            problem,
        }
    }

    async fn accounted(&self) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
        let printed = self.quota.run(format!("{REPORT}\n")).await?;
        if let Some(errors) = printed.errors {
            return Err(XFS_QUOTA.failed(errors));
        }
        let accounted = output::accounted(&printed.text)?;
        // The tool prints nothing where it can read nothing. The root of the file system has no project, if not another one.
        match accounted.is_empty() {
            true => Err(XFS_QUOTA.failed("it reported no project at all".to_owned())),
            false => Ok(accounted),
        }
    }

    async fn accounted_for(&self, projects: &[u32]) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
        let printed = self.quota.run(reports(projects.iter().copied())).await?;
        match printed.errors {
            Some(errors) => Err(XFS_QUOTA.failed(errors)),
            None => output::accounted(&printed.text),
        }
    }

    async fn set_limits(&self, limits: &[(u32, Limits)]) -> Result<Changed<BTreeMap<u32, Accounted>>, QuotasError> {
        let mut script = String::new();
        for (project, limits) in limits {
            // 0 is no limit. Rounded up, so that a volume has at least the size that was asked for.
            let blocks = limits.bytes.map_or(0, |bytes| bytes.div_ceil(BLOCK));
            let inodes = limits.inodes.unwrap_or(0);
            let _ = writeln!(script, "limit -p bhard={blocks}k ihard={inodes} {project}");
        }
        script += &reports(limits.iter().map(|(project, _)| *project));
        let printed = self.quota.run(script).await?;
        Ok(Changed {
            found: output::accounted(&printed.text)?,
            refused: printed.errors,
        })
    }

    async fn tags(&self, directories: &[BorrowedFd<'_>]) -> Result<Vec<Option<Tag>>, QuotasError> {
        let mut tags = Vec::new();
        for batch in directories.chunks(BATCH) {
            let paths: Vec<String> = batch.iter().map(path_of).collect();
            let mut script = String::new();
            for path in &paths {
                script += &script_of(path, "");
            }
            let printed = self.io.run(script).await?;
            let found = output::tags(&printed.text);
            tags.extend(paths.iter().map(|path| found.get(path.as_str()).copied()));
        }
        Ok(tags)
    }

    async fn assign(&self, assignments: &[Assignment<'_>]) -> Result<Changed<Vec<Option<Tag>>>, QuotasError> {
        let mut changed = Changed::<Vec<Option<Tag>>>::default();
        for batch in assignments.chunks(BATCH) {
            let paths: Vec<String> = batch.iter().map(|assignment| path_of(&assignment.file)).collect();
            let mut script = String::new();
            for (path, assignment) in paths.iter().zip(batch) {
                let inherits = if assignment.inherits { "chattr +P\n" } else { "" };
                script += &script_of(path, &format!("chproj {}\n{inherits}", assignment.project));
            }
            let printed = self.io.run(script).await?;
            let tags = output::tags(&printed.text);
            changed
                .found
                .extend(paths.iter().map(|path| tags.get(path.as_str()).copied()));
            changed.refused = changed.refused.or(printed.errors);
        }
        Ok(changed)
    }
}

/// Returns commands for `xfs_quota` that print usage and limits of some projects.
fn reports(projects: impl Iterator<Item = u32>) -> String {
    let ranges = ranges(projects).into_iter();
    // Old versions report projects below the upper bound only, new ones include it.
    let report = |(first, last): (u32, u32)| format!("{REPORT} -L {first} -U {}\n", last.saturating_add(1));
    ranges.map(report).collect()
}

/// Returns the ranges of consecutive projects.
fn ranges(projects: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let projects: BTreeSet<u32> = projects.collect();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for project in projects {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(project) => *last = project,
            _ => ranges.push((project, project)),
        }
    }
    ranges
}

/// Returns commands for `xfs_io`: changes of a file, and reading its tag.
fn script_of(path: &str, changes: &str) -> String {
    format!("open -r -n {path}\n{changes}lsproj\nlsattr\nclose\n")
}

/// Returns a path that names what the descriptor names.
fn path_of(file: &BorrowedFd<'_>) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_projects_are_reported_at_once() {
        assert_eq!(ranges([5, 3, 9, 4, 3].into_iter()), [(3, 5), (9, 9)]);
        assert_eq!(ranges([u32::MAX, 0].into_iter()), [(0, 0), (u32::MAX, u32::MAX)]);
        assert_eq!(ranges(std::iter::empty()), []);
    }
}
