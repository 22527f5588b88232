//! Programs and images that the rig needs on this machine. They are found, built or installed.

mod apt;
mod ceph;
mod control_plane;
mod ganesha;
pub(crate) mod go_nfs;
mod helm;
mod kernel_vm;
mod kubernetes;
mod newer_ganesha;
mod node;
mod prometheus;
mod unpacked;
mod zfs;

use std::{
    fmt,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

pub use self::{
    ceph::CephPrograms, helm::Helm, kernel_vm::KernelVmAssets, kubernetes::Kubernetes, newer_ganesha::NewerGanesha,
    node::NodeAssets,
};
use crate::{
    error::{Error, Result, ResultExt},
    process::command_bound_to_parent,
};

/// A release of Debian whose packages are unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debian {
    /// That of this machine.
    Own,
    /// Debian 13, whose NFS servers are newer.
    V13,
}

impl Debian {
    fn codename(self) -> Option<&'static str> {
        match self {
            Self::Own => None,
            Self::V13 => Some("trixie"),
        }
    }
}

impl fmt::Display for Debian {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "this machine's Debian",
            Self::V13 => "Debian 13",
        })
    }
}

/// The programs of a cluster and of an NFS server.
#[derive(Clone, Debug)]
pub struct Assets {
    /// The directory with `etcd`, `kube-apiserver`, `kube-controller-manager` and `kube-scheduler`.
    pub control_plane: PathBuf,
    /// The path of `kubectl` in the same version.
    pub kubectl: PathBuf,
    /// The path of nfs-ganesha's server.
    pub ganesha: PathBuf,
}

impl Assets {
    /// Finds the programs; builds and installs those that are missing, and reports that on standard error.
    pub async fn find_or_install() -> Result<Self> {
        let ganesha = Self::find_or_install_ganesha().await?;
        let (control_plane, kubectl) = control_plane::find_or_build().await?;
        Ok(Self {
            control_plane,
            kubectl,
            ganesha,
        })
    }

    /// Finds or installs only nfs-ganesha's server, and returns its path.
    pub async fn find_or_install_ganesha() -> Result<PathBuf> {
        ganesha::find_or_install().await
    }

    /// Returns the path of the plugin with which nfs-ganesha serves file systems of the kernel.
    pub fn ganesha_plugin() -> Result<PathBuf> {
        ganesha::find_plugin()
    }

    /// Finds or downloads a newer nfs-ganesha than that of this machine's Debian release.
    ///
    /// # Errors
    /// [`Error::Missing`] with what this machine lacks.
    pub async fn find_or_download_newer_ganesha() -> Result<NewerGanesha> {
        newer_ganesha::find_or_download().await
    }

    /// Returns the path of `rpcbind`, which is installed with nfs-ganesha.
    pub(crate) fn rpcbind() -> Result<PathBuf> {
        ganesha::find_rpcbind()
    }

    /// Finds or downloads `promtool`, which tests of metrics and rules need, and returns its path.
    ///
    /// # Errors
    /// [`Error::Missing`] if it cannot be downloaded.
    pub async fn find_or_install_promtool() -> Result<PathBuf> {
        prometheus::find_or_install("promtool").await
    }

    /// Finds or downloads `prometheus`, which tests of the dashboard need, and returns its path.
    ///
    /// # Errors
    /// [`Error::Missing`] if it cannot be downloaded.
    pub async fn find_or_install_prometheus() -> Result<PathBuf> {
        prometheus::find_or_install("prometheus").await
    }
}

/// Prints the progress of an action, with the elapsed time.
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

/// Returns the directory for files that several runs use; creates it if it does not exist.
fn cache_dir() -> Result<PathBuf> {
    let xdg = std::env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = xdg.or_else(home).ok_or_else(|| Error::Missing {
        what: "a directory for the cache".into(),
        remedy: "set XDG_CACHE_HOME or HOME".into(),
    })?;
    let cache = cache.join("nfs-operator");
    fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
    Ok(cache)
}

/// Lock of everything that apt installs or downloads.
const PACKAGES_LOCK: &str = "packages";

/// Waits until no other process builds or installs what this lock is for. It is held until it is dropped or the process
/// exits. What takes minutes to build has a lock of its own, so that a process that only uses the cache does not wait for
/// it.
async fn lock_cache(name: &str) -> Result<File> {
    let path = cache_dir()?.join(format!("lock-{name}"));
    let lock = File::create(&path).with_context(|| format!("open {}", path.display()))?;
    let start = Instant::now();
    let mut is_reported = false;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => {
                // A run that only checks the cache holds the lock for milliseconds.
                if !is_reported && start.elapsed() > Duration::from_secs(1) {
                    is_reported = true;
                    Progress::start(&format!("another run builds or installs {name}; waiting for it"));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", path.display())),
        }
    }
}

/// A directory of the cache for a build. It is removed when dropped.
struct BuildDir(PathBuf);

impl BuildDir {
    const PREFIX: &str = "building-";

    /// Creates an empty directory, and removes that of a build that was killed. The caller holds the lock for this build,
    /// so no other one runs.
    fn new(name: &str) -> Result<Self> {
        let path = cache_dir()?.join(format!("{}{name}", Self::PREFIX));
        // If this fails, creating it fails.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Moves a finished file or directory, or with an empty name the whole directory, to its place in the cache. A
    /// path in the cache is therefore always complete.
    fn publish(&self, name: &str, target: &Path) -> Result<()> {
        let finished = match name {
            "" => self.0.clone(),
            name => self.0.join(name),
        };
        fs::rename(finished, target).with_context(|| format!("create {}", target.display()))
    }
}

impl Drop for BuildDir {
    fn drop(&mut self) {
        // The next build removes what is left.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the first eight bytes of a hash in hexadecimal: enough to distinguish entries of one cache.
fn short_hash(hash: &[u8]) -> String {
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Finds a program in `PATH`, or in the usual directories that `PATH` may lack.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from));
    folders
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// Finds Go. `product` is what it builds; `alternative` is added to the remedy in the error.
fn find_go(product: &str, alternative: &str) -> Result<PathBuf> {
    find_program("go").ok_or_else(|| Error::Missing {
        what: format!("Go, which builds {product},"),
        remedy: format!(
            "install Go 1.21 or newer (it downloads the version that it needs), see https://go.dev/dl{alternative}"
        ),
    })
}

/// Returns a command that builds a Go program without debug information, which nobody here uses: that takes a tenth less
/// time. The program is linked with `link`. The command is killed when this process exits: it would run for minutes.
///
/// `verb` is `build` or `install`.
fn go_build(go: &Path, verb: &str, link: &str) -> Command {
    let mut command = command_bound_to_parent(go);
    command.args([verb, "-trimpath", "-gcflags=all=-dwarf=false"]);
    command.args(["-ldflags", &format!("-s -w {link}")]);
    // The compiler needs little memory for a package: collecting its garbage less often takes less time.
    command.env("CGO_ENABLED", "0").env("GOGC", "400");
    command
}
