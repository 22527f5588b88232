//! A mount namespace that a server, its file systems in memory and its rpcbind live in: nothing of it shows on the host, and
//! the kernel takes it all away with the last process in it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::config::Tmpfs;
use crate::{
    error::{Error, Result, ResultExt},
    process::{Process, ProcessSpec, run, while_running},
    wait,
};

/// Starting two small programs.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Where programs look for rpcbind.
pub(super) const RPCBIND_SOCKET: &str = "/run/rpcbind.sock";

/// The process that keeps the namespace while the server is down.
#[derive(Debug)]
pub(super) struct MountNamespace {
    holder: Process,
}

impl MountNamespace {
    pub(super) async fn new(folder: &Path) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Missing {
                what: "the right to make a mount namespace".into(),
                remedy: "run as root, or leave out the tests on full exports and NFSv3".into(),
            });
        }
        let holder = Process::start(ProcessSpec {
            name: "the holder of the mount namespace".into(),
            program: "unshare".into(),
            args: ["--mount", "--propagation", "private", "sleep", "infinity"]
                .map(String::from)
                .to_vec(),
            env: Vec::new(),
            log: folder.join("mounts.log"),
        })
        .await?;
        let ours = mount_namespace_of("self")?;
        let apart = wait::until("a mount namespace", START_TIMEOUT, async || {
            match mount_namespace_of(&holder.pid().to_string()) {
                Ok(theirs) if theirs != ours => Ok(()),
                Ok(_) => Err("still in ours".into()),
                Err(error) => Err(error.to_string()),
            }
        });
        while_running(&[&holder], apart).await?;
        Ok(Self { holder })
    }

    /// MountNamespace a file system there, on a directory that exists on the host too.
    pub(super) async fn mount(&self, disk: &Path, size: Tmpfs) -> Result<()> {
        let inodes = size
            .inodes
            .map(|inodes| format!(",nr_inodes={inodes}"))
            .unwrap_or_default();
        let options = format!("size={}{inodes},mode=0755", size.bytes);
        let mut command = Command::new("nsenter");
        command
            .args(self.nsenter_args())
            .args(["mount", "-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(disk);
        run(command).await.map(drop)
    }

    /// Starts an `rpcbind` of its own for what runs in there. It is reached by its socket alone, /run/rpcbind.sock: its
    /// network is an empty one, so that it takes no port 111 from anybody.
    ///
    /// It begins as root and becomes another user, at which the kernel forgets the signal that was asked for the
    /// parent's end (prctl(2), PR_SET_PDEATHSIG). So it lives in a process namespace whose first process is a shell that
    /// stays what it is: that ends with `unshare`, which ends with us, and the kernel ends all others in there with it.
    pub(super) async fn rpcbind(&self, program: &Path, folder: &Path) -> Result<Process> {
        let mut command = Command::new("nsenter");
        command
            .args(self.nsenter_args())
            .args(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"]);
        run(command).await?;
        let program = program.display().to_string();
        // What follows keeps the shell from becoming the program.
        let script = "\"$0\" -f; exit $?";
        let alone = [
            "unshare",
            "--net",
            "--pid",
            "--kill-child",
            "sh",
            "-c",
            script,
            &program,
        ]
        .map(String::from);
        let process = Process::start(ProcessSpec {
            name: "rpcbind".into(),
            program: "nsenter".into(),
            args: self.nsenter_args().into_iter().chain(alone).collect(),
            env: Vec::new(),
            log: folder.join("rpcbind.log"),
        })
        .await?;
        let socket = self.host_path(Path::new(RPCBIND_SOCKET));
        let listens = wait::until("rpcbind to listen", START_TIMEOUT, async || {
            std::os::unix::net::UnixStream::connect(&socket)
                .map(drop)
                .map_err(|error| error.to_string())
        });
        while_running(&[&process], listens).await?;
        Ok(process)
    }

    /// `nsenter`'s arguments for running something in there.
    pub(super) fn nsenter_args(&self) -> [String; 3] {
        [format!("--target={}", self.holder.pid()), "--mount".into(), "--".into()]
    }

    /// That path as somebody outside gets at it.
    pub(super) fn host_path(&self, disk: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.holder.pid());
        Path::new(&root).join(disk.strip_prefix("/").unwrap_or(disk))
    }
}

fn mount_namespace_of(process: &str) -> Result<PathBuf> {
    let link = format!("/proc/{process}/ns/mnt");
    fs::read_link(&link).with_context(|| format!("read {link}"))
}
