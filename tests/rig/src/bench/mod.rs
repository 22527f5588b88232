//! What `make bench` does: the operator against a bare client that writes the same API objects, in the same run.
//!
//! Figures, never pass or fail. The two cores of a small machine are shared with the API server, etcd and the NFS
//! server, so each phase also says how much CPU time every one of them took: that is what a busy machine can't blur.

mod floor;
mod lone;
mod sightings;
mod stage;
mod table;
mod work;

use std::path::PathBuf;

use self::{floor::Floor, stage::Stage, table::Rate, work::Made};
use crate::{error::Result, run_dir::RunDir};

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
    let measured = measure(&run, &options).await;
    if measured.is_err() {
        run.keep();
    }
    measured
}

async fn measure(run: &RunDir, options: &BenchOptions) -> Result<()> {
    println!("{}", table::conditions(options, run.path()));
    let mut stage = Stage::start(run, options).await?;
    let mut figures = Figures::default();
    figures.remember("at the start", &stage)?;
    progress("lone claims");
    let lone = lone::claims(&stage, options.lone).await?;
    figures.remember("after the lone claims", &stage)?;
    for policy in [Policy::Archive, Policy::Delete] {
        stage.policy(policy).await?;
        let (claims, volumes) = creation(&mut stage, options, policy, &mut figures).await?;
        deletion(&mut stage, options, policy, (&claims, &volumes), &mut figures).await?;
    }
    println!("\n{}", table::rates(&figures.rates));
    println!("{}", table::latencies(&lone));
    println!("{}", table::memory(&figures.memory));
    println!("{}", table::cost(&figures.rates));
    stage.stop().await
}

/// What was measured so far.
#[derive(Default)]
struct Figures {
    rates: Vec<Rate>,
    memory: Vec<(String, u64)>,
}

impl Figures {
    fn remember(&mut self, when: &str, stage: &Stage) -> Result<()> {
        self.memory.push((when.into(), stage.operator.resident_bytes()?));
        Ok(())
    }
}

/// Claims to volumes: the floor's, then the operator's, which are given back in that order reversed.
async fn creation(
    stage: &mut Stage,
    options: &BenchOptions,
    policy: Policy,
    figures: &mut Figures,
) -> Result<(Vec<Made>, Vec<Made>)> {
    progress(&format!("claims, policy {}", policy.name()));
    stage.without_binder().await?;
    let floor = Floor::new(stage);
    // Paused and not stopped: its memory and its caches are those of one life.
    stage.operator.pause()?;
    floor.warm_up(options).await?;
    let before = stage.usage()?;
    let (volumes, bare) = floor.create(options).await?;
    let used_by_floor = stage.usage()?.since(&before);
    stage.operator.resume()?;
    stage.settle().await?;

    let before = stage.usage()?;
    let (claims, made, written) = work::create(stage, options).await?;
    let used = stage.usage()?.since(&before);
    println!(
        "  the last condition stood {:.0} ms after the last volume",
        written.as_secs_f64() * 1e3
    );
    let what = format!("claims to volumes, policy {}", policy.name());
    figures
        .rates
        .push(Rate::new(&what, (made, used), (bare, used_by_floor)));
    figures.remember(&format!("with {} claims", claims.len()), stage)?;
    Ok((claims, volumes))
}

/// Released volumes to none: the floor's, then the operator's.
async fn deletion(
    stage: &mut Stage,
    options: &BenchOptions,
    policy: Policy,
    (claims, volumes): (&[Made], &[Made]),
    figures: &mut Figures,
) -> Result<()> {
    progress(&format!("deletes, policy {}", policy.name()));
    stage.bind(claims).await?;
    stage.without_binder().await?;
    figures.remember("with these bound", stage)?;
    let floor = Floor::new(stage);
    stage.operator.pause()?;
    floor.release(volumes, options).await?;
    let before = stage.usage()?;
    let bare = floor.reclaim(volumes, options).await?;
    let used_by_floor = stage.usage()?.since(&before);
    stage.operator.resume()?;

    work::prepare_release(stage, claims, options).await?;
    stage.settle().await?;
    stage.operator.pause()?;
    work::release(stage, claims, options).await?;
    let before = stage.usage()?;
    stage.operator.resume()?;
    let gone = work::gone(stage, claims).await?;
    let used = stage.usage()?.since(&before);
    let what = format!("deletes, policy {}", policy.name());
    figures
        .rates
        .push(Rate::new(&what, (gone, used), (bare, used_by_floor)));
    stage.settle().await?;
    figures.remember("after their deletion", stage)?;
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
