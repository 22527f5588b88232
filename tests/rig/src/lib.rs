//! A real Kubernetes control plane, a real NFS server, the operator, and a proxy that makes trouble between them.
//!
//! Each is started in the folder of a [`RunDir`], listens on free ports of 127.0.0.1, and ends when it is dropped or
//! when this process ends, however it ends. Several of each run side by side.
//!
//! ```no_run
//! use std::time::Duration;
//! use rig::{Action, Cluster, Export, NfsOptions, NfsServer, Proxy, RunDir, proxy};
//!
//! # async fn example() -> rig::Result<()> {
//! let run = RunDir::new()?;
//! let cluster = Cluster::start(&run).await?; // builds the control plane once
//! cluster.apply_crds("crds".as_ref()).await?;
//! println!("{}", cluster.kubectl(["get", "nfsb"]).await?);
//!
//! let mut nfs = NfsServer::start(&run, NfsOptions::default()).await?; // offers /export
//! let on_disk = nfs.add_export(Export::new("/more")).await?;
//! nfs.pause()?; // nobody answers any more
//! nfs.resume()?;
//!
//! let proxy = Proxy::start(nfs.address()).await?; // clients go to proxy.port()
//! proxy.delay(Duration::from_millis(5), Duration::from_millis(5));
//! let mut lost = proxy.lose_reply(Action::Drop, |request| proxy::has_bytes(request, &proxy::encode_rename(b"pvc-1")));
//! lost.wait(Duration::from_secs(10)).await?; // the rename is done, and the operator doesn't know
//! # Ok(()) }
//! ```
//!
//! Black-box tests share one of each: a test asks for its own namespace and export with [`TestEnv`]. A test that kills
//! the operator or the cluster starts its own instead, since two operators in one cluster are in each other's way.
//!
//! ```no_run
//! use rig::{Operator, OperatorOptions, RunDir, TestEnv, operator::find_binary};
//! use serde_json::json;
//!
//! # async fn example(cluster: rig::Cluster, run: RunDir) -> rig::Result<()> {
//! let env = TestEnv::new("hello").await?;
//! let backend = env.objects.create(&env.backend("bad", json!({ "path": "/nowhere" }))).await?;
//! env.objects.wait_condition(&backend, "Ready", "False", Some("ExportNotFound"), rig::TIMEOUT).await?;
//! let class = env.create_ready_class().await?; // with a good backend behind it
//! let claim = env.objects.create(&env.claim("data", &class)).await?;
//! let volume = env.wait_bound(&claim).await?;
//! assert!(env.directory(&volume)?.is_dir());
//! env.objects.delete(&claim).await?;
//! env.objects.wait_gone(&volume, rig::TIMEOUT).await?;
//!
//! let kubeconfig = Operator::install(&cluster).await?; // CRDs, RBAC, ServiceAccount
//! let mut operator = Operator::start(&run, OperatorOptions::new(find_binary()?, kubeconfig)).await?;
//! operator.wait_ready().await?;
//! operator.restart().await?; // kill -9, and again
//! # Ok(()) }
//! ```

pub mod api_reference;
pub mod assets;
pub mod bench;
pub mod cluster;
mod error;
pub mod kernel_vm;
pub mod nfs_server;
pub mod node;
pub mod objects;
pub mod operator;
mod pki;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod rbac;
mod run_dir;
mod shared;
pub mod wait;

pub use assets::Assets;
pub use cluster::Cluster;
pub use error::{Error, Result, ResultExt};
pub use kernel_vm::KernelVm;
pub use nfs_server::{Access, Export, NfsOptions, NfsServer, Squash, StableStorage};
pub use node::{Node, Sandbox};
pub use objects::Objects;
pub use operator::{Operator, OperatorKubeconfig, OperatorOptions};
pub use proxy::{Action, Direction, Proxy};
pub use run_dir::{BASE_VARIABLE, RunDir, remove_dead_runs};
pub use shared::{SharedRig, TIMEOUT, TestEnv, shared};

/// Five characters that make a name unique enough for one machine.
pub fn random_suffix() -> String {
    use rand::seq::IndexedRandom as _;
    // No vowels, as in Kubernetes' own generated names: no words come out.
    let letters = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    (0..5)
        .filter_map(|_| letters.choose(&mut random))
        .map(|letter| char::from(*letter))
        .collect()
}
