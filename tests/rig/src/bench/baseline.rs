//! Two baselines without an NFS server, under the operator's account: a bare client that makes the same API requests as
//! the operator, in its order, and the floor: a client that only creates the volume of each claim, and only deletes it.

use std::{collections::HashSet, fmt::Debug, future::ready, time::Instant};

use futures::{Stream, StreamExt as _, TryStreamExt as _, future};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    jiff::Timestamp,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    BenchOptions, Throughput,
    env::{BenchEnv, CpuUsage, NAME},
    table::load,
    workload::{self, ProvisionedClaim, uid},
};
use crate::{
    error::{Error, Result, ResultExt as _},
    objects::{Objects, reference, with_fields},
};

/// The operator's own names, because its account may write no others. The operator does not run meanwhile.
const PROVISIONER: &str = "nfs-operator.io/nfs";
const FINALIZER: &str = "nfs-operator.io/reclaim";
/// As long as the message of the operator's condition.
const NOTE: &str =
    "volume pvc-00000000-0000-0000-0000-000000000000 is 127.0.0.1:/export/bench-claim-00000-0 on backend bench";
/// API server, etcd and connections are warm when the operator is measured, so they must be warm for the baseline.
const WARM_UP: usize = 100;

/// A client that measures the baselines.
pub struct Baseline {
    /// With all permissions, for the actions of users, the binder and the benchmark.
    objects: Objects,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
}

/// Which requests a baseline makes for a claim.
#[derive(Clone, Copy, Debug)]
enum Requests {
    SameAsOperator,
    OnlyVolume,
}

/// The results of the baselines.
#[derive(Debug)]
pub struct BaselineResult {
    pub claims: (Throughput, CpuUsage),
    pub deletes: (Throughput, CpuUsage),
    /// Claims of which only the bare volume is created.
    pub floor_claims: Throughput,
    /// Deletions of volumes without a finalizer.
    pub floor_deletes: Throughput,
    pub load: String,
}

impl Baseline {
    pub fn new(env: &BenchEnv) -> Self {
        let account = || env.account.clone();
        Self {
            objects: env.objects.clone(),
            claims: Api::namespaced(account(), NAME),
            volumes: Api::all(account()),
        }
    }

    /// Measures claims and deletes.
    pub async fn measure(&self, env: &BenchEnv, options: &BenchOptions) -> Result<BaselineResult> {
        let before = env.cpu_usage(None)?;
        let (claims, throughput) = self.create(options, Requests::SameAsOperator).await?;
        let creation = (throughput, env.cpu_usage(None)?.since(&before));
        self.release(&claims, options, &[FINALIZER]).await?;
        let before = env.cpu_usage(None)?;
        let throughput = self.reclaim(&claims, options).await?;
        let deletion = (throughput, env.cpu_usage(None)?.since(&before));
        let (bare, floor_claims) = self.create(options, Requests::OnlyVolume).await?;
        self.release(&bare, options, &[]).await?;
        let floor_deletes = self.delete(&bare, options).await?;
        Ok(BaselineResult {
            claims: creation,
            deletes: deletion,
            floor_claims,
            floor_deletes,
            load: load(),
        })
    }

    /// Runs all phases without measuring them.
    pub async fn warm_up(&self, options: &BenchOptions) -> Result<()> {
        let few = BenchOptions {
            count: WARM_UP,
            ..options.clone()
        };
        let (claims, _) = self.create(&few, Requests::SameAsOperator).await?;
        self.release(&claims, &few, &[FINALIZER]).await?;
        self.reclaim(&claims, &few).await.map(drop)
    }

    /// Creates claims and what the operator writes for them. The duration ends with the last volume.
    async fn create(&self, options: &BenchOptions, requests: Requests) -> Result<(Vec<ProvisionedClaim>, Throughput)> {
        let batch = crate::random_suffix();
        let create = async |number| {
            let name = format!("baseline-{batch}-{number}");
            match requests {
                Requests::SameAsOperator => self.create_one(name).await,
                Requests::OnlyVolume => self.create_bare(name).await,
            }
        };
        let (claims, throughput, _) = workload::create_each(options, create).await?;
        Ok((claims, throughput))
    }

    /// Creates the bare volume of each claim that the binder annotates, and reclaims it once it is released: the fastest
    /// provisioner that waits for the binder. Ends only with an error.
    pub async fn provision(&self) -> Result<()> {
        let mut provisioned = HashSet::new();
        let claims = applied(&self.claims)
            .filter(|claim| {
                let is_requested = claim.annotations().contains_key(workload::STORAGE_PROVISIONER);
                ready(is_requested && provisioned.insert(claim.uid()))
            })
            .map(Ok)
            .try_for_each_concurrent(None, async |claim| {
                let volume = format!("pvc-{}", claim.uid().unwrap_or_default());
                let claim = serde_json::to_value(&claim).with_context(|| format!("encode the claim of {volume}"))?;
                self.create_volume(&volume, &claim).await
            });
        let mut released = HashSet::new();
        let volumes = applied(&self.volumes)
            .filter(|volume| {
                let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
                ready(phase == Some("Released") && released.insert(volume.uid()))
            })
            .map(Ok)
            .try_for_each_concurrent(None, async |volume| {
                let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
                let claim = claim.and_then(|claim| claim.name).unwrap_or_default();
                let volume = volume.name_any();
                self.reclaim_one(&ProvisionedClaim { claim, volume }).await
            });
        future::try_join(claims, volumes).await.map(drop)
    }

    async fn create_bare(&self, name: String) -> Result<(ProvisionedClaim, Instant)> {
        let claim = self.objects.create(&workload::claim(&name, Some(PROVISIONER))).await?;
        let volume = format!("pvc-{}", uid(&claim)?);
        self.create_volume(&volume, &claim).await?;
        Ok((ProvisionedClaim { claim: name, volume }, Instant::now()))
    }

    async fn create_volume(&self, name: &str, claim: &Value) -> Result<()> {
        let object: PersistentVolume =
            serde_json::from_value(volume_object(name, claim)).with_context(|| "create a volume".into())?;
        let created = self.volumes.create(&PostParams::default(), &object).await;
        created.with_context(|| format!("create {name}")).map(drop)
    }

    async fn create_one(&self, name: String) -> Result<(ProvisionedClaim, Instant)> {
        let claim = self.objects.create(&workload::claim(&name, Some(PROVISIONER))).await?;
        let uid = uid(&claim)?.to_owned();
        let volume = format!("pvc-{uid}");
        self.create_volume(&volume, &claim).await?;
        let created = Instant::now();
        let condition = json!({ "metadata": { "uid": uid }, "status": { "conditions": [{
            "type": "nfs-operator.io/Provisioned", "status": "True", "reason": "Provisioned", "message": NOTE,
            "lastTransitionTime": Timestamp::now().strftime("%FT%TZ").to_string(),
        }] } });
        let written = self
            .claims
            .patch_status(&name, &PatchParams::default(), &Patch::Strategic(&condition))
            .await;
        written.with_context(|| format!("set the condition of claim {name}"))?;
        Ok((ProvisionedClaim { claim: name, volume }, created))
    }

    /// Deletes the claims, and releases the volumes with these finalizers. This is not measured.
    pub async fn release(
        &self,
        claims: &[ProvisionedClaim],
        options: &BenchOptions,
        finalizers: &[&str],
    ) -> Result<()> {
        workload::for_each(claims, options, async |claim| {
            let volume = reference("v1", "PersistentVolume", None, &claim.volume);
            let finalizers = json!({ "metadata": { "finalizers": finalizers } });
            self.objects.patch(&volume, finalizers).await?;
            workload::remove_claim(&self.objects, &claim.claim).await?;
            self.objects
                .patch_status(&volume, json!({ "status": { "phase": "Released" } }))
                .await
                .map(drop)
        })
        .await
    }

    /// Deletes volumes that have no finalizer, with one request each.
    async fn delete(&self, claims: &[ProvisionedClaim], options: &BenchOptions) -> Result<Throughput> {
        let started = Instant::now();
        workload::for_each(claims, options, async |claim| {
            let deleted = self.volumes.delete(&claim.volume, &DeleteParams::default()).await;
            deleted.with_context(|| format!("delete {}", claim.volume)).map(drop)
        })
        .await?;
        Ok(Throughput::new(claims.len(), started.elapsed()))
    }

    /// Reclaims released volumes with the operator's requests: read the volume and the claim, delete the volume, and
    /// remove its finalizer.
    pub async fn reclaim(&self, claims: &[ProvisionedClaim], options: &BenchOptions) -> Result<Throughput> {
        let started = Instant::now();
        workload::for_each(claims, options, async |claim| self.reclaim_one(claim).await).await?;
        Ok(Throughput::new(claims.len(), started.elapsed()))
    }

    async fn reclaim_one(&self, claim: &ProvisionedClaim) -> Result<()> {
        let name = &claim.volume;
        let action = || format!("reclaim {name}");
        let volume = self.volumes.get(name).await.with_context(action)?;
        if self.claims.get_opt(&claim.claim).await.with_context(action)?.is_some() {
            return Err(Error::Usage(format!("claim {} should not exist", claim.claim)));
        }
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: volume.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        self.volumes.delete(name, &params).await.with_context(action)?;
        let operations = json!([
            { "op": "test", "path": "/metadata/uid", "value": volume.uid() },
            { "op": "test", "path": "/metadata/finalizers/0", "value": FINALIZER },
            { "op": "remove", "path": "/metadata/finalizers/0" },
        ]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(operations).with_context(action)?);
        let patched = self.volumes.patch(name, &PatchParams::default(), &patch).await;
        patched.with_context(action).map(drop)
    }
}

/// Returns the objects that exist, and each again whenever it changes. The watch recovers from errors.
fn applied<K>(api: &Api<K>) -> impl Stream<Item = K> + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api.clone(), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .filter_map(|object| ready(object.ok()))
}

/// Returns a volume of the same size as the operator's.
fn volume_object(name: &str, claim: &Value) -> Value {
    let about = |pointer| claim.pointer(pointer).cloned().unwrap_or_default();
    let directory = format!("{NAME}-{}-{name}", about("/metadata/name").as_str().unwrap_or_default());
    let fields = json!({
        "metadata": {
            "finalizers": [FINALIZER],
            "annotations": {
                "pv.kubernetes.io/provisioned-by": PROVISIONER,
                "nfs-operator.io/backend": NAME,
                "nfs-operator.io/export-id": about("/metadata/uid"),
                "nfs-operator.io/directory": directory,
                "nfs-operator.io/file-id": "1234567",
                "nfs-operator.io/namespace-uid": about("/metadata/uid"),
            },
        },
        "spec": {
            "accessModes": about("/spec/accessModes"),
            "capacity": { "storage": "1Mi" },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAME,
                "name": about("/metadata/name"), "uid": about("/metadata/uid"),
                "resourceVersion": about("/metadata/resourceVersion"),
            },
            "mountOptions": ["nfsvers=4", "port=12345"],
            "nfs": { "server": "127.0.0.1", "path": format!("/elsewhere/{directory}") },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": NAME,
            "volumeMode": "Filesystem",
        },
    });
    with_fields(reference("v1", "PersistentVolume", None, name), fields)
}
