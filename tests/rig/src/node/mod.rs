//! A node that runs pods: kubelet, kube-proxy and containerd, in a sandbox.

mod config;
mod container;
mod enforcement;
mod network_policy;
mod pod_logs;
pub(crate) mod sandbox;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;

pub(crate) use self::config::PAUSE_IMAGE;
use self::config::{NodeFiles, SOCKET, kubelet_args};
use self::container::Container;
pub use self::{
    container::MemoryUsage,
    enforcement::Enforcement,
    sandbox::{ADDRESS, Sandbox, exit_code},
};
use crate::{
    assets::{Kubernetes, NodeAssets},
    cluster::Cluster,
    error::{Error, Result},
    objects::{Objects, condition, reference},
    process::{Process, ProcessSpec, run, while_running},
    run_dir::RunDir,
    wait,
};

const NAME: &str = "node";
/// It takes 4 s on two idle cores, and longer on a machine that also builds.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A running node. Dropping it kills its programs; its containers end with the sandbox.
#[derive(Debug)]
pub struct Node {
    // Dropped in this order, so that nothing restarts containers.
    kubelet: Process,
    proxy: Process,
    containerd: Process,
    folder: PathBuf,
}

impl Node {
    /// An image that every node has. Its container does nothing.
    pub const PAUSE_IMAGE: &str = PAUSE_IMAGE;

    /// A program in that image. Its termination message is the user, the groups, and whether it could create and write the
    /// file that its argument names, such as `uid=1000 gid=0 groups=0,20000 write=done`.
    pub const ACCESS_PROGRAM: &str = "/access";

    /// Starts a node for a cluster and waits until it is Ready.
    ///
    /// # Errors
    /// [`Error::Usage`] outside of a [`Sandbox`]: it would change the machine.
    pub async fn start(run: &RunDir, assets: &NodeAssets, cluster: &Cluster) -> Result<Self> {
        let sandbox =
            Sandbox::current().ok_or_else(|| Error::Usage("a node can only be started in a sandbox".into()))?;
        let folder = run.new_dir("node")?;
        let files = NodeFiles::new(folder.clone());
        let start = |name: &str, program: &Path, args: Vec<String>| {
            let log = files.path(&format!("{name}.log"));
            Process::start(ProcessSpec::new(name, program, args, log))
        };
        let config = files.containerd(&assets.plugins)?;
        let args = vec!["--config".into(), config.display().to_string()];
        let containerd = start("containerd", &assets.containerd, args).await?;
        let listens = wait::until("containerd to listen", START_TIMEOUT, async || {
            let listed = run_ctr(["version"]).await;
            listed.map_err(|error| error.to_string())
        });
        while_running(&[&containerd], listens).await?;
        run_ctr([Path::new("images"), Path::new("import"), &assets.pause]).await?;

        let config = files.kubelet(cluster.authority(), sandbox.cgroup(), Kubernetes::from_env()?)?;
        let kubeconfig = cluster.certificate_kubeconfig(&format!("system:node:{NAME}"), Some("system:nodes"))?;
        let kubelet = start(
            "kubelet",
            &assets.kubelet,
            kubelet_args(&config, &kubeconfig, NAME, ADDRESS),
        )
        .await?;
        let config = files.proxy(&cluster.certificate_kubeconfig("system:kube-proxy", None)?, NAME)?;
        let args = vec![format!("--config={}", config.display())];
        let proxy = start("kube-proxy", &assets.kube_proxy, args).await?;
        let node = Self {
            kubelet,
            proxy,
            containerd,
            folder,
        };
        node.wait_ready(cluster).await?;
        Ok(node)
    }

    async fn wait_ready(&self, cluster: &Cluster) -> Result<()> {
        let objects = Objects::new(cluster.client().await?);
        let node = reference("v1", "Node", None, NAME);
        let ready = objects.wait(&node, "to be Ready", START_TIMEOUT, |node| {
            let ready = condition(node, "Ready").ok_or("it has no condition Ready")?;
            match ready["status"] == "True" {
                true => Ok(()),
                false => Err(ready["message"].to_string()),
            }
        });
        while_running(&[&self.containerd, &self.kubelet, &self.proxy], ready).await
    }

    /// Loads the images of an OCI archive.
    pub async fn load(&self, archive: &Path) -> Result<()> {
        run_ctr([Path::new("images"), Path::new("import"), archive])
            .await
            .map(drop)
    }

    /// Returns the end of the output of all containers, including those that have exited, and of the kubelet's log.
    pub fn logs(&self) -> String {
        let kubelet = crate::process::tail(&self.kubelet.spec().log);
        format!(
            "{}\nend of the kubelet's log:\n{kubelet}",
            pod_logs::read_tails(&self.folder.join("pods"))
        )
    }

    /// Enforces the cluster's NetworkPolicies, including later ones. No program of the node does that.
    pub async fn enforce_network_policies(&self, cluster: &Cluster) -> Result<Enforcement> {
        Enforcement::start(cluster.client().await?, self.folder.join("policies.nft")).await
    }

    /// Returns the number of packets of a pod that its NetworkPolicies have dropped since a pod or policy last changed.
    ///
    /// # Errors
    /// If no egress policy for the pod is enforced.
    pub async fn dropped_packets(&self, pod: &Value) -> Result<u64> {
        enforcement::dropped_packets(pod).await
    }

    /// Kills the first container of a pod.
    pub async fn kill_container(&self, pod: &Value) -> Result<()> {
        let container = Container::from_pod(pod)?;
        run_ctr(["tasks", "kill", "--signal", "SIGKILL", &container.id])
            .await
            .map(drop)
    }

    /// Returns the memory of a pod's first container.
    pub async fn memory(&self, pod: &Value) -> Result<MemoryUsage> {
        Container::from_pod(pod)?.memory().await
    }

    /// Makes the kernel's OOM killer kill a pod's first container.
    pub async fn exhaust_memory(&self, pod: &Value) -> Result<()> {
        Container::from_pod(pod)?.exhaust_memory().await
    }
}

/// Runs containerd's client in the namespace of the kubelet's containers.
async fn run_ctr<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Result<String> {
    let mut command = Command::new("ctr");
    command.args(["--address", SOCKET, "--namespace", "k8s.io"]).args(args);
    run(command).await
}
