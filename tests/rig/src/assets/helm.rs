//! Helm in both supported major versions, built from their Go modules and kept in the cache.

use std::path::{Path, PathBuf};

use super::{BuildDir, Progress, cache_dir, find_go, go_build, lock_cache};
use crate::{error::Result, process::run};

/// A major version of Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helm {
    /// Version 4.
    V4,
    /// Version 3.
    V3,
}

impl Helm {
    /// All versions.
    pub const ALL: [Self; 2] = [Self::V4, Self::V3];

    /// Returns the Go module and its version.
    fn module(self) -> (&'static str, &'static str) {
        match self {
            Self::V4 => ("helm.sh/helm/v4/cmd/helm", "v4.3.1"),
            Self::V3 => ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
        }
    }

    /// Returns the path of the program; builds it if it is not in the cache, and reports that on standard error.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) if Go is not installed.
    pub async fn find_or_build(self) -> Result<PathBuf> {
        let (module, version) = self.module();
        let program = cache_dir()?.join(format!("helm-{version}"));
        let _lock = lock_cache("helm").await?;
        if !program.is_file() {
            build(module, version, &program).await?;
        }
        Ok(program)
    }
}

async fn build(module: &str, version: &str, program: &Path) -> Result<()> {
    let go = find_go("Helm", "")?;
    let progress = Progress::start(&format!(
        "building Helm {version} with Go; this takes some minutes, once"
    ));
    let work = BuildDir::new("helm")?;
    let mut command = go_build(&go, "install", "");
    command.arg(format!("{module}@{version}"));
    command.env("GOBIN", work.path()).current_dir(work.path());
    run(command).await?;
    work.publish("helm", program)?;
    progress.done(&format!("built Helm {version}"));
    Ok(())
}
