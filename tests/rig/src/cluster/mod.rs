//! A Kubernetes control plane: etcd, API server, controller manager and scheduler, on 127.0.0.1.

mod kubeconfig;
mod programs;

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
    programs::{Layout, MASTERS},
};
use crate::{
    assets::Assets,
    error::{Doing, Error, Result},
    pki::Authority,
    process::{Process, Spec, run, while_running},
    rights,
    run_dir::RunDir,
    wait,
};

/// It takes 4 s on two idle cores; a machine that builds at the same time takes its time.
const START: Duration = Duration::from_secs(90);
/// The API server lets watches end before it goes; more than this and something is wrong with it.
const STOP: Duration = Duration::from_secs(20);
/// Longer than any run.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// One part of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
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
    authority: Authority,
    admin: PathBuf,
}

impl Cluster {
    /// Starts one in that run's folder and waits until it can be worked with. Builds the programs if need be.
    pub async fn start(run: &RunDir) -> Result<Self> {
        Self::start_with(run, Assets::find_or_make().await?).await
    }

    /// The same with programs that are there already.
    pub async fn start_with(run: &RunDir, assets: Assets) -> Result<Self> {
        Self::start_at(run, assets, None).await
    }

    /// The same for a cluster with nodes, which reach the API server at that address. It listens on every address
    /// then, so this is for a network of the cluster's own; see [`crate::Enclosure`].
    pub async fn start_for_nodes(run: &RunDir, assets: Assets, address: Ipv4Addr) -> Result<Self> {
        Self::start_at(run, assets, Some(address)).await
    }

    async fn start_at(run: &RunDir, assets: Assets, address: Option<Ipv4Addr>) -> Result<Self> {
        let layout = Layout::new(run.new_folder("cluster")?, assets, address)?;
        let keys = layout.folder.join("keys");
        fs::create_dir(&keys).doing(|| format!("make {}", keys.display()))?;
        let authority = Authority::new(keys)?;
        let login = |user: &str, group: Option<&str>| login(&layout, &authority, user, group);
        let admin = login("admin", Some(MASTERS))?;

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
        let made = wait::until("the default ServiceAccount", START, async || {
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

    /// Says that this test provokes on purpose what [`crate::rights::check`] would complain of. `finding` is how the complaint
    /// begins, such as `refused: get leases.coordination.k8s.io in kube-system`; one that doesn't come is a complaint too.
    pub fn on_purpose(&self, finding: &str) -> Result<()> {
        rights::on_purpose(&self.layout.audit_log, finding)
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
        let path = self.layout.folder.join(format!("apply-{}.yaml", crate::suffix()));
        fs::write(&path, text).doing(|| format!("write {}", path.display()))?;
        let applied = self.apply_path(&path).await;
        fs::remove_file(&path).doing(|| format!("remove {}", path.display()))?;
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
            .doing(|| format!("ask for a token of {namespace}/{name}"))?
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
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    fn part(&self, part: Part) -> &Process {
        match part {
            Part::Etcd => &self.etcd,
            Part::ApiServer => &self.api_server,
            Part::ControllerManager => &self.controller_manager,
            Part::Scheduler => &self.scheduler,
        }
    }

    /// The process of one part, to pause it for instance.
    pub fn process(&self, part: Part) -> &Process {
        self.part(part)
    }

    /// `kill -9` of one part.
    pub async fn kill9(&self, part: Part) -> Result<()> {
        self.part(part).kill9().await.map(drop)
    }

    /// Starts a part again that was killed or stopped, on the same port and with the same data.
    pub async fn restart(&mut self, part: Part) -> Result<()> {
        let slot = match part {
            Part::Etcd => &mut self.etcd,
            Part::ApiServer => &mut self.api_server,
            Part::ControllerManager => &mut self.controller_manager,
            Part::Scheduler => &mut self.scheduler,
        };
        if slot.ended().is_none() {
            slot.terminate(STOP).await?;
        }
        let spec: Spec = slot.spec().clone();
        *slot = Process::start(spec).await?;
        wait_ready(&self.client().await?, &[&self.etcd, &self.api_server]).await
    }

    /// Ends all parts in an orderly way, the API server before etcd.
    pub async fn stop(self) -> Result<()> {
        for process in [&self.scheduler, &self.controller_manager, &self.api_server, &self.etcd] {
            process.terminate(STOP).await?;
        }
        Ok(())
    }
}

fn login(layout: &Layout, authority: &Authority, user: &str, group: Option<&str>) -> Result<PathBuf> {
    let path = layout.folder.join(format!("{}.kubeconfig", user.replace(':', "-")));
    let identity = authority.client(user, group)?;
    let ca = authority.ca().certificate;
    let server = server(layout.api_port);
    kubeconfig::write(path, &server, &ca, &User::Certificate(&identity), "default")
}

fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    let doing = || format!("read {}", kubeconfig.display());
    let config = Kubeconfig::read_from(kubeconfig)
        .map_err(kube::Error::from)
        .doing(doing)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(config, &options).await;
    let mut config = config.map_err(kube::Error::from).doing(doing)?;
    // A test wants to see a refusal, not have it hidden.
    config.default_retry = false;
    Client::try_from(config).doing(|| "make a client".into())
}

async fn wait_ready(client: &Client, needed: &[&Process]) -> Result<()> {
    let ready = wait::until("the API server to be ready", START, async || {
        let request = http::Request::get("/readyz")
            .body(Vec::new())
            .map_err(|error| error.to_string())?;
        client.request_text(request).await.map_err(|error| error.to_string())
    });
    while_running(needed, ready).await.map(drop)
}
