//! The operator as a process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use crate::{
    cluster::Cluster,
    error::{Error, Result, ResultExt},
    ports,
    process::{Process, ProcessSpec, while_running},
    run_dir::RunDir,
    wait,
};

/// The ServiceAccount that `config/rbac` makes.
pub(crate) const SERVICE_ACCOUNT: (&str, &str) = ("nfs-operator-system", "nfs-operator");
/// Its name in audit logs.
pub(crate) const USERNAME: &str = "system:serviceaccount:nfs-operator-system:nfs-operator";
/// Its watches have to be in sync; that takes a second on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Its pod's grace period.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Its endpoints answer from memory.
const HTTP_TIMEOUT: Duration = Duration::from_secs(5);

/// A kubeconfig for the operator's own ServiceAccount. Only [`Operator::install`] makes one, so that no operator is
/// started with other rights than a user's would have.
#[derive(Clone, Debug)]
pub struct OperatorKubeconfig(PathBuf);

impl std::ops::Deref for OperatorKubeconfig {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

/// How the operator is started.
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// The program.
    pub binary: PathBuf,
    /// Who it logs in as.
    pub kubeconfig: OperatorKubeconfig,
    /// Arguments of `run` beside those that the rig gives.
    pub args: Vec<String>,
    /// Variables beside those inherited.
    pub env: Vec<(String, String)>,
}

impl OperatorOptions {
    /// That program under that kubeconfig.
    pub fn new(binary: impl Into<PathBuf>, kubeconfig: OperatorKubeconfig) -> Self {
        Self {
            binary: binary.into(),
            kubeconfig,
            args: Vec::new(),
            env: Vec::new(),
        }
    }
}

/// A running operator. Dropping it kills it.
#[derive(Debug)]
pub struct Operator {
    process: Process,
    port: u16,
    instance: String,
}

impl Operator {
    /// Puts the CRDs and the operator's ServiceAccount with its rights into a cluster, as an administrator does,
    /// and gives back a kubeconfig for that account.
    pub async fn install(cluster: &Cluster) -> Result<OperatorKubeconfig> {
        cluster.apply_crds(&repository_root().join("crds")).await?;
        cluster.apply_path(&repository_root().join("config/rbac")).await?;
        cluster.apply_path(&repository_root().join("config/admission")).await?;
        Self::kubeconfig(cluster).await
    }

    /// The same for an account that is there already: the chart makes it, too.
    pub async fn kubeconfig(cluster: &Cluster) -> Result<OperatorKubeconfig> {
        let path = cluster
            .service_account_kubeconfig(SERVICE_ACCOUNT.0, SERVICE_ACCOUNT.1)
            .await?;
        Ok(OperatorKubeconfig(path))
    }

    /// Starts it; see [`Self::wait_ready`].
    pub async fn start(run: &RunDir, options: OperatorOptions) -> Result<Self> {
        let port = ports::free()?;
        let http = format!("127.0.0.1:{port}");
        let kubeconfig = options.kubeconfig.display().to_string();
        // A restart finds its former life's Lease, and need not wait for it to run out.
        let instance = format!("rig-{}", crate::random_suffix());
        let given = [
            "run",
            "--http-addr",
            &http,
            "--kubeconfig",
            &kubeconfig,
            "--log-format",
            "text",
            "--instance",
            &instance,
        ];
        let args = given.into_iter().map(String::from).chain(options.args).collect();
        let log = run.new_dir("operator")?.join("operator.log");
        let spec = ProcessSpec {
            name: "nfs-operator".into(),
            program: options.binary,
            args,
            env: options.env,
            log,
        };
        Ok(Self {
            process: Process::start(spec).await?,
            port,
            instance,
        })
    }

    /// Waits until its `/readyz` says so.
    pub async fn wait_ready(&self) -> Result<()> {
        let ready = wait::until("the operator to be ready", START_TIMEOUT, async || {
            self.http_get("/readyz").await.map_err(|error| error.to_string())
        });
        while_running(&[&self.process], ready).await.map(drop)
    }

    /// The text of `/metrics`.
    pub async fn metrics(&self) -> Result<String> {
        self.http_get("/metrics").await
    }

    /// The body of a good answer of one of its endpoints; any other answer is an error with its body in it.
    pub async fn http_get(&self, path: &str) -> Result<String> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let action = || format!("GET {url}");
        let client = reqwest::Client::builder()
            .timeout(HTTP_TIMEOUT)
            .no_proxy()
            .build()
            .with_context(action)?;
        let answer = client.get(&url).send().await.with_context(action)?;
        let status = answer.status();
        let body = answer.text().await.with_context(action)?;
        if status.is_success() {
            Ok(body)
        } else {
            Err(Error::Usage(format!("GET {url}: {status}: {body}")))
        }
    }

    /// Its resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// The most that its resident memory ever was since it was started, in bytes: what a pod's limit is held against.
    pub fn peak_resident_bytes(&self) -> Result<u64> {
        self.status_bytes("VmHWM:")
    }

    /// A size in /proc/PID/status, see proc(5).
    fn status_bytes(&self, name: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.process.pid());
        let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let kilobytes = kilobytes.ok_or_else(|| Error::Usage(format!("{path} has no {name}")))?;
        Ok(kilobytes * 1024)
    }

    /// `kill -9`.
    pub async fn kill9(&self) -> Result<()> {
        self.process.kill9().await.map(drop)
    }

    /// SIGTERM; gives back how it ended.
    pub async fn terminate(&self) -> Result<ExitStatus> {
        self.process.terminate(STOP_TIMEOUT).await
    }

    /// SIGSTOP.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// Starts it again as it was, after a `kill -9` if it still runs; the log goes on in the same file.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill9().await?;
        self.process = Process::start(self.process.spec().clone()).await?;
        Ok(())
    }

    /// How it ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// What it was told to call the place where it runs: the beginning of its name as the holder of a Lease.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where its log is.
    pub fn log(&self) -> &Path {
        &self.process.spec().log
    }
}

/// The checkout that this crate is part of.
pub fn repository_root() -> PathBuf {
    // This crate is tests/rig of it.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new("/"))
        .to_owned()
}

/// The operator's program for tests: `NFS_OPERATOR_BINARY`, or what cargo built beside the running test.
pub fn find_binary() -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os("NFS_OPERATOR_BINARY") {
        return Ok(binary.into());
    }
    let test = std::env::current_exe().with_context(|| "find the running program".into())?;
    // A test is target/debug/deps/NAME-HASH, the program target/debug/nfs-operator.
    let binary = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("nfs-operator"))
        .find(|path| path.is_file());
    binary.ok_or_else(|| Error::Missing {
        what: "the operator's program".into(),
        remedy: "run `cargo build`, or name it in NFS_OPERATOR_BINARY".into(),
    })
}
