//! Isolation of a cluster with a node: its own network, mounts and processes. It does not affect the machine, and the
//! kernel removes everything with its first process.

use std::{
    io::{BufRead, BufReader},
    net::Ipv4Addr,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// Environment variable with the name of the sandbox, for processes in it.
const SANDBOX_VARIABLE: &str = "NFS_OPERATOR_RIG_SANDBOX";
/// Flags of util-linux's `unshare` that create a sandbox. When `unshare` is killed, so is everything inside.
const UNSHARE_FLAGS: [&str; 7] = [
    "--net",
    "--mount",
    "--propagation=private",
    "--pid",
    "--mount-proc",
    "--fork",
    "--kill-child=KILL",
];
const SETUP_SCRIPT: &str = include_str!("../../node/sandbox.sh");
const REMOVE_CGROUPS_SCRIPT: &str = include_str!("../../node/remove-cgroups.sh");

/// The node's address in every sandbox. The range is reserved for documentation (RFC 5737), so it belongs to no real
/// machine.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

/// A sandbox, seen from inside.
#[derive(Clone, Debug)]
pub struct Sandbox {
    name: String,
}

impl Sandbox {
    /// Returns the sandbox that this process runs in, if any.
    pub fn current() -> Option<Self> {
        let name = std::env::var(SANDBOX_VARIABLE).ok()?;
        Some(Self { name })
    }

    /// Returns the name of its cgroups, at the root of each hierarchy.
    pub fn cgroup(&self) -> &str {
        &self.name
    }

    /// Creates a sandbox, runs a program in it and removes everything: processes, mounts, addresses and cgroups, even
    /// if this process is killed.
    ///
    /// # Errors
    /// [`Error::Usage`] if cgroups could not be removed.
    pub fn run<S: AsRef<std::ffi::OsStr>>(program: &Path, args: impl IntoIterator<Item = S>) -> Result<ExitStatus> {
        let name = format!("nfs-operator-rig-{}-{}", std::process::id(), crate::random_suffix());
        let remover = CgroupRemover::start(&name)?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "unshare"])
            .args(UNSHARE_FLAGS);
        command
            .args(["sh", "-c", SETUP_SCRIPT, "sandbox"])
            .arg(program)
            .args(args);
        command
            .env(SANDBOX_VARIABLE, &name)
            .env("NODE_ADDRESS", ADDRESS.to_string());
        let status = command.status().with_context(|| "create a sandbox".into())?;
        remover.finish()?;
        Ok(status)
    }
}

/// A process that briefly outlives this one to remove cgroups, which the kernel does not remove.
struct CgroupRemover(Child);

impl CgroupRemover {
    fn start(name: &str) -> Result<Self> {
        let action = || format!("create the cgroups {name}");
        // A separate session, so that Ctrl-C does not reach it.
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", REMOVE_CGROUPS_SCRIPT, "remover", name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(action)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).with_context(action)?;
        }
        if line.trim() == "created" {
            return Ok(Self(child));
        }
        let status = child.wait().with_context(action)?;
        Err(Error::Usage(format!("failed to {}: {status}", action())))
    }

    /// Waits until the cgroups are removed. The removal starts because `wait` closes the standard input.
    fn finish(mut self) -> Result<()> {
        let status = self
            .0
            .wait()
            .with_context(|| "wait for the removal of cgroups".into())?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::Usage(
                "some cgroups of the run could not be removed, see above".into(),
            )),
        }
    }
}

/// Returns an error if this machine cannot create sandboxes.
pub(crate) async fn check_supported() -> Result<()> {
    let mut command = Command::new("unshare");
    command
        .args(UNSHARE_FLAGS)
        .args(["mount", "-t", "tmpfs", "tmpfs", "/run"]);
    run(command).await.map(drop)
}

/// Returns the exit code of a program that passes on the status of another one.
pub fn exit_code(status: ExitStatus) -> u8 {
    // As shells do.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
