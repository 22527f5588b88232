//! nfs-subdir-external-provisioner: its environment, its volumes and its directories.

pub mod backend;
pub mod environment;
pub mod location;
pub mod volume;
