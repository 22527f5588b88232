//! What `make bench` does: the operator against a bare client that writes the same API objects, in the same run.
//!
//! Results, never pass or fail. The two cores of a small machine are shared with the API server, etcd and the NFS
//! server, so each phase also says how much CPU time every one of them took: that is what a busy machine can't blur.

mod baseline;
mod env;
mod latency;
mod scale;
mod storm;
mod table;
mod volume_watch;
mod waiting;
mod workload;

use std::path::PathBuf;

use self::{
    baseline::Baseline,
    env::BenchEnv,
    latency::Latencies,
    table::{Phase, PhaseResult},
    workload::ProvisionedClaim,
};
use crate::{error::Result, operator::Operator, run_dir::RunDir};

/// How much is measured.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The operator's program, built in release mode.
    pub operator: PathBuf,
    /// Claims in a phase.
    pub count: usize,
    /// Claims or volumes outstanding at a time.
    pub concurrency: usize,
    /// Claims made one after the other.
    pub lone: usize,
    /// So many claims on five backends at once instead of all else.
    pub scale: Option<usize>,
    /// So many claims that fail instead of all else.
    pub storm: Option<usize>,
    /// So many claims that wait for a backend that is not there instead of all else.
    pub waiting: Option<usize>,
}

/// What the operator does with the directories of deleted claims in a phase.
#[derive(Clone, Copy, Debug)]
enum Policy {
    Archive,
    Delete,
}

impl Policy {
    /// Its name in a backend's specification.
    fn name(self) -> &'static str {
        match self {
            Self::Archive => "Archive",
            Self::Delete => "Delete",
        }
    }
}

/// Measures, and prints the tables.
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
    progress("floor, before the operator starts");
    env.stop_binder().await?;
    let floor = Baseline::new(&env);
    floor.warm_up(options).await?;
    let before = floor.measure(&env, options).await?;
    env.start_binder().await?;
    let mut results = Results::default();
    let (operator, lone) = measure_operator(&mut env, run, options, &mut results).await?;
    operator.terminate().await?;
    progress("floor, after the operator has ended");
    env.stop_binder().await?;
    let after = floor.measure(&env, options).await?;
    println!("\n{}", table::rates(&results.rates, &[&before, &after]));
    println!("{}", table::latencies(&lone));
    println!("{}", table::memory(&results.memory, "goal < 30 at 500 claims"));
    println!("{}", table::cpu_times(&results.rates, &[&before, &after]));
    env.stop().await
}

/// What was measured so far.
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

/// One life of the operator.
async fn measure_operator(
    env: &mut BenchEnv,
    run: &RunDir,
    options: &BenchOptions,
    results: &mut Results,
) -> Result<(Operator, Latencies)> {
    let operator = env.start_operator(run).await?;
    results.record_memory("at the start", &operator)?;
    progress("lone claims");
    let lone = latency::measure(env, options.lone).await?;
    results.record_memory("after the lone claims", &operator)?;
    for policy in [Policy::Archive, Policy::Delete] {
        env.set_policy(policy).await?;
        let claims = measure_creation(env, &operator, options, policy, results).await?;
        measure_deletion(env, &operator, options, policy, &claims, results).await?;
    }
    Ok((operator, lone))
}

/// Claims to volumes.
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
    let before = env.cpu_usage(Some(operator))?;
    let (claims, throughput, written) = workload::create(env, options).await?;
    let used = env.cpu_usage(Some(operator))?.since(&before);
    println!(
        "  the last condition stood {:.0} ms after the last volume",
        written.as_secs_f64() * 1e3
    );
    results
        .rates
        .push(PhaseResult::new(Phase::Claims, policy.name(), throughput, used));
    results.record_memory(&format!("with {} claims", claims.len()), operator)?;
    Ok(claims)
}

/// Released volumes to none.
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
    results.record_memory("with these bound", operator)?;
    workload::prepare_release(env, claims, options).await?;
    env.wait_idle(operator).await?;
    // Paused and not stopped: its memory and its caches are those of one life.
    operator.pause()?;
    workload::release(env, claims, options).await?;
    let before = env.cpu_usage(Some(operator))?;
    operator.resume()?;
    let throughput = workload::wait_deleted(env, claims).await?;
    let used = env.cpu_usage(Some(operator))?.since(&before);
    results
        .rates
        .push(PhaseResult::new(Phase::Deletes, policy.name(), throughput, used));
    env.wait_idle(operator).await?;
    results.record_memory("after their deletion", operator)?;
    env.start_binder().await
}

fn progress(what: &str) {
    println!("{what} … (load {})", table::load());
}

/// How fast a phase was.
#[derive(Clone, Copy, Debug)]
struct Throughput {
    count: usize,
    seconds: f64,
}

impl Throughput {
    fn per_second(self) -> f64 {
        self.count as f64 / self.seconds.max(f64::EPSILON)
    }
}
