//! The command lines of the control plane.

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

/// The operator's requests with verb, object and the rule that allowed them, without bodies: enough to prove what it did
/// and by what right. (And the default account's, which tests use as somebody else.)
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: [\"system:serviceaccounts:nfs-operator-system\", \"system:serviceaccounts:default\"]
  - level: None
";

/// Where most clusters have it: what is said of an API server's port is tried with that. Nobody else is in the network of
/// a cluster with nodes.
const API_PORT: u16 = 6443;

/// Who may do everything.
pub(super) const SYSTEM_MASTERS: &str = "system:masters";

/// The folder of one cluster, the ports its programs listen on, and where the programs are.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) folder: PathBuf,
    pub(super) assets: Assets,
    pub(super) api_port: u16,
    pub(super) audit_log: PathBuf,
    etcd_port: u16,
    peer_port: u16,
    /// The address under which nodes and pods find the API server, in a cluster that has any.
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
        ProcessSpec {
            name: name.into(),
            program: self.assets.control_plane.join(name),
            args,
            env: Vec::new(),
            log: self.folder.join(format!("{name}.log")),
        }
    }

    pub(super) fn etcd(&self) -> ProcessSpec {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let args = vec![
            format!("--data-dir={}", self.file("etcd")),
            format!("--listen-client-urls={}", url(self.etcd_port)),
            format!("--advertise-client-urls={}", url(self.etcd_port)),
            format!("--listen-peer-urls={}", url(self.peer_port)),
            format!("--initial-advertise-peer-urls={}", url(self.peer_port)),
            format!("--initial-cluster=default={}", url(self.peer_port)),
            // The data need not outlive a power cut.
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
        ];
        self.spec("etcd", args)
    }

    pub(super) fn api_server(&self, authority: &CertificateAuthority) -> Result<ProcessSpec> {
        let path = |path: &Path| path.display().to_string();
        let (server, ca, accounts) = (authority.server()?, authority.ca(), authority.accounts());
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
            // In one piece, whoever reads it.
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
                authority.accounts().key.display()
            ),
            "--use-service-account-credentials".into(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            // With the default of 20 a second it binds 4 claims a second, and would be what is measured.
            "--kube-api-qps=2000".into(),
            "--kube-api-burst=4000".into(),
        ];
        if self.node.is_none() {
            // It would declare a node unreachable that a test made and no kubelet speaks for.
            args.push("--controllers=*,-node-lifecycle-controller".into());
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

/// What the API server is told where nodes are objects that tests make.
fn without_nodes() -> Vec<String> {
    [
        "--authorization-mode=RBAC",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        // Nothing routes to a loopback address: no endpoints for the `kubernetes` service.
        "--endpoint-reconciler-type=none",
        // A node is an object that a test makes: nobody would ever take that taint off it.
        "--disable-admission-plugins=TaintNodesByCondition",
    ]
    .map(String::from)
    .to_vec()
}

/// What it is told where a kubelet speaks for its node, and pods want to reach it.
fn with_nodes(address: Ipv4Addr, client: &CertificateFiles) -> Vec<String> {
    vec![
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--bind-address=0.0.0.0".into(),
        format!("--advertise-address={address}"),
        // For logs and `exec`: it calls the kubelet, by address since there is no DNS.
        format!("--kubelet-client-certificate={}", client.certificate.display()),
        format!("--kubelet-client-key={}", client.key.display()),
        "--kubelet-preferred-address-types=InternalIP".into(),
    ]
}
