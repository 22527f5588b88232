//! Runs that failed once.

use std::collections::BTreeMap;
use std::process::ExitCode;

use sim::world::Scenario;

use crate::child;

/// A run in each line, as `make sim` prints it, and after `#` what it found.
const RUNS: &str = include_str!("../regressions.txt");

/// Runs all of them.
pub fn run() -> ExitCode {
    let mut result = ExitCode::SUCCESS;
    let runs = scenarios();
    for scenario in &runs {
        if let Some(failure) = child::run(scenario) {
            println!("{scenario} fails again: {}", failure.cause);
            result = ExitCode::FAILURE;
        }
    }
    println!("{} runs that failed once", runs.len());
    result
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
