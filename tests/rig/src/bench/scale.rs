//! Many claims on several backends: resources of the operator with bound claims, after a restart, and while it is idle.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::{
    BenchOptions, MemorySamples, Throughput,
    env::{BenchEnv, EnvSettings, NAME, is_bound},
    progress, table,
    targets::{self, Bound, Target},
    workload::{self, ProvisionedClaim},
};
use crate::{error::Result, objects::reference, operator::Operator, run_dir::RunDir, wait};

const BACKENDS: usize = 5;
/// A series that exists when the first scan of a backend is complete.
const SCAN_DURATION_SERIES: &str = "nfs_operator_backend_scan_duration_seconds{";
/// Number of volumes of a backend that the operator checks in a second.
const CHECKS_PER_SECOND: usize = 10;
/// Additional time for the records and on a busy machine.
const SCAN_TIMEOUT: Duration = Duration::from_secs(300);
/// Two probes of each backend.
const IDLE: Duration = Duration::from_secs(60);

/// Runs the benchmark and prints its results.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims on {BACKENDS} backends, {} at the same time; load at the start {}.",
        options.concurrency,
        table::load()
    );
    let settings = EnvSettings {
        backends: BACKENDS,
        ..EnvSettings::new(&options.operator)
    };
    let mut env = BenchEnv::start(run, settings).await?;
    env.stop_binder().await?;
    let mut memory = MemorySamples::default();
    let mut counts = Vec::new();
    let mut operator = env.start_operator(run).await?;
    memory.record("at the start", &operator)?;

    progress("claims to volumes");
    let (provisioned, throughput) = provision(&env, options, claims).await?;
    counts.push((
        "claims to volumes, per second",
        format!("{:.0}", throughput.per_second()),
    ));
    memory.record("with the claims provisioned", &operator)?;
    progress("the benchmark binds the claims in place of the binder");
    workload::bind(&env, &provisioned, options).await?;
    env.wait_idle(&operator).await?;
    memory.record("with the claims bound", &operator)?;

    progress("the operator restarts");
    let started = Instant::now();
    operator.restart().await?;
    operator.wait_ready().await?;
    let start = started.elapsed().as_secs_f64();
    let mut restarted = MemorySamples::default();
    restarted.record("after a restart, as soon as it is ready", &operator)?;
    env.wait_idle(&operator).await?;
    restarted.record("after a restart, when it is idle", &operator)?;

    progress("the operator is idle");
    counts.push(("API requests in an idle minute", count_idle_requests(&env).await?));
    restarted.record("after an idle minute", &operator)?;
    let peak = restarted.peak();
    if !options.no_scan {
        progress("the operator scans all exports for orphans");
        counts.extend(scan(&env, &operator, claims).await?);
        restarted.record("after a scan for orphans", &operator)?;
    }
    memory.0.extend(restarted.0);
    let like = reference("v1", "PersistentVolumeClaim", Some(NAME), "any");
    let unbound = env.objects.count(&like, |claim| !is_bound(claim)).await?;
    counts.push(("claims that are not Bound", unbound.to_string()));
    counts.push(("directories on the exports", env.directories()?.to_string()));
    println!("\n{}", memory.table());
    println!("{}", table::counts(&counts));
    let targets = [
        Target::new(
            format!("peak with {claims} bound volumes, from a start to an idle minute"),
            "MiB",
            Bound::AtMost(64.0),
            peak,
        ),
        Target::new(
            format!("start with {claims} volumes until ready"),
            "s",
            Bound::AtMost(10.0),
            start,
        ),
    ];
    println!("{}", targets::render(&targets));
    operator.terminate().await?;
    env.stop().await
}

/// Creates the claims and waits for their volumes.
async fn provision(
    env: &BenchEnv,
    options: &BenchOptions,
    claims: usize,
) -> Result<(Vec<ProvisionedClaim>, Throughput)> {
    let many = BenchOptions {
        count: claims,
        ..options.clone()
    };
    let (provisioned, throughput, _) = workload::create(env, &many, NAME).await?;
    Ok((provisioned, throughput))
}

/// Scans all backends at once, and returns the duration and costs.
async fn scan(env: &BenchEnv, operator: &Operator, claims: usize) -> Result<[(&'static str, String); 4]> {
    let (before, used, began) = (
        workload::count_requests(env, |_| true)?,
        env.cpu_usage(Some(operator))?,
        Instant::now(),
    );
    env.request_scans().await?;
    let timeout = SCAN_TIMEOUT + Duration::from_secs((claims / BACKENDS / CHECKS_PER_SECOND) as u64);
    let max = AtomicU64::new(0);
    wait::until("all exports to be scanned", timeout, async || {
        let resident = operator.resident_bytes().map_err(|error| error.to_string())?;
        max.fetch_max(resident, Ordering::Relaxed);
        let metrics = operator.metrics().await.map_err(|error| error.to_string())?;
        let scanned = metrics
            .lines()
            .filter(|line| line.starts_with(SCAN_DURATION_SERIES))
            .count();
        if scanned == BACKENDS {
            Ok(())
        } else {
            Err(format!("{scanned} of {BACKENDS}"))
        }
    })
    .await?;
    let seconds = began.elapsed().as_secs_f64();
    let used = env.cpu_usage(Some(operator))?.since(&used);
    Ok([
        ("duration of a scan for orphans, s", format!("{seconds:.0}")),
        (
            "API requests during the scan",
            (workload::count_requests(env, |_| true)? - before).to_string(),
        ),
        (
            "CPU of the operator during the scan",
            format!("{:.1} %", 100.0 * used.operator / seconds),
        ),
        (
            "maximum resident memory during the scan, MiB",
            format!("{:.1}", max.into_inner() as f64 / table::MEBIBYTE),
        ),
    ])
}

/// Counts the operator's requests in the audit log while it is idle. A watch is counted when it ends.
async fn count_idle_requests(env: &BenchEnv) -> Result<String> {
    let before = workload::count_requests(env, |_| true)?;
    tokio::time::sleep(IDLE).await;
    Ok((workload::count_requests(env, |_| true)? - before).to_string())
}
