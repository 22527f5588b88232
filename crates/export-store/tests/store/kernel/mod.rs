//! The Linux kernel's NFS server, in the rig's emulated machine. `make test` skips these tests where there is no
//! emulator.

mod copying;
mod full;
mod refusals;
mod snapshots;
mod zfs;

use std::sync::Arc;

use export_store::PathReservations;
use nfs_client::{Credential, VersionChoice};
use rig::KernelVm;

use crate::fixture::{CLUSTER, StoreClient};

/// Returns a client for a store on an export of the kernel's server.
fn client(vm: &KernelVm, path: &'static str) -> StoreClient {
    StoreClient {
        cluster: CLUSTER,
        key: 7,
        backend: "kernel",
        credential: Credential::default(),
        reservations: Arc::new(PathReservations::new()),
        port: vm.nfs_port(),
        mount_port: vm.mount_port(),
        version: VersionChoice::Auto,
        path,
    }
}
