//! Many failing claims: the rate of retries, and their effect on a valid claim.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    BenchOptions, MemorySamples,
    env::{BenchEnv, EnvSettings, NAME},
    progress, table,
    targets::{self, Bound, Target},
    workload,
};
use crate::{
    error::{Result, ResultExt as _},
    operator::Operator,
    run_dir::RunDir,
};

/// The class of failing claims.
const FAILING: &str = "storm";
/// Duration of the measurement. The first delays of retries are 15 s and 30 s, each plus up to 50 %: each claim is
/// retried at least once, and few claims three times.
const WINDOW: Duration = Duration::from_secs(60);
/// Number of valid claims that are created one after the other, before and during the retries.
const VALID_CLAIMS: usize = 30;

/// Runs the benchmark and prints its results.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} failing claims, with the default delays between retries; load at the start {}.",
        table::load()
    );
    let mut env = BenchEnv::start(run, EnvSettings::new(&options.operator)).await?;
    let mut operator = env.start_operator(run).await?;
    env.stop_binder().await?;
    let (mut memory, mut counts) = (MemorySamples::default(), Vec::new());
    memory.record("at the start", &operator)?;
    counts.push((
        "a valid claim before",
        measure_valid_claims(&env, "before", Duration::ZERO).await?,
    ));

    progress("the failing claims are created");
    let began = Instant::now();
    create_failing_claims(&env, options, claims).await?;
    workload::wait_for_reason(&operator, "DirectoryExists", claims).await?;
    counts.push((
        "time until each has failed once",
        format!("{:.0} s", began.elapsed().as_secs_f64()),
    ));
    memory.record("with the failing claims", &operator)?;

    progress("the failing claims are retried");
    let (began, attempts) = (Instant::now(), failed_attempts(&operator).await?);
    let (written, used) = (
        workload::count_claim_patches(&env, FAILING)?,
        env.cpu_usage(Some(&operator))?,
    );
    counts.push((
        "a valid claim meanwhile",
        measure_valid_claims(&env, "during", WINDOW / VALID_CLAIMS as u32).await?,
    ));
    tokio::time::sleep(WINDOW.saturating_sub(began.elapsed())).await;
    let seconds = began.elapsed().as_secs_f64();
    let attempts = failed_attempts(&operator).await? - attempts;
    let used = env.cpu_usage(Some(&operator))?.since(&used);
    counts.extend([
        ("duration of the measurement", format!("{seconds:.0} s")),
        ("attempts per claim", format!("{:.2}", attempts as f64 / claims as f64)),
        ("attempts per second", format!("{:.0}", attempts as f64 / seconds)),
        (
            "patches of claims per attempt",
            format!(
                "{:.2}",
                (workload::count_claim_patches(&env, FAILING)? - written) as f64 / attempts.max(1) as f64
            ),
        ),
        (
            "CPU of the operator",
            format!("{:.0} %", 100.0 * used.operator / seconds),
        ),
    ]);
    memory.record("a minute later", &operator)?;
    progress("the operator restarts");
    operator.restart().await?;
    operator.wait_ready().await?;
    workload::wait_for_reason(&operator, "DirectoryExists", claims).await?;
    memory.record("after a restart, when each has failed again", &operator)?;
    println!("\n{}", table::counts(&counts));
    println!("{}", memory.table());
    let target = Target::new(
        format!("peak with {claims} failing claims, with a restart"),
        "MiB",
        Bound::AtMost(64.0),
        memory.peak(),
    );
    println!("{}", targets::render(&[target]));
    operator.terminate().await?;
    env.stop().await
}

/// Creates claims whose directories exist and belong to no volume.
async fn create_failing_claims(env: &BenchEnv, options: &BenchOptions, claims: usize) -> Result<()> {
    let taken = env.nfs.data_dir(&format!("/{NAME}"))?.join("taken");
    for number in 0..claims {
        let folder = taken.join(format!("{FAILING}-{number}"));
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let parameters = json!({ "pathPattern": "taken/${pvc.name}" });
    workload::create_claims_of_class(env, options, FAILING, parameters, claims).await
}

/// Returns the number of failed attempts so far, from the operator's metrics.
async fn failed_attempts(operator: &Operator) -> Result<u64> {
    let series = format!("controller_persistentvolumeclaim_provision_failed_total{{class=\"{FAILING}\",source=\"\"}}");
    workload::metric(operator, &series).await
}

/// Creates valid claims one after the other, at most one per `interval`, and returns the median and maximum latency.
async fn measure_valid_claims(env: &BenchEnv, when: &str, interval: Duration) -> Result<String> {
    let mut latencies = Vec::new();
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    for number in 0..VALID_CLAIMS {
        ticks.tick().await;
        latencies.push(workload::measure_latency(env, &format!("valid-{when}-{number}"), NAME).await?);
    }
    latencies.sort();
    let millis = |latency: Option<&Duration>| latency.map_or(0.0, |latency| latency.as_secs_f64() * 1e3);
    let (median, max) = (millis(latencies.get(VALID_CLAIMS / 2)), millis(latencies.last()));
    Ok(format!("median {median:.0} ms, maximum of {VALID_CLAIMS} {max:.0} ms"))
}
