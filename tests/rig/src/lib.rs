//! The test rig: a real Kubernetes control plane, a real NFS server, the operator, and a proxy that injects faults.
//!
//! Each part runs in a directory of a [`RunDir`] and listens on free ports of 127.0.0.1. It stops when it is dropped, and
//! the kernel kills it when this process exits. Several of each can run at the same time.
//!
//! A test of the operator uses the cluster, NFS server and operator that all tests of the process share. [`TestEnv`] gives
//! it a namespace, an export and unique names:
//!
//! ```no_run
//! # async fn example() -> rig::Result<()> {
//! let env = rig::TestEnv::new("hello").await?; // the first call starts the cluster
//! let class = env.create_ready_class().await?; // a StorageClass with a Ready backend
//! let claim = env.objects.create(&env.claim("data", &class)).await?;
//! let volume = env.wait_bound(&claim).await?;
//! assert!(env.directory(&volume)?.is_dir());
//! env.objects.delete(&claim).await?;
//! env.objects.wait_gone(&volume, rig::TIMEOUT).await?;
//! # Ok(()) }
//! ```
//!
//! A test that kills the operator or the cluster starts its own, because a cluster has one operator:
//!
//! ```no_run
//! use std::time::Duration;
//! use rig::{Action, Cluster, NfsOptions, NfsServer, Operator, OperatorOptions, Proxy, RunDir, operator, proxy};
//!
//! # async fn example() -> rig::Result<()> {
//! let run = RunDir::new()?;
//! let cluster = Cluster::start(&run).await?; // builds the control plane once
//! let nfs = NfsServer::start(&run, NfsOptions::default()).await?; // exports /export
//! let kubeconfig = Operator::install(&cluster).await?; // CRDs, RBAC, ServiceAccount
//! let mut operator = Operator::start(&run, OperatorOptions::new(operator::find_binary()?, kubeconfig)).await?;
//! operator.wait_ready().await?;
//!
//! let proxy = Proxy::start(nfs.address()).await?; // clients connect to proxy.port()
//! let rename = proxy::encode_rename(b"pvc-1");
//! let mut lost = proxy.lose_reply(Action::Drop, move |request| proxy::has_bytes(request, &rename));
//! lost.wait(Duration::from_secs(10)).await?; // the server has done the rename, and the client does not know it
//! operator.restart().await?; // SIGKILL, and a new process
//! # Ok(()) }
//! ```

pub mod api_reference;
pub mod assets;
mod background;
pub mod bench;
mod ceph;
pub mod cluster;
mod error;
mod go_nfs;
pub mod kernel_vm;
mod manifests;
mod memory_cgroup;
pub mod nfs_server;
pub mod node;
pub mod objects;
pub mod operator;
mod pki;
pub mod ports;
pub mod process;
mod prometheus;
pub mod proxy;
pub mod rbac;
mod run_dir;
mod shared;
mod snapshot;
mod test_env;
pub mod wait;

pub use assets::Assets;
pub use ceph::Ceph;
pub use cluster::Cluster;
pub use error::{Error, Result, ResultExt};
pub use go_nfs::GoNfs;
pub use kernel_vm::KernelVm;
pub use memory_cgroup::MemoryCgroup;
pub use nfs_server::{Access, Export, NfsOptions, NfsServer, Squash, StableStorage};
pub use node::{Node, Sandbox};
pub use objects::Objects;
pub use operator::{Operator, OperatorKubeconfig, OperatorOptions};
pub use prometheus::Prometheus;
pub use proxy::{Action, Direction, Proxy};
pub use run_dir::{BASE_VARIABLE, RunDir, remove_dead_runs};
pub use shared::{SharedRig, TIMEOUT, shared};
pub use snapshot::snapshot;
pub use test_env::TestEnv;

/// Returns five random characters: unique enough for names on one machine.
pub fn random_suffix() -> String {
    use rand::seq::IndexedRandom as _;
    // No vowels, as in names that Kubernetes generates, so that no words appear.
    let letters = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    (0..5)
        .filter_map(|_| letters.choose(&mut random))
        .map(|letter| char::from(*letter))
        .collect()
}
