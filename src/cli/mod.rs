//! Command line: each subcommand is a file or a folder with its arguments and a `run` function that returns the exit code.
//!
//! To add a subcommand, add its file and a variant of [`Command`].

mod archives;
mod check;
mod cluster;
mod connection;
mod crd;
mod duration;
mod findings;
mod kubectl_nfs;
mod log;
mod output;
mod probe;
mod quota_agent;
mod run;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub use kubectl_nfs::command as plugin_command;

/// Turns NFS exports into self-service Kubernetes storage, without mounts or privileges.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the operator.
    Run(Box<run::RunArguments>),
    /// Print the CustomResourceDefinitions, or install them.
    Crd(crd::CrdArguments),
    /// Probe an export as an NfsBackend would; needs no cluster.
    Probe(probe::ProbeArguments),
    /// List the volumes and archives of all clusters on an export; needs no cluster.
    Archives(archives::ArchivesArguments),
    /// Enforce the sizes of volumes; runs as root on the server that exports them.
    QuotaAgent(quota_agent::QuotaAgentArguments),
    /// Test a StorageClass: create a claim, wait until it is bound, and delete it.
    Check(check::CheckArguments),
}

/// Parses the arguments and runs the subcommand. Under the names by which kubectl finds a plugin and its completion, the
/// program is one of these.
pub async fn main() -> ExitCode {
    if is_named(kubectl_nfs::PLUGIN) {
        return kubectl_nfs::main().await;
    }
    if is_named(kubectl_nfs::COMPLETION) {
        return kubectl_nfs::complete();
    }
    match Arguments::parse().command {
        Command::Run(arguments) => run::run(*arguments).await,
        Command::Crd(arguments) => crd::run(arguments).await,
        Command::Probe(arguments) => probe::run(arguments).await,
        Command::Archives(arguments) => archives::run(arguments).await,
        Command::QuotaAgent(arguments) => quota_agent::run(arguments).await,
        Command::Check(arguments) => check::run(arguments, "nfs-operator").await,
    }
}

/// Returns the definition of the command line, for the documentation.
pub fn command() -> clap::Command {
    Arguments::command()
}

fn is_named(expected: &str) -> bool {
    let name = std::env::args_os().next();
    let name = name.as_deref().map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| name == expected)
}

/// Prints the error that ends the program to standard error.
fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("nfs-operator: {error}");
    ExitCode::FAILURE
}
