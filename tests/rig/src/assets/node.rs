//! What a node needs beside the control plane's programs, and what images are made with: Debian packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest, Sha256};

use super::{apt, cache_dir, control_plane, find_program, lock_cache, short_hash};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// A program and the package that it is in.
type Tool = (&'static str, &'static str);

/// What pods run with. `nft` is what kube-proxy calls, and the rig where NetworkPolicies are enforced.
const NODE: [Tool; 4] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
];
/// What the image and its static program are built with; `musl-gcc` compiles the C parts of a dependency.
const IMAGE: [Tool; 2] = [("buildah", "buildah"), ("musl-gcc", "musl-tools")];
/// What compiles them for the other architecture; the C library's headers, which it only recommends, come with it.
const FOR_ARM64: [Tool; 2] = [
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("aarch64-linux-gnu-gcc", "libc6-dev-arm64-cross"),
];
const FOR_AMD64: [Tool; 2] = [
    ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
    ("x86_64-linux-gnu-gcc", "libc6-dev-amd64-cross"),
];
/// The network plugins, which are not in `PATH`, and their package.
const PLUGINS: (&str, &str) = ("/usr/lib/cni", "containernetworking-plugins");

/// Where a node's programs are.
#[derive(Clone, Debug)]
pub struct NodeAssets {
    /// `kubelet`.
    pub kubelet: PathBuf,
    /// `kube-proxy`.
    pub kube_proxy: PathBuf,
    /// `containerd`; it finds `runc` in `PATH`.
    pub containerd: PathBuf,
    /// The folder of the network plugins.
    pub plugins: PathBuf,
    /// The OCI archive of the image that keeps a pod's namespaces.
    pub pause: PathBuf,
}

impl NodeAssets {
    /// Finds what a node and the image need; installs what is missing, and says so on standard error.
    ///
    /// # Errors
    /// [`Error::Missing`] names what this machine lacks: root, namespaces, packages or the right to install them.
    pub async fn find_or_install() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(missing("only root can make namespaces and install packages"));
        }
        crate::node::sandbox::check_supported()
            .await
            .map_err(|error| missing(&error.to_string()))?;
        install_missing(&NODE, true, missing).await?;
        install_missing(&IMAGE, false, missing).await?;
        let (folder, _) = control_plane::find_or_build().await?;
        let of_kubernetes = |name: &str| {
            let path = folder.join(name);
            let absent = || missing(&format!("there is no {name} in {}", folder.display()));
            path.is_file().then_some(path).ok_or_else(absent)
        };
        let installed = find_program("containerd").ok_or_else(|| missing("containerd is not in PATH"))?;
        Ok(Self {
            kubelet: of_kubernetes("kubelet")?,
            kube_proxy: of_kubernetes("kube-proxy")?,
            containerd: installed,
            plugins: PathBuf::from(PLUGINS.0),
            pause: pause_image().await?,
        })
    }

    /// The same for what the image of an architecture is built with alone; `arch` as container images or the kernel call it.
    ///
    /// # Errors
    /// [`Error::Missing`] names the packages.
    pub async fn find_or_install_image_tools(arch: &str) -> Result<()> {
        let compiler: &[Tool] = match (arch, std::env::consts::ARCH) {
            ("arm64" | "aarch64", "x86_64") => &FOR_ARM64,
            ("amd64" | "x86_64", "aarch64") => &FOR_AMD64,
            _ => &[],
        };
        let tools = [&IMAGE, compiler].concat();
        install_missing(&tools, false, |why| {
            missing_error("what the image is built with", why, &packages_of(&tools))
        })
        .await
    }
}

fn missing(why: &str) -> Error {
    let packages = [packages_of(&NODE), packages_of(&IMAGE), vec![PLUGINS.1]].concat();
    missing_error("a node that runs pods", why, &packages)
}

fn missing_error(what: &str, why: &str, packages: &[&str]) -> Error {
    Error::Missing {
        what: what.into(),
        remedy: format!("{why}; on Debian, as root: apt-get install {}", packages.join(" ")),
    }
}

fn packages_of(tools: &[Tool]) -> Vec<&'static str> {
    tools.iter().map(|(_, package)| *package).collect()
}

fn missing_packages(tools: &[Tool], plugins: bool) -> Vec<&'static str> {
    let tools = tools.iter().filter(|(program, _)| find_program(program).is_none());
    let mut packages: Vec<_> = tools.map(|(_, package)| *package).collect();
    if plugins && !Path::new(PLUGINS.0).join("ptp").is_file() {
        packages.push(PLUGINS.1);
    }
    packages
}

async fn install_missing(tools: &[Tool], plugins: bool, missing: impl Fn(&str) -> Error) -> Result<()> {
    if missing_packages(tools, plugins).is_empty() {
        return Ok(());
    }
    let _lock = lock_cache().await?;
    let packages = missing_packages(tools, plugins);
    if packages.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(missing("only root can install packages"));
    }
    find_program("apt-get").ok_or_else(|| missing("there is no apt-get here"))?;
    apt::install(&packages, "about 55 MB to download, 200 MB on disk, for all of a node")
        .await
        .map_err(|error| missing(&error.to_string()))?;
    // Where systemd runs, the package starts a server of its own, which nobody here asked for.
    if packages.contains(&"containerd") && Path::new("/run/systemd/system").is_dir() {
        let mut command = Command::new("systemctl");
        command.args(["disable", "--now", "containerd.service"]);
        run(command).await?;
        eprintln!("rig: stopped and disabled the service that containerd's package started");
    }
    match missing_packages(tools, plugins).as_slice() {
        [] => Ok(()),
        still => Err(missing(&format!(
            "{} was installed, but its program is not there",
            still.join(", ")
        ))),
    }
}

const PAUSE: &str = include_str!("../../node/pause.c");
const PAUSE_FILE: &str = "FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT [\"/pause\"]\n";
const PAUSE_BUILD: &str = include_str!("../../node/pause.sh");

/// The archive of the pause image: no registry is needed for a node.
async fn pause_image() -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for text in [PAUSE, PAUSE_FILE, PAUSE_BUILD] {
        hash.update(text);
    }
    let cache = cache_dir()?;
    let archive = cache.join(format!("pause-{}.tar", short_hash(&hash.finalize())));
    // Held while another run may be making the same.
    let _lock = lock_cache().await?;
    if archive.is_file() {
        return Ok(archive);
    }
    // The lock is ours: whatever is there was left by one that was killed.
    let work = cache.join("making-pause");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    }
    fs::create_dir(&work).with_context(|| format!("make {}", work.display()))?;
    for (name, text) in [("pause.c", PAUSE), ("Dockerfile", PAUSE_FILE)] {
        fs::write(work.join(name), text).with_context(|| format!("write {name} in {}", work.display()))?;
    }
    let mut build = Command::new("sh");
    build
        .args(["-c", PAUSE_BUILD, "pause", crate::node::PAUSE])
        .current_dir(&work);
    run(build).await?;
    fs::rename(work.join("pause.tar"), &archive).with_context(|| format!("make {}", archive.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    Ok(archive)
}
