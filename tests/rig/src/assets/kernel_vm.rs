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
    cache_dir, find_program, lock_cache, short_hash, zfs,
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
        Self::find_or_build(Image::Plain(debian)).await
    }

    /// The same for a machine that also has ZFS, whose modules are compiled.
    ///
    /// # Errors
    /// [`Error::Missing`] with what this machine lacks: also a compiler.
    pub async fn find_or_build_with_zfs() -> Result<Self> {
        Self::find_or_build(Image::Zfs).await
    }

    /// Reports whether a machine with ZFS was built before.
    pub fn has_zfs() -> Result<bool> {
        Ok(Image::Zfs.folder()?.is_dir())
    }

    async fn find_or_build(image: Image) -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(missing("it is only available for x86-64"));
        }
        let emulator = find_or_install_emulator().await?;
        let folder = image.folder()?;
        let _lock = lock_cache(image.lock()).await?;
        if !folder.is_dir() {
            build(image, &folder).await?;
        }
        Ok(Self {
            emulator,
            kernel: folder.join("vmlinuz"),
            initrd: folder.join("initrd"),
        })
    }
}

/// What a machine contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    /// The kernel and programs of a release.
    Plain(Debian),
    /// Those of this machine's release, and ZFS.
    Zfs,
}

impl Image {
    fn name(self) -> &'static str {
        match self {
            Self::Plain(_) => "kernel-vm",
            Self::Zfs => "kernel-vm-zfs",
        }
    }

    fn debian(self) -> Debian {
        match self {
            Self::Plain(debian) => debian,
            Self::Zfs => Debian::Own,
        }
    }

    /// Returns the packages of the programs.
    fn packages(self) -> Vec<&'static str> {
        let more: &[&str] = match self {
            Self::Plain(_) => &[],
            Self::Zfs => &zfs::PACKAGES,
        };
        PACKAGES.iter().chain(more).copied().collect()
    }

    fn lock(self) -> &'static str {
        match self {
            Self::Plain(_) => PACKAGES_LOCK,
            Self::Zfs => "zfs",
        }
    }

    fn folder(self) -> Result<PathBuf> {
        Ok(cache_dir()?.join(format!("{}-{}", self.name(), self.key())))
    }

    /// Returns the key in the cache: a hash of everything that determines the result except the versions of the packages,
    /// so that a machine that was built once works without a network.
    fn key(self) -> String {
        let mut hash = Sha256::new();
        for (name, text) in SOURCES {
            hash.update(name);
            hash.update(text);
        }
        if self == Self::Zfs {
            hash.update(zfs::COMPILE);
        }
        for name in std::iter::once(KERNEL_PACKAGE)
            .chain(self.packages())
            .chain(FILES)
            .chain(self.debian().codename())
        {
            hash.update(name);
        }
        short_hash(&hash.finalize())
    }

    async fn release(self, lists: &Path) -> Result<Release> {
        match self {
            Self::Plain(debian) => Release::open(debian, lists).await,
            Self::Zfs => Release::own_with_contrib(lists).await,
        }
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

async fn build(image: Image, folder: &Path) -> Result<()> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb"] {
        find_program(tool).ok_or_else(|| missing(&format!("there is no {tool} here")))?;
    }
    let debian = image.debian();
    let progress = Progress::start(&format!(
        "building a virtual machine from {KERNEL_PACKAGE} and NFS programs of {debian}: packages are downloaded and \
         unpacked, not installed (about 45 MB, and as much for {})",
        folder.display()
    ));
    let work = BuildDir::new(image.name())?;
    let packages = work.path().join("packages.d");
    fs::create_dir(&packages).with_context(|| format!("create {}", packages.display()))?;
    let count = download(image, work.path(), &packages)
        .await
        .map_err(|error| missing(&error.to_string()))?;
    progress.step(&format!("{count} packages are downloaded"));
    for (name, text) in SOURCES {
        work.write(name, text)?;
    }
    let mut build = command_bound_to_parent("sh");
    build.arg("build.sh").current_dir(work.path());
    if image == Image::Zfs {
        zfs::compile(&work).await?;
        progress.step("the modules of ZFS are compiled");
        build.envs([("MORE_MODULES", zfs::MODULE), ("MORE_PROGRAMS", zfs::PROGRAMS)]);
    }
    run(build).await?;
    work.publish("", folder)?;
    progress.done("built the virtual machine");
    Ok(())
}

/// Downloads the packages of a machine, and returns their number.
async fn download(image: Image, work: &Path, packages: &Path) -> Result<usize> {
    // A build with a lock of its own must not run apt-get beside another one.
    let _lock = match image.lock() {
        PACKAGES_LOCK => None,
        _ => Some(lock_cache(PACKAGES_LOCK).await?),
    };
    let release = image.release(&work.join("lists")).await?;
    let names = package_names(&release, &image.packages()).await?;
    release.download(&names, packages).await?;
    if image == Image::Zfs {
        zfs::download(&release, work).await?;
    }
    Ok(names.len())
}

/// Returns the packages to unpack: the kernel, the programs, and the libraries that they depend on.
async fn package_names(release: &Release, programs: &[&str]) -> Result<Vec<String>> {
    let kernel = release.depends(&[KERNEL_PACKAGE], false).await?;
    let kernel = kernel.into_iter().find(|name| name.starts_with("linux-image-"));
    let kernel = kernel.ok_or_else(|| missing(&format!("{KERNEL_PACKAGE} depends on no kernel")))?;
    let mut names = release.depends(programs, true).await?;
    names.retain(|name| apt::is_library(name) && !UNUSED.iter().any(|prefix| name.starts_with(prefix)));
    names.extend(programs.iter().chain(&FILES).map(|name| (*name).to_owned()));
    names.push(kernel);
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::{Debian, Image};

    #[test]
    fn the_key_is_a_hash() {
        let own = Image::Plain(Debian::Own).key();
        // Eight bytes of the hash in hexadecimal digits.
        assert_eq!(own.len(), 16);
        assert_ne!(own, Image::Plain(Debian::V13).key());
        assert_ne!(own, Image::Zfs.key());
    }
}
