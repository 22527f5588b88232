//! Compatibility with nfs-subdir-external-provisioner: its environment, volumes and directories.

pub mod backend;
pub mod environment;
pub mod location;
pub mod volume;
