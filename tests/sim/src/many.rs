//! Runs many seeds, one process for each.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sim::world::Scenario;

use crate::child::{self, Failure};
use crate::shrink::shrink;

/// Time between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// Runs seeds on all processors.
pub fn run(settings: &BTreeMap<&str, u64>) -> ExitCode {
    let setting = |name: &str, default: u64| settings.get(name).copied().unwrap_or(default);
    let progress = Mutex::new(Progress::new(setting("FROM", 1), setting("SEEDS", 10_000)));
    let limit = usize::try_from(setting("FAILURES", 10)).unwrap_or(usize::MAX);
    let scenario = |seed| {
        let mut settings = settings.clone();
        settings.insert("SEED", seed);
        Scenario::from_settings(&settings)
    };
    let locked = || progress.lock();
    run_in_parallel(setting("JOBS", processors()), || {
        loop {
            let Some(seed) = locked().next(limit) else { break };
            let failure = child::run(&scenario(seed));
            locked().ended(seed, failure);
        }
    });
    let mut progress = progress.into_inner();
    println!("{}", progress.summary());
    progress.failures.sort();
    for (seed, failure) in &progress.failures {
        let (scenario, failure) = match setting("SHRINK", 1) {
            0 => (scenario(*seed), failure.clone()),
            _ => shrink(scenario(*seed), failure.clone()),
        };
        println!("seed {seed} fails: {}\n  make sim {scenario} TRACE=1", failure.cause);
    }
    match progress.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Returns the number of processors.
pub(crate) fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

/// Runs this in several threads at the same time.
pub(crate) fn run_in_parallel(threads: u64, run: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&run);
        }
    });
}

/// What was run so far.
struct Progress {
    began: Instant,
    reported: Instant,
    next: u64,
    end: u64,
    done: u64,
    failures: Vec<(u64, Failure)>,
}

impl Progress {
    fn new(from: u64, seeds: u64) -> Self {
        let began = Instant::now();
        Self {
            began,
            reported: began,
            next: from,
            end: from.saturating_add(seeds),
            done: 0,
            failures: Vec::new(),
        }
    }

    /// Returns the next seed, unless all were run or `limit` seeds failed.
    fn next(&mut self, limit: usize) -> Option<u64> {
        let seed = self.next;
        let is_left = seed < self.end && self.failures.len() < limit;
        is_left.then(|| {
            self.next += 1;
            seed
        })
    }

    /// Records the end of a run.
    fn ended(&mut self, seed: u64, failure: Option<Failure>) {
        self.done += 1;
        if let Some(failure) = failure {
            eprintln!("seed {seed}: {}", failure.cause);
            self.failures.push((seed, failure));
        }
        if self.reported.elapsed() >= PROGRESS {
            self.reported = Instant::now();
            eprintln!(
                "{}, {} failed, {} left",
                self.summary(),
                self.failures.len(),
                self.end - self.next
            );
        }
    }

    fn summary(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64();
        format!(
            "{} seeds in {seconds:.0} s, {:.1} per second",
            self.done,
            self.done as f64 / seconds
        )
    }
}

/// Runs each seed twice at the same time, and compares the traces byte for byte. Ends at the first seed whose runs differ or
/// fail.
pub fn run_twice(settings: &BTreeMap<&str, u64>) -> ExitCode {
    let setting = |name: &str, default: u64| settings.get(name).copied().unwrap_or(default);
    let (from, seeds) = (setting("FROM", 1), setting("SEEDS", 100));
    for seed in from..from + seeds {
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| trace(seed));
            (trace(seed), second.join().unwrap_or_default())
        });
        if first.is_empty() || first != second {
            let line = first
                .lines()
                .zip(second.lines())
                .position(|(first, second)| first != second);
            println!("two runs of seed {seed} differ, from line {line:?} on");
            return ExitCode::FAILURE;
        }
        if let Some(violation) = first.lines().find_map(|line| line.strip_prefix(child::VIOLATION)) {
            println!("seed {seed} fails: {violation}\n  make sim SEED={seed} TRACE=1");
            return ExitCode::FAILURE;
        }
    }
    println!("{seeds} seeds, each with the same run twice");
    ExitCode::SUCCESS
}

/// Runs a seed, and returns what happened.
fn trace(seed: u64) -> String {
    let output = child::command(&format!("SEED={seed} TRACE=1 LIMIT={}", child::LIMIT.as_secs()))
        .and_then(|mut command| command.output());
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}
