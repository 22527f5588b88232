//! Actions of users and of the binder that cause work for the operator.

use std::{
    fs,
    io::{BufRead as _, BufReader},
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
    objects::{Objects, condition, reference, with_fields},
    operator::{Operator, USERNAME},
    wait,
};

/// The operator writes a condition immediately after it creates a volume.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);
/// Lower limit for the timeout: first attempts per second on a busy machine.
const MIN_ATTEMPTS_PER_SECOND: usize = 20;
/// The annotation by which the binder requests provisioning.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// A claim and its volume.
#[derive(Clone, Debug)]
pub struct ProvisionedClaim {
    pub claim: String,
    pub volume: String,
}

/// Returns a claim of the benchmark's class; with `provisioner`, as the binder annotates it.
pub fn claim(name: &str, provisioner: Option<&str>) -> Value {
    let spec = json!({
        "storageClassName": NAME,
        "accessModes": ["ReadWriteMany"],
        "resources": { "requests": { "storage": "1Mi" } },
    });
    // No annotations without a provisioner: `null` is left out.
    let annotations = json!({ STORAGE_PROVISIONER: provisioner });
    let fields = json!({ "metadata": { "annotations": annotations }, "spec": spec });
    with_fields(reference("v1", "PersistentVolumeClaim", Some(NAME), name), fields)
}

/// Creates a class and claims of it, as the binder annotates them. Their names begin with the name of the class.
pub async fn create_claims_of_class(
    env: &BenchEnv,
    options: &BenchOptions,
    name: &str,
    parameters: Value,
    claims: usize,
) -> Result<()> {
    env.create_class(name, parameters).await?;
    let all: Vec<usize> = (0..claims).collect();
    for_each(&all, options, async |number| {
        let claim = claim(&format!("{name}-{number}"), Some("nfs-operator.io/nfs"));
        let claim = with_fields(claim, json!({ "spec": { "storageClassName": name } }));
        env.objects.create(&claim).await.map(drop)
    })
    .await
}

/// Creates a claim of a class, as the binder annotates it, and returns the time until its volume exists.
pub async fn measure_latency(env: &BenchEnv, name: &str, class: &str) -> Result<Duration> {
    let claim = claim(name, Some("nfs-operator.io/nfs"));
    let claim = with_fields(claim, json!({ "spec": { "storageClassName": class } }));
    let started = Instant::now();
    let created = env.objects.create(&claim).await?;
    let volume = format!("pvc-{}", uid(&created)?);
    Ok(env.volumes.wait_created(&volume).await?.duration_since(started))
}

/// Waits until this number of claims report a reason why they have no volume.
pub async fn wait_for_reason(operator: &Operator, reason: &str, claims: usize) -> Result<()> {
    let timeout = CONDITION_TIMEOUT + Duration::from_secs((claims / MIN_ATTEMPTS_PER_SECOND) as u64);
    let series = format!("nfs_operator_claims_waiting{{reason=\"{reason}\"}}");
    wait::until(
        "every claim to report why it has no volume",
        timeout,
        async || match metric(operator, &series).await.map_err(|error| error.to_string())? {
            waiting if waiting >= claims as u64 => Ok(()),
            waiting => Err(format!("{waiting} of {claims}")),
        },
    )
    .await
}

/// Returns the value of one of the operator's metrics; 0 if the series does not exist.
pub async fn metric(operator: &Operator, series: &str) -> Result<u64> {
    let metrics = operator.metrics().await?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(line.and_then(|value| value.parse().ok()).unwrap_or(0))
}

/// Counts the operator's patches of claims whose names have a prefix, in the audit log.
pub fn count_claim_patches(env: &BenchEnv, prefix: &str) -> Result<usize> {
    count_requests(env, |event| {
        let name = event.pointer("/objectRef/name").and_then(Value::as_str);
        name.is_some_and(|name| name.starts_with(prefix))
            && event.pointer("/objectRef/resource") == Some(&json!("persistentvolumeclaims"))
            && event["verb"] == "patch"
    })
}

/// Counts the operator's completed requests that match, in the audit log of the API server.
pub fn count_requests(env: &BenchEnv, matches: impl Fn(&Value) -> bool) -> Result<usize> {
    let log = env.cluster.audit_log();
    let file = fs::File::open(&log).with_context(|| format!("open {}", log.display()))?;
    let is_operators = |event: &Value| {
        event.pointer("/user/username") == Some(&json!(USERNAME)) && event["stage"] == "ResponseComplete"
    };
    let mut found = 0;
    for line in BufReader::new(file).lines() {
        let line = line.with_context(|| format!("read {}", log.display()))?;
        // The last line may be incomplete.
        let event = serde_json::from_str::<Value>(&line).ok();
        found += usize::from(event.is_some_and(|event| is_operators(&event) && matches(&event)));
    }
    Ok(found)
}

/// Counts the operator's requests about single objects of users and their events.
pub fn count_object_requests(env: &BenchEnv) -> Result<usize> {
    count_requests(env, |event| {
        let resource = event.pointer("/objectRef/resource").and_then(Value::as_str);
        let is_about_users = matches!(
            resource,
            Some("persistentvolumeclaims" | "persistentvolumes" | "events" | "nfsarchives")
        );
        is_about_users && event["verb"] != "list" && event["verb"] != "watch"
    })
}

/// Returns an object's uid.
pub fn uid(object: &Value) -> Result<&str> {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
    uid.ok_or_else(|| Error::Usage(format!("the object has no uid: {object}")))
}

/// Creates claims of a class and waits for their volumes. Also returns the time between the last volume and the last
/// condition.
pub async fn create(
    env: &BenchEnv,
    options: &BenchOptions,
    class: &str,
) -> Result<(Vec<ProvisionedClaim>, Throughput, Duration)> {
    let batch = crate::random_suffix();
    let (claims, throughput, last) = create_each(options, async |number| {
        let name = format!("claim-{batch}-{number}");
        let claim = claim(&name, Some("nfs-operator.io/nfs"));
        let claim = with_fields(claim, json!({ "spec": { "storageClassName": class } }));
        let claim = env.objects.create(&claim).await?;
        let volume = format!("pvc-{}", uid(&claim)?);
        let created = env.volumes.wait_created(&volume).await?;
        Ok((ProvisionedClaim { claim: name, volume }, created))
    })
    .await?;
    wait_for_conditions(env, claims.len()).await?;
    Ok((claims, throughput, last.elapsed()))
}

/// Runs `create` for each claim with limited concurrency. It returns when its volume was created. Returns the throughput
/// up to the last volume, and when that was created.
pub async fn create_each(
    options: &BenchOptions,
    create: impl AsyncFn(usize) -> Result<(ProvisionedClaim, Instant)>,
) -> Result<(Vec<ProvisionedClaim>, Throughput, Instant)> {
    let started = Instant::now();
    let created: Vec<(ProvisionedClaim, Instant)> = stream::iter(0..options.count)
        .map(|number| create(number))
        .buffer_unordered(options.concurrency)
        .try_collect()
        .await?;
    let last = created.iter().map(|(_, time)| *time).max().unwrap_or(started);
    let claims: Vec<ProvisionedClaim> = created.into_iter().map(|(claim, _)| claim).collect();
    let throughput = Throughput::new(claims.len(), last.duration_since(started));
    Ok((claims, throughput, last))
}

/// Waits until every claim has the condition Provisioned.
async fn wait_for_conditions(env: &BenchEnv, count: usize) -> Result<()> {
    let like = reference("v1", "PersistentVolumeClaim", Some(NAME), "any");
    let is_provisioned = |claim: &Value| {
        condition(claim, "nfs-operator.io/Provisioned").is_some_and(|condition| condition["status"] == "True")
    };
    let expected = (count, CONDITION_TIMEOUT);
    env.objects
        .wait_count(&like, "the condition of every claim", expected, is_provisioned)
        .await
}

/// Binds claims to their volumes as the binder does, at a hundred times its rate in most clusters.
pub async fn bind(env: &BenchEnv, claims: &[ProvisionedClaim], options: &BenchOptions) -> Result<()> {
    for_each(claims, options, async |claim| {
        let volume = reference("v1", "PersistentVolume", None, &claim.volume);
        let bound = json!({ "status": { "phase": "Bound" } });
        env.objects.patch_status(&volume, bound).await?;
        let object = reference("v1", "PersistentVolumeClaim", Some(NAME), &claim.claim);
        let annotations =
            json!({ "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes" });
        let bound = json!({ "metadata": { "annotations": annotations }, "spec": { "volumeName": claim.volume } });
        env.objects.patch(&object, bound).await?;
        let bound = json!({ "status": {
            "phase": "Bound", "accessModes": ["ReadWriteMany"], "capacity": { "storage": "1Mi" },
        } });
        env.objects.patch_status(&object, bound).await.map(drop)
    })
    .await
}

/// Writes a file to each directory and deletes the claims. Without the controller manager, nothing releases the volumes
/// or removes the finalizers of the protection controllers.
pub async fn prepare_release(env: &BenchEnv, claims: &[ProvisionedClaim], options: &BenchOptions) -> Result<()> {
    for_each(claims, options, async |claim| {
        let volume = reference("v1", "PersistentVolume", None, &claim.volume);
        let found = env.objects.get(&volume).await?.unwrap_or_default();
        let file = env.directory(&found)?.join("file");
        fs::write(&file, "data of a pod\n").with_context(|| format!("write {}", file.display()))?;
        let finalizers = json!({ "metadata": { "finalizers": ["nfs-operator.io/reclaim"] } });
        env.objects.patch(&volume, finalizers).await?;
        remove_claim(&env.objects, &claim.claim).await
    })
    .await
}

/// Deletes a claim as if its protection controller had released it.
pub async fn remove_claim(objects: &Objects, name: &str) -> Result<()> {
    let claim = reference("v1", "PersistentVolumeClaim", Some(NAME), name);
    objects
        .patch(&claim, json!({ "metadata": { "finalizers": null } }))
        .await?;
    objects.delete(&claim).await
}

/// Sets the phase of volumes to Released, as the binder does.
pub async fn release(env: &BenchEnv, claims: &[ProvisionedClaim], options: &BenchOptions) -> Result<()> {
    for_each(claims, options, async |claim| {
        let volume = reference("v1", "PersistentVolume", None, &claim.volume);
        env.objects
            .patch_status(&volume, json!({ "status": { "phase": "Released" } }))
            .await
            .map(drop)
    })
    .await
}

/// Waits until all volumes are deleted.
pub async fn wait_deleted(env: &BenchEnv, claims: &[ProvisionedClaim]) -> Result<Throughput> {
    let started = Instant::now();
    let times = try_join_all(claims.iter().map(|claim| env.volumes.wait_deleted(&claim.volume))).await?;
    let last = times.into_iter().max().unwrap_or(started);
    Ok(Throughput::new(claims.len(), last.duration_since(started)))
}

/// Runs `work` for each item, with limited concurrency.
pub async fn for_each<T>(items: &[T], options: &BenchOptions, work: impl AsyncFn(&T) -> Result<()>) -> Result<()> {
    stream::iter(items)
        .map(|item| work(item))
        .buffer_unordered(options.concurrency)
        .try_collect()
        .await
}
