//! Debian's packages: installed by root, or only downloaded.

use std::{path::Path, process::Command};

use super::Progress;
use crate::{error::Result, process::run};

fn apt_get(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // Another apt-get may be at work on a machine that was just started.
    command.args(["-q", "-o", "DPkg::Lock::Timeout=300"]).args(args);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Installs these packages without what they merely recommend; `cost` is told beforehand. Needs root.
pub(super) async fn install(packages: &[&str], cost: &str) -> Result<()> {
    let names = packages.join(" ");
    let progress = Progress::start(&format!("installing {names} with apt-get ({cost})"));
    refresh().await?;
    progress.step("package lists are up to date");
    let args = [&["install", "-y", "--no-install-recommends"], packages].concat();
    run(apt_get(&args)).await?;
    progress.done(&format!("installed {names}"));
    Ok(())
}

/// Brings the package lists up to date, where that is allowed: a machine may have none, or old ones that name packages
/// which are not there any more.
pub(super) async fn refresh() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    run(apt_get(&["update"])).await.map(drop)
}

/// Downloads these packages into a folder and installs none of them. Needs no root where the package lists are
/// there.
pub(super) async fn download(packages: &[String], folder: &Path) -> Result<()> {
    let mut command = apt_get(&["download"]);
    // Downloaded as who we are: apt's own user need not be able to write into that folder.
    command.args(["-o", "APT::Sandbox::User=root"]);
    command.args(packages).current_dir(folder);
    run(command).await.map(drop)
}

/// The packages that these depend on, directly or (`all`) also by way of others; real ones alone.
pub(super) async fn depends(packages: &[&str], all: bool) -> Result<Vec<String>> {
    let mut command = Command::new("apt-cache");
    command.args(["depends", "--important", "--no-pre-depends"]);
    if all {
        command.arg("--recurse");
    }
    command.args(packages);
    Ok(listed(&run(command).await?))
}

/// The names in what `apt-cache depends` prints; `<…>` are names that others provide.
fn listed(printed: &str) -> Vec<String> {
    let names = printed.lines().filter_map(|line| line.split("Depends: ").nth(1));
    let real = names.map(str::trim).filter(|name| !name.starts_with('<'));
    // Other architectures' packages are spelled with a colon.
    let mut names: Vec<String> = real.filter(|name| !name.contains(':')).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_package_depends_on_is_read() {
        let printed =
            "first\n  Depends: libone\n |Depends: libtwo\n  Depends: <virtual>\n    libthree\n  Depends: other:i386\n";
        assert_eq!(super::listed(printed), ["libone", "libtwo"]);
    }
}
