//! The operator's memory and start with many volumes of other drivers in the cluster.

use std::time::Instant;

use super::{
    BenchOptions, MemorySamples,
    env::{BenchEnv, EnvSettings},
    progress,
    simulated_volumes::SimulatedVolumes,
    table,
    targets::{self, Bound, Target},
};
use crate::{
    error::Result,
    operator::{Operator, OperatorOptions},
    run_dir::RunDir,
};

/// Runs the benchmark and prints its results.
pub async fn measure(run: &RunDir, options: &BenchOptions, volumes: usize) -> Result<()> {
    println!(
        "{volumes} volumes of another driver in every list; load at the start {}.",
        table::load()
    );
    let mut env = BenchEnv::start(run, EnvSettings::new(&options.operator)).await?;
    env.stop_binder().await?;
    let (mut counts, mut all) = (Vec::new(), MemorySamples::default());
    let mut peaks = Vec::new();
    for (volumes, when, what) in [
        (0, "without volumes", "time from start to ready, without volumes"),
        (
            volumes,
            "with the volumes",
            "time from start to ready, with the volumes",
        ),
    ] {
        progress(&format!("{volumes} volumes"));
        let server = SimulatedVolumes::start(env.account.clone(), volumes).await?;
        let options = OperatorOptions {
            kubeconfig: env.kubeconfig().with_server(server.url())?,
            ..env.options.clone()
        };
        let started = Instant::now();
        let operator = Operator::start(run, options).await?;
        operator.wait_ready().await?;
        counts.push((what, format!("{:.2} s", started.elapsed().as_secs_f64())));
        env.wait_idle(&operator).await?;
        let mut memory = MemorySamples::default();
        memory.record(when, &operator)?;
        peaks.push(memory.peak());
        all.0.extend(memory.0);
        operator.terminate().await?;
    }
    println!("\n{}", all.table());
    println!("{}", table::counts(&counts));
    let more = match peaks.as_slice() {
        [without, with] => Some(with - without),
        _ => None,
    };
    let target = Target::new(
        format!("additional peak with {volumes} volumes of another driver"),
        "MiB",
        Bound::AtMost(5.0),
        more,
    );
    println!("{}", targets::render(&[target]));
    env.stop().await
}
