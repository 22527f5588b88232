//! The operator's memory while claims are created and deleted again and again.

use super::{
    BenchOptions, MemorySamples, Policy,
    env::{BenchEnv, EnvSettings, NAME},
    progress,
    table::{self, Memory},
    targets::{self, Bound, Target},
    workload,
};
use crate::{error::Result, run_dir::RunDir};

/// The cycle with which the last one is compared: the first fills caches.
const REFERENCE: usize = 2;

/// Runs the benchmark and prints its results.
pub async fn measure(run: &RunDir, options: &BenchOptions, cycles: usize) -> Result<()> {
    println!(
        "{cycles} cycles of creating, binding and deleting {} claims, policy Delete; load at the start {}.",
        options.count,
        table::load()
    );
    let mut env = BenchEnv::start(run, EnvSettings::new(&options.operator)).await?;
    env.stop_binder().await?;
    env.set_policy(Policy::Delete).await?;
    let operator = env.start_operator(run).await?;
    let (mut memory, mut deleted) = (MemorySamples::default(), MemorySamples::default());
    memory.record("at the start", &operator)?;
    for cycle in 1..=cycles {
        progress(&format!("cycle {cycle}"));
        let (claims, ..) = workload::create(&env, options, NAME).await?;
        workload::bind(&env, &claims, options).await?;
        workload::prepare_release(&env, &claims, options).await?;
        workload::release(&env, &claims, options).await?;
        workload::wait_deleted(&env, &claims).await?;
        // The content is removed in the background, and freed memory goes back to the kernel after a second.
        env.wait_idle(&operator).await?;
        deleted.record(format!("after cycle {cycle}"), &operator)?;
    }
    let growth = growth(&deleted.0);
    memory.0.extend(deleted.0);
    println!("\n{}", memory.table());
    let target = Target::new(
        format!("resident after cycle {cycles}, relative to cycle {REFERENCE}"),
        "",
        Bound::AtMost(1.1),
        growth,
    );
    println!("{}", targets::render(&[target]));
    operator.terminate().await?;
    env.stop().await
}

/// Returns the ratio of the resident memory after the last cycle to that after the reference cycle, if there are more
/// cycles than that.
fn growth(cycles: &[Memory]) -> Option<f64> {
    let resident = |sample: &Memory| sample.resident as f64;
    let last = cycles.get(REFERENCE..)?.last().map(resident);
    table::ratio(last, cycles.get(REFERENCE - 1).map(resident))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cycle_is_compared_with_the_second() {
        let samples = |sizes: &[u64]| -> Vec<Memory> {
            let sample = |resident: &u64| Memory {
                when: String::new(),
                resident: *resident,
                anonymous: 0,
                peak: 0,
            };
            sizes.iter().map(sample).collect()
        };
        assert_eq!(growth(&samples(&[10, 20, 90, 25])), Some(1.25));
        assert_eq!(growth(&samples(&[10, 20])), None);
        assert_eq!(growth(&samples(&[])), None);
    }
}
