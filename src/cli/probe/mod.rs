//! `nfs-operator probe`: probes an export as an NfsBackend would, without a cluster.

mod quota_agents;
mod reserved_port;
mod steps;
mod write_test;

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::connection::ConnectionArguments;
use super::findings::Findings;
use super::output::{OutputFormat, print};

/// Help on the exit code, see [`Findings::exit_code`].
pub const EXIT_CODES: &str = "\
Exit code:
  0  a backend for this export would be Ready (there may be warnings)
  1  it would not be Ready: a row is FAILED, with the reason and the remedy that the condition of the backend would have
  2  invalid arguments, or an internal error
  3  something that --write created could not be removed: a row names it";

/// Width of the first column of the table.
pub const CHECK_WIDTH: usize = 13;

/// Arguments of `nfs-operator probe`.
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct ProbeArguments {
    /// The export.
    #[command(flatten)]
    pub connection: ConnectionArguments,
    /// Also create a directory with a file in it, set its mode and owner, list it as a member of its group, rename it and remove
    /// it.
    #[arg(long)]
    write: bool,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    pub output: OutputFormat,
}

impl ProbeArguments {
    /// Returns the command line of the program with these arguments.
    pub fn as_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["probe".to_owned()];
        if self.write {
            arguments.push("--write".to_owned());
        }
        if self.output == OutputFormat::Json {
            arguments.push("--output=json".to_owned());
        }
        arguments.extend(self.connection.as_arguments());
        arguments
    }
}

/// Probes the export and prints the findings.
pub async fn run(arguments: ProbeArguments) -> ExitCode {
    let mut findings = Findings::default();
    steps::probe(&arguments.connection.target("probe"), arguments.write, &mut findings).await;
    let text = match arguments.output {
        OutputFormat::Table => Ok(findings.table("CHECK", CHECK_WIDTH)),
        OutputFormat::Json => serde_json::to_string_pretty(&json!({
            "export": arguments.connection.export.to_string(),
            "ready": findings.succeeded(),
            "exitCode": findings.exit_code(),
            "checks": findings.rows(),
        })),
    };
    match text.map_err(std::io::Error::from).and_then(|text| print(&text)) {
        Ok(()) => ExitCode::from(findings.exit_code()),
        Err(error) => {
            eprintln!("nfs-operator: {error}");
            ExitCode::from(2)
        }
    }
}
