//! Configuration files and arguments of a node's programs.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    assets::Kubernetes,
    error::{Result, ResultExt},
    pki::CertificateAuthority,
};

/// The socket of containerd. In a sandbox, `/run` is private.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";
/// The image of the container that keeps a pod's namespaces.
pub(crate) const PAUSE_IMAGE: &str = "localhost/nfs-operator-rig/pause:1";
/// The address range of pods.
const PODS: &str = "10.88.0.0/16";

/// The directory of a node's files.
pub(super) struct NodeFiles {
    folder: PathBuf,
}

impl NodeFiles {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(path)
    }

    /// Writes the configuration of containerd and of the network plugins.
    pub(super) fn containerd(&self, plugins: &Path) -> Result<PathBuf> {
        let network = self.folder("network")?;
        self.write("network/10-pods.conflist", &format!("{:#}", pod_network()))?;
        // A process without the privilege may not lower oom_score_adj, so it stays as it is.
        let text = format!(
            r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{}"
  conf_dir = "{}"
"#,
            plugins.display(),
            network.display()
        );
        self.write("containerd.toml", &text)
    }

    /// Writes the configuration of the kubelet.
    pub(super) fn kubelet(
        &self,
        authority: &CertificateAuthority,
        cgroup: &str,
        kubernetes: Kubernetes,
    ) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": authority.ca().certificate },
            },
            "authorization": { "mode": "Webhook" },
            "cgroupDriver": "cgroupfs",
            // The parent of all pods' cgroups, so that they can be found and removed.
            "cgroupRoot": format!("/{cgroup}"),
            "failCgroupV1": false,
            "failSwapOn": false,
            "oomScoreAdj": 0,
            // There is no iptables here; kube-proxy uses nftables.
            "makeIPTablesUtilChains": false,
            "podLogsDir": self.folder("pods")?,
            // Never evict: how full the machine's disk is does not concern this cluster.
            "evictionHard": { "memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%" },
            "imageGCHighThresholdPercent": 100,
            // The node reports Ready at this interval; the default is 10 s.
            "nodeStatusUpdateFrequency": "1s",
            // Tests wait for restarts of containers.
            "crashLoopBackOff": { "maxContainerRestartPeriod": "2s" },
            "featureGates": feature_gates(kubernetes),
        });
        self.write("kubelet.json", &format!("{config:#}"))
    }

    /// Writes the configuration of kube-proxy.
    pub(super) fn proxy(&self, kubeconfig: &Path, node: &str) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": { "kubeconfig": kubeconfig },
            "hostnameOverride": node,
            "mode": "nftables",
            "clusterCIDR": PODS,
            // These settings belong to the machine, so they stay as they are.
            "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
        });
        self.write("kube-proxy.json", &format!("{config:#}"))
    }
}

/// Returns the feature gates that the kubelet's configuration needs in that version.
fn feature_gates(kubernetes: Kubernetes) -> Value {
    match kubernetes {
        Kubernetes::Newest => json!({}),
        // `crashLoopBackOff` is alpha in that version.
        Kubernetes::Oldest => json!({ "KubeletCrashLoopBackOffMax": true }),
    }
}

/// Configures a point-to-point link from each pod to the node, which routes between them. Behind a bridge, traffic
/// between pods would not pass the rules of `network_policy`.
fn pod_network() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                // That plugin would need iptables to masquerade. The NFS server of the rig sees the addresses of pods.
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": PODS }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
        ],
    })
}

/// Returns the arguments of the kubelet that have no field in its configuration file.
pub(super) fn kubelet_args(config: &Path, kubeconfig: &Path, node: &str, address: Ipv4Addr) -> Vec<String> {
    vec![
        format!("--config={}", config.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={node}"),
        format!("--node-ip={address}"),
    ]
}
