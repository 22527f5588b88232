//! The suite with the servers of two kernels.

use std::sync::Arc;

use nfs_client::{Protocol, Tcp};
use rig::assets::{Debian, KernelVmAssets};
use rig::{KernelVm, RunDir};

use crate::conformance::{ServerUnderTest, check_table, run, write};

async fn conforms(name: &'static str, vm: &KernelVm, version: Protocol) {
    let small = format!("small-{}", rig::random_suffix());
    let prepare = format!(
        ". /sbin/functions
         mkdir -p /plain/prepared/directory && ln -sfn directory /plain/prepared/link && echo file >/plain/prepared/file
         disk {small} 8 ext4 -q -O ^has_journal -m 0 && offer {small} rw,no_root_squash,insecure"
    );
    vm.run(&prepare).await.unwrap();
    let under_test = ServerUnderTest {
        name,
        transport: Arc::new(Tcp),
        server: "127.0.0.1".into(),
        port: vm.nfs_port(),
        mount_port: Some(vm.mount_port()),
        plain: "/plain".into(),
        read_only: Some("/readonly".into()),
        root_squash: Some("/squashed".into()),
        small: Some(format!("/{small}")),
        // The emulator's network chooses the source port; a test of the store covers this case.
        secure: None,
        empty: Some("/empty".into()),
        // It speaks every version.
        without_version: None,
        may_fail: false,
    };
    let outcomes = run(&under_test, version).await;
    println!("{}", write(name, version, &outcomes).display());
    check_table(name, version, &outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_conforms_to_the_table_over_4_2() {
    conforms("Linux knfsd 6.1", KernelVm::shared().await.unwrap(), Protocol::V4_2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_conforms_to_the_table_over_4_1() {
    conforms("Linux knfsd 6.1", KernelVm::shared().await.unwrap(), Protocol::V4_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_conforms_to_the_table_over_4_0() {
    conforms("Linux knfsd 6.1", KernelVm::shared().await.unwrap(), Protocol::V4_0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_conforms_to_the_table_over_3() {
    conforms("Linux knfsd 6.1", KernelVm::shared().await.unwrap(), Protocol::V3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_kernel_conforms_to_the_table() {
    let run = RunDir::new().unwrap();
    let assets = KernelVmAssets::find_or_install(Debian::V13).await.unwrap();
    let vm = KernelVm::start_with(&run, &assets).await.unwrap();
    for version in [Protocol::V4_2, Protocol::V4_1, Protocol::V4_0, Protocol::V3] {
        conforms("Linux knfsd 6.12", &vm, version).await;
    }
}
