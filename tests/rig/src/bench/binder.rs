//! How many claims become Bound, by the limits of the requests of kube-controller-manager: its binder requests the volumes
//! from the operator and binds the claims to them.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use super::{
    BenchOptions, Throughput,
    env::{BenchEnv, EnvSettings, NAME, is_bound},
    progress, table, workload,
};
use crate::{error::Result, objects::reference, run_dir::RunDir};

/// Requests per second and at once (`--kube-api-qps`, `--kube-api-burst`). The first are the defaults of
/// kube-controller-manager.
const LIMITS: [(u32, u32); 4] = [(20, 30), (50, 100), (200, 400), (2000, 4000)];
/// Claims before those that are measured.
const WARM_UP: usize = 20;
/// Lower limit for the timeout: with the default limits, the binder binds four claims a second.
const MIN_BINDS_PER_SECOND: f64 = 0.5;

/// Runs the benchmark and prints its results.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims as users create them, all at once, until the last is Bound; load at the start {}.",
        table::load()
    );
    let mut env = BenchEnv::start(run, EnvSettings::new(&options.operator)).await?;
    let operator = env.start_operator(run).await?;
    let (mut rows, mut total) = (Vec::new(), 0);
    for (qps, burst) in LIMITS {
        let flags = format!("--kube-api-qps={qps} --kube-api-burst={burst}");
        progress(&flags);
        env.start_binder_with(qps, burst).await?;
        // Until the new process works, and its first requests, which are not limited, are used up.
        create(&env, options, total..total + WARM_UP).await?;
        total += WARM_UP;
        wait_bound(&env, total).await?;
        let started = Instant::now();
        create(&env, options, total..total + claims).await?;
        total += claims;
        wait_bound(&env, total).await?;
        rows.push((flags, Throughput::new(claims, started.elapsed()).per_second()));
    }
    let rows: Vec<(&str, String)> = rows
        .iter()
        .map(|(flags, rate)| (flags.as_str(), format!("{rate:.1}")))
        .collect();
    println!("\nclaims that become Bound per second\n{}", table::counts(&rows));
    operator.terminate().await?;
    env.stop().await
}

async fn create(env: &BenchEnv, options: &BenchOptions, numbers: Range<usize>) -> Result<()> {
    let numbers: Vec<usize> = numbers.collect();
    workload::for_each(&numbers, options, async |number| {
        let claim = workload::claim(&format!("claim-{number}"), None);
        env.objects.create(&claim).await.map(drop)
    })
    .await
}

/// Waits until this number of claims is Bound.
async fn wait_bound(env: &BenchEnv, count: usize) -> Result<()> {
    let like = reference("v1", "PersistentVolumeClaim", Some(NAME), "any");
    let timeout = Duration::from_secs(60) + Duration::from_secs_f64(count as f64 / MIN_BINDS_PER_SECOND);
    let expected = (count, timeout);
    env.objects
        .wait_count(&like, "claims to be Bound", expected, is_bound)
        .await
}
