//! A Kubernetes control plane: etcd, API server, controller manager and scheduler, on 127.0.0.1.

mod kubeconfig;
mod layout;

use std::{
    ffi::OsStr,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use self::{
    kubeconfig::User,
    layout::{Layout, SYSTEM_MASTERS},
};
use crate::{
    assets::Assets,
    error::{Error, Result, ResultExt},
    pki::CertificateAuthority,
    process::{Process, ProcessSpec, run, while_running},
    rbac,
    run_dir::RunDir,
    wait,
};

/// It takes 4 s on two idle cores, and longer on a machine that also builds.
const START_TIMEOUT: Duration = Duration::from_secs(240);
/// The API server waits until watches have ended, and takes longer on a machine that stalls.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
/// Longer than any run.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// A component of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The key-value store.
    Etcd,
    /// `kube-apiserver`.
    ApiServer,
    /// `kube-controller-manager`: binds claims and collects garbage.
    ControllerManager,
    /// `kube-scheduler`: selects nodes for late binding.
    Scheduler,
}

/// A running control plane. Dropping it kills it.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order, because the API server lingers if etcd exits first.
    scheduler: Process,
    controller_manager: Process,
    api_server: Process,
    etcd: Process,
    layout: Layout,
    authority: CertificateAuthority,
    admin: PathBuf,
}

impl Cluster {
    /// Starts a cluster in a run's directory and waits until it is usable. Builds the programs if necessary.
    pub async fn start(run: &RunDir) -> Result<Self> {
        Self::start_with(run, Assets::find_or_install().await?).await
    }

    /// Starts a cluster from given programs.
    pub async fn start_with(run: &RunDir, assets: Assets) -> Result<Self> {
        Self::start_with_address(run, assets, None, None).await
    }

    /// Starts another cluster with the objects of a [snapshot](Self::snapshot), on ports and with keys of its own.
    pub async fn start_from_snapshot(run: &RunDir, snapshot: &Path) -> Result<Self> {
        Self::start_with_address(run, Assets::find_or_install().await?, None, Some(snapshot)).await
    }

    /// Starts a cluster with nodes, which reach the API server at `address`. The API server listens on every address,
    /// so this is for a cluster with its own network; see [`crate::Sandbox`].
    pub async fn start_for_nodes(run: &RunDir, assets: Assets, address: Ipv4Addr) -> Result<Self> {
        Self::start_with_address(run, assets, Some(address), None).await
    }

    async fn start_with_address(
        run: &RunDir,
        assets: Assets,
        address: Option<Ipv4Addr>,
        snapshot: Option<&Path>,
    ) -> Result<Self> {
        let layout = Layout::new(run.new_dir("cluster")?, assets, address)?;
        if let Some(snapshot) = snapshot {
            copy_folder(snapshot, &layout.etcd_data()).await?;
        }
        let keys = layout.folder.join("keys");
        fs::create_dir(&keys).with_context(|| format!("create {}", keys.display()))?;
        let authority = CertificateAuthority::new(keys)?;
        let kubeconfig = |user: &str, group: Option<&str>| certificate_kubeconfig(&layout, &authority, user, group);
        let admin = kubeconfig("admin", Some(SYSTEM_MASTERS))?;

        let etcd = Process::start(layout.etcd()).await?;
        let api_server = Process::start(layout.api_server(&authority)?).await?;
        wait_ready(&client(&admin).await?, &[&etcd, &api_server]).await?;
        let controllers = kubeconfig("system:kube-controller-manager", None)?;
        let controller_manager = Process::start(layout.controller_manager(&authority, &controllers)).await?;
        let scheduler = Process::start(layout.scheduler(&kubeconfig("system:kube-scheduler", None)?)).await?;
        let cluster = Self {
            scheduler,
            controller_manager,
            api_server,
            etcd,
            layout,
            authority,
            admin,
        };
        cluster.wait_for_accounts().await?;
        Ok(cluster)
    }

    /// The controller manager is ready when it has created the default ServiceAccount.
    async fn wait_for_accounts(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        let parts = [&self.etcd, &self.api_server, &self.controller_manager, &self.scheduler];
        let created = wait::until("the default ServiceAccount", START_TIMEOUT, async || {
            accounts.get("default").await.map_err(|error| error.to_string())
        });
        while_running(&parts, created).await.map(drop)
    }

    /// Creates a client with all permissions and without retries.
    ///
    /// Each test creates its own client: connections belong to the runtime that first used them.
    pub async fn client(&self) -> Result<Client> {
        client(&self.admin).await
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.admin
    }

    /// Returns the URL of the API server, such as `https://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        server_url(self.layout.api_port)
    }

    /// Returns the path of the audit log of the operator's requests: one JSON object per line, in order of completion.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log.clone()
    }

    /// Declares that this test causes a violation that [`crate::rbac::check`] would otherwise report. `finding` is the
    /// prefix of the violation, such as `refused: get leases.coordination.k8s.io in kube-system`. If the violation does
    /// not occur, `check` reports that.
    pub fn expect_violation(&self, finding: &str) -> Result<()> {
        rbac::expect_violation(&self.layout.audit_log, finding)
    }

    /// Runs `kubectl` as administrator and returns its output.
    pub async fn kubectl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = Command::new(&self.layout.assets.kubectl);
        command.env("KUBECONFIG", &self.admin).args(args);
        // Its discovery cache would otherwise be in the home directory.
        command.env("KUBECACHEDIR", self.layout.folder.join("kubectl-cache"));
        run(command).await
    }

    /// Returns the path of `kubectl`.
    pub fn kubectl_path(&self) -> &Path {
        &self.layout.assets.kubectl
    }

    /// Applies a YAML or JSON file or a directory of them server-side. A directory with a kustomization is applied with
    /// `-k`.
    pub async fn apply_path(&self, path: &Path) -> Result<String> {
        let flag = if path.join("kustomization.yaml").is_file() {
            "-k"
        } else {
            "-f"
        };
        let flags = ["apply", "--server-side", "--force-conflicts", flag].map(OsStr::new);
        self.kubectl(flags.into_iter().chain([path.as_os_str()])).await
    }

    /// Applies YAML or JSON text server-side.
    pub async fn apply(&self, text: &str) -> Result<String> {
        let path = self
            .layout
            .folder
            .join(format!("apply-{}.yaml", crate::random_suffix()));
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        let applied = self.apply_path(&path).await;
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        applied
    }

    /// Applies the CRDs in a directory and waits until the API server serves them.
    pub async fn apply_crds(&self, folder: &Path) -> Result<()> {
        let applied = self.apply_path(folder).await?;
        // Lines such as `customresourcedefinition.apiextensions.k8s.io/NAME serverside-applied`.
        let names = applied.lines().filter_map(|line| line.split_whitespace().next());
        let timeout = format!("--timeout={}s", START_TIMEOUT.as_secs());
        for name in names.filter(|name| name.starts_with("customresourcedefinition")) {
            self.kubectl(["wait", "--for=condition=Established", &timeout, name])
                .await?;
        }
        Ok(())
    }

    /// Creates a kubeconfig for a ServiceAccount, with a token from the TokenRequest API as in a pod.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let spec = TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            ..Default::default()
        };
        let request = TokenRequest {
            spec,
            ..Default::default()
        };
        let response = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await;
        let token = response
            .with_context(|| format!("request a token for {namespace}/{name}"))?
            .status;
        let token = token
            .ok_or_else(|| Error::Usage(format!("no token was issued for {namespace}/{name}")))?
            .token;
        let path = self.layout.folder.join(format!("{namespace}-{name}.kubeconfig"));
        let ca = self.layout.folder.join("keys/ca.crt");
        kubeconfig::write(path, &self.url(), &ca, &User::Token(&token), namespace)
    }

    /// Creates a client with the permissions of a ServiceAccount.
    pub async fn service_account_client(&self, namespace: &str, name: &str) -> Result<Client> {
        client(&self.service_account_kubeconfig(namespace, name).await?).await
    }

    /// Creates a kubeconfig with a client certificate for a user and an optional group.
    pub(crate) fn certificate_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        certificate_kubeconfig(&self.layout, &self.authority, user, group)
    }

    /// Returns the certificate authority that the cluster trusts.
    pub(crate) fn authority(&self) -> &CertificateAuthority {
        &self.authority
    }

    /// Returns the process of a component, for example to pause it.
    pub fn process(&self, component: Component) -> &Process {
        match component {
            Component::Etcd => &self.etcd,
            Component::ApiServer => &self.api_server,
            Component::ControllerManager => &self.controller_manager,
            Component::Scheduler => &self.scheduler,
        }
    }

    /// Kills a component with SIGKILL.
    pub async fn kill9(&self, component: Component) -> Result<()> {
        self.process(component).kill9().await.map(drop)
    }

    /// Pauses all components that run. Their connections stay open.
    pub(crate) fn pause(&self) -> Result<()> {
        [&self.scheduler, &self.controller_manager, &self.api_server, &self.etcd]
            .into_iter()
            .try_for_each(Process::pause)
    }

    /// Continues the components after [`Self::pause`].
    pub(crate) fn resume(&self) -> Result<()> {
        [&self.etcd, &self.api_server, &self.controller_manager, &self.scheduler]
            .into_iter()
            .try_for_each(Process::resume)
    }

    /// Restarts the controller manager, which binds claims, with these flags: `--NAME=VALUE`. They replace those of the same
    /// name.
    pub async fn restart_binder_with(&mut self, flags: &[String]) -> Result<()> {
        let mut spec = self.controller_manager.spec().clone();
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        spec.args.retain(|own| flags.iter().all(|flag| name(flag) != name(own)));
        spec.args.extend_from_slice(flags);
        self.kill9(Component::ControllerManager).await?;
        self.controller_manager = Process::start(spec).await?;
        Ok(())
    }

    /// Restarts a component on the same port and with the same data, and stops it first if it runs.
    pub async fn restart(&mut self, component: Component) -> Result<()> {
        if self.process(component).exit_status().is_none() {
            self.stop_component(component).await?;
        }
        let slot = match component {
            Component::Etcd => &mut self.etcd,
            Component::ApiServer => &mut self.api_server,
            Component::ControllerManager => &mut self.controller_manager,
            Component::Scheduler => &mut self.scheduler,
        };
        let spec: ProcessSpec = slot.spec().clone();
        *slot = Process::start(spec).await?;
        wait_ready(&self.client().await?, &[&self.etcd, &self.api_server]).await
    }

    /// Forgets the history of all objects, as `etcdctl compaction` does, and restarts the API server, whose caches retain
    /// a part of it.
    pub async fn forget_history(&mut self) -> Result<()> {
        // Key: a single zero byte.
        let read = self.call_etcd("range", &json!({"key": "AA=="})).await?;
        let revision = read.pointer("/header/revision").cloned().unwrap_or_default();
        self.call_etcd("compaction", &json!({"revision": revision, "physical": true}))
            .await?;
        self.restart(Component::ApiServer).await
    }

    /// Sends a request to etcd's JSON interface.
    async fn call_etcd(&self, call: &str, request: &Value) -> Result<Value> {
        let url = format!("{}/v3/kv/{call}", self.layout.etcd_url());
        let action = || format!("POST {url}");
        let client = reqwest::Client::builder().no_proxy().build().with_context(action)?;
        let sent = client.post(&url).body(request.to_string()).send().await;
        let answer = sent
            .and_then(reqwest::Response::error_for_status)
            .with_context(action)?;
        let text = answer.text().await.with_context(action)?;
        serde_json::from_str(&text).with_context(action)
    }

    /// Copies the objects to a new directory, as they are on disk after a crash of etcd.
    ///
    /// etcd is paused meanwhile. If it was stopped, writes would fail for seconds after its restart: the API server has
    /// connections to it for each kind, and each reconnects after a pause of its own, whatever `/readyz` reports.
    pub async fn snapshot(&self, run: &RunDir) -> Result<PathBuf> {
        let snapshot = run.new_dir("snapshot")?.join("etcd");
        self.etcd.pause()?;
        let copied = copy_folder(&self.layout.etcd_data(), &snapshot).await;
        self.etcd.resume()?;
        copied.map(|()| snapshot)
    }

    /// Replaces all objects with those of a [snapshot](Self::snapshot), and restarts the whole control plane, whose caches
    /// are newer.
    pub async fn restore(&mut self, snapshot: &Path) -> Result<()> {
        self.stop_all().await?;
        let data = self.layout.etcd_data();
        fs::remove_dir_all(&data).with_context(|| format!("remove {}", data.display()))?;
        copy_folder(snapshot, &data).await?;
        self.etcd = Process::start(self.etcd.spec().clone()).await?;
        for component in [Component::ApiServer, Component::ControllerManager, Component::Scheduler] {
            self.restart(component).await?;
        }
        Ok(())
    }

    /// Stops all components, the API server before etcd.
    pub async fn stop(self) -> Result<()> {
        self.stop_all().await
    }

    async fn stop_all(&self) -> Result<()> {
        use Component::{ApiServer, ControllerManager, Etcd, Scheduler};
        for component in [Scheduler, ControllerManager, ApiServer, Etcd] {
            self.stop_component(component).await?;
        }
        Ok(())
    }

    async fn stop_component(&self, component: Component) -> Result<()> {
        match component {
            // It would wait a minute for open connections.
            Component::ApiServer => self.kill9(component).await,
            _ => self.process(component).terminate(STOP_TIMEOUT).await.map(drop),
        }
    }
}

async fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.arg("-a").arg(from).arg(to);
    run(command).await.map(drop)
}

fn certificate_kubeconfig(
    layout: &Layout,
    authority: &CertificateAuthority,
    user: &str,
    group: Option<&str>,
) -> Result<PathBuf> {
    let path = layout.folder.join(format!("{}.kubeconfig", user.replace(':', "-")));
    let identity = authority.client(user, group)?;
    let ca = authority.ca().certificate;
    let server = server_url(layout.api_port);
    kubeconfig::write(path, &server, &ca, &User::Certificate(&identity), "default")
}

fn server_url(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// Creates a client from a kubeconfig. It does not retry: a test must see every error.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let action = || format!("read {}", kubeconfig.display());
    let config = Kubeconfig::read_from(kubeconfig).with_context(action)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(config, &options).await;
    let mut config = config.with_context(action)?;
    config.default_retry = false;
    // That of HTTPS_PROXY, which may be there for downloads: the cluster is on this machine.
    config.proxy_url = None;
    Client::try_from(config).with_context(|| "create a client".into())
}

async fn wait_ready(client: &Client, needed: &[&Process]) -> Result<()> {
    let ready = wait::until("the API server to be ready", START_TIMEOUT, async || {
        let request = http::Request::get("/readyz")
            .body(Vec::new())
            .map_err(|error| error.to_string())?;
        client.request_text(request).await.map_err(|error| error.to_string())
    });
    while_running(needed, ready).await.map(drop)
}
