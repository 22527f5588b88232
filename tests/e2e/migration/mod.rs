//! Migration from nfs-subdir-external-provisioner.

pub mod environment;
pub mod legacy_classes;
pub mod legacy_still_running;
pub mod legacy_volumes;
pub mod legacy_volumes_refused;
