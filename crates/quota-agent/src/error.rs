use std::path::PathBuf;

use export_store::quota::KeyFileError;

use crate::quotas::QuotasError;

/// Failure that ends the agent, or one round of it.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The process is not root.
    #[error("not root: only root can set quotas; run the agent as root where the file system is mounted")]
    NotRoot,
    /// The kernel, or a filter of system calls, lacks openat2.
    #[error("failed to open a path with openat2: {source}; run Linux 5.6 or later, and allow the system call openat2")]
    Kernel {
        /// Cause.
        source: std::io::Error,
    },
    /// No export was named.
    #[error("no export; name each one with --export PATH")]
    NoExport,
    /// A path is not that of an export which an operator uses.
    #[error("{} is not an export of nfs-operator: {why}", path.display())]
    NotAnExport {
        /// The path.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// A file system was mounted or unmounted at an export, or its directory was replaced. The next process serves what is
    /// there now.
    #[error("another directory is at {} than when the agent started, for example because it was mounted: start the agent again", path.display())]
    ExportReplaced {
        /// The export.
        path: PathBuf,
    },
    /// Another agent serves the file system or the export.
    #[error(
        "another quota agent serves {}; run one agent for a file system, with one --export for each export on it",
        path.display()
    )]
    AnotherAgent {
        /// The mount point, or the export.
        path: PathBuf,
    },
    /// The type of the file system has no project quotas.
    #[error(
        "{} is on {file_system}, and the agent supports xfs, ext4 and zfs: move the export to one of them, or limit it with the \
         quotas of {file_system} and remove spec.quota from its backends",
        path.display()
    )]
    FileSystem {
        /// The export.
        path: PathBuf,
        /// Type of the file system.
        file_system: String,
    },
    /// The mount point of a file system is not visible.
    #[error("no mount of the file system of {} is in /proc/self/mountinfo", path.display())]
    NoMount {
        /// The export.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("failed to read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The key file is open to others.
    #[error("{} must be owned by root and closed to others; run chown root FILE and chmod 0600 FILE", path.display())]
    KeyFileOpen {
        /// The file.
        path: PathBuf,
    },
    /// The key file has a mistake.
    #[error("key file {}: {source}", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The mistake.
        source: KeyFileError,
    },
    /// A file or folder below `.nfs-operator` cannot be read or written.
    #[error("failed to {action}: {source}")]
    Export {
        /// The action with its object.
        action: String,
        /// Cause.
        source: std::io::Error,
    },
    /// The file system refused something.
    #[error(transparent)]
    Quotas(#[from] QuotasError),
}
