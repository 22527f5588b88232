//! One cluster, NFS server and operator for all tests of a process.

use std::time::Duration;

use tokio::sync::{Mutex, OnceCell};

use crate::{
    assets::Assets,
    background::start_in_background,
    cluster::Cluster,
    error::{Error, Result},
    nfs_server::{NfsOptions, NfsServer},
    operator::{Operator, OperatorOptions, find_binary},
    run_dir::RunDir,
};

/// Maximum time that tests wait for a state. It takes a second on an idle machine, and longer while a hundred tests
/// run.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// Number of aliases that the shared operator serves. Each alias is used by one test.
pub(crate) const ALIASES: usize = 32;

/// The provisioner names of operators in tests. The second one is that of the CSIDriver in `config/storage-capacity`.
pub(crate) const PROVISIONERS: [&str; 2] = ["nfs-operator.io/nfs", "nfs.nfs-operator.io"];

/// Returns a provisioner name that the shared operator serves as an alias, and its backend.
pub(crate) fn alias(number: usize) -> (String, String) {
    (format!("old.example.org/nfs-{number}"), format!("alias-{number}"))
}

/// The cluster, NFS server and operator that all tests of a process share.
#[derive(Debug)]
pub struct SharedRig {
    /// The control plane, with the CRDs and the operator's account installed.
    pub cluster: Cluster,
    /// The NFS server. It is locked only while exports change.
    pub nfs: Mutex<NfsServer>,
    /// The operator, which runs under its own ServiceAccount.
    pub operator: Operator,
    /// The directory of their logs.
    pub run: RunDir,
}

impl SharedRig {
    async fn start() -> Result<Self> {
        let run = RunDir::new()?;
        let assets = Assets::find_or_install().await?;
        // Exports with a size limit and NFSv3 need root. Without root only the tests that use them fail.
        let is_root = rustix::process::geteuid().is_root();
        let options = NfsOptions {
            private_mounts: is_root,
            v3: is_root,
            ..NfsOptions::default()
        };
        let (nfs, cluster) = tokio::try_join!(
            NfsServer::start_with(&run, options, &assets.ganesha),
            Cluster::start_with(&run, assets.clone()),
        )?;
        let kubeconfig = Operator::install(&cluster).await?;
        let aliases = (0..ALIASES).flat_map(|number| {
            let (name, backend) = alias(number);
            ["--provisioner-alias".to_owned(), format!("{name}={backend}")]
        });
        let names = PROVISIONERS.map(|name| format!("--provisioner-name={name}"));
        let options = OperatorOptions {
            args: names.into_iter().chain(aliases).collect(),
            ..OperatorOptions::new(find_binary()?, kubeconfig)
        };
        let operator = Operator::start(&run, options).await?;
        operator.wait_ready().await?;
        eprintln!("rig: logs are in {}", run.path().display());
        Ok(Self {
            cluster,
            nfs: Mutex::new(nfs),
            operator,
            run,
        })
    }
}

/// Returns the shared rig. The first caller starts it. A failed start is not retried and fails every test.
pub async fn shared() -> Result<&'static SharedRig> {
    static SHARED: OnceCell<Result<SharedRig, String>> = OnceCell::const_new();
    let started = SHARED
        .get_or_init(|| start_in_background("shared rig", SharedRig::start))
        .await;
    started.as_ref().map_err(|error| Error::SharedStart(error.clone()))
}
