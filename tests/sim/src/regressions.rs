//! Runs that failed once.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sim::world::Scenario;

use crate::child;
use crate::many::{processors, run_in_parallel};

/// A run in each line, as `make sim` prints it, and after `#` what it found.
const RUNS: &str = include_str!("../regressions.txt");

/// Runs all of them, on all processors.
pub fn run() -> ExitCode {
    let runs = scenarios();
    let (next, failed) = (Mutex::new(runs.iter()), AtomicBool::new(false));
    let take = || next.lock().next();
    run_in_parallel(processors(), || {
        while let Some(scenario) = take() {
            if let Some(failure) = child::run(scenario) {
                println!("{scenario} fails again: {}", failure.cause);
                failed.store(true, Ordering::Relaxed);
            }
        }
    });
    println!("{} runs that failed once", runs.len());
    match failed.into_inner() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn scenarios() -> Vec<Scenario> {
    let runs = RUNS.lines().filter_map(|line| line.split('#').next());
    let runs = runs.map(str::trim).filter(|run| !run.is_empty());
    runs.map(|run| Scenario::from_settings(&settings(run))).collect()
}

fn settings(run: &str) -> BTreeMap<&str, u64> {
    let settings = run.split(' ').filter_map(|setting| setting.split_once('='));
    let settings = settings.filter_map(|(name, value)| Some((name, value.parse().ok()?)));
    settings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_run() {
        let runs: Vec<&str> = RUNS
            .lines()
            .filter_map(|line| line.split('#').next())
            .map(str::trim)
            .filter(|run| !run.is_empty())
            .collect();
        let read: Vec<String> = scenarios().iter().map(ToString::to_string).collect();
        assert_eq!(read, runs);
    }
}
