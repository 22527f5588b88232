//! The tools that the quota agent runs, installed from Debian packages.

use super::{PACKAGES_LOCK, apt, find_program, lock_cache};
use crate::error::{Error, Result};

const PACKAGES: [&str; 2] = ["quota", "xfsprogs"];
const TOOLS: [&str; 4] = ["setquota", "repquota", "xfs_quota", "xfs_io"];

/// Finds the tools, or installs them.
pub(super) async fn find_or_install() -> Result<()> {
    if find_missing().is_none() {
        return Ok(());
    }
    let _lock = lock_cache(PACKAGES_LOCK).await?;
    if find_missing().is_some() {
        apt::install(&PACKAGES, "2 MB to download", missing).await?;
    }
    match find_missing() {
        None => Ok(()),
        Some(tool) => Err(missing(&format!("they were installed, but {tool} was not found"))),
    }
}

fn find_missing() -> Option<&'static str> {
    TOOLS.into_iter().find(|tool| find_program(tool).is_none())
}

fn missing(why: &str) -> Error {
    let packages = PACKAGES.join(" ");
    Error::Missing {
        what: format!("the tools for quotas ({packages})"),
        remedy: format!("{why}; on Debian: apt-get install {packages}"),
    }
}
