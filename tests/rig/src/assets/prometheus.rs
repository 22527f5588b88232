//! Prometheus, and its checker of metrics and rules. They are unpacked from Debian's package, which is not installed
//! because it starts a server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{BuildDir, Debian, PACKAGES_LOCK, Progress, apt::Release, cache_dir, find_program, lock_cache};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

const PACKAGE: &str = "prometheus";

/// Returns the path of a program of the package; downloads the package if it is neither in `PATH` nor in the cache.
pub(super) async fn find_or_install(name: &str) -> Result<PathBuf> {
    if let Some(program) = find_program(name) {
        return Ok(program);
    }
    let program = cache_dir()?.join(name);
    let _lock = lock_cache(PACKAGES_LOCK).await?;
    if !program.is_file() {
        let downloaded = download(name, &program).await;
        downloaded.map_err(|error| missing(name, &error.to_string()))?;
    }
    Ok(program)
}

fn missing(name: &str, why: &str) -> Error {
    Error::Missing {
        what: format!("{name}, which checks metrics, alert rules and the dashboard"),
        remedy: format!("{why}; add it to PATH: Debian has it in the package {PACKAGE}"),
    }
}

async fn download(name: &str, program: &Path) -> Result<()> {
    for tool in ["apt-get", "dpkg-deb"] {
        find_program(tool).ok_or_else(|| missing(name, &format!("there is no {tool} here")))?;
    }
    let progress = Progress::start(&format!(
        "downloading {name}: Debian's package {PACKAGE} is unpacked, not installed (20 MB, and up to 100 MB for {})",
        program.display()
    ));
    let work = BuildDir::new(name)?;
    let release = Release::open(Debian::Own, work.path()).await?;
    release.download(&[PACKAGE.to_owned()], work.path()).await?;
    let entries = fs::read_dir(work.path()).with_context(|| format!("list {}", work.path().display()))?;
    let package = entries.flatten().map(|entry| entry.path()).next();
    let package = package.ok_or_else(|| missing(name, "apt-get downloaded nothing"))?;
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("--extract").arg(&package).arg(work.path());
    run(unpack).await?;
    work.publish(&format!("usr/bin/{name}"), program)?;
    progress.done(&format!("downloaded {name}"));
    Ok(())
}
