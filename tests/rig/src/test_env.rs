//! The environment of one test.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    error::{Error, Result, ResultExt},
    nfs_server::Export,
    objects::{Objects, reference, with_fields},
    shared::{ALIASES, SharedRig, TIMEOUT, alias, shared},
};

/// Names of the tests that ended since the last one began.
static ENDED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The environment of one test: a namespace, an export on the shared server, and unique names.
pub struct TestEnv {
    /// The shared rig.
    pub rig: &'static SharedRig,
    /// API objects, with all permissions.
    pub objects: Objects,
    /// The test's name with a random suffix. The namespace and the export have the same name.
    pub name: String,
    ports: (u16, u16),
    data: PathBuf,
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        let name = self.name.clone();
        ENDED.lock().push(name);
    }
}

/// Lets the operator probe the backends of tests that ended only once a day. They remain because of their volumes, and
/// hundreds of probes every second would take the processors from the other tests.
async fn probe_ended_rarely(objects: &Objects) -> Result<()> {
    let ended = std::mem::take(&mut *ENDED.lock());
    if ended.is_empty() {
        return Ok(());
    }
    let backends = objects
        .list(&reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "any"))
        .await?;
    for backend in backends {
        let name = backend
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let is_of = |test: &String| {
            name.strip_prefix(test.as_str())
                .is_some_and(|rest| rest.starts_with('-'))
        };
        if !ended.iter().any(is_of) {
            continue;
        }
        let rarely = json!({ "spec": { "probeInterval": "24h" } });
        match objects.patch(&backend, rarely).await {
            Err(error) if objects.get(&backend).await?.is_some() => return Err(error),
            // It was deleted in the meantime.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

impl TestEnv {
    /// Creates a namespace and an export. The name may contain lower-case letters, digits and dashes, at most 40.
    pub async fn new(name: &str) -> Result<Self> {
        Self::with_export(name, |export| export).await
    }

    /// Creates a namespace and a customized export, for example read-only, squashed or small.
    pub async fn with_export(name: &str, shape: impl FnOnce(Export) -> Export) -> Result<Self> {
        let rig = shared().await?;
        let name = format!("{name}-{}", crate::random_suffix());
        let objects = Objects::new(rig.cluster.client().await?);
        probe_ended_rarely(&objects).await?;
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

    /// Returns the directory behind the export.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the path of the export as clients use it.
    pub fn export(&self) -> String {
        format!("/{}", self.name)
    }

    /// Returns the NFS server's port.
    pub fn nfs_port(&self) -> u16 {
        self.ports.0
    }

    /// Returns the port of its MOUNT service.
    pub fn mount_port(&self) -> u16 {
        self.ports.1
    }

    /// Returns a cluster-wide name that only this test uses.
    pub fn unique_name(&self, word: &str) -> String {
        format!("{}-{word}", self.name)
    }

    /// Returns a backend on this test's export, named by [`Self::unique_name`] and probed every second, with `spec`
    /// merged in.
    pub fn backend(&self, word: &str, spec: Value) -> Value {
        let reference = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, &self.unique_name(word));
        let defaults = json!({
            "server": "127.0.0.1",
            "path": self.export(),
            "probeInterval": "1s",
            "nfs": { "port": self.nfs_port() },
        });
        with_fields(
            with_fields(reference, json!({ "spec": defaults })),
            json!({ "spec": spec }),
        )
    }

    /// Returns a class of this provisioner, named by [`Self::unique_name`], with reclaim policy Delete.
    pub fn class(&self, word: &str, parameters: Value) -> Value {
        let fields =
            json!({ "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "parameters": parameters });
        with_fields(
            reference("storage.k8s.io/v1", "StorageClass", None, &self.unique_name(word)),
            fields,
        )
    }

    /// Returns a claim of 1 MiB for a class, in this test's namespace.
    pub fn claim(&self, name: &str, class: &Value) -> Value {
        let spec = json!({
            "storageClassName": class.pointer("/metadata/name"),
            "accessModes": ["ReadWriteMany"],
            "resources": { "requests": { "storage": "1Mi" } },
        });
        let reference = reference("v1", "PersistentVolumeClaim", Some(&self.name), name);
        with_fields(reference, json!({ "spec": spec }))
    }

    /// Creates a backend `backend`, waits until it is Ready, and creates a class `class` that uses it.
    pub async fn create_ready_class(&self) -> Result<Value> {
        let backend = self.objects.create(&self.backend("backend", json!({}))).await?;
        self.objects
            .wait_condition(&backend, "Ready", "True", None, TIMEOUT)
            .await?;
        let parameters = json!({ "backend": self.unique_name("backend") });
        self.objects.create(&self.class("class", parameters)).await
    }

    /// Reserves a provisioner name that the operator serves as an alias for this test. Returns it with the name of its
    /// backend, which the test creates.
    pub fn alias(&self) -> Result<(String, String)> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        if number >= ALIASES {
            return Err(Error::Usage(format!("more than {ALIASES} aliases are in use")));
        }
        Ok(alias(number))
    }

    /// Waits until a claim is Bound, and returns its volume.
    pub async fn wait_bound(&self, claim: &Value) -> Result<Value> {
        self.objects.wait_volume(claim, TIMEOUT).await
    }

    /// Returns the directory of a volume's data.
    pub fn directory(&self, volume: &Value) -> Result<PathBuf> {
        let path = volume
            .pointer("/spec/nfs/path")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let relative = Path::new(path).strip_prefix(self.export());
        let relative = relative.with_context(|| format!("find {path} on {}", self.export()))?;
        Ok(self.data.join(relative))
    }
}
