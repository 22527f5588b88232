//! `make bench`: measures the operator against a bare client that writes the same API objects, in the same run.
//!
//! A benchmark has no verdict. API server, etcd and NFS server share the cores of the machine with the operator, so
//! each phase also reports the CPU time of each process, which does not depend on the load.

mod baseline;
mod env;
mod latency;
pub mod quotas;
mod scale;
mod storm;
mod table;
mod volume_watch;
mod waiting;
mod workload;

use std::{path::PathBuf, time::Duration};

use self::{
    baseline::Baseline,
    env::BenchEnv,
    latency::Latencies,
    table::{Phase, PhaseResult},
    workload::ProvisionedClaim,
};
use crate::{error::Result, operator::Operator, run_dir::RunDir};

/// What to measure; also the arguments of `rig bench`.
#[derive(clap::Args, Clone, Debug)]
pub struct BenchOptions {
    /// Path of the operator's binary, built in release mode.
    #[arg(long)]
    pub operator: PathBuf,
    /// Number of claims in a phase.
    #[arg(long, default_value_t = 500)]
    pub count: usize,
    /// Maximum number of claims or volumes in progress at the same time.
    #[arg(long, default_value_t = 64)]
    pub concurrency: usize,
    /// Number of claims that are created one after the other.
    #[arg(long, default_value_t = 100)]
    pub lone: usize,
    /// Instead, measure this number of claims on five backends, a restart, and an idle minute.
    #[arg(long, value_name = "CLAIMS")]
    pub scale: Option<usize>,
    /// Instead, measure this number of failing claims: the rate of retries, and the effect on a valid claim.
    #[arg(long, conflicts_with = "scale")]
    pub storm: Option<usize>,
    /// Instead, measure this number of claims that wait for a missing backend: the memory that they use.
    #[arg(long, conflicts_with_all = ["scale", "storm"])]
    pub waiting: Option<usize>,
}

/// The archive policy of a phase.
#[derive(Clone, Copy, Debug)]
enum Policy {
    Archive,
    Delete,
}

impl Policy {
    /// Returns its name in a backend's spec.
    fn name(self) -> &'static str {
        match self {
            Self::Archive => "Archive",
            Self::Delete => "Delete",
        }
    }
}

/// Runs a benchmark and prints its results as tables.
pub async fn bench(options: BenchOptions) -> Result<()> {
    let run = RunDir::new()?;
    let measured = match (options.scale, options.storm, options.waiting) {
        (Some(claims), ..) => scale::measure(&run, &options, claims).await,
        (None, Some(claims), _) => storm::measure(&run, &options, claims).await,
        (None, None, Some(claims)) => waiting::measure(&run, &options, claims).await,
        (None, None, None) => measure(&run, &options).await,
    };
    if measured.is_err() {
        run.keep();
    }
    measured
}

async fn measure(run: &RunDir, options: &BenchOptions) -> Result<()> {
    println!("{}", table::describe_setup(options, run.path()));
    let mut env = BenchEnv::start(run, options, 1).await?;
    progress("baseline, before the operator starts");
    env.stop_binder().await?;
    let baseline = Baseline::new(&env);
    baseline.warm_up(options).await?;
    let before = baseline.measure(&env, options).await?;
    env.start_binder().await?;
    let mut results = Results::default();
    let (operator, latencies) = measure_operator(&mut env, run, options, &mut results).await?;
    operator.terminate().await?;
    progress("baseline, after the operator has stopped");
    env.stop_binder().await?;
    let after = baseline.measure(&env, options).await?;
    println!("\n{}", table::rates(&results.rates, &[&before, &after]));
    println!("{}", table::latencies(&latencies));
    println!("{}", table::memory(&results.memory, "goal < 30 at 500 claims"));
    println!("{}", table::cpu_times(&results.rates, &[&before, &after]));
    env.stop().await
}

/// The results so far.
#[derive(Default)]
struct Results {
    rates: Vec<PhaseResult>,
    memory: Vec<table::Memory>,
}

impl Results {
    fn record_memory(&mut self, when: &str, operator: &Operator) -> Result<()> {
        self.memory.push(table::Memory {
            when: when.into(),
            resident: operator.resident_bytes()?,
            peak: operator.peak_resident_bytes()?,
        });
        Ok(())
    }
}

/// Measures one process of the operator in all phases.
async fn measure_operator(
    env: &mut BenchEnv,
    run: &RunDir,
    options: &BenchOptions,
    results: &mut Results,
) -> Result<(Operator, Latencies)> {
    let operator = env.start_operator(run).await?;
    results.record_memory("at the start", &operator)?;
    progress("single claims");
    let latencies = latency::measure(env, options.lone).await?;
    results.record_memory("after the single claims", &operator)?;
    for policy in [Policy::Archive, Policy::Delete] {
        env.set_policy(policy).await?;
        let claims = measure_creation(env, &operator, options, policy, results).await?;
        measure_deletion(env, &operator, options, policy, &claims, results).await?;
    }
    Ok((operator, latencies))
}

/// Measures the time from claims to volumes.
async fn measure_creation(
    env: &mut BenchEnv,
    operator: &Operator,
    options: &BenchOptions,
    policy: Policy,
    results: &mut Results,
) -> Result<Vec<ProvisionedClaim>> {
    progress(&format!("claims, policy {}", policy.name()));
    env.stop_binder().await?;
    env.wait_idle(operator).await?;
    let (before, requests) = (env.cpu_usage(Some(operator))?, workload::count_object_requests(env)?);
    let (claims, throughput, written) = workload::create(env, options).await?;
    let used = env.cpu_usage(Some(operator))?.since(&before);
    let requests = workload::count_object_requests(env)? - requests;
    println!(
        "  the last condition was written {:.0} ms after the last volume",
        written.as_secs_f64() * 1e3
    );
    results.rates.push(PhaseResult::new(
        Phase::Claims,
        policy.name(),
        throughput,
        used,
        requests,
    ));
    results.record_memory(&format!("with {} claims", claims.len()), operator)?;
    Ok(claims)
}

/// Measures the time from released volumes to their deletion.
async fn measure_deletion(
    env: &mut BenchEnv,
    operator: &Operator,
    options: &BenchOptions,
    policy: Policy,
    claims: &[ProvisionedClaim],
    results: &mut Results,
) -> Result<()> {
    progress(&format!("deletes, policy {}", policy.name()));
    env.bind(claims.len()).await?;
    env.stop_binder().await?;
    results.record_memory("with these claims bound", operator)?;
    workload::prepare_release(env, claims, options).await?;
    env.wait_idle(operator).await?;
    // Paused, not stopped, so that its memory and caches stay the same.
    operator.pause()?;
    workload::release(env, claims, options).await?;
    let (before, requests) = (env.cpu_usage(Some(operator))?, workload::count_object_requests(env)?);
    operator.resume()?;
    let throughput = workload::wait_deleted(env, claims).await?;
    let used = env.cpu_usage(Some(operator))?.since(&before);
    // Events and archives are written later.
    env.wait_idle(operator).await?;
    let requests = workload::count_object_requests(env)? - requests;
    results.rates.push(PhaseResult::new(
        Phase::Deletes,
        policy.name(),
        throughput,
        used,
        requests,
    ));
    results.record_memory("after their deletion", operator)?;
    env.start_binder().await
}

fn progress(what: &str) {
    println!("{what} (load {})", table::load());
}

/// The throughput of a phase.
#[derive(Clone, Copy, Debug)]
struct Throughput {
    count: usize,
    seconds: f64,
}

impl Throughput {
    fn new(count: usize, duration: Duration) -> Self {
        Self {
            count,
            seconds: duration.as_secs_f64(),
        }
    }

    fn per_second(self) -> f64 {
        self.count as f64 / self.seconds.max(f64::EPSILON)
    }
}
