//! `rig`: the command line of the test rig. See the Makefile.

mod node_command;
mod report;
mod up;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use rig::{
    Assets, Result, ResultExt as _,
    assets::{Debian, Helm, KernelVmAssets, NodeAssets},
    bench::{BenchOptions, bench, quotas::QuotaBenchOptions},
};

/// Start a real Kubernetes control plane, NFS server and operator.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build and install everything that the rig needs.
    Assets {
        /// Only what `rig up` needs.
        #[arg(long)]
        only_up: bool,
    },
    /// Build the virtual machine with the Linux kernel's NFS server and client. Fails if this machine cannot run it.
    KernelVm,
    /// Build a virtual machine that also has ZFS, which is compiled. Fails if this machine cannot do that.
    ZfsVm {
        /// Only check that it was built before.
        #[arg(long)]
        check: bool,
    },
    /// Start a cluster whose node runs pods, in its own namespaces, until Ctrl-C. Needs root.
    Node,
    /// Install everything that a node and the image build need. Fails if this machine cannot run a node.
    NodeAssets,
    /// Install the tools that build the image.
    ImageTools {
        /// Architecture of the image, in the notation of container images or of the kernel.
        #[arg(default_value = std::env::consts::ARCH)]
        arch: String,
    },
    /// Start everything, apply the samples, show the result, and run until Ctrl-C.
    Up {
        /// Path of the operator's binary.
        #[arg(long)]
        operator: PathBuf,
        /// Delete the claim, show what happens to its data, and exit.
        #[arg(long)]
        exit: bool,
    },
    /// Measure the operator against a bare client of the API server, and print tables.
    Bench(Box<BenchOptions>),
    /// Measure what enforced sizes cost, with a quota agent in the virtual machine, and print a table.
    BenchQuotas(QuotaBenchOptions),
    /// Compare the operator's RBAC rules with its requests in the audit logs of a test run (NFS_OPERATOR_RIG_AUDIT),
    /// and print how often each rule was used.
    Rights {
        /// Directory of the audit logs.
        folder: PathBuf,
        /// Do not report unused rules, because not all tests ran.
        #[arg(long)]
        partial: bool,
    },
    /// Print docs/reference.md, generated from crds/.
    Reference,
    /// Remove the directories of runs whose process has exited.
    Clean {
        /// Also remove the logs of runs that failed within the last day.
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
    // An interrupted build runs in a blocking thread. It ends with this process.
    runtime.shutdown_background();
    status
}

async fn run(command: Command) -> ExitCode {
    let result = match command {
        Command::Assets { only_up } => assets(only_up).await,
        Command::KernelVm => kernel_vm().await,
        Command::ZfsVm { check } => zfs_vm(check).await,
        Command::Node => match node_command::run().await {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::NodeAssets => node_assets().await,
        Command::ImageTools { arch } => NodeAssets::find_or_install_image_tools(&arch).await,
        Command::Up { operator, exit } => up::up(operator, exit).await,
        Command::Bench(options) => bench(*options).await,
        Command::BenchQuotas(options) => rig::bench::quotas::bench(options).await,
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

async fn assets(only_up: bool) -> Result<()> {
    let assets = Assets::find_or_install().await?;
    if only_up {
        return Ok(());
    }
    println!("control plane: {}", assets.control_plane.display());
    println!("NFS server:    {}", assets.ganesha.display());
    for helm in Helm::ALL {
        println!("Helm:          {}", helm.find_or_build().await?.display());
    }
    Ok(())
}

async fn kernel_vm() -> Result<()> {
    let assets = KernelVmAssets::find_or_install(Debian::Own).await?;
    let newer = KernelVmAssets::find_or_install(Debian::V13).await?;
    println!("emulator:      {}", assets.emulator.display());
    println!("its kernel:    {}", assets.kernel.display());
    println!("a newer one:   {}", newer.kernel.display());
    Ok(())
}

async fn zfs_vm(check: bool) -> Result<()> {
    if check && !KernelVmAssets::has_zfs()? {
        return Err(rig::Error::Missing {
            what: "the virtual machine with ZFS".into(),
            remedy: "build it with `make test-zfs`, which compiles ZFS".into(),
        });
    }
    let assets = KernelVmAssets::find_or_build_with_zfs().await?;
    println!("with ZFS:      {}", assets.kernel.display());
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
    let crds = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    print!("{}", rig::api_reference::render(&crds)?);
    Ok(())
}
