//! The control plane's programs: built once from their Go modules, kept in the cache.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

use super::{Kubernetes, Progress, cache_dir, find_program, lock_cache, short_hash};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// What is built, the same for each release: part of this program, so that a built rig needs no checkout.
const MAIN: &str = include_str!("../../control-plane/main.go");
const PROGRAMS: [&str; 5] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
];
/// What a node needs beside; who gives a control plane of their own need not have them.
const NODE_PROGRAMS: [&str; 2] = ["kubelet", "kube-proxy"];
/// Seldom enough not to flood a log, often enough to see that it goes on.
const STEP: Duration = Duration::from_secs(20);

/// The folder of the programs, and the path of `kubectl`.
pub(super) async fn find_or_build() -> Result<(PathBuf, PathBuf)> {
    let kubernetes = Kubernetes::from_env()?;
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|folder| !folder.is_empty()) {
        return given(PathBuf::from(folder), kubernetes);
    }
    let go = find_program("go").ok_or_else(|| Error::Missing {
        what: "Go, with which the control plane of the tests is built,".into(),
        remedy: "install Go 1.21 or newer (it fetches the version it needs), see https://go.dev/dl, or set \
                 KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager and kube-scheduler"
            .into(),
    })?;
    let cache = cache_dir()?;
    // Held while another run may be building the same; without a build it is given back in milliseconds.
    let _lock = lock_cache().await?;
    clear_abandoned(&cache)?;
    let sources = Sources::write(&go, &cache, kubernetes).await?;
    let folder = cache.join(format!("control-plane-{}", sources.key));
    if !folder.is_dir() {
        sources.build(&go).await?;
        sources.publish(&folder)?;
    }
    Ok((folder.clone(), folder.join("kubectl")))
}

fn given(folder: PathBuf, kubernetes: Kubernetes) -> Result<(PathBuf, PathBuf)> {
    if kubernetes != Kubernetes::Newest {
        return Err(Error::Usage(format!(
            "KUBEBUILDER_ASSETS names a control plane, and Kubernetes {} was asked for: unset one of the two",
            kubernetes.release()
        )));
    }
    let kubectl = Some(folder.join("kubectl"))
        .filter(|path| path.is_file())
        .or_else(|| find_program("kubectl"));
    let missing = PROGRAMS
        .iter()
        .filter(|name| **name != "kubectl" && !folder.join(name).is_file());
    let mut missing: Vec<&str> = missing.copied().collect();
    if kubectl.is_none() {
        missing.push("kubectl (there or in PATH)");
    }
    match kubectl {
        Some(kubectl) if missing.is_empty() => Ok((folder, kubectl)),
        _ => Err(Error::Missing {
            what: format!("in KUBEBUILDER_ASSETS={}: {}", folder.display(), missing.join(", ")),
            remedy: "put it there, or unset KUBEBUILDER_ASSETS to have the control plane built with Go".into(),
        }),
    }
}

/// The sources in a folder of their own, and the key under which what they make is kept.
struct Sources {
    folder: PathBuf,
    key: String,
    kubernetes: Kubernetes,
}

const BUILDING: &str = "building-";

impl Sources {
    async fn write(go: &Path, cache: &Path, kubernetes: Kubernetes) -> Result<Self> {
        let folder = cache.join(format!("{BUILDING}{}-{}", std::process::id(), crate::random_suffix()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let mut sources = Self {
            folder,
            key: String::new(),
            kubernetes,
        };
        let mut hash = Sha256::new();
        let (module, sums) = (kubernetes.module(), kubernetes.sums());
        for (name, text) in [("go.mod", module), ("go.sum", sums), ("main.go", MAIN)] {
            let path = sources.folder.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            hash.update(text);
        }
        // Asked for in that folder: go.mod may choose a newer toolchain than the one installed.
        let mut version = Command::new(go);
        version.args(["env", "GOVERSION"]).current_dir(&sources.folder);
        hash.update(run(version).await?);
        sources.key = short_hash(&hash.finalize());
        Ok(sources)
    }

    async fn build(&self, go: &Path) -> Result<()> {
        let progress = Progress::start(&format!(
            "building the Kubernetes {} control plane with Go; once, it takes minutes (modules come first)",
            self.kubernetes.release()
        ));
        let mut command = Command::new(go);
        command.args(["mod", "download"]).current_dir(&self.folder);
        run(command).await?;
        progress.step("modules are here");

        let version = self.kubernetes.release();
        let (major, minor) = self.kubernetes.major_and_minor();
        let variable = "k8s.io/component-base/version.git";
        let link =
            format!("-s -w -X {variable}Version={version} -X {variable}Major={major} -X {variable}Minor={minor}");
        // As every child of the rig: it must not go on compiling for minutes when the rig is gone.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(go);
        // `-v` names each package as it is compiled: that is the progress.
        command.args([
            "build",
            "-v",
            "-trimpath",
            "-ldflags",
            &link,
            "-o",
            "control-plane",
            ".",
        ]);
        command.env("CGO_ENABLED", "0").current_dir(&self.folder);
        let join = tokio::task::spawn_blocking(move || compile(command, &progress)).await;
        join.map_err(std::io::Error::other)
            .with_context(|| "build the control plane".into())?
    }

    /// Names the finished folder: what has that name is complete.
    fn publish(&self, folder: &Path) -> Result<()> {
        let ready = self.folder.join("ready");
        fs::create_dir(&ready).with_context(|| format!("make {}", ready.display()))?;
        let program = ready.join("control-plane");
        fs::rename(self.folder.join("control-plane"), &program)
            .with_context(|| format!("make {}", program.display()))?;
        for name in PROGRAMS.iter().chain(&NODE_PROGRAMS) {
            let link = ready.join(name);
            symlink("control-plane", &link).with_context(|| format!("make {}", link.display()))?;
        }
        fs::rename(&ready, folder).with_context(|| format!("make {}", folder.display()))
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        // What stays is cleared away by the next build.
        let _removed = fs::remove_dir_all(&self.folder);
    }
}

/// Removes what killed builds left; the caller holds the lock, so nobody builds now.
fn clear_abandoned(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache)
        .with_context(|| format!("list {}", cache.display()))?
        .flatten()
    {
        if entry.file_name().to_string_lossy().starts_with(BUILDING) {
            // What cannot be removed is in nobody's way.
            let _removed = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Runs the build, and says from time to time how far it is.
fn compile(mut command: Command, progress: &Progress) -> Result<()> {
    let line = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| line.clone())?;
    let mut packages = 0_u32;
    let mut output = String::new();
    let mut stepped = Instant::now();
    for printed in child
        .stderr
        .take()
        .into_iter()
        .flat_map(|stderr| BufReader::new(stderr).lines())
    {
        let printed = printed.with_context(|| line.clone())?;
        // A package's path has no blank; everything else is the compiler's complaint.
        if printed.contains(' ') {
            output.push_str(&printed);
            output.push('\n');
            continue;
        }
        packages += 1;
        if stepped.elapsed() >= STEP {
            stepped = Instant::now();
            progress.step(&format!("{packages} of about 3,000 packages compiled"));
        }
    }
    let status = child.wait().with_context(|| line.clone())?;
    if !status.success() {
        return Err(Error::Command {
            command: line,
            status,
            output,
        });
    }
    progress.done("built the control plane");
    Ok(())
}
