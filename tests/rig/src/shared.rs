//! One cluster, NFS server and operator for all tests of a process, and what a single test has of them.

use std::{
    future::pending,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell, oneshot};

use crate::{
    assets::Assets,
    cluster::Cluster,
    error::{Error, Result, ResultExt},
    nfs_server::{Export, NfsOptions, NfsServer},
    objects::{Objects, merge, reference},
    operator::{Operator, OperatorOptions, find_binary},
    run_dir::RunDir,
};

/// What tests wait for at most: it takes a second at rest, and its time on a machine that is busy with a hundred.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// How many aliases the shared operator serves: each is one test's.
const ALIASES: usize = 32;

/// A provisioner name that the shared operator serves as an alias, and the backend that it reaches.
fn alias(number: usize) -> (String, String) {
    (format!("old.example.org/nfs-{number}"), format!("alias-{number}"))
}

/// What all tests of a process have together.
#[derive(Debug)]
pub struct SharedRig {
    /// The control plane, with the CRDs and the operator's account installed.
    pub cluster: Cluster,
    /// The NFS server; locked only while exports change.
    pub nfs: Mutex<NfsServer>,
    /// The operator, under its own ServiceAccount.
    pub operator: Operator,
    /// Where they log.
    pub run: RunDir,
}

impl SharedRig {
    async fn start() -> Result<Self> {
        let run = RunDir::new()?;
        let assets = Assets::find_or_install().await?;
        // Room for exports that a test fills up, and NFSv3; without root those tests alone fail.
        let is_root = rustix::process::geteuid().is_root();
        let options = NfsOptions {
            private_mounts: is_root,
            v3: is_root,
            ..NfsOptions::default()
        };
        let (nfs, cluster) = tokio::try_join!(
            NfsServer::start_with(&run, options, &assets.ganesha),
            Cluster::start_with(&run, assets.clone()),
        )?;
        let kubeconfig = Operator::install(&cluster).await?;
        let aliases = (0..ALIASES).flat_map(|number| {
            let (name, backend) = alias(number);
            ["--provisioner-alias".to_owned(), format!("{name}={backend}")]
        });
        let options = OperatorOptions {
            args: aliases.collect(),
            ..OperatorOptions::new(find_binary()?, kubeconfig)
        };
        let operator = Operator::start(&run, options).await?;
        operator.wait_ready().await?;
        eprintln!("rig: logs are in {}", run.path().display());
        Ok(Self {
            cluster,
            nfs: Mutex::new(nfs),
            operator,
            run,
        })
    }
}

/// The shared rig; started by who asks first. A failed start is every test's failure, tried once.
pub async fn shared() -> Result<&'static SharedRig> {
    static SHARED: OnceCell<Result<SharedRig, String>> = OnceCell::const_new();
    let started = SHARED.get_or_init(|| async {
        let (report, started) = oneshot::channel();
        // A runtime of its own: that of the test that came first ends with it, and takes its tasks along.
        let thread = std::thread::Builder::new().name("shared rig".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async {
                    let started = SharedRig::start().await.map_err(|error| error.to_string());
                    // Nobody waits when the asking test was cancelled.
                    let _told = report.send(started);
                    pending::<()>().await;
                }),
                Err(error) => drop(report.send(Err(error.to_string()))),
            }
        });
        match thread {
            Ok(_) => started.await.unwrap_or_else(|_| Err("its thread ended".into())),
            Err(error) => Err(error.to_string()),
        }
    });
    started
        .await
        .as_ref()
        .map_err(|error| Error::SharedStart(error.clone()))
}

/// What one test has for itself: a namespace, an export on the shared server, and names that nobody else uses.
pub struct TestEnv {
    /// The shared rig.
    pub rig: &'static SharedRig,
    /// API objects, with every right.
    pub objects: Objects,
    /// The test's name with a random suffix; also the name of its namespace and of its export.
    pub name: String,
    ports: (u16, u16),
    data: PathBuf,
}

impl TestEnv {
    /// Makes namespace and export. The name takes lower-case letters, digits and dashes, 40 at most.
    pub async fn new(name: &str) -> Result<Self> {
        Self::with_export(name, |export| export).await
    }

    /// The same with an export that is not as usual: read-only, squashed, small.
    pub async fn with_export(name: &str, shape: impl FnOnce(Export) -> Export) -> Result<Self> {
        let rig = shared().await?;
        let name = format!("{name}-{}", crate::random_suffix());
        let objects = Objects::new(rig.cluster.client().await?);
        objects.create(&reference("v1", "Namespace", None, &name)).await?;
        let mut nfs = rig.nfs.lock().await;
        let data = nfs.add_export(shape(Export::new(format!("/{name}")))).await?;
        let ports = (nfs.port(), nfs.mount_port());
        drop(nfs);
        Ok(Self {
            rig,
            objects,
            name,
            ports,
            data,
        })
    }

    /// The export's directory on disk.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The export's path as clients see it.
    pub fn export(&self) -> String {
        format!("/{}", self.name)
    }

    /// The NFS server's port.
    pub fn nfs_port(&self) -> u16 {
        self.ports.0
    }

    /// The port of its MOUNT.
    pub fn mount_port(&self) -> u16 {
        self.ports.1
    }

    /// A cluster-wide name of this test's own.
    pub fn unique_name(&self, word: &str) -> String {
        format!("{}-{word}", self.name)
    }

    /// A backend on this test's export, called [`Self::unique_name`], probed every second; `spec` is merged in.
    pub fn backend(&self, word: &str, spec: Value) -> Value {
        let mut backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, &self.unique_name(word));
        let usual = json!({
            "server": "127.0.0.1",
            "path": self.export(),
            "probeInterval": "1s",
            "nfs": { "port": self.nfs_port() },
        });
        merge(&mut backend, &json!({ "spec": usual }));
        merge(&mut backend, &json!({ "spec": spec }));
        backend
    }

    /// A class of our provisioner, called [`Self::unique_name`], with reclaim policy Delete.
    pub fn class(&self, word: &str, parameters: Value) -> Value {
        let mut class = reference("storage.k8s.io/v1", "StorageClass", None, &self.unique_name(word));
        let rest = json!({ "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "parameters": parameters });
        merge(&mut class, &rest);
        class
    }

    /// A claim of 1 MiB for that class, in this test's namespace.
    pub fn claim(&self, name: &str, class: &Value) -> Value {
        let mut claim = reference("v1", "PersistentVolumeClaim", Some(&self.name), name);
        let spec = json!({
            "storageClassName": class.pointer("/metadata/name"),
            "accessModes": ["ReadWriteMany"],
            "resources": { "requests": { "storage": "1Mi" } },
        });
        merge(&mut claim, &json!({ "spec": spec }));
        claim
    }

    /// A ready backend `backend` and a class `class` that names it, both created.
    pub async fn create_ready_class(&self) -> Result<Value> {
        let backend = self.objects.create(&self.backend("backend", json!({}))).await?;
        self.objects
            .wait_condition(&backend, "Ready", "True", None, TIMEOUT)
            .await?;
        let parameters = json!({ "backend": self.unique_name("backend") });
        self.objects.create(&self.class("class", parameters)).await
    }

    /// A provisioner name that the operator serves as an alias, and the name of the backend that it reaches, which is
    /// the test's to make. Nobody else's in this process.
    pub fn alias(&self) -> Result<(String, String)> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        if number >= ALIASES {
            return Err(Error::Usage(format!("more than {ALIASES} aliases are in use")));
        }
        Ok(alias(number))
    }

    /// Waits until a claim is Bound, and gives back its volume.
    pub async fn wait_bound(&self, claim: &Value) -> Result<Value> {
        let volume = self.objects.wait(claim, "to be Bound", TIMEOUT, |claim| {
            let volume = claim.pointer("/spec/volumeName").and_then(Value::as_str);
            match volume {
                Some(volume) if claim.pointer("/status/phase") == Some(&json!("Bound")) => Ok(volume.to_owned()),
                _ => Err("not bound".into()),
            }
        });
        let volume = reference("v1", "PersistentVolume", None, &volume.await?);
        let found = self.objects.get(&volume).await?;
        found.ok_or_else(|| Error::Usage(format!("the volume of a bound claim is not there: {volume}")))
    }

    /// Where a volume's data are on disk.
    pub fn directory(&self, volume: &Value) -> Result<PathBuf> {
        let path = volume
            .pointer("/spec/nfs/path")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let inside = Path::new(path)
            .strip_prefix(self.export())
            .map_err(std::io::Error::other);
        let inside = inside.with_context(|| format!("find {path} on {}", self.export()))?;
        Ok(self.data.join(inside))
    }
}
