use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use export_store::quota::AgentProblem;

/// What the agent needs of a file system with project quotas: each file has a project ID, new files in a directory with
/// an inheriting tag get the directory's, and limits apply to all files with the same ID.
pub trait Quotas {
    /// Reports what the file system can do. Called regularly, because a remount changes it.
    fn capabilities(&self) -> impl Future<Output = Capabilities>;

    /// Returns usage and limits of every project that has any.
    fn accounted(&self) -> impl Future<Output = Result<BTreeMap<u32, Accounted>, QuotasError>>;

    /// Returns usage and limits of those of some projects that have any. The agent asks before it uses a project that was free
    /// when it last read all of them, to take none that somebody else uses meanwhile.
    fn accounted_for(&self, projects: &[u32]) -> impl Future<Output = Result<BTreeMap<u32, Accounted>, QuotasError>> {
        async {
            let mut accounted = self.accounted().await?;
            accounted.retain(|project, _| projects.contains(project));
            Ok(accounted)
        }
    }

    /// Sets the limits of projects, and reads usage and limits of these projects afterwards: only what was read is in
    /// force. Refuses some of them without hindering the others. An error may leave some of them set.
    fn set_limits(
        &self,
        limits: &[(u32, Limits)],
    ) -> impl Future<Output = Result<Changed<BTreeMap<u32, Accounted>>, QuotasError>>;

    /// Returns the tag of each directory, in the same order; `None` if one could not be read.
    fn tags(&self, directories: &[BorrowedFd<'_>]) -> impl Future<Output = Result<Vec<Option<Tag>>, QuotasError>>;

    /// Gives files and directories to projects, and directories also the inheriting tag, and reads the tag of each
    /// afterwards, in the same order; `None` if one could not be read. Refuses some of them without hindering the others. An
    /// error may leave some of them changed. The descriptors may have been opened with `O_PATH`.
    fn assign(
        &self,
        assignments: &[Assignment<'_>],
    ) -> impl Future<Output = Result<Changed<Vec<Option<Tag>>>, QuotasError>>;
}

/// Limits of a project. An unset one is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of bytes.
    pub bytes: Option<u64>,
    /// Maximum number of files and directories.
    pub inodes: Option<u64>,
}

/// What the file system accounts for a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accounted {
    /// Bytes in use.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// Limits in force.
    pub limits: Limits,
}

impl Accounted {
    /// Reports whether anything has the project.
    pub(crate) fn is_used(&self) -> bool {
        self.bytes > 0 || self.inodes > 0
    }

    /// Reports whether nothing has the project, and no limit is set for it.
    pub(crate) fn is_free(&self) -> bool {
        !self.is_used() && self.limits == Limits::default()
    }
}

/// Project of a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tag {
    /// Project ID; 0 if it has none.
    pub project: u32,
    /// New files and directories in it get the project.
    pub inherits: bool,
}

/// A file or directory to give to a project.
#[derive(Debug, Clone, Copy)]
pub struct Assignment<'a> {
    /// The file or directory.
    pub file: BorrowedFd<'a>,
    /// The project.
    pub project: u32,
    /// It is a directory, and new files in it get the project.
    pub inherits: bool,
}

/// What was found after a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed<T> {
    /// What is there now.
    pub found: T,
    /// Why some of it was refused. Which is in `found`.
    pub refused: Option<String>,
}

/// What a file system can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Type of the file system, such as `xfs`.
    pub file_system: String,
    /// Sizes are enforced.
    pub enforced: bool,
    /// Numbers of files are counted and can be limited.
    pub inodes_counted: bool,
    /// What prevents limits, with the remedy.
    pub problem: Option<(AgentProblem, String)>,
}

/// Failure of a file system or its tools.
#[derive(Debug, thiserror::Error)]
pub enum QuotasError {
    /// A tool could not be started.
    #[error("failed to run {tool}: {source}; install the package {package}")]
    Tool {
        /// Name of the tool.
        tool: &'static str,
        /// Package with the tool, for Debian and Red Hat.
        package: &'static str,
        /// Cause.
        source: std::io::Error,
    },
    /// A tool did not end in time, and was killed.
    #[error("{tool} did not finish within {seconds} s; check the file system for failing disks")]
    Timeout {
        /// Name of the tool.
        tool: &'static str,
        /// The time limit.
        seconds: u64,
    },
    /// A tool reported an error.
    #[error("{tool} failed: {output}")]
    Failed {
        /// Name of the tool.
        tool: &'static str,
        /// The beginning of its standard error.
        output: String,
    },
    /// A tool printed something else than expected.
    #[error("unexpected output of {tool}: {output}")]
    Output {
        /// Name of the tool.
        tool: &'static str,
        /// The unexpected part.
        output: String,
    },
}
