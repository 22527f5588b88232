//! Compatibility with other provisioners.

pub mod nfs_subdir;
