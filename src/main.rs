//! The `nfs-operator` program: parses arguments and starts one of the subcommands.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod cli;

/// Set up in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
    Run(Box<cli::run::RunArguments>),
    /// Print the CustomResourceDefinitions, or install them.
    Crd(cli::crd::CrdArguments),
    /// Say what a backend's probe would say of an export, without a cluster.
    Probe(cli::probe::ProbeArguments),
    /// List what volumes and archives lie on an export, whichever cluster's they are, without a cluster.
    Archives(cli::archives::ArchivesArguments),
    /// Make a claim of a StorageClass and delete it again, and say how that went.
    Check(cli::check::CheckArguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(arguments) => cli::run::run(*arguments).await,
        Command::Crd(arguments) => cli::crd::run(arguments).await,
        Command::Probe(arguments) => cli::probe::run(arguments).await,
        Command::Archives(arguments) => cli::archives::run(arguments).await,
        Command::Check(arguments) => cli::check::run(arguments).await,
    }
}
