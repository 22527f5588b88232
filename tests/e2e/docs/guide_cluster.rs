//! A cluster, an NFS server and an operator for the commands of a page.

use rig::operator::find_binary;
use rig::{Cluster, Export, NfsOptions, NfsServer, Objects, Operator, OperatorKubeconfig, OperatorOptions, RunDir};

use crate::support::shared::Failure;
use crate::support::shell::Shell;

/// A cluster, an NFS server, and the shell of an administrator.
pub struct GuideCluster {
    /// Dropped before what it uses.
    operator: Option<Operator>,
    pub shell: Shell,
    pub objects: Objects,
    pub cluster: Cluster,
    pub nfs: NfsServer,
    pub run: RunDir,
}

impl GuideCluster {
    /// Starts everything, with an operator that was installed from `config/`.
    pub async fn start(exports: Vec<Export>) -> Result<Self, Failure> {
        let mut guide = Self::without_operator(exports).await?;
        let kubeconfig = Operator::install(&guide.cluster).await?;
        guide.start_operator(kubeconfig).await?;
        Ok(guide)
    }

    /// Starts an empty cluster and an NFS server.
    pub async fn without_operator(exports: Vec<Export>) -> Result<Self, Failure> {
        let run = RunDir::new()?;
        let options = NfsOptions {
            exports,
            ..NfsOptions::default()
        };
        let nfs = NfsServer::start(&run, options).await?;
        let cluster = Cluster::start(&run).await?;
        Ok(Self {
            operator: None,
            shell: Shell::new(&run, &cluster)?,
            objects: Objects::new(cluster.client().await?),
            cluster,
            nfs,
            run,
        })
    }

    /// Starts the operator with the permissions of its installed ServiceAccount.
    pub async fn start_operator(&mut self, kubeconfig: OperatorKubeconfig) -> Result<(), Failure> {
        let operator = Operator::start(&self.run, OperatorOptions::new(find_binary()?, kubeconfig)).await?;
        operator.wait_ready().await?;
        self.operator = Some(operator);
        Ok(())
    }
}
