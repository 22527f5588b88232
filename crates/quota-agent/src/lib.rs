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
//! For another kind of server, implement [`Quotas`]. [`LinuxQuotas`] is the implementation for XFS, ext4 and ZFS.

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

pub use agent::{Agent, Settings, run};
pub use error::AgentError;
pub use linux::{LinuxQuotas, XfsQuotas, ZfsQuotas};
pub use projects::{ProjectRange, ReservedProjects};
pub use quotas::{Accounted, Assignment, Capabilities, Changed, Limits, Quotas, QuotasError, Tag};

#[cfg(test)]
mod tests;
