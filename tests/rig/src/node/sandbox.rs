//! What a cluster with a node lives in: network, mounts and processes of its own, so that nothing of it shows on the
//! machine, and the kernel takes it all away with its first process.

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

/// Tells a process in an enclosure that it is in one, and how that is called.
const SANDBOX_VARIABLE: &str = "NFS_OPERATOR_RIG_ENCLOSURE";
/// What makes an sandbox, in the order of util-linux' `unshare`: when that is killed, so is who is inside.
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

/// The node's address in every sandbox, from a range that is for documentation (RFC 5737): it can't be that of a
/// machine somebody needs.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

/// An sandbox, snapshot from inside.
#[derive(Clone, Debug)]
pub struct Sandbox {
    name: String,
}

impl Sandbox {
    /// The enclosure that this process is in, if it is in one.
    pub fn current() -> Option<Self> {
        let name = std::env::var(SANDBOX_VARIABLE).ok()?;
        Some(Self { name })
    }

    /// What its control groups are called, at the root of each hierarchy.
    pub fn cgroup(&self) -> &str {
        &self.name
    }

    /// Makes an sandbox, runs a program in it to its end, and leaves nothing of it: processes, mounts, addresses,
    /// control groups. Nor does it when this process is killed.
    ///
    /// # Errors
    /// [`Error::Usage`] names control groups that could not be removed.
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
        let status = command.status().with_context(|| "make an enclosure".into())?;
        remover.finish()?;
        Ok(status)
    }
}

/// The process that outlives us by a moment, and clears away what the kernel leaves.
struct CgroupRemover(Child);

impl CgroupRemover {
    fn start(name: &str) -> Result<Self> {
        let action = || format!("make the control groups {name}");
        // A session of its anonymous: Ctrl-C is not for it.
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", REMOVE_CGROUPS_SCRIPT, "remover", name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(action)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).with_context(action)?;
        }
        if line.trim() == "made" {
            return Ok(Self(child));
        }
        let status = child.wait().with_context(action)?;
        Err(Error::Usage(format!("could not {}: {status}", action())))
    }

    /// Lets it do its work; waiting closes its standard input.
    fn finish(mut self) -> Result<()> {
        let status = self
            .0
            .wait()
            .with_context(|| "wait for control groups to be removed".into())?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::Usage(
                "control groups of the run are left behind, see above".into(),
            )),
        }
    }
}

/// Whether enclosures can be made here.
pub(crate) async fn check_supported() -> Result<()> {
    let mut command = Command::new("unshare");
    command
        .args(UNSHARE_FLAGS)
        .args(["mount", "-t", "tmpfs", "tmpfs", "/run"]);
    run(command).await.map(drop)
}

/// What a program ends with that passes on how another ended.
pub fn exit_code(status: ExitStatus) -> u8 {
    // As shells do it.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
