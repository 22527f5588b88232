//! Runs seeds of the simulation.
//!
//! Each run has a process of its own, because a run must not depend on anything that is left of another. In that process,
//! the operating system's random numbers come from the seed.

mod child;
mod many;
mod mutations;
mod regressions;
mod shrink;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use ahash::random_state::{self, RandomSource};

use sim::world::{self, Scenario};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const USAGE: &str = "\
usage: sim run SEED=N [ACTIONS=200] [TRACE=1] [REPLICAS=3] [KILLS=0] [API_FAULTS=0] [NFS_FAULTS=0] [ACCIDENTS=0]
               [ADMINISTRATORS=0] [FOLLOW_UPS=0] [PAUSE=MILLISECONDS] [SKIP=MASK] [CASE=NUMBER]
                            one seed; a 0 leaves a kind of events out, and each bit of MASK a 64th of the actions;
                            PAUSE is the time between two actions, at most, and CASE the number of the situation that
                            is arranged at the end
       sim many [SEEDS=10000] [FROM=1] [JOBS=processors] [FAILURES=10] [SHRINK=1] [KILLS=0]...
                            seeds from FROM on, until so many failed, and each of these shrunk; all of them with the
                            other settings of a single one
       sim twice [SEEDS=100] [FROM=1]
                            whether each seed gives the same run twice, and none fails
       sim regressions      seeds that failed once
       sim mutations [SEEDS=20000] [JOBS=processors] [NAME...]
                            whether the simulation detects code without its safeguards";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let settings = arguments.iter().skip(1).filter_map(|argument| argument.split_once('='));
    let settings: BTreeMap<&str, u64> = settings
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    match arguments.first().map(String::as_str) {
        Some("run") => run(&settings),
        Some("many") => many::run(&settings),
        Some("twice") => many::run_twice(&settings),
        Some("regressions") => regressions::run(),
        Some("mutations") => {
            let names = arguments.iter().skip(1).filter(|argument| !argument.contains('='));
            mutations::run(&settings, &names.map(String::as_str).collect::<Vec<_>>())
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs one seed.
fn run(settings: &BTreeMap<&str, u64>) -> ExitCode {
    let scenario = Scenario::from_settings(settings);
    let traces = settings.get("TRACE").is_some_and(|trace| *trace > 0);
    // Before the random numbers of the run: whether they are generated or given makes no difference for it.
    sim::api_server::schemas();
    seeded_entropy::seed(scenario.seed);
    if random_state::set_random_source(Counter::default()).is_err() {
        println!("{}a hash map was created too early", child::VIOLATION);
        return ExitCode::FAILURE;
    }
    // A new thread: the first one drew random numbers already.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(simulate(scenario, traces)));
    let report = match settings.get("LIMIT") {
        Some(limit) => receiver.recv_timeout(Duration::from_secs(*limit)),
        None => receiver.recv().map_err(RecvTimeoutError::from),
    };
    let report = match report {
        Ok(Ok(report)) => report,
        Err(RecvTimeoutError::Timeout) => {
            println!("{}the run did not end in time", child::VIOLATION);
            return ExitCode::FAILURE;
        }
        Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
            println!("{}the run panicked", child::VIOLATION);
            return ExitCode::FAILURE;
        }
    };
    for line in &report.trace {
        println!("{line}");
    }
    match report.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("{}{}", child::ACTIONS, report.actions);
            println!("{}{}", child::VIOLATION, violation.0);
            ExitCode::FAILURE
        }
    }
}

/// Seeds of kube's hash maps. The default ones depend on addresses, which differ between processes.
#[derive(Debug, Default)]
struct Counter(AtomicUsize);

impl RandomSource for Counter {
    fn gen_hasher_seed(&self) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

fn simulate(scenario: Scenario, traces: bool) -> std::io::Result<world::Report> {
    fastrand::seed(scenario.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let report = runtime.block_on(world::run(scenario, traces));
    // The process ends, and with it everything that still exists: to free it piece by piece takes time.
    std::mem::forget(runtime);
    Ok(report)
}
