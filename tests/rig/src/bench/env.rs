//! The cluster, NFS server and operator that are measured, and their CPU time.

use std::{fs, time::Duration};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{BenchOptions, Policy, volume_watch::VolumeWatch};
use crate::{
    assets::Assets,
    cluster::{Cluster, Component, client},
    error::{Result, ResultExt as _},
    nfs_server::{Export, NfsOptions, NfsServer},
    objects::{Objects, reference, with_fields},
    operator::{Operator, OperatorOptions},
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

/// The cluster, NFS server and operator that are measured.
pub struct BenchEnv {
    pub cluster: Cluster,
    pub nfs: NfsServer,
    options: OperatorOptions,
    /// With all permissions, as a user who creates claims.
    pub objects: Objects,
    /// With the operator's account, so that the baseline is subject to the same priority and authorization.
    pub account: Client,
    pub volumes: VolumeWatch,
    backends: Vec<String>,
    binder: bool,
}

impl BenchEnv {
    /// Starts the cluster and the NFS server, with a number of backends that have their own exports.
    pub async fn start(run: &RunDir, options: &BenchOptions, backends: usize) -> Result<Self> {
        let assets = Assets::find_or_install().await?;
        let name = |number: usize| match number {
            0 => NAME.to_owned(),
            _ => format!("{NAME}-{number}"),
        };
        let backends: Vec<String> = (0..backends).map(name).collect();
        let exports = NfsOptions {
            exports: backends.iter().map(|name| Export::new(export_path(name))).collect(),
            ..NfsOptions::default()
        };
        let (nfs, cluster) = tokio::try_join!(
            NfsServer::start_with(run, exports, &assets.ganesha),
            Cluster::start_with(run, assets.clone()),
        )?;
        let kubeconfig = Operator::install(&cluster).await?;
        let account = client(&kubeconfig).await?;
        let objects = Objects::new(cluster.client().await?);
        let volumes = VolumeWatch::start(cluster.client().await?).await?;
        let env = Self {
            cluster,
            nfs,
            options: OperatorOptions::new(&options.operator, kubeconfig),
            objects,
            account,
            volumes,
            backends,
            binder: true,
        };
        env.create_objects().await?;
        Ok(env)
    }

    async fn create_objects(&self) -> Result<()> {
        self.objects.create(&reference("v1", "Namespace", None, NAME)).await?;
        for name in &self.backends {
            let spec = json!({ "server": "127.0.0.1", "path": export_path(name), "nfs": { "port": self.nfs.port() } });
            let backend = with_fields(backend(name), json!({ "spec": spec }));
            self.objects.create(&backend).await?;
        }
        self.create_class(NAME, json!({})).await
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
            let backend = backend(name);
            self.objects
                .wait_condition(&backend, "Ready", "True", None, READY_TIMEOUT)
                .await?;
        }
        Ok(operator)
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
        let patch = json!({ "spec": { "archivePolicy": { "onDelete": policy.name() } } });
        self.objects.patch(&backend(NAME), patch).await.map(drop)
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

    /// Starts the binder and waits until all volumes are Bound.
    pub async fn bind(&mut self, count: usize) -> Result<()> {
        self.start_binder().await?;
        let volumes: Api<PersistentVolume> = Api::all(self.objects.client());
        let timeout = READY_TIMEOUT + Duration::from_secs((count / MIN_BINDS_PER_SECOND) as u64);
        wait::until("all volumes to be Bound", timeout, async || {
            let listed = volumes
                .list(&Default::default())
                .await
                .map_err(|error| error.to_string())?;
            let bound = |volume: &&PersistentVolume| {
                let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
                phase == Some("Bound")
            };
            match listed.items.iter().filter(bound).count() {
                bound if bound >= count => Ok(()),
                bound => Err(format!("{bound} of {count}")),
            }
        })
        .await
    }

    /// Waits until the operator uses no CPU time because it has processed all events of its watches.
    pub async fn wait_idle(&self, operator: &Operator) -> Result<()> {
        wait::until("the operator to be idle", READY_TIMEOUT, async || {
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

fn backend(name: &str) -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, name)
}

/// Returns the export path of a backend.
fn export_path(backend: &str) -> String {
    format!("/{backend}")
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug)]
pub struct CpuUsage {
    pub operator: f64,
    pub api_server: f64,
    pub etcd: f64,
    pub nfs_server: f64,
    pub bench: f64,
}

impl CpuUsage {
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
