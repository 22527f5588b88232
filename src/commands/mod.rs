//! The subcommands: arguments in, exit code out.

pub mod archives;
pub mod check;
mod connection;
pub mod crd;
mod duration;
mod nfs_subdir;
pub mod probe;
pub mod run;

use std::process::ExitCode;

/// Says why the program ends on standard error, for whoever started it.
fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("nfs-operator: {error}");
    ExitCode::FAILURE
}
