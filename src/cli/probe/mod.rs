//! `nfs-operator probe`: what a backend's probe would say, from a shell.

mod finding;
mod print;
mod reserved_port;
mod steps;
mod write;

use std::process::ExitCode;

use clap::Args;

use self::finding::Findings;
use super::connection::{Connection, Output};

/// What `--help` says about the exit code; the numbers are [`Findings::exit_code`]'s.
const EXIT_CODES: &str = "\
Exit code:
  0  a backend for this export would be Ready (there may be warnings)
  1  it would not: a row says FAILED, with the reason and the remedy that the backend's condition would have
  2  the arguments are wrong, or the program itself failed
  3  something that --write made could not be removed: its name is told";

/// Arguments of `nfs-operator probe`.
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct ProbeArguments {
    #[command(flatten)]
    connection: Connection,
    /// Also make a directory with a file in it, set its mode and owner, rename and remove it.
    #[arg(long)]
    write: bool,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

/// Probes and prints.
pub async fn run(arguments: ProbeArguments) -> ExitCode {
    let mut findings = Findings::default();
    steps::look(&arguments.connection.target("probe"), arguments.write, &mut findings).await;
    let printed = match arguments.output {
        Output::Json => match print::json(&arguments.connection.export, &findings) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("nfs-operator: {error}");
                return ExitCode::from(2);
            }
        },
        Output::Table => print::table(&findings),
    };
    println!("{printed}");
    ExitCode::from(findings.exit_code())
}
