//! The Linux kernel on the other side: its NFS server under our client, and its NFS client on the volumes that we make.
//! Both run in the rig's emulated machine; `make test` leaves this out where there is no emulator.

mod conformance;
mod copying;
mod groups;
mod mounts;
mod node;
mod options;
mod refusals;
mod server;

use nfs_client::{
    Client, ClientOwner, Credential, FileHandle, Name, Protocol, SetAttributes, SourcePort, Target, VersionChoice,
};
use rig::KernelVm;
use std::time::Duration;

/// The way to one of the machine's exports.
fn target(vm: &KernelVm, path: &str, version: Protocol) -> Target {
    Target {
        server: "127.0.0.1".into(),
        path: path.into(),
        version: VersionChoice::Exactly(version),
        port: vm.nfs_port(),
        mount_port: Some(vm.mount_port()),
        source_port: SourcePort::Any,
        credential: Credential::default(),
        owner: ClientOwner {
            owner: rand::random::<[u8; 16]>().to_vec(),
            verifier: rand::random(),
        },
        // Every instruction of the server is emulated, and its grace period is 10 s.
        deadline: Duration::from_secs(60),
    }
}

/// A directory of the test's own on an export, and the export with it as its root.
async fn own(vm: &KernelVm, export: &str, version: Protocol) -> (Client, FileHandle, String) {
    let path = format!("{export}/test-{}", rig::random_suffix());
    vm.run(&format!("mkdir {path} && chmod 0777 {path}")).await.unwrap();
    let export = Client::connect(target(vm, &path, version)).await.unwrap();
    let root = export.root().await.unwrap().handle;
    (export, root, path)
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}
