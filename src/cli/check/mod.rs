//! `nfs-operator check`: tests a StorageClass from the creation of a claim to the deletion of its volume.

mod objects;
mod steps;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use self::steps::Check;
use super::cluster::ClusterArguments;
use super::duration::parse_duration;
use super::findings::Findings;
use super::output::{OutputFormat, print};
use crate::runtime::shutdown::shutdown_signal;

/// Help on the exit code, see [`Findings::exit_code`].
const EXIT_CODES: &str = "\
Exit code:
  0  the claim was provisioned, and it and its volume were deleted
  1  a step failed: a row is FAILED, with the message of the claim or the volume
  2  invalid arguments, or no access to the cluster
  3  a claim or a volume is left behind: a row names it";

/// Arguments of `nfs-operator check`.
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct CheckArguments {
    /// StorageClass to test.
    #[arg(long)]
    storage_class: String,
    /// Namespace in which to create the claim. Default: that of the kubeconfig's context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Node of a pod that would use the claim; required for classes with volumeBindingMode WaitForFirstConsumer.
    #[arg(long)]
    node: Option<String>,
    /// Maximum duration of each step (Go duration).
    // The default probe interval is 30 s, so a backend that recovers is noticed within the default timeout.
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Runs the check and prints the findings. `program` is the name in errors.
pub async fn run(arguments: CheckArguments, program: &str) -> ExitCode {
    match check(&arguments).await {
        Ok(findings) => ExitCode::from(findings.exit_code()),
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::from(2)
        }
    }
}

async fn check(arguments: &CheckArguments) -> Result<Findings, Box<dyn std::error::Error>> {
    let client = arguments.cluster.client().await?;
    let check = Check::new(client, arguments, shutdown_signal()?);
    let findings = check.run().await;
    print(&match arguments.output {
        OutputFormat::Table => findings.table("STEP", 10),
        OutputFormat::Json => serde_json::to_string_pretty(&json!({
            "storageClass": arguments.storage_class,
            "exitCode": findings.exit_code(),
            "steps": findings.rows(),
        }))?,
    })?;
    Ok(findings)
}
