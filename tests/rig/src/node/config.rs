//! What a node's programs are told.

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

/// Where containerd is asked for containers; in an enclosure `/run` is the enclosure's own.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";
/// What keeps a pod's namespaces.
pub(crate) const PAUSE: &str = "localhost/nfs-operator-rig/pause:1";
/// The addresses of pods.
const PODS: &str = "10.88.0.0/16";

/// The folder of a node's files.
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
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// containerd's configuration, and the network plugins' beside it.
    pub(super) fn containerd(&self, plugins: &Path) -> Result<PathBuf> {
        let network = self.folder("network")?;
        self.write("network/10-pods.conflist", &format!("{:#}", pod_network()))?;
        // An oom_score_adj below our own is refused to whoever may not lower it, so nothing is lowered.
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
  sandbox_image = "{PAUSE}"
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

    /// The kubelet's configuration.
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
            // All pods are below it, so that they can be found and cleared away.
            "cgroupRoot": format!("/{cgroup}"),
            "failCgroupV1": false,
            "failSwapOn": false,
            "oomScoreAdj": 0,
            // There is no iptables here; kube-proxy uses nftables.
            "makeIPTablesUtilChains": false,
            "podLogsDir": self.folder("pods")?,
            // However full the machine's disk is: it is not this cluster's matter.
            "evictionHard": { "memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%" },
            "imageGCHighThresholdPercent": 100,
            // A node is Ready when it says so, and by default looks every 10 s.
            "nodeStatusUpdateFrequency": "1s",
            // A container that ends again and again is started again soon: tests wait for it.
            "crashLoopBackOff": { "maxContainerRestartPeriod": "2s" },
            "featureGates": feature_gates(kubernetes),
        });
        self.write("kubelet.json", &format!("{config:#}"))
    }

    /// kube-proxy's configuration.
    pub(super) fn proxy(&self, kubeconfig: &Path, node: &str) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": { "kubeconfig": kubeconfig },
            "hostnameOverride": node,
            "mode": "nftables",
            "clusterCIDR": PODS,
            // These are the machine's, not this network's: they are left as they are.
            "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
        });
        self.write("kube-proxy.json", &format!("{config:#}"))
    }
}

/// What the kubelet's configuration above needs and that release has off.
fn feature_gates(kubernetes: Kubernetes) -> Value {
    match kubernetes {
        Kubernetes::Newest => json!({}),
        // `crashLoopBackOff` is alpha there.
        Kubernetes::Oldest => json!({ "KubeletCrashLoopBackOffMax": true }),
    }
}

/// A cable from each pod to the node, which routes between them: a bridge would hide what pods send one another from
/// those who look at what passes the node (see `policies`).
fn pod_network() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                // Not masqueraded: that plugin uses iptables. The NFS server of the rig sees the pods' own addresses.
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

/// The kubelet's arguments; what its file has no word for.
pub(super) fn kubelet_args(config: &Path, kubeconfig: &Path, node: &str, address: Ipv4Addr) -> Vec<String> {
    vec![
        format!("--config={}", config.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={node}"),
        format!("--node-ip={address}"),
    ]
}
