//! What `make bench` does: the operator against a bare client that writes the same API objects, in the same run.
//!
//! Figures, never pass or fail. The two cores of a small machine are shared with the API server, etcd and the NFS
//! server, so each phase also says how much CPU time every one of them took: that is what a busy machine can't blur.

mod floor;
mod lone;
mod scale;
mod sightings;
mod stage;
mod storm;
mod table;
mod waiting;
mod work;

use std::path::PathBuf;

use self::{
    floor::Floor,
    lone::Latencies,
    stage::Stage,
    table::{Kind, Rate},
    work::Made,
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
    println!("{}", table::conditions(options, run.path()));
    let mut stage = Stage::start(run, options, 1).await?;
    progress("floor, before the operator starts");
    stage.without_binder().await?;
    let floor = Floor::new(&stage);
    floor.warm_up(options).await?;
    let before = floor.measure(&stage, options).await?;
    stage.with_binder().await?;
    let mut figures = Figures::default();
    let (operator, lone) = serve(&mut stage, run, options, &mut figures).await?;
    operator.terminate().await?;
    progress("floor, after the operator has ended");
    stage.without_binder().await?;
    let after = floor.measure(&stage, options).await?;
    println!("\n{}", table::rates(&figures.rates, &[&before, &after]));
    println!("{}", table::latencies(&lone));
    println!("{}", table::memory(&figures.memory, "goal < 30 at 500 claims"));
    println!("{}", table::cost(&figures.rates, &[&before, &after]));
    stage.stop().await
}

/// What was measured so far.
#[derive(Default)]
struct Figures {
    rates: Vec<Rate>,
    memory: Vec<table::Memory>,
}

impl Figures {
    fn remember(&mut self, when: &str, operator: &Operator) -> Result<()> {
        self.memory.push(table::Memory {
            when: when.into(),
            resident: operator.resident_bytes()?,
            peak: operator.peak_resident_bytes()?,
        });
        Ok(())
    }
}

/// One life of the operator.
async fn serve(
    stage: &mut Stage,
    run: &RunDir,
    options: &BenchOptions,
    figures: &mut Figures,
) -> Result<(Operator, Latencies)> {
    let operator = stage.operator(run).await?;
    figures.remember("at the start", &operator)?;
    progress("lone claims");
    let lone = lone::claims(stage, options.lone).await?;
    figures.remember("after the lone claims", &operator)?;
    for policy in [Policy::Archive, Policy::Delete] {
        stage.policy(policy).await?;
        let claims = creation(stage, &operator, options, policy, figures).await?;
        deletion(stage, &operator, options, policy, &claims, figures).await?;
    }
    Ok((operator, lone))
}

/// Claims to volumes.
async fn creation(
    stage: &mut Stage,
    operator: &Operator,
    options: &BenchOptions,
    policy: Policy,
    figures: &mut Figures,
) -> Result<Vec<Made>> {
    progress(&format!("claims, policy {}", policy.name()));
    stage.without_binder().await?;
    stage.settle(operator).await?;
    let before = stage.usage(Some(operator))?;
    let (claims, pace, written) = work::create(stage, options).await?;
    let used = stage.usage(Some(operator))?.since(&before);
    println!(
        "  the last condition stood {:.0} ms after the last volume",
        written.as_secs_f64() * 1e3
    );
    figures.rates.push(Rate::new(Kind::Claims, policy.name(), pace, used));
    figures.remember(&format!("with {} claims", claims.len()), operator)?;
    Ok(claims)
}

/// Released volumes to none.
async fn deletion(
    stage: &mut Stage,
    operator: &Operator,
    options: &BenchOptions,
    policy: Policy,
    claims: &[Made],
    figures: &mut Figures,
) -> Result<()> {
    progress(&format!("deletes, policy {}", policy.name()));
    stage.bind(claims.len()).await?;
    stage.without_binder().await?;
    figures.remember("with these bound", operator)?;
    work::prepare_release(stage, claims, options).await?;
    stage.settle(operator).await?;
    // Paused and not stopped: its memory and its caches are those of one life.
    operator.pause()?;
    work::release(stage, claims, options).await?;
    let before = stage.usage(Some(operator))?;
    operator.resume()?;
    let pace = work::gone(stage, claims).await?;
    let used = stage.usage(Some(operator))?.since(&before);
    figures.rates.push(Rate::new(Kind::Deletes, policy.name(), pace, used));
    stage.settle(operator).await?;
    figures.remember("after their deletion", operator)?;
    stage.with_binder().await
}

fn progress(what: &str) {
    println!("{what} … (load {})", table::load());
}

/// How fast a phase was.
#[derive(Clone, Copy, Debug)]
struct Pace {
    count: usize,
    seconds: f64,
}

impl Pace {
    fn per_second(self) -> f64 {
        self.count as f64 / self.seconds.max(f64::EPSILON)
    }
}
