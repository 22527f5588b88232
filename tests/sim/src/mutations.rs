//! Mutations: whether the simulation detects code without one of its safeguards.
//!
//! Each file in `tests/sim/mutations` is a patch that reverts one. Above the patch, it names the rule of
//! docs/data-safety.md and what it reverts; with `undetected`, also why the simulation cannot detect it yet. A patch is
//! applied to a copy of the committed code in `target/mutations`, which is built and run. The results are written to
//! docs/reliability.md.

mod patch;
mod report;
mod scratch;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use report::{Outcome, Report};
use scratch::Scratch;

/// Number of seeds without a mutation that must not fail.
const BASELINE: u64 = 50;
/// Number of seeds that a mutation gets of which it is known that it is not detected.
const UNDETECTED: u64 = 500;

/// Runs the mutations with these names, or all.
pub fn run(settings: &BTreeMap<&str, u64>, names: &[&str]) -> ExitCode {
    match run_all(settings, names) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run_all(settings: &BTreeMap<&str, u64>, names: &[&str]) -> io::Result<bool> {
    let seeds = settings.get("SEEDS").copied().unwrap_or(20_000);
    let jobs = settings.get("JOBS").copied();
    let patches = patch::read_all(&repository())?;
    let mut report = Report::read(&repository())?;
    report.keep_only(&patches);
    let scratch = Scratch::new(&repository())?;
    scratch.build()?;
    if let Some((_, cause)) = scratch.first_failure(BASELINE, jobs)? {
        return Err(io::Error::other(format!("it fails without any mutation: {cause}")));
    }
    let mut as_expected = true;
    for patch in &patches {
        if !names.is_empty() && !names.contains(&patch.name.as_str()) {
            continue;
        }
        let limit = if patch.undetected.is_some() { UNDETECTED } else { seeds };
        scratch.apply(patch)?;
        let found = scratch.build().and_then(|()| scratch.first_failure(limit, jobs));
        scratch.revert(patch)?;
        let outcome = match found? {
            Some((seeds, cause)) => Outcome::Detected { seeds, cause },
            None => Outcome::Undetected { seeds: limit },
        };
        println!("{}: {outcome}", patch.name);
        as_expected &= patch.undetected.is_none() == matches!(outcome, Outcome::Detected { .. });
        report.set(patch, &outcome);
        report.write(&repository())?;
    }
    Ok(as_expected)
}
