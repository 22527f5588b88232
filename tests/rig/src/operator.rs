//! The operator as a process.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    cluster::Cluster,
    error::{Error, Result, ResultExt},
    manifests::Manifests,
    memory_cgroup::MemoryCgroup,
    objects::Objects,
    ports,
    process::{Process, ProcessSpec, cpu_seconds, while_running},
    run_dir::RunDir,
    shared::{ALIASES, PROVISIONERS, alias},
    wait,
};

/// Namespace and name of the ServiceAccount in `config/rbac`.
pub(crate) const SERVICE_ACCOUNT: (&str, &str) = ("nfs-operator-system", "nfs-operator");
/// The username of that ServiceAccount in audit logs.
pub(crate) const USERNAME: &str = "system:serviceaccount:nfs-operator-system:nfs-operator";
/// The API server serves a new kind after a second on an idle machine.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Its watches must be in sync; that takes a second on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// Its pod has a grace period of 30 s; a machine that stalls takes longer.
const STOP_TIMEOUT: Duration = Duration::from_secs(90);
/// Its endpoints respond from memory, but the machine may stall, and most tests ask only once.
const HTTP_TIMEOUT: Duration = Duration::from_secs(60);

/// A kubeconfig for the operator's own ServiceAccount. Only [`Operator::install`] and [`Operator::kubeconfig`] create
/// it, so that an operator in a test never has other permissions than in production.
#[derive(Clone, Debug)]
pub struct OperatorKubeconfig(PathBuf);

impl std::ops::Deref for OperatorKubeconfig {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl OperatorKubeconfig {
    /// Creates a copy with another URL of the API server, such as that of a proxy. The credentials stay the same.
    pub(crate) fn with_server(&self, url: &str) -> Result<Self> {
        let action = || format!("read {}", self.display());
        let text = fs::read_to_string(&self.0).with_context(action)?;
        let mut config: Value = serde_json::from_str(&text).with_context(action)?;
        let server = config.pointer_mut("/clusters/0/cluster/server");
        *server.ok_or_else(|| Error::Usage(format!("{} names no server", self.display())))? = json!(url);
        let path = self.with_extension(format!("{}.kubeconfig", crate::random_suffix()));
        fs::write(&path, format!("{config:#}\n")).with_context(|| format!("write {}", path.display()))?;
        Ok(Self(path))
    }
}

/// How to start the operator.
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// Path of the binary.
    pub binary: PathBuf,
    /// The kubeconfig of its ServiceAccount.
    pub kubeconfig: OperatorKubeconfig,
    /// Additional arguments of `run`.
    pub args: Vec<String>,
    /// Additional environment variables.
    pub env: Vec<(String, String)>,
    /// Maximum memory in bytes, if the machine has a memory controller. See [`Operator::oom_kills`].
    pub memory_limit: Option<u64>,
}

impl OperatorOptions {
    /// Creates options without additional arguments and variables.
    pub fn new(binary: impl Into<PathBuf>, kubeconfig: OperatorKubeconfig) -> Self {
        Self {
            binary: binary.into(),
            kubeconfig,
            args: Vec::new(),
            env: Vec::new(),
            memory_limit: None,
        }
    }
}

/// A running operator. Dropping it kills it.
#[derive(Debug)]
pub struct Operator {
    process: Process,
    // Dropped after the process.
    cgroup: Option<MemoryCgroup>,
    http: SocketAddr,
    probes: SocketAddr,
    instance: String,
}

impl Operator {
    /// Installs the CRDs, the operator's ServiceAccount with its RBAC rules and the admission policies, as an
    /// administrator does with `kubectl`, and returns a kubeconfig for that account.
    pub async fn install(cluster: &Cluster) -> Result<OperatorKubeconfig> {
        static OF_REPOSITORY: OnceCell<Manifests> = OnceCell::const_new();
        let manifests = OF_REPOSITORY.get_or_try_init(async || manifests(&repository_root()));
        Self::install_with(cluster, manifests.await?).await
    }

    /// Like [`Self::install`], with the files of another checkout of this repository, for an operator that was built there.
    pub(crate) async fn install_from(cluster: &Cluster, checkout: &Path) -> Result<OperatorKubeconfig> {
        Self::install_with(cluster, &manifests(checkout)?).await
    }

    async fn install_with(cluster: &Cluster, manifests: &Manifests) -> Result<OperatorKubeconfig> {
        let objects = Objects::new(cluster.client().await?);
        manifests.apply(&objects, INSTALL_TIMEOUT).await?;
        Self::kubeconfig(cluster).await
    }

    /// Returns a kubeconfig for an account that exists, for example because the chart created it.
    pub async fn kubeconfig(cluster: &Cluster) -> Result<OperatorKubeconfig> {
        let path = cluster
            .service_account_kubeconfig(SERVICE_ACCOUNT.0, SERVICE_ACCOUNT.1)
            .await?;
        Ok(OperatorKubeconfig(path))
    }

    /// Starts the operator. See [`Self::wait_ready`].
    pub async fn start(run: &RunDir, options: OperatorOptions) -> Result<Self> {
        let address = || ports::free().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let (http, probes) = (address()?, address()?);
        let (http_addr, probe_addr) = (http.to_string(), probes.to_string());
        let kubeconfig = options.kubeconfig.display().to_string();
        // After a restart, the process recognizes its own Lease and does not wait until it expires.
        let instance = format!("rig-{}", crate::random_suffix());
        let defaults = [
            "run",
            "--http-addr",
            &http_addr,
            "--probe-addr",
            &probe_addr,
            "--kubeconfig",
            &kubeconfig,
            "--log-format",
            "text",
            "--instance",
            &instance,
        ];
        let args = defaults.into_iter().map(String::from).chain(options.args);
        let log = run.new_dir("operator")?.join("operator.log");
        let cgroup = options.memory_limit.map(MemoryCgroup::create).transpose()?.flatten();
        let (program, args) = match &cgroup {
            Some(cgroup) => cgroup.command(options.binary, args),
            None => (options.binary, args.collect()),
        };
        let spec = ProcessSpec {
            env: options.env,
            ..ProcessSpec::new("nfs-operator", program, args, log)
        };
        Ok(Self {
            process: Process::start(spec).await?,
            cgroup,
            http,
            probes,
            instance,
        })
    }

    /// Waits until `/readyz` responds with success.
    pub async fn wait_ready(&self) -> Result<()> {
        let ready = wait::until("the operator to be ready", START_TIMEOUT, async || {
            let not_ready = |error| format!("{error}\nthe end of its log:\n{}", self.process.log_tail());
            self.probe("/readyz").await.map_err(not_ready)
        });
        while_running(&[&self.process], ready).await.map(drop)
    }

    /// Returns the text of `/metrics`.
    pub async fn metrics(&self) -> Result<String> {
        get(self.http, "/metrics").await
    }

    /// Returns the body of a successful response of `/healthz` or `/readyz`. The error of any other response contains its
    /// body.
    pub async fn probe(&self, path: &str) -> Result<String> {
        get(self.probes, path).await
    }

    /// Returns the addresses of `--http-addr` and `--probe-addr`.
    pub fn http_addresses(&self) -> [SocketAddr; 2] {
        [self.http, self.probes]
    }

    /// Returns the resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// Returns the peak of the resident memory since the process started, in bytes. A pod's limit must exceed it.
    pub fn peak_resident_bytes(&self) -> Result<u64> {
        self.status_bytes("VmHWM:")
    }

    /// Returns the anonymous part of the resident memory in bytes, without the program's text, which the kernel can drop.
    pub fn anonymous_bytes(&self) -> Result<u64> {
        self.status_bytes("RssAnon:")
    }

    /// Returns a size from /proc/PID/status, see proc(5).
    fn status_bytes(&self, name: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.process.pid());
        let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let kilobytes = kilobytes.ok_or_else(|| Error::Usage(format!("{path} has no {name}")))?;
        Ok(kilobytes * 1024)
    }

    /// Returns the CPU time that the process has used so far, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(self.pid())
    }

    /// Returns how many processes the kernel killed because they exceeded the memory limit; `None` if there is no limit.
    pub fn oom_kills(&self) -> Result<Option<u64>> {
        self.cgroup.as_ref().map(MemoryCgroup::oom_kills).transpose()
    }

    /// Sends SIGKILL and waits until the process has exited.
    pub async fn kill9(&self) -> Result<()> {
        self.process.kill9().await.map(drop)
    }

    /// Sends SIGTERM and returns the exit status.
    pub async fn terminate(&self) -> Result<ExitStatus> {
        self.process.terminate(STOP_TIMEOUT).await
    }

    /// Sends SIGSTOP.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Sends SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// Restarts the operator with the same options, and kills it first if it runs. The log is appended to the same
    /// file.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill9().await?;
        self.process = Process::start(self.process.spec().clone()).await?;
        Ok(())
    }

    /// Returns the exit status, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// Returns the value of `--instance`: the prefix of its identity as the holder of the Lease.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the path of the log.
    pub fn log(&self) -> &Path {
        &self.process.spec().log
    }
}

/// Returns the policy for the operator's account with the provisioner names that operators in tests serve, as an
/// administrator adds them.
fn account_policy(checkout: &Path) -> Result<String> {
    let path = checkout.join("config/admission/operator_account.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let aliases = (0..ALIASES).map(|number| alias(number).0);
    let names = PROVISIONERS
        .into_iter()
        .chain(["k8s-sigs.io/nfs-subdir-external-provisioner"]);
    let names: Vec<String> = names.map(String::from).chain(aliases).collect();
    Ok(text.replace("['nfs-operator.io/nfs']", &format!("['{}']", names.join("', '"))))
}

/// Reads what an installation consists of.
fn manifests(checkout: &Path) -> Result<Manifests> {
    Manifests::new(&checkout.join("crds"))?
        .kustomization(&checkout.join("config/rbac"))?
        .kustomization(&checkout.join("config/admission"))?
        .replaced(&account_policy(checkout)?)?
        .text(&storage_capacity(checkout)?)
}

/// Returns the CSIDriver and the permissions of `config/storage-capacity`. Only an overlay can apply that directory.
fn storage_capacity(checkout: &Path) -> Result<String> {
    let folder = checkout.join("config/storage-capacity");
    let mut texts = Vec::new();
    for name in ["driver.yaml", "role.yaml", "role_binding.yaml"] {
        let path = folder.join(name);
        texts.push(fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?);
    }
    Ok(texts.join("\n---\n"))
}

/// Returns the body of a successful response.
async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let url = format!("http://{address}{path}");
    let action = || format!("GET {url}");
    let client = reqwest::Client::builder()
        .timeout(HTTP_TIMEOUT)
        .no_proxy()
        .build()
        .with_context(action)?;
    let response = client.get(&url).send().await.with_context(action)?;
    let status = response.status();
    let body = response.text().await.with_context(action)?;
    if status.is_success() {
        Ok(body)
    } else {
        Err(Error::Usage(format!("GET {url}: {status}: {body}")))
    }
}

/// Returns the root of the repository that contains this crate.
pub fn repository_root() -> PathBuf {
    // This crate is in tests/rig.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new("/"))
        .to_owned()
}

/// Links kubectl, its plugin and the operator's binary into a new folder of the run, for a PATH. Returns the folder.
pub fn link_programs(run: &RunDir, cluster: &Cluster, binary: &Path) -> Result<PathBuf> {
    let action = || "link the programs".into();
    let folder = run.new_dir("programs")?;
    let binary = fs::canonicalize(binary).with_context(action)?;
    symlink(cluster.kubectl_path(), folder.join("kubectl")).with_context(action)?;
    for name in ["nfs-operator", "kubectl-nfs", "kubectl_complete-nfs"] {
        symlink(&binary, folder.join(name)).with_context(action)?;
    }
    Ok(folder)
}

/// Returns the path of the operator's binary for tests: `NFS_OPERATOR_BINARY`, or what cargo built for the running
/// test.
pub fn find_binary() -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os("NFS_OPERATOR_BINARY") {
        return Ok(binary.into());
    }
    let test = std::env::current_exe().with_context(|| "find the path of the running test".into())?;
    // A test is target/debug/deps/NAME-HASH, the binary target/debug/nfs-operator.
    let binary = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("nfs-operator"))
        .find(|path| path.is_file());
    binary.ok_or_else(|| Error::Missing {
        what: "the operator's binary".into(),
        remedy: "run `cargo build`, or set NFS_OPERATOR_BINARY to its path".into(),
    })
}
