//! Helm, in the two major versions that people install charts with: built once from their Go modules, kept in the cache.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Progress, cache_dir, find_program, lock_cache};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// A release of Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helm {
    /// The newest of version 4.
    V4,
    /// The newest of version 3.
    V3,
}

impl Helm {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V3];

    /// The module and its version.
    fn module(self) -> (&'static str, &'static str) {
        match self {
            Self::V4 => ("helm.sh/helm/v4/cmd/helm", "v4.3.1"),
            Self::V3 => ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
        }
    }

    /// The path of the program; builds it when it is not in the cache, and says so on standard error.
    ///
    /// # Errors
    /// [`Error::Missing`] without Go.
    pub async fn find_or_build(self) -> Result<PathBuf> {
        let (module, version) = self.module();
        let kept = cache_dir()?.join(format!("helm-{version}"));
        // Held while another run may be building the same.
        let _lock = lock_cache().await?;
        if !kept.is_file() {
            build(module, version, &kept).await?;
        }
        Ok(kept)
    }
}

async fn build(module: &str, version: &str, kept: &Path) -> Result<()> {
    let go = find_program("go").ok_or_else(|| Error::Missing {
        what: "Go, with which Helm is built,".into(),
        remedy: "install Go 1.21 or newer (it fetches the version it needs), see https://go.dev/dl".into(),
    })?;
    let progress = Progress::start(&format!("building Helm {version} with Go; once, it takes some minutes"));
    // Whatever is there was left by one that was killed: the lock is ours.
    let work = cache_dir()?.join("building-helm");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    }
    fs::create_dir(&work).with_context(|| format!("make {}", work.display()))?;
    // As every child of the rig: it must not go on compiling for minutes when the rig is gone.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(go);
    command.args(["install", "-trimpath", "-ldflags", "-s -w"]);
    command.arg(format!("{module}@{version}"));
    command.env("CGO_ENABLED", "0").env("GOBIN", &work).current_dir(&work);
    run(command).await?;
    // What has that name is complete.
    fs::rename(work.join("helm"), kept).with_context(|| format!("take {}", kept.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    progress.done(&format!("built Helm {version}"));
    Ok(())
}
