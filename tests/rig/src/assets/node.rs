//! Debian packages of a node and of the image build.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest, Sha256};

use super::{BuildDir, PACKAGES_LOCK, apt, cache_dir, control_plane, find_program, lock_cache, short_hash};
use crate::{
    error::{Error, Result},
    process::run,
};

/// A program and its Debian package.
type Tool = (&'static str, &'static str);

/// Programs of a node. kube-proxy and the enforcement of NetworkPolicies run `nft`.
const NODE: [Tool; 4] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
];
/// Programs that build the image and its static binary. `musl-gcc` compiles the C code of a dependency.
const IMAGE: [Tool; 2] = [("buildah", "buildah"), ("musl-gcc", "musl-tools")];
/// Cross compilers, with the headers of the C library, which the compiler's package only recommends.
const FOR_ARM64: [Tool; 2] = [
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("aarch64-linux-gnu-gcc", "libc6-dev-arm64-cross"),
];
const FOR_AMD64: [Tool; 2] = [
    ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
    ("x86_64-linux-gnu-gcc", "libc6-dev-amd64-cross"),
];
/// The directory of the network plugins, which are not in `PATH`, and their package.
const PLUGINS: (&str, &str) = ("/usr/lib/cni", "containernetworking-plugins");

/// The programs and files of a node.
#[derive(Clone, Debug)]
pub struct NodeAssets {
    /// The path of `kubelet`.
    pub kubelet: PathBuf,
    /// The path of `kube-proxy`.
    pub kube_proxy: PathBuf,
    /// The path of `containerd`, which finds `runc` in `PATH`.
    pub containerd: PathBuf,
    /// The directory of the network plugins.
    pub plugins: PathBuf,
    /// The OCI archive of the pause image, whose container keeps a pod's namespaces.
    pub pause: PathBuf,
}

impl NodeAssets {
    /// Finds everything that a node and the image build need; installs what is missing, and reports that on standard
    /// error.
    ///
    /// # Errors
    /// [`Error::Missing`] with what this machine lacks: root, namespaces, packages or permission to install them.
    pub async fn find_or_install() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(missing("only root can create namespaces and install packages"));
        }
        crate::node::sandbox::check_supported()
            .await
            .map_err(|error| missing(&error.to_string()))?;
        install_missing(&NODE, true, missing).await?;
        install_missing(&IMAGE, false, missing).await?;
        let (folder, _) = control_plane::find_or_build().await?;
        let find_kubernetes = |name: &str| {
            let path = folder.join(name);
            let error = || missing(&format!("there is no {name} in {}", folder.display()));
            path.is_file().then_some(path).ok_or_else(error)
        };
        let installed = find_program("containerd").ok_or_else(|| missing("containerd is not in PATH"))?;
        Ok(Self {
            kubelet: find_kubernetes("kubelet")?,
            kube_proxy: find_kubernetes("kube-proxy")?,
            containerd: installed,
            plugins: PathBuf::from(PLUGINS.0),
            pause: find_or_build_pause_image().await?,
        })
    }

    /// Finds or installs only what builds the image of an architecture, which is in the notation of container images or
    /// of the kernel.
    ///
    /// # Errors
    /// [`Error::Missing`] with the packages.
    pub async fn find_or_install_image_tools(arch: &str) -> Result<()> {
        let compiler: &[Tool] = match (arch, std::env::consts::ARCH) {
            ("arm64" | "aarch64", "x86_64") => &FOR_ARM64,
            ("amd64" | "x86_64", "aarch64") => &FOR_AMD64,
            _ => &[],
        };
        let tools = [&IMAGE, compiler].concat();
        install_missing(&tools, false, |why| {
            missing_error("a tool that builds the image", why, &packages_of(&tools))
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
    let _lock = lock_cache(PACKAGES_LOCK).await?;
    let packages = missing_packages(tools, plugins);
    if packages.is_empty() {
        return Ok(());
    }
    let cost = "about 55 MB to download, 200 MB on disk, for everything that a node needs";
    apt::install(&packages, cost, &missing).await?;
    if packages.contains(&"containerd") {
        apt::disable_service("containerd.service").await?;
    }
    match missing_packages(tools, plugins).as_slice() {
        [] => Ok(()),
        still => Err(missing(&format!(
            "{} was installed, but its program was not found",
            still.join(", ")
        ))),
    }
}

const PAUSE_SOURCE: &str = include_str!("../../node/pause.c");
const ACCESS_SOURCE: &str = include_str!("../../node/access.c");
const PAUSE_DOCKERFILE: &str = "FROM scratch\nCOPY pause access /\nUSER 65535:65535\nENTRYPOINT [\"/pause\"]\n";
const PAUSE_BUILD_SCRIPT: &str = include_str!("../../node/pause.sh");

/// Returns the archive of the pause image; builds it if it is not in the cache, so that a node needs no registry.
async fn find_or_build_pause_image() -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for text in [PAUSE_SOURCE, ACCESS_SOURCE, PAUSE_DOCKERFILE, PAUSE_BUILD_SCRIPT] {
        hash.update(text);
    }
    let archive = cache_dir()?.join(format!("pause-{}.tar", short_hash(&hash.finalize())));
    let _lock = lock_cache("pause").await?;
    if archive.is_file() {
        return Ok(archive);
    }
    let work = BuildDir::new("pause")?;
    work.write("pause.c", PAUSE_SOURCE)?;
    work.write("access.c", ACCESS_SOURCE)?;
    work.write("Dockerfile", PAUSE_DOCKERFILE)?;
    let mut build = Command::new("sh");
    build
        .args(["-c", PAUSE_BUILD_SCRIPT, "pause", crate::node::PAUSE_IMAGE])
        .current_dir(work.path());
    run(build).await?;
    work.publish("pause.tar", &archive)?;
    Ok(archive)
}
