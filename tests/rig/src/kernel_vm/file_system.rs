//! File systems with quotas that a test creates in the virtual machine.

use super::KernelVm;
use crate::{error::Result, random_suffix};

/// A kind of file system, which enforces quotas of users and projects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// An exceeded quota is reported as EDQUOT. No quota applies to root.
    Ext4,
    /// The exceeded quota of a project is reported as ENOSPC, also to root.
    Xfs,
}

impl FileSystem {
    /// Returns the type, the size in MiB, and the options of mkfs.
    fn mkfs(self) -> (&'static str, u32, &'static str) {
        match self {
            Self::Ext4 => (
                "ext4",
                32,
                "-q -O ^has_journal,quota,project -E quotatype=usrquota:prjquota",
            ),
            // The smallest size that mkfs.xfs accepts.
            Self::Xfs => ("xfs", 300, "-q"),
        }
    }
}

/// Whom a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOf {
    /// The owner of files.
    User(u32),
    /// The directories of a project. See [`KernelVm::assign_project`].
    Project(u32),
}

impl KernelVm {
    /// Creates a file system in the memory of the machine and exports it to all clients. Root is not squashed. Returns its
    /// path, inside and for clients.
    pub async fn new_file_system(&self, kind: FileSystem) -> Result<String> {
        let path = format!("/fs-{}", random_suffix());
        let (fs_type, mebibytes, options) = kind.mkfs();
        let name = path.trim_start_matches('/');
        let script = format!(
            ". /sbin/functions; options=usrquota,prjquota
             disk {name} {mebibytes} {fs_type} {options} && offer {name} rw,no_root_squash,insecure"
        );
        self.run(&script).await?;
        Ok(path)
    }

    /// Removes a file system that [`new_file_system`](Self::new_file_system) created, and frees its memory. No client may use
    /// it anymore.
    pub async fn remove_file_system(&self, path: &str) -> Result<()> {
        let script = format!(". /sbin/functions; withdraw {}", path.trim_start_matches('/'));
        self.run(&script).await.map(drop)
    }

    /// Assigns a directory, and all that is created in it, to a project.
    pub async fn assign_project(&self, directory: &str, project: u32) -> Result<()> {
        let script = format!("chattr -p {project} +P {directory}");
        self.run(&script).await.map(drop)
    }

    /// Limits the space and the number of files on a file system; 0 is no limit.
    pub async fn set_quota(&self, path: &str, of: QuotaOf, kibibytes: u32, files: u32) -> Result<()> {
        let who = match of {
            QuotaOf::User(uid) => format!("-u {uid}"),
            QuotaOf::Project(project) => format!("-P {project}"),
        };
        let script = format!("setquota {who} 0 {kibibytes} 0 {files} {path}");
        self.run(&script).await.map(drop)
    }

    /// Fills a file system, or a quota, with files of the user in a directory.
    pub async fn fill(&self, directory: &str, uid: u32) -> Result<()> {
        let script = format!(". /sbin/functions; fill {directory} {uid}");
        self.run(&script).await.map(drop)
    }
}
