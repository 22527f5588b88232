//! Project quotas of XFS and ext4, through the tools `setquota`, `repquota`, `xfs_quota` and `xfs_io`.
//!
//! Files are passed to `xfs_io` as `/proc/PID/fd/N` of this process: nobody can replace what such a path names, unlike
//! a name in a directory in which a tenant writes. `chattr` cannot be used: it does not follow such paths, and by name it
//! may follow a symbolic link that replaced the file. They are opened with `-n` (O_NONBLOCK): without it, opening a file
//! for which an NFS client has a delegation waits until the client returns it, so one client could stop the agent.

mod mount;
mod output;
mod tool;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use export_store::quota::AgentProblem;

use self::mount::Mount;
use self::tool::{REPQUOTA, SETQUOTA, Tool, XFS_IO, XFS_QUOTA};
use crate::error::AgentError;
use crate::quotas::{Accounted, Assignment, Capabilities, Limits, Quotas, QuotasError, Tag};

/// Number of files for one run of a tool. Each one is open in this process.
const BATCH: usize = 200;
/// Unit of limits of `setquota`, in bytes.
const BLOCK: u64 = 1024;

/// Project quotas of one XFS or ext4 file system.
#[derive(Debug)]
pub struct LinuxQuotas {
    export: PathBuf,
    device: u64,
    mount_point: PathBuf,
}

impl LinuxQuotas {
    /// Finds the file system of an export, and checks that the tools are there.
    ///
    /// # Errors
    /// The type is not supported, or a tool is missing.
    pub fn new(export: &Path, device: u64) -> Result<Self, AgentError> {
        let mount = Mount::of(export, device)?;
        if !mount.is_supported() {
            return Err(AgentError::FileSystem {
                path: export.to_owned(),
                file_system: mount.file_system,
            });
        }
        for tool in [SETQUOTA, REPQUOTA, XFS_QUOTA, XFS_IO] {
            tool.find()?;
        }
        Ok(Self {
            export: export.to_owned(),
            device,
            mount_point: mount.point,
        })
    }

    /// Returns the mount point of the file system.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Returns why limits are not enforced. On ext4, the option of the mount stays when somebody runs `quotaoff`.
    async fn problem(&self, mount: &Mount) -> Option<(AgentProblem, String)> {
        if !mount.has_quotas() {
            return Some((AgentProblem::QuotasOff, mount.remedy()));
        }
        // `-f`: also on ext4.
        match XFS_QUOTA
            .print(&["-x", "-f", "-c", "state -p"], &self.mount_point)
            .await
        {
            Ok(printed) if output::is_enforced(&printed) => None,
            Ok(printed) => Some((
                AgentProblem::QuotasOff,
                format!(
                    "limits are not enforced at {0}, which is mounted with project quotas: run quotaon -P {0} ({1})",
                    self.mount_point.display(),
                    tool::excerpt(&printed)
                ),
            )),
            Err(error) => Some((AgentProblem::ToolFailed, error.to_string())),
        }
    }

    async fn run(&self, tool: Tool, arguments: &[&str], input: String) -> Result<String, QuotasError> {
        tool.run(arguments, &self.mount_point, input).await
    }
}

impl Quotas for LinuxQuotas {
    async fn capabilities(&self) -> Capabilities {
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
        let arguments = ["-P", "-n", "-p", "-v", "-O", "csv"];
        let printed = self.run(REPQUOTA, &arguments, String::new()).await?;
        output::accounted(&printed)
    }

    async fn set_limits(&self, limits: &[(u32, Limits)]) -> Result<(), QuotasError> {
        let mut lines = String::new();
        for (project, limits) in limits {
            // 0 is no limit. Rounded up, so that a volume has at least the size that was asked for.
            let blocks = limits.bytes.map_or(0, |bytes| bytes.div_ceil(BLOCK));
            let inodes = limits.inodes.unwrap_or(0);
            let _ = writeln!(lines, "{project} 0 {blocks} 0 {inodes}");
        }
        self.run(SETQUOTA, &["-P", "-b"], lines).await.map(drop)
    }

    async fn tags(&self, directories: &[BorrowedFd<'_>]) -> Result<Vec<Option<Tag>>, QuotasError> {
        let mut tags = Vec::new();
        for batch in directories.chunks(BATCH) {
            let paths: Vec<String> = batch.iter().map(path_of).collect();
            let mut script = String::new();
            for path in &paths {
                let _ = writeln!(script, "open -r -n {path}\nlsproj\nlsattr\nclose");
            }
            let printed = XFS_IO.run_script(script).await?.0;
            let found = output::tags(&printed);
            tags.extend(paths.iter().map(|path| found.get(path.as_str()).copied()));
        }
        Ok(tags)
    }

    async fn assign(&self, assignments: &[Assignment<'_>]) -> Result<(), QuotasError> {
        for batch in assignments.chunks(BATCH) {
            let mut script = String::new();
            for assignment in batch {
                let (path, project) = (path_of(&assignment.file), assignment.project);
                let inherits = if assignment.inherits { "chattr +P\n" } else { "" };
                let _ = writeln!(script, "open -r -n {path}\nchproj {project}\n{inherits}close");
            }
            let (_, errors) = XFS_IO.run_script(script).await?;
            if !errors.is_empty() {
                return Err(QuotasError::Failed {
                    tool: XFS_IO.name,
                    output: tool::excerpt(&errors.join("\n")),
                });
            }
        }
        Ok(())
    }
}

/// Returns a path that names what the descriptor names.
fn path_of(file: &BorrowedFd<'_>) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}
