//! Helpers for tests against NFS servers. The tests of crates that use this client include this module, too.

pub mod hostile;
mod server;

use std::time::Duration;

use nfs_client::{
    Client, ClientOwner, Credential, FileHandle, Name, Protocol, SetAttributes, SourcePort, Target, VersionChoice,
};
use rig::{KernelVm, NfsOptions, NfsServer, RunDir};

pub use self::server::{DedicatedServer, LEASE};

/// Timeout for a state that is reached in seconds on an idle machine.
pub const TIMEOUT: Duration = Duration::from_secs(90);

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

pub fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// Starts a server with the export `/data` that supports this version.
pub async fn server(protocol: Protocol) -> (NfsServer, RunDir) {
    let run = RunDir::new().unwrap();
    let options = NfsOptions {
        exports: vec![rig::Export::new("/data")],
        v3: protocol == Protocol::V3,
        ..NfsOptions::default()
    };
    (NfsServer::start(&run, options).await.unwrap(), run)
}

/// Returns the export `/data` of the server at that port, for an owner of its own.
pub fn target(port: u16, version: VersionChoice) -> Target {
    Target {
        version,
        port,
        mount_port: None,
        source_port: SourcePort::Any,
        credential: Credential::default(),
        owner: ClientOwner {
            owner: rand::random::<[u8; 16]>().to_vec(),
            verifier: [1; 8],
        },
        // A machine that stalls must not fail a call.
        deadline: Duration::from_secs(60),
        ..Target::new("127.0.0.1", "/data")
    }
}

/// Returns an export of the kernel's server in the emulated machine.
pub fn kernel_target(vm: &KernelVm, path: &str, version: Protocol) -> Target {
    Target {
        path: path.to_owned(),
        mount_port: Some(vm.mount_port()),
        // Every instruction of the server is emulated, and its grace period is 10 s.
        deadline: Duration::from_secs(60),
        ..target(vm.nfs_port(), VersionChoice::Exactly(version))
    }
}

/// Creates a directory for one test on an export of the kernel's server. Returns its path, and a client with this
/// directory as its root.
pub async fn kernel_directory(vm: &KernelVm, export: &str, version: Protocol) -> (Client, FileHandle, String) {
    let path = format!("{export}/test-{}", rig::random_suffix());
    vm.run(&format!("mkdir {path} && chmod 0777 {path}")).await.unwrap();
    let client = Client::connect(kernel_target(vm, &path, version)).await.unwrap();
    let root = client.root().await.unwrap().handle;
    (client, root, path)
}
