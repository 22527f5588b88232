//! The cluster, NFS server and operator that are measured, and their CPU time.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::Client;
use serde_json::{Value, json};

use super::{Policy, links::Links, volume_watch::VolumeWatch};
use crate::{
    assets::Assets,
    cluster::{Cluster, Component, client},
    error::{Error, Result, ResultExt as _},
    nfs_server::{Export, NfsOptions, NfsServer},
    objects::{Objects, reference, with_fields},
    operator::{Operator, OperatorKubeconfig, OperatorOptions, repository_root},
    process::cpu_seconds,
    run_dir::RunDir,
    wait,
};

/// The name of the class, the namespace and the first backend.
pub(super) const NAME: &str = "bench";
/// The operator is idle if it uses no CPU time in a quarter of this time.
const IDLE_WINDOW: Duration = Duration::from_secs(2);
/// Lower limit for the timeout: the binder binds 40 to 70 claims a second, and fewer on a busy machine.
const MIN_BINDS_PER_SECOND: usize = 10;
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// After a start with 100,000 volumes, or after thousands of deletes, it has work to do for minutes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(900);

/// How to set up what is measured.
#[derive(Clone, Debug)]
pub struct EnvSettings {
    /// The operator's binary.
    pub operator: PathBuf,
    /// The checkout with the CRDs and RBAC rules of that operator.
    pub checkout: PathBuf,
    /// Number of backends, which have their own exports.
    pub backends: usize,
    /// Whether the operator reaches API server and NFS server through proxies that can add a round trip.
    pub links: bool,
}

impl EnvSettings {
    /// Creates settings with one backend and without proxies, for an operator that was built in this checkout.
    pub fn new(operator: &Path) -> Self {
        Self {
            operator: operator.to_owned(),
            checkout: repository_root(),
            backends: 1,
            links: false,
        }
    }
}

/// The cluster, NFS server and operator that are measured.
pub struct BenchEnv {
    pub cluster: Cluster,
    pub nfs: NfsServer,
    pub options: OperatorOptions,
    /// With all permissions, as a user who creates claims.
    pub objects: Objects,
    /// With the operator's account, so that the baseline is subject to the same priority and authorization.
    pub account: Client,
    pub volumes: VolumeWatch,
    links: Option<Links>,
    backends: Vec<String>,
    binder: bool,
}

impl BenchEnv {
    /// Starts the cluster and the NFS server, and creates the backends.
    pub async fn start(run: &RunDir, settings: EnvSettings) -> Result<Self> {
        let assets = Assets::find_or_install().await?;
        let name = |number: usize| match number {
            0 => NAME.to_owned(),
            _ => format!("{NAME}-{number}"),
        };
        let backends: Vec<String> = (0..settings.backends).map(name).collect();
        let exports = NfsOptions {
            exports: backends.iter().map(|name| Export::new(export_path(name))).collect(),
            ..NfsOptions::default()
        };
        let (nfs, cluster) = tokio::try_join!(
            NfsServer::start_with(run, exports, &assets.ganesha),
            Cluster::start_with(run, assets.clone()),
        )?;
        let kubeconfig = Operator::install_from(&cluster, &settings.checkout).await?;
        let account = client(&kubeconfig).await?;
        let links = match settings.links {
            true => Some(Links::start(&cluster, &nfs).await?),
            false => None,
        };
        let kubeconfig = match &links {
            Some(links) => kubeconfig.with_server(&links.api_url())?,
            None => kubeconfig,
        };
        let objects = Objects::new(cluster.client().await?);
        let volumes = VolumeWatch::start(cluster.client().await?).await?;
        let env = Self {
            cluster,
            nfs,
            options: OperatorOptions::new(&settings.operator, kubeconfig),
            objects,
            account,
            volumes,
            links,
            backends,
            binder: true,
        };
        env.create_objects().await?;
        Ok(env)
    }

    /// Returns the kubeconfig of the operator's account.
    pub fn kubeconfig(&self) -> &OperatorKubeconfig {
        &self.options.kubeconfig
    }

    /// Sets the round trip between the operator and both servers, if there are proxies.
    pub fn set_round_trip(&self, round_trip: Duration) {
        if let Some(links) = &self.links {
            links.set_round_trip(round_trip);
        }
    }

    /// Pauses cluster and NFS server, so that they use no CPU time while another environment is measured.
    pub fn pause(&self) -> Result<()> {
        self.cluster.pause()?;
        self.nfs.pause()
    }

    /// Continues cluster and NFS server.
    pub fn resume(&self) -> Result<()> {
        self.nfs.resume()?;
        self.cluster.resume()
    }

    async fn create_objects(&self) -> Result<()> {
        self.objects.create(&reference("v1", "Namespace", None, NAME)).await?;
        let port = self.links.as_ref().map_or(self.nfs.port(), Links::nfs_port);
        for name in &self.backends {
            self.create_backend(name, &export_path(name), port, json!({})).await?;
        }
        self.create_class(NAME, json!({})).await
    }

    /// Creates a backend for an export of a server on this machine.
    pub async fn create_backend(&self, name: &str, path: &str, port: u16, fields: Value) -> Result<()> {
        let spec = json!({ "spec": { "server": "127.0.0.1", "path": path, "nfs": { "port": port } } });
        let object = with_fields(with_fields(backend(name), spec), fields);
        self.objects.create(&object).await.map(drop)
    }

    /// Creates a class of the operator.
    pub async fn create_class(&self, name: &str, parameters: Value) -> Result<()> {
        let fields =
            json!({ "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "parameters": parameters });
        let class = with_fields(reference("storage.k8s.io/v1", "StorageClass", None, name), fields);
        self.objects.create(&class).await.map(drop)
    }

    /// Starts the operator and waits until all backends are Ready.
    pub async fn start_operator(&self, run: &RunDir) -> Result<Operator> {
        let operator = Operator::start(run, self.options.clone()).await?;
        operator.wait_ready().await?;
        for name in &self.backends {
            self.wait_backend_ready(name).await?;
        }
        Ok(operator)
    }

    /// Waits until a backend is Ready.
    pub async fn wait_backend_ready(&self, name: &str) -> Result<()> {
        self.objects
            .wait_condition(&backend(name), "Ready", "True", None, READY_TIMEOUT)
            .await
            .map(drop)
    }

    /// Returns the directory of a volume on the disk of the NFS server.
    pub fn directory(&self, volume: &Value) -> Result<PathBuf> {
        let path = volume.pointer("/spec/nfs/path").and_then(Value::as_str);
        let relative = path.and_then(|path| path.strip_prefix('/')?.split_once('/'));
        let (export, directory) =
            relative.ok_or_else(|| Error::Usage(format!("the volume has no directory below an export: {volume}")))?;
        Ok(self.nfs.data_dir(&export_path(export))?.join(directory))
    }

    /// Returns the number of volume directories on all exports.
    pub fn directories(&self) -> Result<usize> {
        let mut found = 0;
        for name in &self.backends {
            let folder = self.nfs.data_dir(&export_path(name))?;
            let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
            let is_volume = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(NAME);
            found += entries.flatten().filter(is_volume).count();
        }
        Ok(found)
    }

    /// Sets the archive policy of the first backend.
    pub async fn set_policy(&self, policy: Policy) -> Result<()> {
        self.set_policy_of(NAME, policy).await
    }

    /// Sets the archive policy of a backend.
    pub async fn set_policy_of(&self, name: &str, policy: Policy) -> Result<()> {
        let patch = json!({ "spec": { "archivePolicy": { "onDelete": policy.name() } } });
        self.objects.patch(&backend(name), patch).await.map(drop)
    }

    /// Changes a backend's labels, which waiting claims may depend on.
    pub async fn relabel(&self) -> Result<()> {
        let patch = json!({ "metadata": { "labels": { "bench": "changed" } } });
        self.objects.patch(&backend(NAME), patch).await.map(drop)
    }

    /// Requests a scan for orphans on all backends.
    pub async fn request_scans(&self) -> Result<()> {
        let value = format!("{:?}", std::time::SystemTime::now());
        for name in &self.backends {
            let annotation = json!({ "metadata": { "annotations": { "nfs-operator.io/scan-requested-at": value } } });
            self.objects.patch(&backend(name), annotation).await?;
        }
        Ok(())
    }

    /// Stops the controller manager, so that its speed and CPU time do not affect the results.
    pub async fn stop_binder(&mut self) -> Result<()> {
        if std::mem::take(&mut self.binder) {
            self.cluster.kill9(Component::ControllerManager).await?;
        }
        Ok(())
    }

    /// Starts the controller manager again.
    pub async fn start_binder(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.binder, true) {
            self.cluster.restart(Component::ControllerManager).await?;
        }
        Ok(())
    }

    /// Starts the controller manager with other limits of its requests.
    pub async fn start_binder_with(&mut self, qps: u32, burst: u32) -> Result<()> {
        self.binder = true;
        let flags = [format!("--kube-api-qps={qps}"), format!("--kube-api-burst={burst}")];
        self.cluster.restart_binder_with(&flags).await
    }

    /// Starts the binder and waits until all volumes are Bound.
    pub async fn bind(&mut self, count: usize) -> Result<()> {
        self.start_binder().await?;
        let timeout = READY_TIMEOUT + Duration::from_secs((count / MIN_BINDS_PER_SECOND) as u64);
        let like = reference("v1", "PersistentVolume", None, "any");
        let expected = (count, timeout);
        self.objects
            .wait_count(&like, "all volumes to be Bound", expected, is_bound)
            .await
    }

    /// Waits until the operator uses no CPU time because it has processed all events of its watches.
    pub async fn wait_idle(&self, operator: &Operator) -> Result<()> {
        wait::until("the operator to be idle", IDLE_TIMEOUT, async || {
            let cpu_time = || cpu_seconds(operator.pid()).map_err(|error| error.to_string());
            let before = cpu_time()?;
            tokio::time::sleep(IDLE_WINDOW / 4).await;
            match cpu_time()? - before {
                used if used <= 0.011 => Ok(()),
                used => Err(format!("it used {used} s of CPU time in the last half second")),
            }
        })
        .await
    }

    /// Returns the CPU time that each process has used so far.
    pub fn cpu_usage(&self, operator: Option<&Operator>) -> Result<CpuUsage> {
        Ok(CpuUsage {
            operator: operator.map_or(Ok(0.0), |operator| cpu_seconds(operator.pid()))?,
            api_server: cpu_seconds(self.cluster.process(Component::ApiServer).pid())?,
            etcd: cpu_seconds(self.cluster.process(Component::Etcd).pid())?,
            nfs_server: cpu_seconds(self.nfs.pid())?,
            bench: cpu_seconds(std::process::id())?,
        })
    }

    pub async fn stop(self) -> Result<()> {
        // The API server waits for open watches when it stops.
        drop(self.volumes);
        self.nfs.stop().await?;
        self.cluster.stop().await
    }
}

/// Returns whether a claim or volume is Bound.
pub(super) fn is_bound(object: &Value) -> bool {
    object.pointer("/status/phase").and_then(Value::as_str) == Some("Bound")
}

/// Returns a reference to a backend.
pub(super) fn backend(name: &str) -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, name)
}

/// Returns the export path of a backend.
pub(super) fn export_path(backend: &str) -> String {
    format!("/{backend}")
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuUsage {
    pub operator: f64,
    pub api_server: f64,
    pub etcd: f64,
    pub nfs_server: f64,
    pub bench: f64,
}

impl CpuUsage {
    /// Returns the sum of both.
    pub fn plus(self, other: &Self) -> Self {
        Self {
            operator: self.operator + other.operator,
            api_server: self.api_server + other.api_server,
            etcd: self.etcd + other.etcd,
            nfs_server: self.nfs_server + other.nfs_server,
            bench: self.bench + other.bench,
        }
    }

    pub fn since(self, before: &Self) -> Self {
        Self {
            operator: self.operator - before.operator,
            api_server: self.api_server - before.api_server,
            etcd: self.etcd - before.etcd,
            nfs_server: self.nfs_server - before.nfs_server,
            bench: self.bench - before.bench,
        }
    }
}
