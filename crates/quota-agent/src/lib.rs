//! The agent beside a file server that enforces the sizes of volumes with project quotas.
//!
//! The operator writes orders below `.nfs-operator` on the export, and the agent reports there what is in force; the
//! formats are in [`export_store::quota`]. Nothing else connects the two.
//!
//! [`Agent`] observes orders, directories and what the file system accounts, decides in pure functions (`plan`), and
//! acts through the trait [`Quotas`]. It keeps no state of its own: project IDs are in the reports and on the
//! directories, so a new process resumes where the previous one was interrupted.
//!
//! # Adapters
//!
//! For another kind of server, implement [`Quotas`] and call [`run_with`]. [`LinuxQuotas`] is the implementation for XFS, ext4
//! and ZFS. This one keeps everything in memory, and enforces nothing:
//!
//! ```
//! use std::cell::RefCell;
//! use std::collections::{BTreeMap, HashMap};
//! use std::fs::File;
//! use std::os::fd::BorrowedFd;
//! use std::os::unix::fs::MetadataExt;
//!
//! use quota_agent::{Accounted, Assignment, Capabilities, Changed, Limits, Quotas, QuotasError, Settings, Tag};
//!
//! #[derive(Default)]
//! struct Memory {
//!     tags: RefCell<HashMap<u64, Tag>>,
//!     limits: RefCell<BTreeMap<u32, Limits>>,
//! }
//!
//! impl Memory {
//!     fn inode(file: BorrowedFd<'_>) -> Option<u64> {
//!         let file = File::from(file.try_clone_to_owned().ok()?);
//!         Some(file.metadata().ok()?.ino())
//!     }
//! }
//!
//! impl Quotas for Memory {
//!     async fn capabilities(&self) -> Capabilities {
//!         Capabilities {
//!             file_system: "memory".to_owned(),
//!             enforced: true,
//!             inodes_counted: true,
//!             problem: None,
//!         }
//!     }
//!
//!     async fn accounted(&self) -> Result<BTreeMap<u32, Accounted>, QuotasError> {
//!         let mut accounted: BTreeMap<u32, Accounted> = BTreeMap::new();
//!         for tag in self.tags.borrow().values() {
//!             accounted.entry(tag.project).or_default().inodes += 1;
//!         }
//!         for (project, limits) in self.limits.borrow().iter() {
//!             accounted.entry(*project).or_default().limits = *limits;
//!         }
//!         Ok(accounted)
//!     }
//!
//!     async fn set_limits(&self, limits: &[(u32, Limits)]) -> Result<Changed<BTreeMap<u32, Accounted>>, QuotasError> {
//!         self.limits.borrow_mut().extend(limits.iter().copied());
//!         let mut found = self.accounted().await?;
//!         found.retain(|project, _| limits.iter().any(|(limited, _)| limited == project));
//!         Ok(Changed { found, refused: None })
//!     }
//!
//!     async fn tags(&self, directories: &[BorrowedFd<'_>]) -> Result<Vec<Option<Tag>>, QuotasError> {
//!         let tags = self.tags.borrow();
//!         let tag = |directory: &BorrowedFd<'_>| Some(tags.get(&Self::inode(*directory)?).copied().unwrap_or_default());
//!         Ok(directories.iter().map(tag).collect())
//!     }
//!
//!     async fn assign(&self, assignments: &[Assignment<'_>]) -> Result<Changed<Vec<Option<Tag>>>, QuotasError> {
//!         let mut found = Vec::new();
//!         for Assignment { file, project, inherits } in assignments.iter().copied() {
//!             let tag = Tag { project, inherits };
//!             found.push(Self::inode(file).map(|inode| {
//!                 self.tags.borrow_mut().insert(inode, tag);
//!                 tag
//!             }));
//!         }
//!         Ok(Changed { found, refused: None })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::os::unix::fs::PermissionsExt;
//! # let folder = std::env::temp_dir().join(format!("quota-agent-example-{}", std::process::id()));
//! # let (export, keys) = (folder.join("export"), folder.join("keys"));
//! # std::fs::create_dir_all(&export)?;
//! # let key = export_store::RecordsKey::new(&[7; 32]);
//! # let line = export_store::quota::KeyFile::lines("11111111-2222-3333-4444-555555555555", &key);
//! # std::fs::write(&keys, line)?;
//! # std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600))?;
//! let settings = Settings {
//!     exports: vec![export],
//!     key_file: keys,
//!     projects: "1000-1999".parse()?,
//!     files_per_second: 1000,
//! };
//! let stop = tokio_util::sync::CancellationToken::new();
//! # // It looks at everything once.
//! # stop.cancel();
//! quota_agent::run_with(settings, |_export| Ok(Memory::default()), stop).await?;
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! A server without a local directory for the export, such as one with an API only, has nothing for [`Assignment::file`]:
//! write a program that reads and writes the files of [`export_store::quota`] through NFS.

mod agent;
mod cluster;
mod directory;
mod error;
mod export;
mod folder;
mod linux;
mod plan;
mod projects;
mod quotas;
mod tree;
mod visits;
mod watch;

pub use agent::{Agent, Settings, run, run_with};
pub use error::AgentError;
pub use linux::{LinuxQuotas, XfsQuotas, ZfsQuotas};
pub use projects::{ProjectRange, ReservedProjects};
pub use quotas::{Accounted, Assignment, Capabilities, Changed, Limits, Quotas, QuotasError, Tag};

#[cfg(test)]
mod tests;
