//! What is measured: cluster, NFS server and operator, and what they used.

use std::{fs, time::Duration};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{BenchOptions, Policy, volume_watch::VolumeWatch};
use crate::{
    assets::Assets,
    cluster::{Cluster, Component, client},
    error::{Error, Result, ResultExt as _},
    nfs_server::{Export, NfsOptions, NfsServer},
    objects::{Objects, merge, reference},
    operator::{Operator, OperatorOptions},
    run_dir::RunDir,
    wait,
};

/// The class's and the namespace's name, and that of the first backend.
pub(super) const NAME: &str = "bench";
/// The operator takes in what is left in its watches.
const IDLE_WINDOW: Duration = Duration::from_secs(2);
/// The binder binds 40 to 70 claims a second, fewer when others use the machine.
const MIN_BINDS_PER_SECOND: usize = 10;
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Everything that runs.
pub struct BenchEnv {
    pub cluster: Cluster,
    pub nfs: NfsServer,
    options: OperatorOptions,
    /// Every right, as a user of the cluster has them who makes claims.
    pub objects: Objects,
    /// The operator's account: the bare client is held to the same fairness and authorization.
    pub account: Client,
    pub volumes_seen: VolumeWatch,
    backends: Vec<String>,
    binder: bool,
}

impl BenchEnv {
    /// With so many backends, each on an export of its own.
    pub async fn start(run: &RunDir, options: &BenchOptions, backends: usize) -> Result<Self> {
        let assets = Assets::find_or_install().await?;
        let numbered = |number: usize| match number {
            0 => NAME.to_owned(),
            _ => format!("{NAME}-{number}"),
        };
        let backends: Vec<String> = (0..backends).map(numbered).collect();
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
        let volumes_seen = VolumeWatch::start(cluster.client().await?).await?;
        let env = Self {
            cluster,
            nfs,
            options: OperatorOptions::new(&options.operator, kubeconfig),
            objects,
            account,
            volumes_seen,
            backends,
            binder: true,
        };
        env.create_objects().await?;
        Ok(env)
    }

    async fn create_objects(&self) -> Result<()> {
        self.objects.create(&reference("v1", "Namespace", None, NAME)).await?;
        for name in &self.backends {
            let mut backend = backend(name);
            let spec = json!({ "server": "127.0.0.1", "path": export_path(name), "nfs": { "port": self.nfs.port() } });
            merge(&mut backend, &json!({ "spec": spec }));
            self.objects.create(&backend).await?;
        }
        let mut class = reference("storage.k8s.io/v1", "StorageClass", None, NAME);
        let rest = json!({ "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete" });
        merge(&mut class, &rest);
        self.objects.create(&class).await.map(drop)
    }

    /// Starts the operator, and waits until it has found the backends to be well.
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

    /// How many directories of volumes the exports hold.
    pub fn directories(&self) -> Result<usize> {
        let mut found = 0;
        for name in &self.backends {
            let folder = self.nfs.data_dir(&export_path(name))?;
            let entries = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
            let ours = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(NAME);
            found += entries.flatten().filter(ours).count();
        }
        Ok(found)
    }

    /// From now on the backend does that with the directories of deleted claims.
    pub async fn set_policy(&self, policy: Policy) -> Result<()> {
        let patch = json!({ "spec": { "archivePolicy": { "onDelete": policy.name() } } });
        self.objects.patch(&backend(NAME), patch).await.map(drop)
    }

    /// Changes a backend's labels, which may be what claims wait for.
    pub async fn relabel(&self) -> Result<()> {
        let patch = json!({ "metadata": { "labels": { "bench": "changed" } } });
        self.objects.patch(&backend(NAME), patch).await.map(drop)
    }

    /// Has all backends scanned for orphans now.
    pub async fn request_scans(&self) -> Result<()> {
        for name in &self.backends {
            let asked = json!({ "metadata": { "annotations": { "nfs-operator.io/scan-now": "true" } } });
            self.objects.patch(&backend(name), asked).await?;
        }
        Ok(())
    }

    /// Stops the controller manager, so that its throughput and its share of the machine are in no figure.
    pub async fn stop_binder(&mut self) -> Result<()> {
        if std::mem::take(&mut self.binder) {
            self.cluster.kill9(Component::ControllerManager).await?;
        }
        Ok(())
    }

    /// Starts it again.
    pub async fn start_binder(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.binder, true) {
            self.cluster.restart(Component::ControllerManager).await?;
        }
        Ok(())
    }

    /// Has claims and volumes bound to each other.
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

    /// Waits until the operator has taken in what its watches brought: until it uses no CPU time.
    pub async fn wait_idle(&self, operator: &Operator) -> Result<()> {
        wait::until("the operator to be idle", READY_TIMEOUT, async || {
            let look = || cpu_seconds(operator.pid()).map_err(|error| error.to_string());
            let before = look()?;
            tokio::time::sleep(IDLE_WINDOW / 4).await;
            match look()? - before {
                used if used <= 0.011 => Ok(()),
                used => Err(format!("it used {used} s of CPU time in the last half second")),
            }
        })
        .await
    }

    /// The CPU time that each part has used so far.
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
        // An API server waits for its watches to end.
        drop(self.volumes_seen);
        self.nfs.stop().await?;
        self.cluster.stop().await
    }
}

fn backend(name: &str) -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, name)
}

/// The export of a backend.
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

/// The user and system time of a process, see proc(5), /proc/PID/stat.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The program's name is in parentheses and may hold anything; utime and stime are fields 14 and 15.
    let after = text.rsplit_once(')').map(|(_, after)| after).unwrap_or_default();
    let mut fields = after.split_whitespace().skip(11).map(str::parse::<u64>);
    match (fields.next(), fields.next()) {
        (Some(Ok(user)), Some(Ok(system))) => {
            Ok((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
        }
        _ => Err(Error::Usage(format!("{path} is not as proc(5) says"))),
    }
}
