//! Many claims that fail: how often they are tried, and what a good claim notices of them.

use std::{
    fs,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    BenchOptions, Figures, progress,
    stage::{NAME, Stage},
    table, work,
};
use crate::{
    error::{Doing as _, Result},
    objects::{merge, reference},
    operator::Operator,
    run_dir::RunDir,
    wait,
};

/// The class of the claims that fail.
const FAILING: &str = "storm";
/// How long the storm is looked at. The first pauses are 15 s and 30 s, each up to half as long again: every claim is
/// tried again once at least, and few of them three times.
const WINDOW: Duration = Duration::from_secs(60);
/// Good claims, one after the other, before the storm and in it.
const GOOD: usize = 30;
/// First attempts a second on a machine that others use too.
const ATTEMPTS_A_SECOND: u64 = 20;

/// Measures, and prints the tables.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims that fail, with the default pauses; load at the start {}.",
        table::load()
    );
    let mut stage = Stage::start(run, options, 1).await?;
    let operator = stage.operator(run).await?;
    stage.without_binder().await?;
    let (mut figures, mut counts) = (Figures::default(), Vec::new());
    figures.remember("at the start", &operator)?;
    counts.push(("a good claim before the storm", good(&stage, "before").await?));

    progress("the storm begins");
    let began = Instant::now();
    raise(&stage, options, claims).await?;
    failed(&operator, claims).await?;
    counts.push((
        "until each had failed once",
        format!("{:.0} s", began.elapsed().as_secs_f64()),
    ));
    figures.remember("in the storm", &operator)?;

    progress("the storm goes on");
    let (began, attempts) = (Instant::now(), failures(&operator).await?);
    let (written, used) = (writes(&stage)?, stage.usage(Some(&operator))?);
    counts.push(("a good claim in the storm", good(&stage, "during").await?));
    tokio::time::sleep(WINDOW.saturating_sub(began.elapsed())).await;
    let seconds = began.elapsed().as_secs_f64();
    let attempts = failures(&operator).await? - attempts;
    let used = stage.usage(Some(&operator))?.since(&used);
    counts.extend([
        ("looked at for", format!("{seconds:.0} s")),
        (
            "attempts in that time, a claim",
            format!("{:.2}", attempts as f64 / claims as f64),
        ),
        ("attempts a second", format!("{:.0}", attempts as f64 / seconds)),
        (
            "writes to claims, an attempt",
            format!("{:.2}", (writes(&stage)? - written) as f64 / attempts.max(1) as f64),
        ),
        (
            "CPU of the operator",
            format!("{:.0} %", 100.0 * used.operator / seconds),
        ),
    ]);
    figures.remember("a minute later", &operator)?;
    println!("\n{}", table::counts(&counts));
    println!("{}", table::memory(&figures.memory, "no goal for a storm"));
    operator.terminate().await?;
    stage.stop().await
}

/// Creates the claims, each for a directory that is there and is nobody's.
async fn raise(stage: &Stage, options: &BenchOptions, claims: usize) -> Result<()> {
    let mut class = reference("storage.k8s.io/v1", "StorageClass", None, FAILING);
    let parameters = json!({ "pathPattern": "taken/${pvc.name}" });
    let rest = json!({ "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "parameters": parameters });
    merge(&mut class, &rest);
    stage.objects.create(&class).await?;
    let taken = stage.nfs.data_dir(&format!("/{NAME}"))?.join("taken");
    let made: Vec<Value> = (0..claims)
        .map(|number| {
            let name = format!("{FAILING}-{number}");
            let folder = taken.join(&name);
            fs::create_dir_all(&folder).doing(|| format!("make {}", folder.display()))?;
            let mut claim = work::claim(&name, Some("nfs-operator.io/nfs"));
            merge(&mut claim, &json!({ "spec": { "storageClassName": FAILING } }));
            Ok(claim)
        })
        .collect::<Result<_>>()?;
    stream::iter(&made)
        .map(|claim| stage.objects.create(claim))
        .buffer_unordered(options.concurrency)
        .try_for_each(async |_| Ok(()))
        .await
}

/// Waits until every claim of the storm says why it fails.
async fn failed(operator: &Operator, claims: usize) -> Result<()> {
    let patience = Duration::from_secs(60 + claims as u64 / ATTEMPTS_A_SECOND);
    let series = "nfs_operator_claims_waiting{reason=\"DirectoryExists\"}";
    wait::until("every claim to have failed once", patience, async || {
        match value(operator, series).await.map_err(|error| error.to_string())? {
            told if told >= claims as u64 => Ok(()),
            told => Err(format!("{told} of {claims}")),
        }
    })
    .await
}

/// Attempts of the storm that failed so far, by the operator's own count.
async fn failures(operator: &Operator) -> Result<u64> {
    let series = format!("controller_persistentvolumeclaim_provision_failed_total{{class=\"{FAILING}\",source=\"\"}}");
    value(operator, &series).await
}

async fn value(operator: &Operator, series: &str) -> Result<u64> {
    let metrics = operator.metrics().await?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(line.and_then(|value| value.parse().ok()).unwrap_or(0))
}

/// How long good claims wait for their volume, one after the other: the median and the longest.
async fn good(stage: &Stage, when: &str) -> Result<String> {
    let mut latencies = Vec::new();
    for number in 0..GOOD {
        let started = Instant::now();
        let claim = work::claim(&format!("good-{when}-{number}"), Some("nfs-operator.io/nfs"));
        let created = stage.objects.create(&claim).await?;
        let volume = format!("pvc-{}", work::uid(&created)?);
        latencies.push(stage.sightings.appeared(&volume).await?.duration_since(started));
    }
    latencies.sort();
    let millis = |latency: Option<&Duration>| latency.map_or(0.0, |latency| latency.as_secs_f64() * 1e3);
    let (median, longest) = (millis(latencies.get(GOOD / 2)), millis(latencies.last()));
    Ok(format!("{median:.0} ms, the longest of {GOOD} {longest:.0} ms"))
}

/// What the operator wrote to claims of the storm, by the API server's audit log.
fn writes(stage: &Stage) -> Result<usize> {
    let log = stage.cluster.audit_log();
    let text = fs::read_to_string(&log).doing(|| format!("read {}", log.display()))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let about = |event: &Value, pointer: &str| event.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let written = events.filter(|event| {
        let is = |pointer: &str, ends: &str| about(event, pointer).is_some_and(|text| text.ends_with(ends));
        let named = about(event, "/objectRef/name").is_some_and(|name| name.starts_with(FAILING));
        named
            && is("/user/username", ":nfs-operator")
            && is("/objectRef/resource", "persistentvolumeclaims")
            && is("/stage", "ResponseComplete")
            && is("/verb", "patch")
    });
    Ok(written.count())
}
