//! The subcommands: arguments in, exit code out.

pub mod archives;
pub mod check;
mod connection;
pub mod crd;
mod duration;
mod nfs_subdir;
pub mod probe;
pub mod run;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

/// Prints a result. Who reads it may have read enough (`| head`).
fn print(text: &str) -> std::io::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Says why the program ends on standard error, for whoever started it.
fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("nfs-operator: {error}");
    ExitCode::FAILURE
}
