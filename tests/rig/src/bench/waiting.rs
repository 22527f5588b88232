//! Many claims that wait for a backend that is not there: what they take in memory, and what a change costs that cures none.

use std::time::Instant;

use serde_json::json;

use super::{BenchOptions, Figures, progress, stage::Stage, table, work};
use crate::{error::Result, run_dir::RunDir};

/// The class of the claims that wait.
const WAITING: &str = "waiting";

/// Measures, and prints the tables.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims that wait for a backend that is not there; load at the start {}.",
        table::load()
    );
    let mut stage = Stage::start(run, options, 1).await?;
    let mut operator = stage.operator(run).await?;
    stage.without_binder().await?;
    let (mut figures, mut counts) = (Figures::default(), Vec::new());
    figures.remember("at the start", &operator)?;

    progress("the claims come");
    let began = Instant::now();
    work::of_class(&stage, options, WAITING, json!({ "backend": "absent" }), claims).await?;
    work::told(&operator, "BackendNotFound", claims).await?;
    let told = began.elapsed().as_secs_f64();
    counts.push(("until each said what it waits for", format!("{told:.0} s")));
    stage.settle(&operator).await?;
    figures.remember("with the claims waiting", &operator)?;

    progress("a backend changes that none of them may use");
    let (used, written) = (stage.usage(Some(&operator))?, work::writes_to_claims(&stage, WAITING)?);
    stage.relabel().await?;
    stage.settle(&operator).await?;
    let used = stage.usage(Some(&operator))?.since(&used);
    let written = work::writes_to_claims(&stage, WAITING)? - written;
    counts.push(("CPU time to look at all again", format!("{:.2} s", used.operator)));
    counts.push(("writes to claims for that", written.to_string()));
    figures.remember("when all were looked at again", &operator)?;

    progress("the operator starts again");
    operator.restart().await?;
    operator.wait_ready().await?;
    stage.settle(&operator).await?;
    figures.remember("after a restart", &operator)?;
    println!("\n{}", table::counts(&counts));
    println!("{}", table::memory(&figures.memory, "limit of the pod: 64"));
    operator.terminate().await?;
    stage.stop().await
}
