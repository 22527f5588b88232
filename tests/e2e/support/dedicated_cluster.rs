//! A cluster, an NFS server and an operator for tests that kill them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rig::objects::reference;
use rig::{Cluster, NfsOptions, NfsServer, Objects, Operator, OperatorKubeconfig, OperatorOptions, Proxy, RunDir};
use serde_json::{Value, json};

use crate::support::shared::{Failure, TIMEOUT};
use crate::support::shell::Shell;

/// The administrator's folder.
const ADMIN_DIR: &str = "admin";

/// All that a story needs, for itself.
pub struct DedicatedCluster {
    pub operator: Operator,
    pub objects: Objects,
    pub cluster: Cluster,
    pub proxy: Proxy,
    /// Who the operator logs in as.
    pub kubeconfig: OperatorKubeconfig,
    nfs: NfsServer,
    // Removed last, with the logs in it.
    run: RunDir,
}

impl DedicatedCluster {
    /// Everything ready, with a backend `main` behind a proxy and a class `nfs` on it. `spec` is merged into the backend.
    pub async fn start(spec: Value) -> Result<Self, Failure> {
        Self::start_with_args(spec, &[]).await
    }

    /// The same, and the operator gets these arguments.
    pub async fn start_with_args(spec: Value, args: &[&str]) -> Result<Self, Failure> {
        let run = RunDir::new()?;
        let nfs = NfsServer::start(&run, NfsOptions::default()).await?;
        let proxy = Proxy::start(nfs.address()).await?;
        let env = Self::start_beside(run, nfs, proxy, None, args).await?;
        env.create_backend_and_class(spec).await?;
        Ok(env)
    }

    /// An empty cluster beside an NFS server, in which an administrator did that, and then an operator that is ready.
    async fn start_beside(
        run: RunDir,
        nfs: NfsServer,
        proxy: Proxy,
        before: Option<&str>,
        args: &[&str],
    ) -> Result<Self, Failure> {
        let cluster = Cluster::start(&run).await?;
        if let Some(commands) = before {
            Shell::new(&run, &cluster)?
                .at(run.dir(ADMIN_DIR)?)
                .run(commands)
                .await?;
        }
        let kubeconfig = Operator::install(&cluster).await?;
        let mut options = OperatorOptions::new(rig::operator::find_binary()?, kubeconfig.clone());
        options.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let operator = Operator::start(&run, options).await?;
        let objects = Objects::new(cluster.client().await?);
        operator.wait_ready().await?;
        Ok(Self {
            operator,
            objects,
            cluster,
            proxy,
            kubeconfig,
            nfs,
            run,
        })
    }

    /// The cluster is lost with all that is in it; an empty one takes its place, beside the same NFS server. The
    /// administrator does that before there is an operator; neither backend nor class is there.
    pub async fn rebuilt(self, before: Option<&str>, args: &[&str]) -> Result<Self, Failure> {
        self.operator.kill9().await?;
        self.cluster.stop().await?;
        Self::start_beside(self.run, self.nfs, self.proxy, before, args).await
    }

    /// What an administrator does, in a folder that outlives clusters.
    pub async fn run_as_admin(&self, commands: &str) -> Result<String, Failure> {
        let shell = Shell::new(&self.run, &self.cluster)?.at(self.run.dir(ADMIN_DIR)?);
        shell.run(commands).await
    }

    /// A backend `main` behind the proxy that is Ready, and a class `nfs`. `spec` is merged into the backend.
    pub async fn create_backend_and_class(&self, spec: Value) -> Result<Value, Failure> {
        let backend = self.backend(json!({"spec": spec})).await?;
        self.class("nfs", json!({})).await?;
        Ok(backend)
    }

    /// A backend `main` behind the proxy that is Ready. `fields` are merged into it.
    pub async fn backend(&self, fields: Value) -> Result<Value, Failure> {
        let mut backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
        let usual = json!({"server": "127.0.0.1", "path": "/export", "nfs": {"port": self.proxy.port()}});
        rig::objects::merge(&mut backend, &json!({"spec": usual}));
        rig::objects::merge(&mut backend, &fields);
        let backend = self.objects.create(&backend).await?;
        self.objects
            .wait_condition(&backend, "Ready", "True", None, TIMEOUT)
            .await?;
        Ok(backend)
    }

    /// A class of ours. `fields` are merged into it.
    pub async fn class(&self, name: &str, fields: Value) -> Result<Value, Failure> {
        let mut class = reference("storage.k8s.io/v1", "StorageClass", None, name);
        let usual = json!({"provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete"});
        rig::objects::merge(&mut class, &usual);
        rig::objects::merge(&mut class, &fields);
        Ok(self.objects.create(&class).await?)
    }

    /// One more operator, with these arguments.
    pub async fn start_operator(&self, args: &[&str]) -> Result<Operator, Failure> {
        let mut options = OperatorOptions::new(rig::operator::find_binary()?, self.kubeconfig.clone());
        options.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Ok(Operator::start(&self.run, options).await?)
    }

    /// A claim of the class, not created yet.
    pub fn claim(&self, name: &str) -> Value {
        let mut claim = reference("v1", "PersistentVolumeClaim", Some("default"), name);
        let spec = json!({
            "storageClassName": "nfs",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Mi"}},
        });
        rig::objects::merge(&mut claim, &json!({"spec": spec}));
        claim
    }

    /// The export on disk.
    pub fn data(&self) -> Result<PathBuf, Failure> {
        Ok(self.nfs.data_dir("/export")?)
    }

    /// Where a volume's data are on disk.
    pub fn directory(&self, volume: &Value) -> Result<PathBuf, Failure> {
        let path = volume
            .pointer("/spec/nfs/path")
            .and_then(Value::as_str)
            .unwrap_or_default();
        Ok(self.data()?.join(Path::new(path).strip_prefix("/export")?))
    }

    /// The volume of a claim, once it is Bound.
    pub async fn bound(&self, claim: &Value) -> Result<Value, Failure> {
        let volume = self.objects.wait(claim, "to be Bound", TIMEOUT, |claim| {
            let volume = claim.pointer("/spec/volumeName").and_then(Value::as_str);
            let bound = claim.pointer("/status/phase").is_some_and(|phase| phase == "Bound");
            volume
                .filter(|_| bound)
                .map(str::to_owned)
                .ok_or_else(|| "not bound".into())
        });
        let volume = reference("v1", "PersistentVolume", None, &volume.await?);
        Ok(self
            .objects
            .get(&volume)
            .await?
            .ok_or("the volume of a bound claim is gone")?)
    }

    /// All volumes.
    pub async fn volumes(&self) -> rig::Result<Vec<Value>> {
        self.objects
            .list(&reference("v1", "PersistentVolume", None, "any"))
            .await
    }

    /// The records of this cluster on the export, by file name, with their content.
    pub fn records(&self) -> Result<Vec<(String, Value)>, Failure> {
        let mut records = Vec::new();
        for cluster in std::fs::read_dir(self.data()?.join(".nfs-operator"))? {
            let folder = cluster?.path().join("records");
            for record in std::fs::read_dir(folder).into_iter().flatten() {
                let record = record?;
                let content = serde_json::from_slice(&std::fs::read(record.path())?)?;
                records.push((record.file_name().to_string_lossy().into_owned(), content));
            }
        }
        Ok(records)
    }

    /// The directories of volumes and archives at the export's root.
    pub fn names(&self) -> Result<BTreeSet<String>, Failure> {
        Ok(crate::support::shared::names(&self.data()?)?.into_iter().collect())
    }
}
