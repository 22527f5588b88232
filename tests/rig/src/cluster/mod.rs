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

/// It takes 4 s on two idle cores; a machine that builds at the same time takes its time.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// The API server lets watches end before it goes; more than this and something is wrong with it.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer than any run.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// One part of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The store.
    Etcd,
    /// `kube-apiserver`.
    ApiServer,
    /// `kube-controller-manager`: binds claims, collects garbage.
    ControllerManager,
    /// `kube-scheduler`: picks nodes for late binding.
    Scheduler,
}

/// A running control plane. Dropping it kills it.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: the API server lingers when etcd goes first.
    scheduler: Process,
    controller_manager: Process,
    api_server: Process,
    etcd: Process,
    layout: Layout,
    authority: CertificateAuthority,
    admin: PathBuf,
}

impl Cluster {
    /// Starts one in that run's folder and waits until it can be worked with. Builds the programs if need be.
    pub async fn start(run: &RunDir) -> Result<Self> {
        Self::start_with(run, Assets::find_or_install().await?).await
    }

    /// The same with programs that are there already.
    pub async fn start_with(run: &RunDir, assets: Assets) -> Result<Self> {
        Self::start_with_address(run, assets, None).await
    }

    /// The same for a cluster with nodes, which reach the API server at that address. It listens on every address
    /// then, so this is for a network of the cluster's own; see [`crate::Sandbox`].
    pub async fn start_for_nodes(run: &RunDir, assets: Assets, address: Ipv4Addr) -> Result<Self> {
        Self::start_with_address(run, assets, Some(address)).await
    }

    async fn start_with_address(run: &RunDir, assets: Assets, address: Option<Ipv4Addr>) -> Result<Self> {
        let layout = Layout::new(run.new_dir("cluster")?, assets, address)?;
        let keys = layout.folder.join("keys");
        fs::create_dir(&keys).with_context(|| format!("make {}", keys.display()))?;
        let authority = CertificateAuthority::new(keys)?;
        let login = |user: &str, group: Option<&str>| login(&layout, &authority, user, group);
        let admin = login("admin", Some(SYSTEM_MASTERS))?;

        let etcd = Process::start(layout.etcd()).await?;
        let api_server = Process::start(layout.api_server(&authority)?).await?;
        wait_ready(&client(&admin).await?, &[&etcd, &api_server]).await?;
        let login_file = login("system:kube-controller-manager", None)?;
        let controller_manager = Process::start(layout.controller_manager(&authority, &login_file)).await?;
        let scheduler = Process::start(layout.scheduler(&login("system:kube-scheduler", None)?)).await?;
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

    /// The controller manager works once it has made the default ServiceAccount.
    async fn wait_for_accounts(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        let parts = [&self.etcd, &self.api_server, &self.controller_manager, &self.scheduler];
        let made = wait::until("the default ServiceAccount", START_TIMEOUT, async || {
            accounts.get("default").await.map_err(|error| error.to_string())
        });
        while_running(&parts, made).await.map(drop)
    }

    /// A new client with every right, without retries and bound to the runtime that asks for it.
    ///
    /// Each test takes its own: the connections of a client live on the runtime that first used them.
    pub async fn client(&self) -> Result<Client> {
        client(&self.admin).await
    }

    /// The kubeconfig with every right.
    pub fn kubeconfig(&self) -> &Path {
        &self.admin
    }

    /// The API server's address, such as `https://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        server(self.layout.api_port)
    }

    /// The API server's log of the operator's requests, one JSON object a line, in the order of their completion.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log.clone()
    }

    /// Says that this test provokes on purpose what [`crate::rbac::check`] would complain of. `finding` is how the complaint
    /// begins, such as `refused: get leases.coordination.k8s.io in kube-system`; one that doesn't come is a complaint too.
    pub fn expect_violation(&self, finding: &str) -> Result<()> {
        rbac::expect_violation(&self.layout.audit_log, finding)
    }

    /// Runs `kubectl` with every right and gives back what it printed.
    pub async fn kubectl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = Command::new(&self.layout.assets.kubectl);
        command.env("KUBECONFIG", &self.admin).args(args);
        // Its cache of the API would go to the home directory.
        command.env("KUBECACHEDIR", self.layout.folder.join("kubectl-cache"));
        run(command).await
    }

    /// The path of the `kubectl` that is used.
    pub fn kubectl_path(&self) -> &Path {
        &self.layout.assets.kubectl
    }

    /// Applies a YAML or JSON file, or all of a folder, server-side; `-k` is used for a folder with a kustomization.
    pub async fn apply_path(&self, path: &Path) -> Result<String> {
        let how = if path.join("kustomization.yaml").is_file() {
            "-k"
        } else {
            "-f"
        };
        let flags = ["apply", "--server-side", "--force-conflicts", how].map(OsStr::new);
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

    /// Applies the CRDs of a folder and waits until the API server serves them.
    pub async fn apply_crds(&self, folder: &Path) -> Result<()> {
        let applied = self.apply_path(folder).await?;
        // Lines such as `customresourcedefinition.apiextensions.k8s.io/NAME serverside-applied`.
        let names = applied.lines().filter_map(|line| line.split_whitespace().next());
        for name in names.filter(|name| name.starts_with("customresourcedefinition")) {
            self.kubectl(["wait", "--for=condition=Established", "--timeout=30s", name])
                .await?;
        }
        Ok(())
    }

    /// A kubeconfig for a ServiceAccount, with a token from the TokenRequest API as a pod gets one.
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
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await;
        let token = answer
            .with_context(|| format!("ask for a token of {namespace}/{name}"))?
            .status;
        let token = token
            .ok_or_else(|| Error::Usage(format!("no token came for {namespace}/{name}")))?
            .token;
        let path = self.layout.folder.join(format!("{namespace}-{name}.kubeconfig"));
        let ca = self.layout.folder.join("keys/ca.crt");
        kubeconfig::write(path, &self.url(), &ca, &User::Token(&token), namespace)
    }

    /// A kubeconfig for that user, who is of that group, with a certificate.
    pub(crate) fn login(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        login(&self.layout, &self.authority, user, group)
    }

    /// The authority whose certificates this cluster believes.
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

    /// `kill -9` of one part.
    pub async fn kill9(&self, component: Component) -> Result<()> {
        self.process(component).kill9().await.map(drop)
    }

    /// Starts a part again that was killed or stopped, on the same port and with the same data.
    pub async fn restart(&mut self, component: Component) -> Result<()> {
        let slot = match component {
            Component::Etcd => &mut self.etcd,
            Component::ApiServer => &mut self.api_server,
            Component::ControllerManager => &mut self.controller_manager,
            Component::Scheduler => &mut self.scheduler,
        };
        if slot.exit_status().is_none() {
            slot.terminate(STOP_TIMEOUT).await?;
        }
        let spec: ProcessSpec = slot.spec().clone();
        *slot = Process::start(spec).await?;
        wait_ready(&self.client().await?, &[&self.etcd, &self.api_server]).await
    }

    /// Ends all parts in an orderly way, the API server before etcd.
    pub async fn stop(self) -> Result<()> {
        for process in [&self.scheduler, &self.controller_manager, &self.api_server, &self.etcd] {
            process.terminate(STOP_TIMEOUT).await?;
        }
        Ok(())
    }
}

fn login(layout: &Layout, authority: &CertificateAuthority, user: &str, group: Option<&str>) -> Result<PathBuf> {
    let path = layout.folder.join(format!("{}.kubeconfig", user.replace(':', "-")));
    let identity = authority.client(user, group)?;
    let ca = authority.ca().certificate;
    let server = server(layout.api_port);
    kubeconfig::write(path, &server, &ca, &User::Certificate(&identity), "default")
}

fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// Creates a client from a kubeconfig. It does not retry: a test must see every error.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let action = || format!("read {}", kubeconfig.display());
    let config = Kubeconfig::read_from(kubeconfig)
        .map_err(kube::Error::from)
        .with_context(action)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(config, &options).await;
    let mut config = config.map_err(kube::Error::from).with_context(action)?;
    config.default_retry = false;
    Client::try_from(config).with_context(|| "make a client".into())
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
