//! `nfs-operator check`: a claim from its creation to the end of its volume, as a user would meet it.

mod judge;
mod report;
mod steps;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nfs_operator::runtime::clients::Clients;
use nfs_operator::runtime::shutdown::shutdown_signal;
use nfs_operator::runtime::write_fence::WriteFence;

use self::report::Report;
use self::steps::Check;
use super::duration::go_duration;

/// What `--help` says about the exit code; the numbers are [`Report::exit_code`]'s.
const EXIT_CODES: &str = "\
Exit code:
  0  the claim was provisioned, and it and its volume are gone again
  1  it was not: a row says FAILED, with what the claim or the volume says
  2  the arguments are wrong, or there is no access to the cluster
  3  a claim or a volume is left behind: a row names it";

/// Arguments of `nfs-operator check`.
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct CheckArguments {
    /// The StorageClass to make a claim of.
    #[arg(long)]
    storage_class: String,
    /// The namespace to make the claim in.
    #[arg(long, default_value = "default")]
    namespace: String,
    /// The node that a pod would use the claim on: a class that binds late needs one.
    #[arg(long)]
    node: Option<String>,
    /// How long each step may take. Go duration.
    // A backend is probed every 30 s unless it says otherwise: one that comes back is seen within that time.
    #[arg(long, default_value = "60s", value_parser = go_duration)]
    timeout: Duration,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
    /// Kubernetes configuration; absent: KUBECONFIG, then the pod's service account.
    #[arg(long, env = "NFS_OPERATOR_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Checks and prints.
pub async fn run(arguments: CheckArguments) -> ExitCode {
    match check(&arguments).await {
        Ok(report) => ExitCode::from(report.exit_code()),
        Err(error) => {
            eprintln!("nfs-operator: {error}");
            ExitCode::from(2)
        }
    }
}

async fn check(arguments: &CheckArguments) -> Result<Report, Box<dyn std::error::Error>> {
    // A person asked for it, whoever leads.
    let guard = WriteFence::default();
    guard.open(None);
    let clients = Clients::new(arguments.kubeconfig.as_deref(), "check", &guard, None).await?;
    let check = Check::new(clients.calls, arguments, shutdown_signal()?);
    let report = check.run().await;
    println!(
        "{}",
        match arguments.output {
            Output::Table => report.table(),
            Output::Json => report.json(&arguments.storage_class)?,
        }
    );
    Ok(report)
}
