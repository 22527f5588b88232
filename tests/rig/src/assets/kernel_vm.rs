//! The emulated machine with a kernel that has NFS: its emulator as a Debian package, kernel and initial RAM disk made of others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest, Sha256};

use super::{Progress, apt, cache_dir, find_program, lock_cache, short_hash};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

const EMULATOR: &str = "qemu-system-x86_64";
const EMULATOR_PACKAGE: &str = "qemu-system-x86";
/// It depends on the newest kernel of Debian's release.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
/// What runs in the machine. The libraries that these depend on come along; what else they depend on does not.
const PACKAGES: [&str; 10] = [
    "busybox-static",
    "nfs-kernel-server",
    "nfs-common",
    "rpcbind",
    "e2fsprogs",
    "btrfs-progs",
    "xfsprogs",
    "quota",
    // What the kubelet runs, and another user's rights for a command.
    "mount",
    "util-linux",
];
/// Packages beside libraries that the machine takes files from: the names of protocols.
const FILES: [&str; 1] = ["netbase"];
/// Libraries of interpreters, which nothing that runs in the machine loads: most of what would be downloaded.
const UNUSED: [&str; 4] = ["libicu", "libperl", "libpython", "libstdc++"];
/// The machine as text: part of this program, so that a built rig needs no checkout.
const SOURCES: [(&str, &str); 4] = [
    ("build.sh", include_str!("../../kernel-vm/build.sh")),
    ("init", include_str!("../../kernel-vm/init")),
    ("functions", include_str!("../../kernel-vm/functions")),
    ("agent", include_str!("../../kernel-vm/agent")),
];
/// Marks a folder that is being worked in.
const BUILDING: &str = "making-kernel-vm-";

/// What the machine is started from.
#[derive(Clone, Debug)]
pub struct KernelVmAssets {
    /// qemu's program for x86-64.
    pub emulator: PathBuf,
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial RAM disk, in which all of the machine is.
    pub initrd: PathBuf,
}

impl KernelVmAssets {
    /// Finds what the machine needs; installs the emulator and makes the rest when it is missing, and says so on
    /// standard error.
    ///
    /// # Errors
    /// [`Error::Missing`] names what this machine lacks: Debian's package tools, the right to install, packages.
    pub async fn find_or_install() -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(missing("its packages are for x86-64 alone"));
        }
        let emulator = emulator().await?;
        let cache = cache_dir()?;
        let folder = cache.join(format!("kernel-vm-{}", key()));
        // Held while another run may be making the same.
        let _lock = lock_cache().await?;
        if !folder.is_dir() {
            make(&cache, &folder).await?;
        }
        Ok(Self {
            emulator,
            kernel: folder.join("vmlinuz"),
            initrd: folder.join("initrd"),
        })
    }
}

fn missing(why: &str) -> Error {
    Error::Missing {
        what: "the emulated machine with the kernel's NFS".into(),
        remedy: format!(
            "{why}; on Debian for x86-64, after apt-get update: apt-get install {EMULATOR_PACKAGE}, and let apt-get \
             download {KERNEL_PACKAGE} {}",
            PACKAGES.join(" ")
        ),
    }
}

async fn emulator() -> Result<PathBuf> {
    if let Some(program) = find_program(EMULATOR) {
        return Ok(program);
    }
    let _lock = lock_cache().await?;
    if find_program(EMULATOR).is_none() {
        if !rustix::process::geteuid().is_root() {
            return Err(missing("only root can install the emulator"));
        }
        apt::install(&[EMULATOR_PACKAGE], "about 30 MB to download, 130 MB on disk")
            .await
            .map_err(|error| missing(&error.to_string()))?;
    }
    find_program(EMULATOR).ok_or_else(|| missing("it was installed, but the program is not there"))
}

/// What the folder in the cache is named by: all that decides what is made, but for the packages' versions, so that
/// what was made once serves without a network.
fn key() -> String {
    let mut hash = Sha256::new();
    for (name, text) in SOURCES {
        hash.update(name);
        hash.update(text);
    }
    for name in [KERNEL_PACKAGE].iter().chain(&PACKAGES).chain(&FILES) {
        hash.update(name);
    }
    short_hash(&hash.finalize())
}

async fn make(cache: &Path, folder: &Path) -> Result<()> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb"] {
        find_program(tool).ok_or_else(|| missing(&format!("there is no {tool} here")))?;
    }
    clear_abandoned(cache)?;
    let progress = Progress::start(&format!(
        "making a machine with Debian's {KERNEL_PACKAGE} and NFS programs: packages are downloaded and unpacked, not \
         installed (about 45 MB, and as much in {})",
        cache.display()
    ));
    let work = Work(cache.join(format!("{BUILDING}{}-{}", std::process::id(), crate::random_suffix())));
    let packages = work.0.join("packages.d");
    fs::create_dir_all(&packages).with_context(|| format!("make {}", packages.display()))?;
    let unfound = |error: Error| missing(&error.to_string());
    apt::refresh().await.map_err(unfound)?;
    let names = package_names().await.map_err(unfound)?;
    apt::download(&names, &packages).await.map_err(unfound)?;
    progress.step(&format!("{} packages are here", names.len()));
    for (name, text) in SOURCES {
        let path = work.0.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    let mut build = Command::new("setpriv");
    build
        .args(["--pdeathsig", "KILL", "--", "sh", "build.sh"])
        .current_dir(&work.0);
    run(build).await?;
    // What has that name is complete.
    fs::rename(&work.0, folder).with_context(|| format!("make {}", folder.display()))?;
    progress.done("made the machine");
    Ok(())
}

/// A folder that is removed unless it was renamed.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        // What stays is cleared away the next time.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// Removes what killed runs left; the caller holds the lock.
fn clear_abandoned(cache: &Path) -> Result<()> {
    let entries = fs::read_dir(cache).with_context(|| format!("list {}", cache.display()))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(BUILDING) {
            // What cannot be removed is in nobody's way.
            let _removed = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// All packages to unpack: the kernel, the programs, and every library that these depend on.
async fn package_names() -> Result<Vec<String>> {
    let kernel = apt::depends(&[KERNEL_PACKAGE], false).await?;
    let kernel = kernel.into_iter().find(|name| name.starts_with("linux-image-"));
    let kernel = kernel.ok_or_else(|| missing(&format!("apt-cache knows no kernel behind {KERNEL_PACKAGE}")))?;
    let mut names = apt::depends(&PACKAGES, true).await?;
    names.retain(|name| name.starts_with("lib") && !UNUSED.iter().any(|prefix| name.starts_with(prefix)));
    names.extend(PACKAGES.iter().chain(&FILES).map(|name| (*name).to_owned()));
    names.push(kernel);
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_change_of_the_sources_would_be_another_machine() {
        // Eight bytes of the hash in hexadecimal digits.
        assert_eq!(super::key().len(), 16);
    }
}
