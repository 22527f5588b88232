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
use tokio::runtime::Builder;

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
pub fn main() -> ExitCode {
    if is_named(kubectl_nfs::PLUGIN) {
        return block_on(Builder::new_multi_thread(), kubectl_nfs::main());
    }
    if is_named(kubectl_nfs::COMPLETION) {
        return kubectl_nfs::complete();
    }
    let command = Arguments::parse().command;
    block_on(command.runtime(), command.run())
}

impl Command {
    fn runtime(&self) -> Builder {
        match self {
            // It does one thing after the other, and its memory is limited: each thread takes some.
            Self::QuotaAgent(_) => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        }
    }

    async fn run(self) -> ExitCode {
        match self {
            Self::Run(arguments) => run::run(*arguments).await,
            Self::Crd(arguments) => crd::run(arguments).await,
            Self::Probe(arguments) => probe::run(arguments).await,
            Self::Archives(arguments) => archives::run(arguments).await,
            Self::QuotaAgent(arguments) => quota_agent::run(arguments).await,
            Self::Check(arguments) => check::run(arguments, "nfs-operator").await,
        }
    }
}

fn block_on(mut runtime: Builder, future: impl Future<Output = ExitCode>) -> ExitCode {
    match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => fail(&error),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tokio::runtime::RuntimeFlavor;

    use super::*;

    #[test]
    fn the_runtime_of_the_quota_agent_has_no_worker_threads() {
        let flavor = |arguments: &str| {
            let arguments = Arguments::try_parse_from(arguments.split(' ')).unwrap();
            let runtime = arguments.command.runtime().build().unwrap();
            runtime.handle().runtime_flavor()
        };
        let agent = "nfs-operator quota-agent --export /export --key-file /etc/keys";
        assert_eq!(flavor(agent), RuntimeFlavor::CurrentThread);
        assert_eq!(flavor("nfs-operator crd"), RuntimeFlavor::MultiThread);
    }
}
