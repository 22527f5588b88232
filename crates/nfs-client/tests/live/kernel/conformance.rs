//! The suite with the kernel's server.

use std::sync::Arc;

use nfs_client::{Protocol, Tcp};
use rig::KernelVm;

use crate::conformance::{ServerUnderTest, check_table, run, write};

const NAME: &str = "Linux knfsd 6.1";

async fn conforms(version: Protocol) {
    let vm = KernelVm::shared().await.unwrap();
    let small = format!("small-{}", rig::random_suffix());
    let prepare = format!(
        ". /sbin/functions
         mkdir -p /plain/prepared/directory && ln -sfn directory /plain/prepared/link && echo file >/plain/prepared/file
         disk {small} 8 ext4 -q -O ^has_journal -m 0 && offer {small} rw,no_root_squash,insecure"
    );
    vm.run(&prepare).await.unwrap();
    let under_test = ServerUnderTest {
        name: NAME,
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
    println!("{}", write(NAME, version, &outcomes).display());
    check_table(NAME, version, &outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_conforms_to_the_table_over_4_2() {
    conforms(Protocol::V4_2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_conforms_to_the_table_over_4_1() {
    conforms(Protocol::V4_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_conforms_to_the_table_over_4_0() {
    conforms(Protocol::V4_0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_conforms_to_the_table_over_3() {
    conforms(Protocol::V3).await;
}
