//! `make bench`: measures the operator against bare clients that write the same API objects, and against an operator of
//! another revision, in the same run.
//!
//! A benchmark has no verdict: targets are printed and never asserted. API server, etcd and NFS server share the cores of
//! the machine with the operator, so each phase also reports the CPU time of each process, which does not depend on the
//! load.

mod backends;
mod baseline;
mod binder;
mod costs;
mod cycles;
mod env;
mod foreign;
mod latency;
mod links;
pub mod quotas;
mod rates;
mod scale;
mod schedules;
mod simulated_volumes;
mod storm;
mod table;
mod targets;
mod volume_watch;
mod waiting;
mod workload;

use std::{path::PathBuf, time::Duration};

use self::table::Memory;
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
    /// Path of another operator's binary, to measure both alternately.
    #[arg(long, value_name = "BINARY", requires = "base_checkout")]
    pub base: Option<PathBuf>,
    /// Checkout from which the other operator was built; its CRDs and RBAC rules are installed for it.
    #[arg(long, value_name = "DIRECTORY")]
    pub base_checkout: Option<PathBuf>,
    /// Measure both without and with this round trip between the operator and both servers.
    #[arg(long, value_name = "MILLISECONDS", conflicts_with = "base")]
    pub round_trip: Option<u64>,
    /// Instead, measure this number of claims on five backends, a restart, and an idle minute.
    #[arg(long, value_name = "CLAIMS", group = "mode")]
    pub scale: Option<usize>,
    /// With --scale, do not scan for orphans, which checks ten volumes of a backend per second.
    #[arg(long)]
    pub no_scan: bool,
    /// Instead, measure this number of failing claims: the rate of retries, and the effect on a valid claim.
    #[arg(long, value_name = "CLAIMS", group = "mode")]
    pub storm: Option<usize>,
    /// Instead, measure this number of claims that wait for a missing backend: the memory that they use.
    #[arg(long, value_name = "CLAIMS", group = "mode")]
    pub waiting: Option<usize>,
    /// Instead, measure the memory and the start with this number of volumes of other drivers in the cluster.
    #[arg(long, value_name = "VOLUMES", group = "mode")]
    pub foreign: Option<usize>,
    /// Instead, measure the memory while the claims of a phase are created and deleted this number of times.
    #[arg(long, value_name = "CYCLES", group = "mode")]
    pub cycles: Option<usize>,
    /// Instead, measure this number of backends on 20 servers: memory, CPU when idle, and placement.
    #[arg(long, value_name = "BACKENDS", group = "mode")]
    pub backends: Option<usize>,
    /// Instead, measure what this number of schedules of backups costs while none of their times comes.
    #[arg(long, value_name = "SCHEDULES", group = "mode")]
    pub schedules: Option<usize>,
    /// Instead, measure how many claims the binder of the controller manager binds with several limits of its requests.
    #[arg(long, value_name = "CLAIMS", group = "mode")]
    pub binder: Option<usize>,
}

/// The archive policy of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    let measured = measure(&run, &options).await;
    if measured.is_err() {
        run.keep();
    }
    measured
}

async fn measure(run: &RunDir, options: &BenchOptions) -> Result<()> {
    if let Some(claims) = options.scale {
        scale::measure(run, options, claims).await
    } else if let Some(claims) = options.storm {
        storm::measure(run, options, claims).await
    } else if let Some(claims) = options.waiting {
        waiting::measure(run, options, claims).await
    } else if let Some(volumes) = options.foreign {
        foreign::measure(run, options, volumes).await
    } else if let Some(cycles) = options.cycles {
        cycles::measure(run, options, cycles).await
    } else if let Some(backends) = options.backends {
        backends::measure(run, options, backends).await
    } else if let Some(schedules) = options.schedules {
        schedules::measure(run, options, schedules).await
    } else if let Some(claims) = options.binder {
        binder::measure(run, options, claims).await
    } else {
        rates::measure(run, options).await
    }
}

/// The operator's memory so far.
#[derive(Default)]
struct MemorySamples(Vec<Memory>);

impl MemorySamples {
    fn record(&mut self, when: impl Into<String>, operator: &Operator) -> Result<()> {
        self.0.push(Memory {
            when: when.into(),
            resident: operator.resident_bytes()?,
            anonymous: operator.anonymous_bytes()?,
            peak: operator.peak_resident_bytes()?,
        });
        Ok(())
    }

    /// Returns the highest peak in MiB.
    fn peak(&self) -> f64 {
        let peak = self.0.iter().map(|sample| sample.peak).max();
        peak.unwrap_or_default() as f64 / table::MEBIBYTE
    }

    /// Returns the samples as a table.
    fn table(&self) -> String {
        table::memory(&self.0)
    }
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

    /// Returns the throughput of both, one after the other.
    fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            seconds: self.seconds + other.seconds,
        }
    }
}
