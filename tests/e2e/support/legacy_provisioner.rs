//! The objects and directories that nfs-subdir-external-provisioner 4.0.2 creates, under a provisioner name that is an
//! alias now.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rig::objects::{merge, reference};
use rig::{Proxy, TestEnv};
use serde_json::{Value, json};

use crate::support::shared::{Failure, TIMEOUT, text};

/// A Deployment of nfs-subdir: its provisioner name, and its export, which is a backend now.
pub struct LegacyProvisioner<'a> {
    pub env: &'a TestEnv,
    pub provisioner: String,
    pub backend: Value,
    /// The proxy between the operator and the server.
    pub proxy: Proxy,
    word: String,
}

impl<'a> LegacyProvisioner<'a> {
    /// With a ready backend on the whole export. `spec` is merged into the backend.
    pub async fn new(env: &'a TestEnv, spec: Value) -> Result<Self, Failure> {
        let legacy = Self::without_backend(env, "old", spec).await?;
        legacy.create_backend().await?;
        Ok(legacy)
    }

    /// Without a backend yet. `word` distinguishes it from others of the test.
    pub async fn without_backend(env: &'a TestEnv, word: &str, spec: Value) -> Result<Self, Failure> {
        let (provisioner, name) = env.alias()?;
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], env.nfs_port()))).await?;
        let mut backend = env.backend("any", json!({ "nfs": { "port": proxy.port() } }));
        merge(&mut backend, &json!({ "metadata": { "name": name }, "spec": spec }));
        Ok(Self {
            env,
            provisioner,
            backend,
            proxy,
            word: word.to_owned(),
        })
    }

    pub async fn create_backend(&self) -> rig::Result<()> {
        let objects = &self.env.objects;
        let backend = objects.create(&self.backend).await?;
        objects.wait_condition(&backend, "Ready", "True", None, TIMEOUT).await?;
        Ok(())
    }

    /// Returns a class of the Deployment.
    pub fn class_object(&self, name: &str, parameters: &Value) -> Value {
        let mut class = reference("storage.k8s.io/v1", "StorageClass", None, &self.env.unique_name(name));
        let rest = json!({ "provisioner": self.provisioner, "reclaimPolicy": "Delete", "parameters": parameters });
        merge(&mut class, &rest);
        class
    }

    pub async fn class(&self, name: &str, parameters: Value) -> rig::Result<Value> {
        self.env.objects.create(&self.class_object(name, &parameters)).await
    }

    /// Creates a Bound claim with its volume and a file `data`. Call it before the class exists, because otherwise the
    /// operator creates the volume.
    pub async fn volume(&self, name: &str, class: &Value, directory: Option<&str>) -> Result<LegacyVolume, Failure> {
        let claim = self.env.objects.create(&self.env.claim(name, class)).await?;
        self.provision_for(&claim, class, directory).await
    }

    /// Creates the volume for an existing claim, and waits until it is Bound.
    pub async fn provision_for(
        &self,
        claim: &Value,
        class: &Value,
        directory: Option<&str>,
    ) -> Result<LegacyVolume, Failure> {
        let (created, volume) = self.object(claim, class, directory)?;
        fs::create_dir_all(&created)?;
        fs::set_permissions(&created, fs::Permissions::from_mode(0o777))?;
        let objects = &self.env.objects;
        let volume = objects.create(&volume).await?;
        self.env.wait_bound(claim).await?;
        let request = json!({
            "volume.beta.kubernetes.io/storage-provisioner": self.provisioner,
            "volume.kubernetes.io/storage-provisioner": self.provisioner,
        });
        objects
            .patch(claim, json!({ "metadata": { "annotations": request } }))
            .await?;
        let claim = objects.get(claim).await?.ok_or("the claim is gone")?;
        fs::write(created.join("data"), self.word.as_bytes())?;
        Ok(LegacyVolume {
            claim,
            volume,
            directory: created,
        })
    }

    /// Returns the directory and the volume that nfs-subdir would create for a claim.
    pub fn object(&self, claim: &Value, class: &Value, directory: Option<&str>) -> Result<(PathBuf, Value), Failure> {
        let of = |pointer| text(claim, pointer);
        let (namespace, name, uid) = (of("/metadata/namespace"), of("/metadata/name"), of("/metadata/uid"));
        let usual = format!("{namespace}-{name}-pvc-{uid}");
        let directory = directory.unwrap_or(&usual);
        let spec = &self.backend["spec"];
        let path = format!("{}/{directory}", text(spec, "/path"));
        let mut volume = reference("v1", "PersistentVolume", None, &format!("pvc-{uid}"));
        let rest = json!({
            "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": self.provisioner } },
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "capacity": { "storage": "1Mi" },
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": namespace, "name": name, "uid": uid,
                    "resourceVersion": of("/metadata/resourceVersion"),
                },
                "nfs": { "server": text(spec, "/server"), "path": path },
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": text(class, "/metadata/name"),
                "volumeMode": "Filesystem",
            },
        });
        merge(&mut volume, &rest);
        let on_export = path.strip_prefix(&self.env.export()).ok_or("not on the export")?;
        Ok((
            self.env.data().join(Path::new(on_export.trim_start_matches('/'))),
            volume,
        ))
    }
}

/// A claim with its volume and directory.
pub struct LegacyVolume {
    pub claim: Value,
    pub volume: Value,
    pub directory: PathBuf,
}

/// Checks that the operator did not change a volume or claim that existed before it.
pub async fn assert_untouched(env: &TestEnv, object: &Value) -> rig::Result<()> {
    let now = env.objects.get(object).await?;
    let now = now.as_ref();
    let ours = |value: Option<&Value>| value.is_some_and(|value| value.to_string().contains("nfs-operator.io"));
    for pointer in ["/metadata/annotations", "/metadata/finalizers", "/status/conditions"] {
        assert!(!ours(now.and_then(|now| now.pointer(pointer))), "{now:?}");
    }
    Ok(())
}
