//! Volumes that the Linux kernel's NFS client mounts. The kernel runs in the rig's emulated machine; `make test` skips
//! these tests where there is no emulator.

mod enforced_sizes;
mod groups;
mod mounts;
mod node;
mod options;
mod quotas;
mod zfs;
