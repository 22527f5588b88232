//! Many claims that wait for a backend that is not there: what they take in memory, and what a change costs that cures none.

use std::time::Instant;

use serde_json::json;

use super::{BenchOptions, Results, env::BenchEnv, progress, table, workload};
use crate::{error::Result, run_dir::RunDir};

/// The class of the claims that wait.
const WAITING: &str = "waiting";

/// Measures, and prints the tables.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims that wait for a backend that is not there; load at the start {}.",
        table::load()
    );
    let mut env = BenchEnv::start(run, options, 1).await?;
    let mut operator = env.start_operator(run).await?;
    env.stop_binder().await?;
    let (mut results, mut counts) = (Results::default(), Vec::new());
    results.record_memory("at the start", &operator)?;

    progress("the claims come");
    let began = Instant::now();
    workload::create_waiting_claims(&env, options, WAITING, json!({ "backend": "absent" }), claims).await?;
    workload::wait_for_reason(&operator, "BackendNotFound", claims).await?;
    let told = began.elapsed().as_secs_f64();
    counts.push(("until each said what it waits for", format!("{told:.0} s")));
    env.wait_idle(&operator).await?;
    results.record_memory("with the claims waiting", &operator)?;

    progress("a backend changes that none of them may use");
    let (used, written) = (
        env.cpu_usage(Some(&operator))?,
        workload::writes_to_claims(&env, WAITING)?,
    );
    env.relabel().await?;
    env.wait_idle(&operator).await?;
    let used = env.cpu_usage(Some(&operator))?.since(&used);
    let written = workload::writes_to_claims(&env, WAITING)? - written;
    counts.push(("CPU time to look at all again", format!("{:.2} s", used.operator)));
    counts.push(("writes to claims for that", written.to_string()));
    results.record_memory("when all were looked at again", &operator)?;

    progress("the operator starts again");
    operator.restart().await?;
    operator.wait_ready().await?;
    env.wait_idle(&operator).await?;
    results.record_memory("after a restart", &operator)?;
    println!("\n{}", table::counts(&counts));
    println!("{}", table::memory(&results.memory, "limit of the pod: 64"));
    operator.terminate().await?;
    env.stop().await
}
