//! Output of a result.

use std::io::{ErrorKind, Write as _};

use clap::ValueEnum;

/// Output format.
#[derive(Clone, Copy, ValueEnum)]
pub enum OutputFormat {
    Table,
    Json,
}

/// Prints a result to standard output. A reader that stops early, such as `head`, is not an error.
pub fn print(text: &str) -> std::io::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}
