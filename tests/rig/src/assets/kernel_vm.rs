//! The virtual machine whose kernel has NFS: the emulator is a Debian package, the kernel and the initial RAM disk are
//! built from other Debian packages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    BuildDir, Debian, PACKAGES_LOCK, Progress,
    apt::{self, Release},
    cache_dir, find_program, lock_cache, short_hash,
};
use crate::{
    error::{Error, Result, ResultExt},
    process::{command_bound_to_parent, run},
};

const EMULATOR: &str = "qemu-system-x86_64";
const EMULATOR_PACKAGE: &str = "qemu-system-x86";
/// A package that depends on the newest kernel of the Debian release.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
/// Packages of the programs in the machine. Of their dependencies, only libraries are included.
const PACKAGES: [&str; 10] = [
    "busybox-static",
    "nfs-kernel-server",
    "nfs-common",
    "rpcbind",
    "e2fsprogs",
    "btrfs-progs",
    "xfsprogs",
    "quota",
    // `mount` as the kubelet runs it, and `setpriv` to run commands as another user.
    "mount",
    "util-linux",
];
/// Other packages that the machine needs files of: the names of protocols.
const FILES: [&str; 1] = ["netbase"];
/// Libraries of interpreters, which no program in the machine loads. They would be most of the download.
const UNUSED: [&str; 4] = ["libicu", "libperl", "libpython", "libstdc++"];
/// The scripts of the machine. They are embedded, so that a built rig works without the repository.
const SOURCES: [(&str, &str); 4] = [
    ("build.sh", include_str!("../../kernel-vm/build.sh")),
    ("init", include_str!("../../kernel-vm/init")),
    ("functions", include_str!("../../kernel-vm/functions")),
    ("agent", include_str!("../../kernel-vm/agent")),
];
/// The files that the machine starts from.
#[derive(Clone, Debug)]
pub struct KernelVmAssets {
    /// The path of QEMU for x86-64.
    pub emulator: PathBuf,
    /// The path of the kernel.
    pub kernel: PathBuf,
    /// The path of the initial RAM disk, which contains the whole system.
    pub initrd: PathBuf,
}

impl KernelVmAssets {
    /// Finds the files; installs the emulator and builds the rest if they are missing, and reports that on standard
    /// error.
    ///
    /// # Errors
    /// [`Error::Missing`] with what this machine lacks: Debian's package tools, permission to install, packages.
    pub async fn find_or_install(debian: Debian) -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(missing("it is only available for x86-64"));
        }
        let emulator = find_or_install_emulator().await?;
        let folder = cache_dir()?.join(format!("kernel-vm-{}", key(debian)));
        let _lock = lock_cache(PACKAGES_LOCK).await?;
        if !folder.is_dir() {
            build(debian, &folder).await?;
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
        what: "the virtual machine with the Linux kernel's NFS".into(),
        remedy: format!(
            "{why}; on Debian for x86-64, after apt-get update: apt-get install {EMULATOR_PACKAGE}, and let apt-get \
             download {KERNEL_PACKAGE} {}",
            PACKAGES.join(" ")
        ),
    }
}

async fn find_or_install_emulator() -> Result<PathBuf> {
    if let Some(program) = find_program(EMULATOR) {
        return Ok(program);
    }
    let _lock = lock_cache(PACKAGES_LOCK).await?;
    if find_program(EMULATOR).is_none() {
        let cost = "about 30 MB to download, 130 MB on disk";
        apt::install(&[EMULATOR_PACKAGE], cost, missing).await?;
    }
    find_program(EMULATOR).ok_or_else(|| missing("it was installed, but the program was not found"))
}

/// Returns the key in the cache: a hash of everything that determines the result except the versions of the packages, so
/// that a machine that was built once works without a network.
fn key(debian: Debian) -> String {
    let mut hash = Sha256::new();
    for (name, text) in SOURCES {
        hash.update(name);
        hash.update(text);
    }
    for name in [KERNEL_PACKAGE]
        .iter()
        .chain(&PACKAGES)
        .chain(&FILES)
        .chain(&debian.codename())
    {
        hash.update(name);
    }
    short_hash(&hash.finalize())
}

async fn build(debian: Debian, folder: &Path) -> Result<()> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb"] {
        find_program(tool).ok_or_else(|| missing(&format!("there is no {tool} here")))?;
    }
    let progress = Progress::start(&format!(
        "building a virtual machine from {KERNEL_PACKAGE} and NFS programs of {debian}: packages are downloaded and \
         unpacked, not installed (about 45 MB, and as much for {})",
        folder.display()
    ));
    let work = BuildDir::new("kernel-vm")?;
    let packages = work.path().join("packages.d");
    fs::create_dir(&packages).with_context(|| format!("create {}", packages.display()))?;
    let failed = |error: Error| missing(&error.to_string());
    let release = Release::open(debian, &work.path().join("lists"))
        .await
        .map_err(failed)?;
    let names = package_names(&release).await.map_err(failed)?;
    release.download(&names, &packages).await.map_err(failed)?;
    progress.step(&format!("{} packages are downloaded", names.len()));
    for (name, text) in SOURCES {
        work.write(name, text)?;
    }
    let mut build = command_bound_to_parent("sh");
    build.arg("build.sh").current_dir(work.path());
    run(build).await?;
    work.publish("", folder)?;
    progress.done("built the virtual machine");
    Ok(())
}

/// Returns the packages to unpack: the kernel, the programs, and the libraries that they depend on.
async fn package_names(release: &Release) -> Result<Vec<String>> {
    let kernel = release.depends(&[KERNEL_PACKAGE], false).await?;
    let kernel = kernel.into_iter().find(|name| name.starts_with("linux-image-"));
    let kernel = kernel.ok_or_else(|| missing(&format!("{KERNEL_PACKAGE} depends on no kernel")))?;
    let mut names = release.depends(&PACKAGES, true).await?;
    names.retain(|name| apt::is_library(name) && !UNUSED.iter().any(|prefix| name.starts_with(prefix)));
    names.extend(PACKAGES.iter().chain(&FILES).map(|name| (*name).to_owned()));
    names.push(kernel);
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::Debian;

    #[test]
    fn the_key_is_a_hash() {
        // Eight bytes of the hash in hexadecimal digits.
        assert_ne!(super::key(Debian::Own), super::key(Debian::V13));
        assert_eq!(super::key(Debian::Own).len(), 16);
    }
}
