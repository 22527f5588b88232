//! A cluster, an NFS server and an operator for one test, which may kill them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rig::objects::reference;
use rig::{
    Cluster, Export, NfsOptions, NfsServer, Objects, Operator, OperatorKubeconfig, OperatorOptions, Proxy, RunDir,
};
use serde_json::{Value, json};

use crate::support::shared::{Failure, TIMEOUT, text};
use crate::support::shell::Shell;

/// The administrator's working folder.
const ADMIN_DIR: &str = "admin";

/// A cluster, NFS server, proxy and operator for one test.
pub struct DedicatedCluster {
    pub operator: Operator,
    pub objects: Objects,
    pub cluster: Cluster,
    pub proxy: Proxy,
    /// The credentials of the operator.
    pub kubeconfig: OperatorKubeconfig,
    nfs: Arc<NfsServer>,
    // Dropped last, because it contains the logs.
    run: Arc<RunDir>,
}

impl DedicatedCluster {
    /// Starts everything, with a ready backend `main` behind a proxy and a class `nfs`. `spec` is merged into the
    /// backend.
    pub async fn start(spec: Value) -> Result<Self, Failure> {
        Self::start_with_args(spec, &[]).await
    }

    /// The same, with arguments for the operator.
    pub async fn start_with_args(spec: Value, args: &[&str]) -> Result<Self, Failure> {
        Self::start_on_server(NfsOptions::default(), spec, args).await
    }

    /// The same, with an export in memory: how full it is does not depend on the disk of the machine.
    pub async fn start_in_memory(spec: Value, args: &[&str]) -> Result<Self, Failure> {
        let options = NfsOptions {
            exports: vec![Export::new("/export").tmpfs(64 << 20, None)],
            ..NfsOptions::default()
        };
        Self::start_on_server(options, spec, args).await
    }

    /// The same, over NFSv3.
    pub async fn start_with_v3(spec: Value) -> Result<Self, Failure> {
        let options = NfsOptions {
            v3: true,
            ..NfsOptions::default()
        };
        Self::start_on_server(options, spec, &[]).await
    }

    async fn start_on_server(options: NfsOptions, mut spec: Value, args: &[&str]) -> Result<Self, Failure> {
        let run = Arc::new(RunDir::new()?);
        let is_v3 = options.v3;
        let nfs = Arc::new(NfsServer::start(&run, options).await?);
        if is_v3 {
            rig::objects::merge(
                &mut spec,
                &json!({"nfs": {"version": "3", "mountPort": nfs.mount_port()}}),
            );
        }
        let proxy = Proxy::start(nfs.address()).await?;
        let env = Self::start_beside(run, nfs, proxy, None, args).await?;
        env.create_backend_and_class(spec).await?;
        Ok(env)
    }

    /// Starts an empty cluster beside an NFS server, runs commands of an administrator, and then starts the operator.
    async fn start_beside(
        run: Arc<RunDir>,
        nfs: Arc<NfsServer>,
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
        Self::start_on_cluster(run, nfs, proxy, cluster, kubeconfig, args).await
    }

    async fn start_on_cluster(
        run: Arc<RunDir>,
        nfs: Arc<NfsServer>,
        proxy: Proxy,
        cluster: Cluster,
        kubeconfig: OperatorKubeconfig,
        args: &[&str],
    ) -> Result<Self, Failure> {
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

    /// Replaces the cluster with an empty one beside the same NFS server. The commands run before the operator starts.
    /// Neither a backend nor a class exists.
    pub async fn rebuilt(self, before: Option<&str>, args: &[&str]) -> Result<Self, Failure> {
        self.operator.kill9().await?;
        self.cluster.stop().await?;
        Self::start_beside(self.run, self.nfs, self.proxy, before, args).await
    }

    /// Starts an empty cluster on the same export, while this one runs. The commands run before the operator starts. Neither
    /// a backend nor a class exists.
    pub async fn second_cluster(&self, before: &str) -> Result<Self, Failure> {
        let (run, nfs) = (Arc::clone(&self.run), Arc::clone(&self.nfs));
        let proxy = Proxy::start(nfs.address()).await?;
        Self::start_beside(run, nfs, proxy, Some(before), &[]).await
    }

    /// Starts a cluster with the objects of a snapshot on the same export, while this one runs.
    pub async fn cloned_cluster(&self, snapshot: &Path) -> Result<Self, Failure> {
        let (run, nfs) = (Arc::clone(&self.run), Arc::clone(&self.nfs));
        let proxy = Proxy::start(nfs.address()).await?;
        let cluster = Cluster::start_from_snapshot(&run, snapshot).await?;
        let kubeconfig = Operator::kubeconfig(&cluster).await?;
        Self::start_on_cluster(run, nfs, proxy, cluster, kubeconfig, &[]).await
    }

    /// Copies the objects of the cluster to a new directory.
    pub async fn snapshot(&self) -> Result<PathBuf, Failure> {
        Ok(self.cluster.snapshot(&self.run).await?)
    }

    /// Runs commands as an administrator, in a folder that outlives clusters. Returns their output.
    pub async fn run_as_admin(&self, commands: &str) -> Result<String, Failure> {
        let shell = Shell::new(&self.run, &self.cluster)?.at(self.run.dir(ADMIN_DIR)?);
        shell.run(commands).await
    }

    /// Creates a ready backend `main` behind the proxy, and a class `nfs`. `spec` is merged into the backend.
    pub async fn create_backend_and_class(&self, spec: Value) -> Result<Value, Failure> {
        let backend = self.backend(json!({"spec": spec})).await?;
        self.class("nfs", json!({})).await?;
        Ok(backend)
    }

    /// Creates a ready backend `main` behind the proxy. `fields` are merged into it.
    pub async fn backend(&self, fields: Value) -> Result<Value, Failure> {
        let backend = self.objects.create(&self.backend_object(&fields)).await?;
        self.objects
            .wait_condition(&backend, "Ready", "True", None, TIMEOUT)
            .await?;
        Ok(backend)
    }

    /// Returns a backend `main` behind the proxy, without creating it. `fields` are merged into it.
    pub fn backend_object(&self, fields: &Value) -> Value {
        let mut backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
        let usual = json!({"server": "127.0.0.1", "path": "/export", "nfs": {"port": self.proxy.port()}});
        rig::objects::merge(&mut backend, &json!({"spec": usual}));
        rig::objects::merge(&mut backend, fields);
        backend
    }

    /// Creates a class of this provisioner, whose claims can grow. `fields` are merged into it. The API server may ignore for
    /// a while that the expansion was allowed later: it reads classes from a watch.
    pub async fn class(&self, name: &str, fields: Value) -> Result<Value, Failure> {
        let mut class = reference("storage.k8s.io/v1", "StorageClass", None, name);
        let usual =
            json!({"provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "allowVolumeExpansion": true});
        rig::objects::merge(&mut class, &usual);
        rig::objects::merge(&mut class, &fields);
        Ok(self.objects.create(&class).await?)
    }

    /// Starts another operator with these arguments.
    pub async fn start_operator(&self, args: &[&str]) -> Result<Operator, Failure> {
        let mut options = OperatorOptions::new(rig::operator::find_binary()?, self.kubeconfig.clone());
        options.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Ok(Operator::start(&self.run, options).await?)
    }

    /// Returns a claim of the class, without creating it.
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

    /// Returns the export on disk.
    pub fn data(&self) -> Result<PathBuf, Failure> {
        Ok(self.nfs.data_dir("/export")?)
    }

    /// Returns the directory of a volume on disk.
    pub fn directory(&self, volume: &Value) -> Result<PathBuf, Failure> {
        let path = volume
            .pointer("/spec/nfs/path")
            .and_then(Value::as_str)
            .unwrap_or_default();
        Ok(self.data()?.join(Path::new(path).strip_prefix("/export")?))
    }

    /// Waits until a claim is Bound. Returns its volume.
    pub async fn bound(&self, claim: &Value) -> Result<Value, Failure> {
        Ok(self.objects.wait_volume(claim, TIMEOUT).await?)
    }

    /// Returns all volumes.
    pub async fn volumes(&self) -> rig::Result<Vec<Value>> {
        self.objects
            .list(&reference("v1", "PersistentVolume", None, "any"))
            .await
    }

    /// Returns the names of all archive objects, sorted.
    pub async fn archives(&self) -> rig::Result<BTreeSet<String>> {
        let any = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, "any");
        let archives = self.objects.list(&any).await?;
        let name = |archive: &Value| text(archive, "/metadata/name").to_owned();
        Ok(archives.iter().map(name).collect())
    }

    /// Returns the records on the export, with file name and content.
    pub fn records(&self) -> Result<Vec<(String, Value)>, Failure> {
        let mut records = Vec::new();
        for cluster in std::fs::read_dir(self.data()?.join(".nfs-operator"))? {
            let folder = cluster?.path().join("records");
            for record in std::fs::read_dir(folder).into_iter().flatten() {
                let record = record?;
                let content = match std::fs::read(record.path()) {
                    // Removed or renamed meanwhile, as a draft that replaces a record.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    content => serde_json::from_slice(&content?)?,
                };
                records.push((record.file_name().to_string_lossy().into_owned(), content));
            }
        }
        Ok(records)
    }

    /// Returns the directories of volumes and archives at the root of the export.
    pub fn names(&self) -> Result<BTreeSet<String>, Failure> {
        Ok(crate::support::shared::names(&self.data()?)?.into_iter().collect())
    }
}
