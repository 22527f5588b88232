//! Many claims on several backends: resources of the operator with bound claims, after a restart, and while it is idle.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{BenchOptions, Results, env::BenchEnv, progress, table, workload};
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
    let mut env = BenchEnv::start(run, options, BACKENDS).await?;
    let mut results = Results::default();
    let mut counts = Vec::new();
    let mut operator = env.start_operator(run).await?;
    results.record_memory("at the start", &operator)?;

    let provisioned = provision(&mut env, options, claims).await?;
    counts.push(("claims to volumes, per second", provisioned));
    results.record_memory("with the claims provisioned", &operator)?;
    progress("the binder binds the claims");
    let bound = bind(&mut env, claims).await?;
    counts.push(("claims that the binder bound", bound));
    env.wait_idle(&operator).await?;
    results.record_memory("with the claims bound", &operator)?;

    progress("the operator restarts");
    let started = Instant::now();
    operator.restart().await?;
    operator.wait_ready().await?;
    counts.push((
        "time from start to ready",
        format!("{:.2} s", started.elapsed().as_secs_f64()),
    ));
    env.wait_idle(&operator).await?;
    results.record_memory("after a restart", &operator)?;

    progress("the operator is idle");
    counts.push(("API requests in an idle minute", count_idle_requests(&env).await?));
    results.record_memory("after an idle minute", &operator)?;
    progress("the operator scans all exports for orphans");
    counts.extend(scan(&env, &operator, claims).await?);
    results.record_memory("after a scan for orphans", &operator)?;
    counts.push(("claims without a Bound volume", count_unbound(&env).await?.to_string()));
    counts.push(("directories on the exports", env.directories()?.to_string()));
    println!("\n{}", table::memory(&results.memory, "goal < 40 at 10,000 claims"));
    println!("{}", table::counts(&counts));
    operator.terminate().await?;
    env.stop().await
}

/// Creates the claims, waits for their volumes and returns the throughput.
async fn provision(env: &mut BenchEnv, options: &BenchOptions, claims: usize) -> Result<String> {
    progress("claims to volumes");
    env.stop_binder().await?;
    let many = BenchOptions {
        count: claims,
        ..options.clone()
    };
    let (_, throughput, _) = workload::create(env, &many).await?;
    Ok(format!("{:.0}", throughput.per_second()))
}

/// Waits until the claims are bound, and returns how many are.
async fn bind(env: &mut BenchEnv, claims: usize) -> Result<String> {
    env.bind(claims).await?;
    Ok(format!("{} of {claims}", claims - count_unbound(env).await?))
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

async fn count_unbound(env: &BenchEnv) -> Result<usize> {
    let like = reference("v1", "PersistentVolumeClaim", Some(super::env::NAME), "any");
    let claims = env.objects.list(&like).await?;
    let bound = |claim: &&Value| claim.pointer("/status/phase").and_then(Value::as_str) == Some("Bound");
    Ok(claims.len() - claims.iter().filter(bound).count())
}
