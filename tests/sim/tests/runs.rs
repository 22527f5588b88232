//! A few runs of the simulation. `make test` runs many, in a faster build: `sim many` and `sim twice`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// Runs the simulator, and fails with its output if it fails.
fn sim(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

#[test]
fn the_same_seed_gives_the_same_run_byte_for_byte() {
    sim(&["twice", "SEEDS=3"]);
}

#[test]
fn no_seed_violates_a_rule() {
    sim(&["many", "SEEDS=6", "JOBS=2"]);
}
