//! `rig`: the test rig from a shell. See the Makefile.

mod node_command;
mod report;
mod up;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use rig::{
    Assets, Result,
    assets::{Helm, KernelVmAssets, NodeAssets},
    bench::{BenchOptions, bench},
};

/// Starts a real Kubernetes control plane, NFS server and operator.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build and install what the rig needs, and nothing else.
    Assets,
    /// Make the emulated machine with the kernel's NFS, and nothing else; fails where that cannot be.
    KernelVm,
    /// Start a cluster whose node runs pods, in namespaces of its own, and stay until Ctrl-C. Needs root.
    Node,
    /// Get what a node and the image need, and nothing else; fails where a node cannot be.
    NodeAssets,
    /// Install what the image is built with, and nothing else.
    ImageTools {
        /// The image's architecture, as container images or the kernel call it.
        #[arg(default_value = std::env::consts::ARCH)]
        arch: String,
    },
    /// Start everything, apply the samples, show what came of it, and stay until Ctrl-C.
    Up {
        /// The operator's program.
        #[arg(long)]
        operator: PathBuf,
        /// Go on to delete the claim, show what became of its data, and end.
        #[arg(long)]
        exit: bool,
    },
    /// Measure the operator against a bare client of the API server, and print tables.
    Bench {
        /// The operator's program, built in release mode.
        #[arg(long)]
        operator: PathBuf,
        /// Claims in a phase.
        #[arg(long, default_value_t = 500)]
        count: usize,
        /// Claims outstanding at a time.
        #[arg(long, default_value_t = 64)]
        concurrency: usize,
        /// Claims made one after the other.
        #[arg(long, default_value_t = 100)]
        lone: usize,
        /// Instead: so many claims on five backends, a restart, and a minute of idleness.
        #[arg(long, value_name = "CLAIMS")]
        scale: Option<usize>,
        /// So many claims that fail instead of all else: how often they are tried, and what a good claim notices.
        #[arg(long, conflicts_with = "scale")]
        storm: Option<usize>,
        /// So many claims that wait for a backend that is not there instead of all else: what they take in memory.
        #[arg(long, conflicts_with_all = ["scale", "storm"])]
        waiting: Option<usize>,
    },
    /// Compare the operator's rights with what it asked for, by the audit logs that a run of the tests left
    /// (NFS_OPERATOR_RIG_AUDIT); print each rule with its uses.
    Rights {
        /// Where the audit logs are.
        folder: PathBuf,
        /// Not all tests ran: a rule that nothing used is no failure.
        #[arg(long)]
        partial: bool,
    },
    /// Print docs/reference.md, made from crds/.
    Reference,
    /// Remove the folders of runs whose process is gone.
    Clean {
        /// Also the logs of runs that failed within the last day.
        #[arg(long)]
        kept: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("rig: {error}");
            return ExitCode::FAILURE;
        }
    };
    let status = runtime.block_on(run(arguments.command));
    // A build that was interrupted goes on in a thread that nobody waits for: it ends with this process.
    runtime.shutdown_background();
    status
}

async fn run(command: Command) -> ExitCode {
    let result = match command {
        Command::Assets => assets().await,
        Command::KernelVm => kernel_vm().await,
        Command::Node => match node_command::run().await {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::NodeAssets => node_assets().await,
        Command::ImageTools { arch } => NodeAssets::find_or_install_image_tools(&arch).await,
        Command::Up { operator, exit } => up::up(operator, exit).await,
        Command::Bench {
            operator,
            count,
            concurrency,
            lone,
            scale,
            storm,
            waiting,
        } => {
            let options = BenchOptions {
                operator,
                count,
                concurrency,
                lone,
                scale,
                storm,
                waiting,
            };
            bench(options).await
        }
        Command::Rights { folder, partial } => rig::rbac::check(&folder, partial),
        Command::Reference => reference(),
        Command::Clean { kept } => {
            rig::remove_dead_runs(kept);
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rig: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn assets() -> Result<()> {
    let assets = Assets::find_or_install().await?;
    println!("control plane: {}", assets.control_plane.display());
    println!("NFS server:    {}", assets.ganesha.display());
    for helm in Helm::ALL {
        println!("Helm:          {}", helm.find_or_build().await?.display());
    }
    Ok(())
}

async fn kernel_vm() -> Result<()> {
    let assets = KernelVmAssets::find_or_install().await?;
    println!("emulator:      {}", assets.emulator.display());
    println!("its kernel:    {}", assets.kernel.display());
    Ok(())
}

async fn node_assets() -> Result<()> {
    let assets = NodeAssets::find_or_install().await?;
    println!("kubelet:       {}", assets.kubelet.display());
    println!("containerd:    {}", assets.containerd.display());
    Ok(())
}

fn reference() -> Result<()> {
    let path = rig::operator::repository_root().join("crds/nfs-operator.yaml");
    let crds = std::fs::read_to_string(&path).map_err(|source| rig::Error::Io {
        action: format!("read {}", path.display()),
        source,
    })?;
    print!("{}", rig::api_reference::render(&crds)?);
    Ok(())
}
