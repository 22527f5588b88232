//! What the rig needs on this machine: the control plane's programs, nfs-ganesha, and the emulated machine with the
//! kernel's NFS. Found, or built and installed.

mod apt;
mod control_plane;
mod ganesha;
mod helm;
mod kernel_vm;
mod kubernetes;
mod node;
mod promtool;

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use self::{helm::Helm, kernel_vm::KernelVmAssets, kubernetes::Kubernetes, node::NodeAssets};
use crate::error::{Error, Result, ResultExt};

/// Where the programs are that the rig starts.
#[derive(Clone, Debug)]
pub struct Assets {
    /// The folder with `etcd`, `kube-apiserver`, `kube-controller-manager` and `kube-scheduler`.
    pub control_plane: PathBuf,
    /// The `kubectl` of the same release.
    pub kubectl: PathBuf,
    /// nfs-ganesha's server.
    pub ganesha: PathBuf,
}

impl Assets {
    /// Finds what is needed; builds and installs what is missing, and says so on standard error.
    pub async fn find_or_install() -> Result<Self> {
        let ganesha = Self::find_or_install_ganesha().await?;
        let (control_plane, kubectl) = control_plane::find_or_build().await?;
        Ok(Self {
            control_plane,
            kubectl,
            ganesha,
        })
    }

    /// The same for nfs-ganesha's server alone: gives back its path.
    pub async fn find_or_install_ganesha() -> Result<PathBuf> {
        ganesha::find_or_install().await
    }

    /// The path of `rpcbind`, once nfs-ganesha is there.
    pub(crate) fn rpcbind() -> Result<PathBuf> {
        ganesha::find_rpcbind()
    }

    /// The path of `promtool`, which nothing but the tests of metrics and rules needs.
    ///
    /// # Errors
    /// [`Error::Missing`] says why it can't be had.
    pub async fn find_or_install_promtool() -> Result<PathBuf> {
        promtool::find_or_install().await
    }
}

/// Prints what is being done, and at the end what it took.
struct Progress {
    start: Instant,
}

impl Progress {
    fn start(what: &str) -> Self {
        eprintln!("rig: {what}");
        Self { start: Instant::now() }
    }

    fn step(&self, what: &str) {
        eprintln!("rig:   {what} ({})", self.elapsed());
    }

    fn done(&self, what: &str) {
        eprintln!("rig: {what}, took {}", self.elapsed());
    }

    fn elapsed(&self) -> String {
        let seconds = self.start.elapsed().as_secs();
        format!("{}:{:02} min", seconds / 60, seconds % 60)
    }
}

/// The folder for what is worth keeping from one run to the next.
fn cache_dir() -> Result<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let folder = named.or_else(home).ok_or_else(|| Error::Missing {
        what: "a folder for the cache".into(),
        remedy: "set XDG_CACHE_HOME or HOME".into(),
    })?;
    let folder = folder.join("nfs-operator");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Waits until no other process builds or installs; held until dropped, and by no process that is gone.
async fn lock_cache() -> Result<File> {
    let path = cache_dir()?.join("lock");
    let lock = File::create(&path).with_context(|| format!("open {}", path.display()))?;
    let start = Instant::now();
    let mut said = false;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => {
                // Another run that only looks has it for milliseconds: nothing to tell.
                if !said && start.elapsed() > Duration::from_secs(1) {
                    said = true;
                    Progress::start("another run builds or installs; waiting for it");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", path.display())),
        }
    }
}

/// The first eight bytes of a hash: enough to tell what is in one cache.
fn short_hash(hash: &[u8]) -> String {
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A program of that name in `PATH`, or in the folders for administrators that `PATH` may lack.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from));
    folders
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
