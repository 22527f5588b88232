//! Prometheus' own checker, out of Debian's package: unpacked, not installed, since the package starts a server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Progress, apt, cache_dir, find_program, lock_cache};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

const PACKAGE: &str = "prometheus";
const PROGRAM: &str = "promtool";

/// The path of `promtool`; downloads the package when it is nowhere, and says so on standard error.
pub(super) async fn find_or_install() -> Result<PathBuf> {
    if let Some(program) = find_program(PROGRAM) {
        return Ok(program);
    }
    let cache = cache_dir()?;
    let kept = cache.join(PROGRAM);
    // Held while another run may be fetching the same.
    let _lock = lock_cache().await?;
    if !kept.is_file() {
        fetch(&cache, &kept)
            .await
            .map_err(|error| missing(&error.to_string()))?;
    }
    Ok(kept)
}

fn missing(why: &str) -> Error {
    Error::Missing {
        what: format!("{PROGRAM}, which checks metrics and alert rules"),
        remedy: format!("{why}; put it into PATH: on Debian it is in the package {PACKAGE}"),
    }
}

async fn fetch(cache: &Path, kept: &Path) -> Result<()> {
    for tool in ["apt-get", "dpkg-deb"] {
        find_program(tool).ok_or_else(|| missing(&format!("there is no {tool} here")))?;
    }
    let progress = Progress::start(&format!(
        "fetching {PROGRAM}: Debian's package {PACKAGE} is downloaded and unpacked, not installed (20 MB, and 50 MB in {})",
        cache.display()
    ));
    // The lock is ours: whatever is there was left by one that was killed.
    let work = cache.join("fetching-promtool");
    clear(&work)?;
    fs::create_dir(&work).with_context(|| format!("make {}", work.display()))?;
    apt::refresh().await?;
    apt::download(&[PACKAGE.to_owned()], &work).await?;
    let entries = fs::read_dir(&work).with_context(|| format!("list {}", work.display()))?;
    let package = entries.flatten().map(|entry| entry.path()).next();
    let package = package.ok_or_else(|| missing("apt-get downloaded nothing"))?;
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("--extract").arg(&package).arg(&work);
    run(unpack).await?;
    let program = work.join("usr/bin").join(PROGRAM);
    // What has that name is complete.
    fs::rename(&program, kept).with_context(|| format!("take {}", program.display()))?;
    clear(&work)?;
    progress.done(&format!("fetched {PROGRAM}"));
    Ok(())
}

fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}
