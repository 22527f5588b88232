//! A virtual machine whose kernel has an NFS server and client, which the kernel of this machine may lack.
//!
//! Its NFS server has the same address, 127.0.0.1, and the same ports on the host and inside the machine, so that one
//! address is valid for the operator and for a mount. Servers on the host's 127.0.0.1 are at [`HOST`] inside.

mod file_system;
mod ganesha;
mod program;
mod script;
mod shared;
mod zfs;

use std::{path::PathBuf, time::Duration};

pub use self::{
    file_system::{FileSystem, QuotaOf},
    script::ScriptOutput,
};
use crate::{
    assets::{Debian, KernelVmAssets},
    error::Result,
    ports,
    process::{Process, ProcessSpec, while_running},
    run_dir::RunDir,
    wait,
};

/// The address of the host's loopback interface inside the machine.
pub const HOST: &str = "10.0.2.2";

/// It takes ten seconds on an idle machine, because every instruction is emulated.
const START_TIMEOUT: Duration = Duration::from_secs(240);
/// Memory of the machine, which includes its file systems. Pages are allocated on first use.
const MEBIBYTES: u32 = 1024;

/// A running virtual machine. Dropping it kills it.
#[derive(Debug)]
pub struct KernelVm {
    process: Process,
    agent: u16,
    nfs: u16,
    mount: u16,
}

impl KernelVm {
    /// Starts a machine in a run's directory and waits until its NFS server is ready. Builds the machine if necessary.
    pub async fn start(run: &RunDir) -> Result<Self> {
        Self::start_with_cores(run, 1).await
    }

    /// Starts a machine with several cores.
    pub async fn start_with_cores(run: &RunDir, cores: u32) -> Result<Self> {
        let assets = KernelVmAssets::find_or_install(Debian::Own).await?;
        Self::start_from(run, &assets, cores).await
    }

    /// Starts a machine from given assets.
    pub async fn start_with(run: &RunDir, assets: &KernelVmAssets) -> Result<Self> {
        Self::start_from(run, assets, 1).await
    }

    async fn start_from(run: &RunDir, assets: &KernelVmAssets, cores: u32) -> Result<Self> {
        let folder = run.new_dir("kernel-vm")?;
        let (agent, nfs, mount) = (ports::free()?, ports::free()?, ports::free()?);
        let log = folder.join("kernel.log");
        let args = arguments(assets, cores, &log, [agent, nfs, mount]);
        let process = Process::start(ProcessSpec::new("the virtual machine", &assets.emulator, args, log)).await?;
        let vm = Self {
            process,
            agent,
            nfs,
            mount,
        };
        let ready = wait::until("the virtual machine", START_TIMEOUT, async || {
            // When the agent responds, one of the two files exists.
            let output = vm.output("cat /run/ready || cat /run/failed").await;
            match output.map_err(|error| error.to_string())? {
                ScriptOutput { output, .. } if output == "ready\n" => Ok(()),
                ScriptOutput { output, .. } => Err(output),
            }
        });
        while_running(&[&vm.process], ready).await?;
        Ok(vm)
    }

    /// Returns the port of its NFS server, on the host and inside. For clients on the host, the server never sees a
    /// source port below 1024, because the emulator's network translates it.
    pub fn nfs_port(&self) -> u16 {
        self.nfs
    }

    /// Returns the port of its MOUNT service (NFSv3), on the host and inside.
    pub fn mount_port(&self) -> u16 {
        self.mount
    }

    /// Returns the path of the kernel log.
    pub fn log(&self) -> &PathBuf {
        &self.process.spec().log
    }
}

fn arguments(assets: &KernelVmAssets, cores: u32, log: &std::path::Path, ports: [u16; 3]) -> Vec<String> {
    let forwarded = ports.map(|port| format!(",hostfwd=tcp:127.0.0.1:{port}-:{port}"));
    let [agent, nfs, mount] = ports;
    // The kernel passes parameters that it does not know to the first process as environment variables. Without
    // no_timer_check, it panics at boot if a busy host delays the emulated timer.
    let line = format!(
        "console=ttyS0 panic=-1 no_timer_check mitigations=off \
         AGENT_PORT={agent} NFS_PORT={nfs} MOUNT_PORT={mount}"
    );
    // Without RDRAND the machine waits half a minute for entropy before it creates its first UUIDs.
    let mut args: Vec<String> = ["-accel", "tcg", "-cpu", "qemu64,+rdrand"].map(String::from).to_vec();
    args.extend(["-smp".into(), cores.to_string(), "-m".into(), MEBIBYTES.to_string()]);
    args.extend(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"].map(String::from));
    args.extend(["-kernel".into(), assets.kernel.display().to_string()]);
    args.extend(["-initrd".into(), assets.initrd.display().to_string()]);
    args.extend(["-append".into(), line]);
    // The console is appended to the log that also has the emulator's own messages.
    args.extend([
        "-chardev".into(),
        format!("file,id=console,append=on,path={}", log.display()),
        "-serial".into(),
        "chardev:console".into(),
    ]);
    args.extend([
        "-netdev".into(),
        format!("user,id=net{}", forwarded.concat()),
        "-device".into(),
        "virtio-net-pci,netdev=net,romfile=".into(),
    ]);
    args
}
