//! Many claims on several backends: what the operator needs when they are bound, after a restart, and with nothing to do.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{BenchOptions, Results, env::BenchEnv, progress, table, workload};
use crate::{
    error::{Result, ResultExt as _},
    objects::reference,
    operator::Operator,
    run_dir::RunDir,
    wait,
};

const BACKENDS: usize = 5;
/// Absent until the operator has ended a scan.
const SCAN_DURATION_SERIES: &str = "nfs_operator_backend_scan_duration_seconds{";
/// Volumes of a backend that the operator looks at in a second.
const CHECKS_PER_SECOND: usize = 10;
/// More than that for the records, and for a busy machine.
const SCAN_TIMEOUT: Duration = Duration::from_secs(300);
/// Two probes of each backend.
const IDLE: Duration = Duration::from_secs(60);

/// Measures, and prints the tables.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims on {BACKENDS} backends, {} at a time; load at the start {}.",
        options.concurrency,
        table::load()
    );
    let mut env = BenchEnv::start(run, options, BACKENDS).await?;
    let mut results = Results::default();
    let mut counts = Vec::new();
    let mut operator = env.start_operator(run).await?;
    results.record_memory("at the start", &operator)?;

    let provisioned = provision(&mut env, options, claims).await?;
    counts.push(("claims to volumes, a second", provisioned));
    results.record_memory("with the claims provisioned", &operator)?;
    progress("the binder binds them");
    let bound = bind(&mut env, claims).await?;
    counts.push(("claims to Bound by the binder", bound));
    env.wait_idle(&operator).await?;
    results.record_memory("with these bound", &operator)?;

    progress("the operator starts again");
    let started = Instant::now();
    operator.restart().await?;
    operator.wait_ready().await?;
    counts.push((
        "from start to ready",
        format!("{:.2} s", started.elapsed().as_secs_f64()),
    ));
    env.wait_idle(&operator).await?;
    results.record_memory("after a restart", &operator)?;

    progress("nothing to do");
    counts.push((
        "requests to the API server in an idle minute",
        count_idle_requests(&env).await?,
    ));
    results.record_memory("after an idle minute", &operator)?;
    progress("all exports are scanned for orphans");
    counts.extend(scan(&env, &operator, claims).await?);
    results.record_memory("after a scan for orphans", &operator)?;
    counts.push(("claims without a Bound volume", count_unbound(&env).await?.to_string()));
    counts.push(("directories on the exports", env.directories()?.to_string()));
    println!("\n{}", table::memory(&results.memory, "goal < 40 at 10,000 claims"));
    println!("{}", table::counts(&counts));
    operator.terminate().await?;
    env.stop().await
}

/// Creates the claims and waits for their volumes; answers how fast they came.
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

/// Has them bound; answers how many are.
async fn bind(env: &mut BenchEnv, claims: usize) -> Result<String> {
    env.bind(claims).await?;
    Ok(format!("{} of {claims}", claims - count_unbound(env).await?))
}

/// Has all backends scanned at once; answers how long that takes, and what it costs.
async fn scan(env: &BenchEnv, operator: &Operator, claims: usize) -> Result<[(&'static str, String); 4]> {
    let (before, used, began) = (requests(env)?, env.cpu_usage(Some(operator))?, Instant::now());
    env.request_scans().await?;
    let timeout = SCAN_TIMEOUT + Duration::from_secs((claims / BACKENDS / CHECKS_PER_SECOND) as u64);
    let highest = AtomicU64::new(0);
    wait::until("all exports to be scanned", timeout, async || {
        let resident = operator.resident_bytes().map_err(|error| error.to_string())?;
        highest.fetch_max(resident, Ordering::Relaxed);
        let metrics = operator.metrics().await.map_err(|error| error.to_string())?;
        let ended = metrics
            .lines()
            .filter(|line| line.starts_with(SCAN_DURATION_SERIES))
            .count();
        if ended == BACKENDS {
            Ok(())
        } else {
            Err(format!("{ended} of {BACKENDS}"))
        }
    })
    .await?;
    let seconds = began.elapsed().as_secs_f64();
    let used = env.cpu_usage(Some(operator))?.since(&used);
    Ok([
        ("seconds of a scan for orphans", format!("{seconds:.0}")),
        (
            "requests to the API server in it",
            (requests(env)? - before).to_string(),
        ),
        (
            "CPU of the operator in it",
            format!("{:.1} %", 100.0 * used.operator / seconds),
        ),
        (
            "highest resident memory in it, MiB",
            format!("{:.1}", highest.into_inner() as f64 / table::MEBIBYTE),
        ),
    ])
}

/// What the operator asks of the API server, by the server's audit log; watches count when they end.
async fn count_idle_requests(env: &BenchEnv) -> Result<String> {
    let before = requests(env)?;
    tokio::time::sleep(IDLE).await;
    Ok((requests(env)? - before).to_string())
}

fn requests(env: &BenchEnv) -> Result<usize> {
    let log = env.cluster.audit_log();
    let text = fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let by_operator = |event: &Value| {
        let user = event.pointer("/user/username").and_then(Value::as_str);
        user.is_some_and(|user| user.ends_with(":nfs-operator")) && event["env"] == "ResponseComplete"
    };
    Ok(events.filter(by_operator).count())
}

async fn count_unbound(env: &BenchEnv) -> Result<usize> {
    let like = reference("v1", "PersistentVolumeClaim", Some(super::env::NAME), "any");
    let claims = env.objects.list(&like).await?;
    let bound = |claim: &&Value| claim.pointer("/status/phase").and_then(Value::as_str) == Some("Bound");
    Ok(claims.len() - claims.iter().filter(bound).count())
}
