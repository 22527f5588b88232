//! The programs of the control plane and of the node, built from their Go modules and kept in the cache.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

use super::{BuildDir, Kubernetes, Progress, cache_dir, find_go, find_program, go_build, lock_cache, short_hash};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// The source of the program, the same for each version of Kubernetes. It is embedded, so that a built rig works without
/// the repository.
const MAIN: &str = include_str!("../../control-plane/main.go");
const PROGRAMS: [&str; 5] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
];
/// Programs of a node. KUBEBUILDER_ASSETS need not have them.
const NODE_PROGRAMS: [&str; 2] = ["kubelet", "kube-proxy"];
/// Interval between reports of the build's progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(20);

/// Returns the directory of the programs and the path of `kubectl`.
pub(super) async fn find_or_build() -> Result<(PathBuf, PathBuf)> {
    let kubernetes = Kubernetes::from_env()?;
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|folder| !folder.is_empty()) {
        return find_in(PathBuf::from(folder), kubernetes);
    }
    let go = find_go(
        "the control plane of the tests",
        ", or set KUBEBUILDER_ASSETS to a directory with etcd, kube-apiserver, kube-controller-manager and \
         kube-scheduler",
    )?;
    let (module, sums) = (kubernetes.module(), kubernetes.sums());
    let _lock = lock_cache("control-plane").await?;
    let work = BuildDir::new("control-plane")?;
    let mut hash = Sha256::new();
    for (name, text) in [("go.mod", module), ("go.sum", sums), ("main.go", MAIN)] {
        work.write(name, text)?;
        hash.update(text);
    }
    // Run in that directory, because go.mod may select a newer toolchain than the installed one.
    let mut version = Command::new(&go);
    version.args(["env", "GOVERSION"]).current_dir(work.path());
    hash.update(run(version).await?);
    let folder = cache_dir()?.join(format!("control-plane-{}", short_hash(&hash.finalize())));
    if !folder.is_dir() {
        build(&go, kubernetes, &work).await?;
        publish(&work, &folder)?;
    }
    Ok((folder.clone(), folder.join("kubectl")))
}

fn find_in(folder: PathBuf, kubernetes: Kubernetes) -> Result<(PathBuf, PathBuf)> {
    if kubernetes != Kubernetes::Newest {
        return Err(Error::Usage(format!(
            "KUBEBUILDER_ASSETS is set, but Kubernetes {} is requested: unset one of the two",
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
            remedy: "add it there, or unset KUBEBUILDER_ASSETS to build the control plane with Go".into(),
        }),
    }
}

async fn build(go: &Path, kubernetes: Kubernetes, work: &BuildDir) -> Result<()> {
    let version = kubernetes.release();
    let progress = Progress::start(&format!(
        "building the Kubernetes {version} control plane with Go; this takes minutes, once (modules are downloaded first)"
    ));
    let mut command = Command::new(go);
    command.args(["mod", "download"]).current_dir(work.path());
    run(command).await?;
    progress.step("modules are downloaded");

    let (major, minor) = kubernetes.major_and_minor();
    let variable = "k8s.io/component-base/version.git";
    let link = format!("-X {variable}Version={version} -X {variable}Major={major} -X {variable}Minor={minor}");
    let mut command = go_build(go, "build", &link);
    // `-v` prints each package when it is compiled.
    command
        .args(["-v", "-o", "control-plane", "."])
        .current_dir(work.path());
    let join = tokio::task::spawn_blocking(move || compile(command, &progress)).await;
    join.with_context(|| "build the control plane".into())?
}

/// Moves the program and a link for each of its names to the cache.
fn publish(work: &BuildDir, folder: &Path) -> Result<()> {
    let ready = work.path().join("ready");
    fs::create_dir(&ready).with_context(|| format!("create {}", ready.display()))?;
    work.publish("control-plane", &ready.join("control-plane"))?;
    for name in PROGRAMS.iter().chain(&NODE_PROGRAMS) {
        let link = ready.join(name);
        symlink("control-plane", &link).with_context(|| format!("create {}", link.display()))?;
    }
    work.publish("ready", folder)
}

/// Runs the build and reports its progress.
fn compile(mut command: Command, progress: &Progress) -> Result<()> {
    let line = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| line.clone())?;
    let mut packages = 0_u32;
    let mut output = String::new();
    let mut reported = Instant::now();
    for printed in child
        .stderr
        .take()
        .into_iter()
        .flat_map(|stderr| BufReader::new(stderr).lines())
    {
        let printed = printed.with_context(|| line.clone())?;
        // The path of a package has no space; everything else is an error of the compiler.
        if printed.contains(' ') {
            output.push_str(&printed);
            output.push('\n');
            continue;
        }
        packages += 1;
        if reported.elapsed() >= REPORT_INTERVAL {
            reported = Instant::now();
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
