//! File systems of ZFS in a virtual machine that has it.

use super::KernelVm;
use crate::{assets::KernelVmAssets, error::Result, random_suffix, run_dir::RunDir};

impl KernelVm {
    /// Starts a machine that also has ZFS. Compiles it if necessary, which takes minutes.
    pub async fn start_with_zfs(run: &RunDir) -> Result<Self> {
        Self::start_with(run, &KernelVmAssets::find_or_build_with_zfs().await?).await
    }

    /// Creates a file system of ZFS and exports it to all clients, with its snapshots. Root is not squashed. Returns its
    /// path, inside and for clients.
    pub async fn new_dataset(&self, properties: &[&str]) -> Result<String> {
        let name = format!("fs-{}", random_suffix());
        // Without crossmnt, clients see an empty directory in the place of a snapshot. ZFS exports it itself: when it
        // creates another file system, it withdraws what it does not know.
        let properties = [&["sharenfs=rw,no_root_squash,insecure,crossmnt"], properties].concat();
        let script = format!("zfs create -o {} tank/{name}", properties.join(" -o "));
        self.run(&script).await?;
        Ok(format!("/tank/{name}"))
    }
}
