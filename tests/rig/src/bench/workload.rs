//! What the operator is given to do.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use serde_json::{Value, json};

use super::{
    BenchOptions, Throughput,
    env::{BenchEnv, NAME},
};
use crate::{
    error::{Error, Result, ResultExt as _},
    objects::{Objects, condition, merge, reference},
    operator::Operator,
    wait,
};

/// A condition follows its volume at once.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);
/// First attempts a second on a machine that others use too.
const MIN_ATTEMPTS_PER_SECOND: usize = 20;
/// What the binder writes when it wants a claim provisioned.
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// A claim that has its volume.
#[derive(Clone, Debug)]
pub struct ProvisionedClaim {
    pub claim: String,
    pub volume: String,
}

/// A claim of the bench's class; `asked`: as the binder leaves it.
pub fn claim(name: &str, asked: Option<&str>) -> Value {
    let mut claim = reference("v1", "PersistentVolumeClaim", Some(NAME), name);
    let spec = json!({
        "storageClassName": NAME,
        "accessModes": ["ReadWriteMany"],
        "resources": { "requests": { "storage": "1Mi" } },
    });
    merge(&mut claim, &json!({ "spec": spec }));
    if let Some(provisioner) = asked {
        merge(
            &mut claim,
            &json!({ "metadata": { "annotations": { STORAGE_PROVISIONER: provisioner } } }),
        );
    }
    claim
}

/// Creates so many claims of a class of their own, whose name theirs begin with, as the binder leaves them.
pub async fn create_waiting_claims(
    env: &BenchEnv,
    options: &BenchOptions,
    name: &str,
    parameters: Value,
    claims: usize,
) -> Result<()> {
    let mut class = reference("storage.k8s.io/v1", "StorageClass", None, name);
    let rest = json!({ "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "parameters": parameters });
    merge(&mut class, &rest);
    env.objects.create(&class).await?;
    let all: Vec<usize> = (0..claims).collect();
    for_each(&all, options, async |number| {
        let mut claim = claim(&format!("{name}-{number}"), Some("nfs-operator.io/nfs"));
        merge(&mut claim, &json!({ "spec": { "storageClassName": name } }));
        env.objects.create(&claim).await.map(drop)
    })
    .await
}

/// Waits until so many claims say that they have no volume for this reason.
pub async fn wait_for_reason(operator: &Operator, reason: &str, claims: usize) -> Result<()> {
    let timeout = CONDITION_TIMEOUT + Duration::from_secs((claims / MIN_ATTEMPTS_PER_SECOND) as u64);
    let series = format!("nfs_operator_claims_waiting{{reason=\"{reason}\"}}");
    wait::until(
        "every claim to say why it has no volume",
        timeout,
        async || match metric(operator, &series).await.map_err(|error| error.to_string())? {
            told if told >= claims as u64 => Ok(()),
            told => Err(format!("{told} of {claims}")),
        },
    )
    .await
}

/// The value of one of the operator's series, 0 where there is none.
pub async fn metric(operator: &Operator, series: &str) -> Result<u64> {
    let metrics = operator.metrics().await?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(line.and_then(|value| value.parse().ok()).unwrap_or(0))
}

/// What the operator wrote to claims whose names begin so, by the API server's audit log.
pub fn writes_to_claims(env: &BenchEnv, beginning: &str) -> Result<usize> {
    let log = env.cluster.audit_log();
    let text = fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let about = |event: &Value, pointer: &str| event.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let written = events.filter(|event| {
        let is = |pointer: &str, ends: &str| about(event, pointer).is_some_and(|text| text.ends_with(ends));
        let named = about(event, "/objectRef/name").is_some_and(|name| name.starts_with(beginning));
        named
            && is("/user/username", ":nfs-operator")
            && is("/objectRef/resource", "persistentvolumeclaims")
            && is("/env", "ResponseComplete")
            && is("/verb", "patch")
    });
    Ok(written.count())
}

/// The uid that the API server gave an object.
pub fn uid(object: &Value) -> Result<&str> {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
    uid.ok_or_else(|| Error::Usage(format!("an object without uid: {object}")))
}

/// Creates claims, so many outstanding at a time, until each has its volume. Also answers how long after the last
/// volume the last condition was written.
pub async fn create(env: &BenchEnv, options: &BenchOptions) -> Result<(Vec<ProvisionedClaim>, Throughput, Duration)> {
    let started = Instant::now();
    let batch = crate::random_suffix();
    let made: Vec<(ProvisionedClaim, Instant)> = stream::iter(0..options.count)
        .map(async |number| {
            let name = format!("claim-{batch}-{number}");
            let claim = env.objects.create(&claim(&name, Some("nfs-operator.io/nfs"))).await?;
            let volume = format!("pvc-{}", uid(&claim)?);
            let appeared = env.volumes_seen.wait_created(&volume).await?;
            Ok::<_, Error>((ProvisionedClaim { claim: name, volume }, appeared))
        })
        .buffer_unordered(options.concurrency)
        .try_collect()
        .await?;
    let last = made.iter().map(|(_, appeared)| *appeared).max().unwrap_or(started);
    let throughput = Throughput {
        count: made.len(),
        seconds: last.duration_since(started).as_secs_f64(),
    };
    let made: Vec<ProvisionedClaim> = made.into_iter().map(|(made, _)| made).collect();
    wait_for_conditions(env, made.len()).await?;
    Ok((made, throughput, last.elapsed()))
}

/// Waits until every claim's condition says that it was provisioned.
async fn wait_for_conditions(env: &BenchEnv, count: usize) -> Result<()> {
    let like = reference("v1", "PersistentVolumeClaim", Some(NAME), "any");
    wait::until("every claim's condition", CONDITION_TIMEOUT, async || {
        let claims = env.objects.list(&like).await.map_err(|error| error.to_string())?;
        let told = |claim: &&Value| {
            condition(claim, "nfs-operator.io/Provisioned").is_some_and(|told| told["status"] == "True")
        };
        match claims.iter().filter(told).count() {
            told if told >= count => Ok(()),
            told => Err(format!("{told} of {count}")),
        }
    })
    .await
}

/// Puts a file into each directory, so that there is something to keep or to delete, and removes the claims. Without
/// the controller manager nobody releases the volumes yet, nor drops the finalizers of its protection controllers.
pub async fn prepare_release(env: &BenchEnv, made: &[ProvisionedClaim], options: &BenchOptions) -> Result<()> {
    let root = format!("/{NAME}");
    let export = env.nfs.data_dir(&root)?;
    for_each(made, options, async |made| {
        let volume = reference("v1", "PersistentVolume", None, &made.volume);
        let found = env.objects.get(&volume).await?.unwrap_or_default();
        let path = found
            .pointer("/spec/nfs/path")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let file = export
            .join(Path::new(path).strip_prefix(&root).unwrap_or(Path::new("")))
            .join("file");
        fs::write(&file, "data of a pod\n").with_context(|| format!("write {}", file.display()))?;
        let unprotected = json!({ "metadata": { "finalizers": ["nfs-operator.io/reclaim"] } });
        env.objects.patch(&volume, unprotected).await?;
        remove_claim(&env.objects, &made.claim).await
    })
    .await
}

/// Removes a claim without its protection controller.
pub async fn remove_claim(objects: &Objects, name: &str) -> Result<()> {
    let claim = reference("v1", "PersistentVolumeClaim", Some(NAME), name);
    objects
        .patch(&claim, json!({ "metadata": { "finalizers": null } }))
        .await?;
    objects.delete(&claim).await
}

/// Says of each volume what the binder says when its claim is gone.
pub async fn release(env: &BenchEnv, made: &[ProvisionedClaim], options: &BenchOptions) -> Result<()> {
    for_each(made, options, async |made| {
        let volume = reference("v1", "PersistentVolume", None, &made.volume);
        env.objects
            .patch_status(&volume, json!({ "status": { "phase": "Released" } }))
            .await
            .map(drop)
    })
    .await
}

/// Waits from now until all volumes are gone.
pub async fn wait_deleted(env: &BenchEnv, made: &[ProvisionedClaim]) -> Result<Throughput> {
    let started = Instant::now();
    let moments = try_join_all(made.iter().map(|made| env.volumes_seen.wait_deleted(&made.volume))).await?;
    let last = moments.into_iter().max().unwrap_or(started);
    Ok(Throughput {
        count: made.len(),
        seconds: last.duration_since(started).as_secs_f64(),
    })
}

/// Does something to each, so many at a time.
pub async fn for_each<T>(items: &[T], options: &BenchOptions, work: impl AsyncFn(&T) -> Result<()>) -> Result<()> {
    stream::iter(items)
        .map(|item| work(item))
        .buffer_unordered(options.concurrency)
        .try_collect()
        .await
}
