//! A small machine, emulated, with a kernel that has what this one may lack: the kernel's own NFS server and client.
//!
//! Its server is reached at 127.0.0.1 on the same ports from here and from inside, so that one address means the same
//! to the operator and to a mount in the machine. What listens on the host's 127.0.0.1 is at [`HOST`] inside.

mod script;
mod shared;

use std::{path::PathBuf, time::Duration};

pub use self::{
    script::ScriptOutput,
    shared::{ExclusiveKernelVm, SharedKernelVm},
};
use crate::{
    assets::KernelVmAssets,
    error::Result,
    ports,
    process::{Process, ProcessSpec, while_running},
    run_dir::RunDir,
    wait,
};

/// The host's loopback, as the machine sees it.
pub const HOST: &str = "10.0.2.2";

/// It takes ten seconds on a machine that does nothing else, since every instruction is translated.
const START_TIMEOUT: Duration = Duration::from_secs(240);
/// Room for the file systems, which are in memory. Pages come as they are touched.
const MEBIBYTES: u32 = 1024;

/// A running machine. Dropping it kills it.
#[derive(Debug)]
pub struct KernelVm {
    process: Process,
    agent: u16,
    nfs: u16,
    mount: u16,
}

impl KernelVm {
    /// Starts one in that run's folder and waits until its NFS server serves. Makes the machine if need be.
    pub async fn start(run: &RunDir) -> Result<Self> {
        Self::start_with(run, &KernelVmAssets::find_or_install().await?).await
    }

    /// The same with given parts.
    pub async fn start_with(run: &RunDir, assets: &KernelVmAssets) -> Result<Self> {
        let folder = run.new_dir("kernel-vm")?;
        let (agent, nfs, mount) = (ports::free()?, ports::free()?, ports::free()?);
        let log = folder.join("kernel.log");
        let args = arguments(assets, &log, [agent, nfs, mount]);
        let process = Process::start(ProcessSpec {
            name: "the machine with the kernel's NFS".into(),
            program: "nice".into(),
            args,
            env: Vec::new(),
            log,
        })
        .await?;
        let vm = Self {
            process,
            agent,
            nfs,
            mount,
        };
        let ready = wait::until("the machine with the kernel's NFS", START_TIMEOUT, async || {
            // One of the two is there when the agent answers: that all steps of the start worked, or which did not.
            let ran = vm.output("cat /run/ready || cat /run/failed").await;
            match ran.map_err(|error| error.to_string())? {
                ScriptOutput { output, .. } if output == "ready\n" => Ok(()),
                ScriptOutput { output, .. } => Err(output),
            }
        });
        while_running(&[&vm.process], ready).await?;
        Ok(vm)
    }

    /// The port of its NFS server, here and inside. From here it never sees a port below 1024, whatever port we connect
    /// from: the emulator's network puts its own in the place.
    pub fn nfs_port(&self) -> u16 {
        self.nfs
    }

    /// The port of its MOUNT service (NFSv3), here and inside.
    pub fn mount_port(&self) -> u16 {
        self.mount
    }

    /// The kernel's messages.
    pub fn log(&self) -> &PathBuf {
        &self.process.spec().log
    }
}

fn arguments(assets: &KernelVmAssets, log: &std::path::Path, ports: [u16; 3]) -> Vec<String> {
    let forwarded = ports.map(|port| format!(",hostfwd=tcp:127.0.0.1:{port}-:{port}"));
    let [agent, nfs, mount] = ports;
    // What the kernel doesn't know of its command line becomes the environment of the first process.
    let line = format!("console=ttyS0 panic=-1 mitigations=off AGENT_PORT={agent} NFS_PORT={nfs} MOUNT_PORT={mount}");
    let mut args: Vec<String> = ["-n", "5"].map(String::from).to_vec();
    args.push(assets.emulator.display().to_string());
    // With RDRAND: without it the machine waits half a minute until it has seen enough chance for its first UUIDs.
    args.extend(["-accel", "tcg", "-cpu", "qemu64,+rdrand", "-smp", "1", "-m"].map(String::from));
    args.push(MEBIBYTES.to_string());
    args.extend(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"].map(String::from));
    args.extend(["-kernel".into(), assets.kernel.display().to_string()]);
    args.extend(["-initrd".into(), assets.initrd.display().to_string()]);
    args.extend(["-append".into(), line]);
    // Its console goes on in the log that the emulator's own messages are in.
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
