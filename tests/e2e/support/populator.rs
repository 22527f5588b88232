//! A small volume populator that makes the same calls as lib-volume-populator (`syncPvc` in
//! `populator-machinery/controller.go`) or KubeVirt's CDI (`pkg/controller/populators`), in the same order.
//!
//! Both have a *prime* claim provisioned, have a pod fill its volume, and then bind the volume to the target claim. The
//! test takes the place of the kubelet that runs the pod.

use std::path::Path;

use rig::objects::{merge, reference};
use rig::{Objects, wait};
use serde_json::{Value, json};

use crate::support::shared::{Failure, TIMEOUT, text};

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The populator whose calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// lib-volume-populator: the prime claim is in the populator's namespace, and is deleted once it is Lost. The volume is
    /// bound with a strategic merge patch.
    LibVolumePopulator,
    /// CDI: the prime claim is in the namespace of the target claim, which owns it, and is deleted once the target claim is
    /// Bound. The volume is bound with an update.
    Cdi,
}

/// A populator.
pub struct Populator<'a> {
    pub objects: &'a Objects,
    /// Its own namespace.
    pub namespace: String,
    pub style: Style,
}

/// What a populator waits for after it did what it could.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    NodeSelection,
    Pod,
    Binding,
    Done,
}

/// Returns a claim whose data source belongs to a populator.
pub fn populated(mut claim: Value, style: Style) -> Value {
    let (group, kind) = match style {
        Style::LibVolumePopulator => ("hello.example.com", "Hello"),
        Style::Cdi => ("cdi.kubevirt.io", "VolumeImportSource"),
    };
    let source = json!({"apiGroup": group, "kind": kind, "name": "source"});
    merge(&mut claim, &json!({"spec": {"dataSourceRef": source}}));
    claim
}

impl Populator<'_> {
    /// Returns a reference to the prime claim of a claim.
    pub fn prime(&self, target: &Value) -> Value {
        let name = format!("prime-{}", text(target, "/metadata/uid"));
        reference("v1", "PersistentVolumeClaim", Some(self.namespace_of(target)), &name)
    }

    /// Returns a reference to the pod that fills the volume for a claim.
    pub fn pod(&self, target: &Value) -> Value {
        let name = format!("populate-{}", text(target, "/metadata/uid"));
        reference("v1", "Pod", Some(self.namespace_of(target)), &name)
    }

    fn namespace_of<'a>(&'a self, target: &'a Value) -> &'a str {
        match self.style {
            Style::LibVolumePopulator => &self.namespace,
            Style::Cdi => text(target, "/metadata/namespace"),
        }
    }

    /// Does one reconciliation of a target claim.
    pub async fn sync(&self, target: &Value) -> Result<Progress, Failure> {
        let target = self.objects.get(target).await?.ok_or("no target claim")?;
        let class = text(&target, "/spec/storageClassName");
        let class = reference("storage.k8s.io/v1", "StorageClass", None, class);
        let class = self.objects.get(&class).await?.ok_or("no class")?;
        let late = class["volumeBindingMode"] == "WaitForFirstConsumer";
        let node = target["metadata"]["annotations"][SELECTED_NODE]
            .as_str()
            .unwrap_or_default();
        if late && node.is_empty() {
            return Ok(Progress::NodeSelection);
        }
        let pod = self.objects.get(&self.pod(&target)).await?;
        let mut prime = self.objects.get(&self.prime(&target)).await?;
        let is_bound = !text(&target, "/spec/volumeName").is_empty();
        if !is_bound && prime.is_none() {
            prime = Some(self.create_prime(&target, late.then_some(node)).await?);
        }
        if !is_bound {
            let prime = prime.as_ref().ok_or("no prime claim")?;
            self.protect(&target).await?;
            let Some(pod) = pod else {
                self.create_pod(&target, late.then_some(node)).await?;
                return Ok(Progress::Pod);
            };
            if pod["status"]["phase"] != "Succeeded" {
                return Ok(Progress::Pod);
            }
            self.rebind(prime, &target).await?;
            return Ok(Progress::Binding);
        }
        if prime.as_ref().is_some_and(|prime| !self.is_finished(prime, &target)) {
            return Ok(Progress::Binding);
        }
        self.objects.delete(&self.pod(&target)).await?;
        self.objects.delete(&self.prime(&target)).await?;
        self.unprotect(&target).await?;
        Ok(Progress::Done)
    }

    /// Reconciles a target claim until the populator waits for this.
    pub async fn sync_until(&self, target: &Value, awaited: Progress) -> Result<(), Failure> {
        let what = format!("the populator to wait for {awaited:?}");
        wait::until(&what, TIMEOUT, async || match self.sync(target).await {
            Ok(progress) if progress == awaited => Ok(()),
            Ok(other) => Err(format!("it waits for {other:?}")),
            Err(error) => Err(error.to_string()),
        })
        .await?;
        Ok(())
    }

    async fn create_prime(&self, target: &Value, node: Option<&str>) -> rig::Result<Value> {
        let spec = &target["spec"];
        let mut prime = self.prime(target);
        let copied = json!({"spec": {
            "accessModes": spec["accessModes"],
            "resources": spec["resources"],
            "storageClassName": spec["storageClassName"],
            "volumeMode": spec["volumeMode"],
        }});
        merge(&mut prime, &copied);
        if let Some(node) = node {
            merge(&mut prime, &json!({"metadata": {"annotations": {SELECTED_NODE: node}}}));
        }
        if self.style == Style::Cdi {
            let owner = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "controller": true, "blockOwnerDeletion": true,
                "name": target["metadata"]["name"], "uid": target["metadata"]["uid"],
            });
            let marks = json!({
                "annotations": {"cdi.kubevirt.io/storage.bind.immediate.requested": ""},
                "labels": {"app": "containerized-data-importer"},
                "ownerReferences": [owner],
            });
            merge(&mut prime, &json!({"metadata": marks}));
        }
        self.objects.create(&prime).await
    }

    async fn create_pod(&self, target: &Value, node: Option<&str>) -> rig::Result<Value> {
        let claim = json!({"claimName": text(&self.prime(target), "/metadata/name")});
        let mounts = json!([{"name": "target", "mountPath": "/mnt"}]);
        let mut pod = self.pod(target);
        let spec = json!({
            "containers": [{"name": "populate", "image": "none", "volumeMounts": mounts}],
            "restartPolicy": "Never",
            "volumes": [{"name": "target", "persistentVolumeClaim": claim}],
            "nodeName": node,
        });
        merge(&mut pod, &json!({"spec": spec}));
        self.objects.create(&pod).await
    }

    /// Binds the volume to the target claim. The binder does the rest.
    async fn rebind(&self, prime: &Value, target: &Value) -> Result<(), Failure> {
        let volume = reference("v1", "PersistentVolume", None, text(prime, "/spec/volumeName"));
        let volume = self.objects.get(&volume).await?.ok_or("no volume")?;
        let metadata = &target["metadata"];
        if volume["spec"]["claimRef"]["uid"] == metadata["uid"] {
            return Ok(());
        }
        let claim = json!({
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        });
        match self.style {
            Style::LibVolumePopulator => {
                let from = format!("{}/source", text(target, "/metadata/namespace"));
                let patch = json!({
                    "metadata": {
                        "name": volume["metadata"]["name"],
                        "annotations": {"hello.example.com/populated-from": from},
                    },
                    "spec": {"claimRef": claim},
                    "status": {},
                });
                self.objects.strategic_patch(&volume, patch).await?;
            }
            Style::Cdi => {
                let version = &volume["metadata"]["resourceVersion"];
                let update = json!([
                    {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                    {"op": "replace", "path": "/spec/claimRef", "value": claim},
                ]);
                self.objects.json_patch(&volume, update).await?;
            }
        }
        Ok(())
    }

    fn is_finished(&self, prime: &Value, target: &Value) -> bool {
        match self.style {
            Style::LibVolumePopulator => prime["status"]["phase"] == "Lost",
            Style::Cdi => target["status"]["phase"] == "Bound",
        }
    }

    fn finalizer(&self) -> Option<&'static str> {
        (self.style == Style::LibVolumePopulator).then_some("hello.example.com/populate-target-protection")
    }

    async fn protect(&self, target: &Value) -> Result<(), Failure> {
        let finalizers = target["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let Some(own) = self
            .finalizer()
            .filter(|own| !finalizers.iter().any(|name| name == own))
        else {
            return Ok(());
        };
        let patch = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": finalizers},
            {"op": "add", "path": "/metadata/finalizers/-", "value": own},
        ]);
        self.objects.json_patch(target, patch).await?;
        Ok(())
    }

    async fn unprotect(&self, target: &Value) -> Result<(), Failure> {
        let finalizers = target["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let own = self.finalizer();
        let Some(index) = finalizers
            .iter()
            .position(|name| Some(name.as_str().unwrap_or_default()) == own)
        else {
            return Ok(());
        };
        let path = format!("/metadata/finalizers/{index}");
        let patch = json!([
            {"op": "test", "path": path, "value": own},
            {"op": "remove", "path": path},
        ]);
        self.objects.json_patch(target, patch).await?;
        Ok(())
    }

    /// Writes a file `data` to the volume of the prime claim, and reports that the pod succeeded, as its kubelet would.
    /// `directory` returns the directory of a volume. Returns the volume.
    pub async fn run_pod(
        &self,
        target: &Value,
        content: &str,
        directory: impl Fn(&Value) -> Result<std::path::PathBuf, Failure>,
    ) -> Result<Value, Failure> {
        let volume = self.objects.wait_volume(&self.prime(target), TIMEOUT).await?;
        let root = directory(&volume)?;
        std::fs::write(Path::new(&root).join("data"), content)?;
        let succeeded = json!({"status": {"phase": "Succeeded"}});
        self.objects.patch_status(&self.pod(target), succeeded).await?;
        Ok(volume)
    }
}
