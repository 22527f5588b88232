//! Many claims that fail: how often they are tried, and what a good claim notices of them.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    BenchOptions, Results,
    env::{BenchEnv, NAME},
    progress, table, workload,
};
use crate::{
    error::{Result, ResultExt as _},
    operator::Operator,
    run_dir::RunDir,
};

/// The class of the claims that fail.
const FAILING: &str = "storm";
/// How long the storm is looked at. The first pauses are 15 s and 30 s, each up to half as long again: every claim is
/// tried again once at least, and few of them three times.
const WINDOW: Duration = Duration::from_secs(60);
/// Good claims, one after the other, before the storm and in it.
const GOOD_CLAIMS: usize = 30;

/// Measures, and prints the tables.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims that fail, with the default pauses; load at the start {}.",
        table::load()
    );
    let mut env = BenchEnv::start(run, options, 1).await?;
    let operator = env.start_operator(run).await?;
    env.stop_binder().await?;
    let (mut results, mut counts) = (Results::default(), Vec::new());
    results.record_memory("at the start", &operator)?;
    counts.push((
        "a good claim before the storm",
        measure_good_claims(&env, "before", Duration::ZERO).await?,
    ));

    progress("the storm begins");
    let began = Instant::now();
    create_failing_claims(&env, options, claims).await?;
    workload::wait_for_reason(&operator, "DirectoryExists", claims).await?;
    counts.push((
        "until each had failed once",
        format!("{:.0} s", began.elapsed().as_secs_f64()),
    ));
    results.record_memory("in the storm", &operator)?;

    progress("the storm goes on");
    let (began, attempts) = (Instant::now(), failed_attempts(&operator).await?);
    let (written, used) = (
        workload::writes_to_claims(&env, FAILING)?,
        env.cpu_usage(Some(&operator))?,
    );
    counts.push((
        "a good claim in the storm",
        measure_good_claims(&env, "during", WINDOW / GOOD_CLAIMS as u32).await?,
    ));
    tokio::time::sleep(WINDOW.saturating_sub(began.elapsed())).await;
    let seconds = began.elapsed().as_secs_f64();
    let attempts = failed_attempts(&operator).await? - attempts;
    let used = env.cpu_usage(Some(&operator))?.since(&used);
    counts.extend([
        ("looked at for", format!("{seconds:.0} s")),
        (
            "attempts in that time, a claim",
            format!("{:.2}", attempts as f64 / claims as f64),
        ),
        ("attempts a second", format!("{:.0}", attempts as f64 / seconds)),
        (
            "writes to claims, an attempt",
            format!(
                "{:.2}",
                (workload::writes_to_claims(&env, FAILING)? - written) as f64 / attempts.max(1) as f64
            ),
        ),
        (
            "CPU of the operator",
            format!("{:.0} %", 100.0 * used.operator / seconds),
        ),
    ]);
    results.record_memory("a minute later", &operator)?;
    println!("\n{}", table::counts(&counts));
    println!("{}", table::memory(&results.memory, "limit of the pod: 64"));
    operator.terminate().await?;
    env.stop().await
}

/// Creates the claims, each for a directory that is there and is nobody's.
async fn create_failing_claims(env: &BenchEnv, options: &BenchOptions, claims: usize) -> Result<()> {
    let taken = env.nfs.data_dir(&format!("/{NAME}"))?.join("taken");
    for number in 0..claims {
        let folder = taken.join(format!("{FAILING}-{number}"));
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let parameters = json!({ "pathPattern": "taken/${pvc.name}" });
    workload::create_waiting_claims(env, options, FAILING, parameters, claims).await
}

/// Attempts of the storm that failed so far, by the operator's own count.
async fn failed_attempts(operator: &Operator) -> Result<u64> {
    let series = format!("controller_persistentvolumeclaim_provision_failed_total{{class=\"{FAILING}\",source=\"\"}}");
    workload::metric(operator, &series).await
}

/// How long good claims wait for their volume, one in each `pause` and after the one before: the median and the longest.
async fn measure_good_claims(env: &BenchEnv, when: &str, pause: Duration) -> Result<String> {
    let (mut latencies, mut throughput) = (Vec::new(), tokio::time::interval(pause.max(Duration::from_millis(1))));
    for number in 0..GOOD_CLAIMS {
        throughput.tick().await;
        let started = Instant::now();
        let claim = workload::claim(&format!("good-{when}-{number}"), Some("nfs-operator.io/nfs"));
        let created = env.objects.create(&claim).await?;
        let volume = format!("pvc-{}", workload::uid(&created)?);
        latencies.push(env.volumes_seen.wait_created(&volume).await?.duration_since(started));
    }
    latencies.sort();
    let millis = |latency: Option<&Duration>| latency.map_or(0.0, |latency| latency.as_secs_f64() * 1e3);
    let (median, longest) = (millis(latencies.get(GOOD_CLAIMS / 2)), millis(latencies.last()));
    Ok(format!("{median:.0} ms, the longest of {GOOD_CLAIMS} {longest:.0} ms"))
}
