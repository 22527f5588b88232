//! The directory, ports and command lines of the control plane.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use crate::{
    assets::Assets,
    error::{Result, ResultExt},
    pki::{CertificateAuthority, CertificateFiles},
    ports,
    process::ProcessSpec,
    rbac,
};

/// Logs the operator's requests with verb, object and the rule that allowed them, but without bodies, and those of the
/// default ServiceAccounts, which tests use as other users.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: [\"system:serviceaccounts:nfs-operator-system\", \"system:serviceaccounts:default\"]
  - level: None
";

/// The usual port of an API server, because a cluster with nodes tests what the documentation says about ports. Such a
/// cluster has its own network, so the port is free.
const API_PORT: u16 = 6443;

/// The group that may do everything.
pub(super) const SYSTEM_MASTERS: &str = "system:masters";

/// The directory, ports and programs of one cluster.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) folder: PathBuf,
    pub(super) assets: Assets,
    pub(super) api_port: u16,
    pub(super) audit_log: PathBuf,
    etcd_port: u16,
    peer_port: u16,
    /// The address at which nodes and pods reach the API server, in a cluster with nodes.
    node: Option<Ipv4Addr>,
}

impl Layout {
    pub(super) fn new(folder: PathBuf, assets: Assets, node: Option<Ipv4Addr>) -> Result<Self> {
        let policy = folder.join("audit-policy.yaml");
        std::fs::write(&policy, AUDIT_POLICY).with_context(|| format!("write {}", policy.display()))?;
        let audit_log = rbac::audit_log_path(&folder)?;
        let api_port = node.map_or_else(ports::free, |_| Ok(API_PORT))?;
        let (etcd_port, peer_port) = (ports::free()?, ports::free()?);
        Ok(Self {
            folder,
            assets,
            api_port,
            audit_log,
            etcd_port,
            peer_port,
            node,
        })
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn spec(&self, name: &str, args: Vec<String>) -> ProcessSpec {
        let program = self.assets.control_plane.join(name);
        ProcessSpec::new(name, program, args, self.folder.join(format!("{name}.log")))
    }

    /// Returns the URL of etcd's JSON interface.
    pub(super) fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port)
    }

    /// Returns the directory of the objects.
    pub(super) fn etcd_data(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    pub(super) fn etcd(&self) -> ProcessSpec {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let args = vec![
            format!("--data-dir={}", self.etcd_data().display()),
            format!("--listen-client-urls={}", url(self.etcd_port)),
            format!("--advertise-client-urls={}", url(self.etcd_port)),
            format!("--listen-peer-urls={}", url(self.peer_port)),
            format!("--initial-advertise-peer-urls={}", url(self.peer_port)),
            format!("--initial-cluster=default={}", url(self.peer_port)),
            // The data need not survive a power failure.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        self.spec("etcd", args)
    }

    pub(super) fn api_server(&self, authority: &CertificateAuthority) -> Result<ProcessSpec> {
        let path = |path: &Path| path.display().to_string();
        let (server, ca, accounts) = (authority.server()?, authority.ca(), authority.service_account_keys());
        let mut args = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--secure-port={}", self.api_port),
            format!("--tls-cert-file={}", path(&server.certificate)),
            format!("--tls-private-key-file={}", path(&server.key)),
            format!("--client-ca-file={}", path(&ca.certificate)),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
            format!("--service-account-key-file={}", path(&accounts.certificate)),
            format!("--service-account-signing-key-file={}", path(&accounts.key)),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            format!("--audit-policy-file={}", self.file("audit-policy.yaml")),
            format!("--audit-log-path={}", path(&self.audit_log)),
            // One file, so that readers find all requests.
            "--audit-log-maxsize=4096".into(),
        ];
        args.extend(match self.node {
            None => without_nodes(),
            Some(address) => with_nodes(
                address,
                &authority.client("kube-apiserver-kubelet-client", Some(SYSTEM_MASTERS))?,
            ),
        });
        Ok(self.spec("kube-apiserver", args))
    }

    pub(super) fn controller_manager(&self, authority: &CertificateAuthority, kubeconfig: &Path) -> ProcessSpec {
        let mut args = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--root-ca-file={}", authority.ca().certificate.display()),
            format!(
                "--service-account-private-key-file={}",
                authority.service_account_keys().key.display()
            ),
            "--use-service-account-credentials".into(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            // With the default of 20 requests a second it binds 4 claims a second, which would dominate measurements.
            "--kube-api-qps=2000".into(),
            "--kube-api-burst=4000".into(),
        ];
        if self.node.is_none() {
            args.push(format!("--controllers={}", WITHOUT_NODES.join(",")));
        }
        self.spec("kube-controller-manager", args)
    }

    pub(super) fn scheduler(&self, kubeconfig: &Path) -> ProcessSpec {
        let args = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
        ];
        self.spec("kube-scheduler", args)
    }
}

/// Controllers in a cluster where nodes are objects that tests create: those of claims, namespaces, accounts, roles and
/// Jobs. Others would watch what does not exist, and mark nodes without a kubelet as unreachable.
const WITHOUT_NODES: [&str; 14] = [
    "clusterrole-aggregation-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "validatingadmissionpolicy-status-controller",
];

/// Arguments of the API server in a cluster where nodes are objects that tests create.
fn without_nodes() -> Vec<String> {
    [
        "--authorization-mode=RBAC",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        // A loopback address cannot be an endpoint of the `kubernetes` service.
        "--endpoint-reconciler-type=none",
        // Nothing would remove this taint from a node that a test creates.
        "--disable-admission-plugins=TaintNodesByCondition",
    ]
    .map(String::from)
    .to_vec()
}

/// Arguments of the API server in a cluster with a kubelet and pods.
fn with_nodes(address: Ipv4Addr, client: &CertificateFiles) -> Vec<String> {
    vec![
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--bind-address=0.0.0.0".into(),
        format!("--advertise-address={address}"),
        // For logs and `exec`, the API server calls the kubelet by address, because there is no DNS.
        format!("--kubelet-client-certificate={}", client.certificate.display()),
        format!("--kubelet-client-key={}", client.key.display()),
        "--kubelet-preferred-address-types=InternalIP".into(),
    ]
}
