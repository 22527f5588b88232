//! A mount namespace for a server, its file systems in memory and its rpcbind. It does not affect the host, and the
//! kernel removes it with the last process in it.

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

/// It starts two small programs, which takes longer while other tests start their clusters.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// The socket at which programs look for rpcbind.
pub(super) const RPCBIND_SOCKET: &str = "/run/rpcbind.sock";

/// A mount namespace and the process that keeps it while the server is down.
#[derive(Debug)]
pub(super) struct MountNamespace {
    holder: Process,
}

impl MountNamespace {
    pub(super) async fn new(folder: &Path) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Missing {
                what: "permission to create a mount namespace".into(),
                remedy: "run as root, or skip the tests of full exports and NFSv3".into(),
            });
        }
        let args = ["--mount", "--propagation", "private", "sleep", "infinity"];
        let name = "holder of the mount namespace";
        let holder = Process::start(ProcessSpec::new(name, "unshare", args, folder.join("mounts.log"))).await?;
        let host = mount_namespace_of("self")?;
        let entered = wait::until("a mount namespace", START_TIMEOUT, async || {
            match mount_namespace_of(&holder.pid().to_string()) {
                Ok(namespace) if namespace != host => Ok(()),
                Ok(_) => Err("still in the host's namespace".into()),
                Err(error) => Err(error.to_string()),
            }
        });
        while_running(&[&holder], entered).await?;
        Ok(Self { holder })
    }

    /// Mounts a file system in memory on a directory that also exists on the host.
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

    /// Mounts an ext4 file system on a directory that also exists on the host. Its image is beside the directory.
    pub(super) async fn mount_ext4(&self, disk: &Path, bytes: u64) -> Result<()> {
        // Blocks of this size make one block group, in which the lowest free number is used.
        self.mount_ext4_as(disk, bytes, &["-b", "4096"], "loop").await
    }

    /// Mounts an ext4 file system whose files have projects. A kernel without quotas cannot mount one with quotas.
    pub(super) async fn mount_ext4_with_projects(&self, disk: &Path, bytes: u64) -> Result<()> {
        let options = "loop,prjquota";
        let enforced = ["-O", "quota,project", "-E", "quotatype=prjquota"];
        match self.mount_ext4_as(disk, bytes, &enforced, options).await {
            Ok(()) => Ok(()),
            Err(_) => self.mount_ext4_as(disk, bytes, &["-O", "project"], options).await,
        }
    }

    async fn mount_ext4_as(&self, disk: &Path, bytes: u64, features: &[&str], options: &str) -> Result<()> {
        let image = disk.with_extension("ext4");
        let mut create = Command::new("mkfs.ext4");
        create
            .args(["-q", "-F"])
            .args(features)
            .arg(&image)
            .arg(format!("{}k", bytes / 1024));
        run(create).await?;
        let mut mount = Command::new("nsenter");
        mount
            .args(self.nsenter_args())
            .args(["mount", "-t", "ext4", "-o", options])
            .args([&image, disk]);
        run(mount).await.map(drop)
    }

    /// Starts an `rpcbind` for this namespace. It is reachable only by its socket, /run/rpcbind.sock: it has an empty
    /// network namespace, so that it does not occupy port 111.
    ///
    /// It starts as root and changes its user, and the kernel then clears the parent-death signal (prctl(2),
    /// PR_SET_PDEATHSIG). Therefore it runs in a PID namespace whose first process is a shell that keeps its user. The
    /// shell ends with `unshare`, which ends with this process, and the kernel then kills the whole PID namespace.
    pub(super) async fn start_rpcbind(&self, program: &Path, folder: &Path) -> Result<Process> {
        let mut command = Command::new("nsenter");
        command
            .args(self.nsenter_args())
            .args(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"]);
        run(command).await?;
        let program = program.display().to_string();
        // The second command prevents the shell from replacing itself with rpcbind.
        let script = "\"$0\" -f; exit $?";
        let isolated = [
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
        let args = self.nsenter_args().into_iter().chain(isolated);
        let process = Process::start(ProcessSpec::new("rpcbind", "nsenter", args, folder.join("rpcbind.log"))).await?;
        let socket = self.host_path(Path::new(RPCBIND_SOCKET));
        let listens = wait::until("rpcbind to listen", START_TIMEOUT, async || {
            std::os::unix::net::UnixStream::connect(&socket)
                .map(drop)
                .map_err(|error| error.to_string())
        });
        while_running(&[&process], listens).await?;
        Ok(process)
    }

    /// Returns the arguments of `nsenter` that run a program in this namespace.
    pub(super) fn nsenter_args(&self) -> [String; 3] {
        [format!("--target={}", self.holder.pid()), "--mount".into(), "--".into()]
    }

    /// Returns the path on the host of a path in this namespace.
    pub(super) fn host_path(&self, disk: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.holder.pid());
        Path::new(&root).join(disk.strip_prefix("/").unwrap_or(disk))
    }
}

fn mount_namespace_of(process: &str) -> Result<PathBuf> {
    let link = format!("/proc/{process}/ns/mnt");
    fs::read_link(&link).with_context(|| format!("read {link}"))
}
