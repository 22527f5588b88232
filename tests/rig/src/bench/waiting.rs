//! Many claims that wait for a missing backend: their memory, and the cost of a change that does not help them.

use std::time::Instant;

use serde_json::json;

use super::{
    BenchOptions, MemorySamples,
    env::{BenchEnv, EnvSettings},
    progress, table,
    targets::{self, Bound, Target},
    workload,
};
use crate::{error::Result, run_dir::RunDir};

/// The class of waiting claims.
const WAITING: &str = "waiting";

/// Runs the benchmark and prints its results.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims that wait for a missing backend; load at the start {}.",
        table::load()
    );
    let mut env = BenchEnv::start(run, EnvSettings::new(&options.operator)).await?;
    let mut operator = env.start_operator(run).await?;
    env.stop_binder().await?;
    let (mut memory, mut counts) = (MemorySamples::default(), Vec::new());
    memory.record("at the start", &operator)?;

    progress("the claims are created");
    let began = Instant::now();
    workload::create_claims_of_class(&env, options, WAITING, json!({ "backend": "absent" }), claims).await?;
    workload::wait_for_reason(&operator, "BackendNotFound", claims).await?;
    let seconds = began.elapsed().as_secs_f64();
    counts.push(("time until each has reported the reason", format!("{seconds:.0} s")));
    env.wait_idle(&operator).await?;
    memory.record("with the claims waiting", &operator)?;

    progress("another backend changes");
    let (used, written) = (
        env.cpu_usage(Some(&operator))?,
        workload::count_claim_patches(&env, WAITING)?,
    );
    env.relabel().await?;
    env.wait_idle(&operator).await?;
    let used = env.cpu_usage(Some(&operator))?.since(&used);
    let written = workload::count_claim_patches(&env, WAITING)? - written;
    counts.push(("CPU time to check all claims again", format!("{:.2} s", used.operator)));
    counts.push(("patches of claims for that", written.to_string()));
    memory.record("after all were checked again", &operator)?;

    progress("the operator restarts");
    operator.restart().await?;
    operator.wait_ready().await?;
    env.wait_idle(&operator).await?;
    memory.record("after a restart", &operator)?;
    println!("\n{}", table::counts(&counts));
    println!("{}", memory.table());
    let target = Target::new(
        format!("peak with {claims} waiting claims, with a restart"),
        "MiB",
        Bound::AtMost(64.0),
        memory.peak(),
    );
    println!("{}", targets::render(&[target]));
    operator.terminate().await?;
    env.stop().await
}
