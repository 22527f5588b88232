//! The bare client: it reads and writes the API objects that the operator does, in its order and under its account,
//! and has nothing to do with an NFS server.

use std::time::Instant;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        events::v1::Event,
    },
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use super::{
    BenchOptions, Throughput,
    env::{BenchEnv, CpuUsage, NAME},
    table::load,
    workload::{self, ProvisionedClaim, uid},
};
use crate::{
    error::{Error, Result, ResultExt as _},
    objects::{Objects, merge, reference},
};

/// Not the operator's: it leaves these objects alone.
const PROVISIONER: &str = "bench.example/floor";
const FINALIZER: &str = "bench.example/reclaim";
/// As long as the note that the operator sends with its good news.
const NOTE: &str =
    "volume pvc-00000000-0000-0000-0000-000000000000 is 127.0.0.1:/export/bench-claim-00000-0 on backend bench";
/// API server, etcd and connections are warm when the operator's turn comes, so they are for the floor.
const WARM_UP: usize = 100;

/// The bare client.
pub struct Baseline {
    /// With every right: what users, the binder and the bench do.
    objects: Objects,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    claim_events: Api<Event>,
    volume_events: Api<Event>,
}

/// The floor.
#[derive(Debug)]
pub struct BaselineResult {
    pub claims: (Throughput, CpuUsage),
    pub deletes: (Throughput, CpuUsage),
    pub load: String,
}

impl Baseline {
    pub fn new(env: &BenchEnv) -> Self {
        let account = || env.account.clone();
        Self {
            objects: env.objects.clone(),
            claims: Api::namespaced(account(), NAME),
            volumes: Api::all(account()),
            claim_events: Api::namespaced(account(), NAME),
            volume_events: Api::namespaced(account(), "default"),
        }
    }

    /// Claims and deletes, as the operator has them later.
    pub async fn measure(&self, env: &BenchEnv, options: &BenchOptions) -> Result<BaselineResult> {
        let before = env.cpu_usage(None)?;
        let (made, throughput) = self.create(options).await?;
        let claims = (throughput, env.cpu_usage(None)?.since(&before));
        self.release(&made, options).await?;
        let before = env.cpu_usage(None)?;
        let throughput = self.reclaim(&made, options).await?;
        let deletes = (throughput, env.cpu_usage(None)?.since(&before));
        Ok(BaselineResult {
            claims,
            deletes,
            load: load(),
        })
    }

    /// Does everything once, unmeasured.
    pub async fn warm_up(&self, options: &BenchOptions) -> Result<()> {
        let few = BenchOptions {
            count: WARM_UP,
            ..options.clone()
        };
        let (made, _) = self.create(&few).await?;
        self.release(&made, &few).await?;
        self.reclaim(&made, &few).await.map(drop)
    }

    /// Creates claims and all that the operator writes about them; paced up to the last volume.
    pub async fn create(&self, options: &BenchOptions) -> Result<(Vec<ProvisionedClaim>, Throughput)> {
        let started = Instant::now();
        let batch = crate::random_suffix();
        let made: Vec<(ProvisionedClaim, Instant)> = stream::iter(0..options.count)
            .map(|number| self.one(format!("floor-{batch}-{number}")))
            .buffer_unordered(options.concurrency)
            .try_collect()
            .await?;
        let last = made.iter().map(|(_, made)| *made).max().unwrap_or(started);
        let throughput = Throughput {
            count: made.len(),
            seconds: last.duration_since(started).as_secs_f64(),
        };
        Ok((made.into_iter().map(|(made, _)| made).collect(), throughput))
    }

    async fn one(&self, name: String) -> Result<(ProvisionedClaim, Instant)> {
        let claim = self.objects.create(&workload::claim(&name, Some(PROVISIONER))).await?;
        let uid = uid(&claim)?.to_owned();
        let volume = format!("pvc-{uid}");
        let regarding = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAME, "name": name, "uid": uid,
            "resourceVersion": claim.pointer("/metadata/resourceVersion"),
        });
        let told = |reason| send(&self.claim_events, &regarding, reason);
        let placed = json!({ "metadata": { "annotations": { "bench.example/placed-on": NAME } } });
        let placed = applied(&name, &uid, placed);
        let params = PatchParams::apply("bench/placement").force();
        let place = async {
            let written = self.claims.patch(&name, &params, &Patch::Apply(&placed)).await;
            written.with_context(|| format!("apply to claim {name}")).map(drop)
        };
        // Events go out beside the work, as the operator's do.
        futures::try_join!(told("Provisioning"), place)?;
        let object: PersistentVolume =
            serde_json::from_value(object(&volume, &claim)).with_context(|| "make a volume".into())?;
        self.volumes
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("create {volume}"))?;
        let made = Instant::now();
        let condition = json!({ "status": { "conditions": [{
            "type": "bench.example/Provisioned", "status": "True", "reason": "Provisioned", "message": NOTE,
            "lastTransitionTime": Timestamp::now().strftime("%FT%TZ").to_string(),
        }] } });
        let condition = applied(&name, &uid, condition);
        let params = PatchParams::apply("bench/condition").force();
        let tell = async {
            let written = self
                .claims
                .patch_status(&name, &params, &Patch::Apply(&condition))
                .await;
            written
                .with_context(|| format!("apply to claim {name}'s status"))
                .map(drop)
        };
        futures::try_join!(told("ProvisioningSucceeded"), tell)?;
        Ok((ProvisionedClaim { claim: name, volume }, made))
    }

    /// Removes the claims and releases the volumes, unmeasured.
    pub async fn release(&self, made: &[ProvisionedClaim], options: &BenchOptions) -> Result<()> {
        workload::for_each(made, options, async |made| {
            let volume = reference("v1", "PersistentVolume", None, &made.volume);
            let unprotected = json!({ "metadata": { "finalizers": [FINALIZER] } });
            self.objects.patch(&volume, unprotected).await?;
            workload::remove_claim(&self.objects, &made.claim).await?;
            self.objects
                .patch_status(&volume, json!({ "status": { "phase": "Released" } }))
                .await
                .map(drop)
        })
        .await
    }

    /// Takes released volumes away by the operator's calls: volume and claim read, volume deleted, read again, its
    /// finalizer dropped, an event.
    pub async fn reclaim(&self, made: &[ProvisionedClaim], options: &BenchOptions) -> Result<Throughput> {
        let started = Instant::now();
        workload::for_each(made, options, async |made| {
            let name = &made.volume;
            let action = || format!("reclaim {name}");
            let there = self.volumes.get(name).await.with_context(action)?;
            if self.claims.get_opt(&made.claim).await.with_context(action)?.is_some() {
                return Err(Error::Usage(format!("claim {} should be gone", made.claim)));
            }
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: there.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            self.volumes.delete(name, &params).await.with_context(action)?;
            let now = self.volumes.get(name).await.with_context(action)?;
            let patch = json!({ "metadata": {
                "uid": now.uid(), "resourceVersion": now.resource_version(), "finalizers": [],
            } });
            self.volumes
                .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .with_context(action)?;
            let regarding = json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "name": name, "uid": now.uid(),
                "resourceVersion": now.resource_version(),
            });
            send(&self.volume_events, &regarding, "VolumeDeleted").await
        })
        .await?;
        Ok(Throughput {
            count: made.len(),
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}

/// What an apply to a claim is made of.
fn applied(name: &str, uid: &str, mut fields: Value) -> Value {
    let identity = json!({ "metadata": { "namespace": NAME, "uid": uid } });
    merge(&mut fields, &reference("v1", "PersistentVolumeClaim", None, name));
    merge(&mut fields, &identity);
    fields
}

/// A volume of the size that the operator's have.
fn object(name: &str, claim: &Value) -> Value {
    let about = |pointer| claim.pointer(pointer).cloned().unwrap_or_default();
    let directory = format!("{NAME}-{}-{name}", about("/metadata/name").as_str().unwrap_or_default());
    let mut volume = reference("v1", "PersistentVolume", None, name);
    let rest = json!({
        "metadata": {
            "finalizers": [FINALIZER],
            "annotations": {
                "pv.kubernetes.io/provisioned-by": PROVISIONER,
                "bench.example/backend": NAME,
                "bench.example/export-id": about("/metadata/uid"),
                "bench.example/directory": directory,
                "bench.example/file-id": "1234567",
                "bench.example/namespace-uid": about("/metadata/uid"),
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
    merge(&mut volume, &rest);
    volume
}

async fn send(events: &Api<Event>, regarding: &Value, reason: &str) -> Result<()> {
    let action = || format!("send event {reason}");
    let now = Timestamp::now();
    let name = regarding["name"].as_str().unwrap_or_default();
    let namespace = regarding["namespace"].as_str().unwrap_or("default");
    let event: Event = serde_json::from_value(json!({
        "metadata": { "namespace": namespace, "name": format!("{name}.{:x}.{}", now.as_nanosecond(), reason.to_lowercase()) },
        "action": "Provision",
        "eventTime": now.strftime("%FT%T%.6fZ").to_string(),
        "note": NOTE,
        "reason": reason,
        "regarding": regarding,
        "reportingController": PROVISIONER,
        "reportingInstance": "bench",
        "type": "Normal",
    }))
    .with_context(action)?;
    events
        .create(&PostParams::default(), &event)
        .await
        .with_context(action)
        .map(drop)
}
