//! nfs-ganesha, which comes as Debian packages.

use std::{path::PathBuf, process::Command};

use super::{Progress, exclusive, in_path};
use crate::{
    error::{Error, Result},
    process::run,
};

const PACKAGES: [&str; 2] = ["nfs-ganesha", "nfs-ganesha-vfs"];

/// The path of `ganesha.nfsd`; installs it when it is missing and this is root on Debian.
pub(super) async fn ganesha() -> Result<PathBuf> {
    if let Some(program) = installed() {
        return Ok(program);
    }
    let _lock = exclusive().await?;
    if installed().is_none() {
        install().await?;
    }
    installed().ok_or_else(|| missing("they were installed, but ganesha.nfsd or libfsalvfs.so is not there"))
}

/// The path of `rpcbind`, which nfs-ganesha's package depends on.
pub(super) fn rpcbind() -> Result<PathBuf> {
    in_path("rpcbind").ok_or_else(|| missing("they were installed, but rpcbind is not there"))
}

fn installed() -> Option<PathBuf> {
    // The two packages bring one file each that nothing works without.
    let plugins = [
        "/usr/lib/ganesha",
        "/usr/lib/x86_64-linux-gnu/ganesha",
        "/usr/lib/aarch64-linux-gnu/ganesha",
    ];
    let vfs = plugins
        .iter()
        .any(|folder| PathBuf::from(folder).join("libfsalvfs.so").is_file());
    in_path("ganesha.nfsd").filter(|_| vfs)
}

fn missing(why: &str) -> Error {
    let packages = PACKAGES.join(" ");
    Error::Missing {
        what: format!("the NFS server for the tests ({packages})"),
        remedy: format!("{why}; on Debian: apt-get install {packages}"),
    }
}

async fn install() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(missing("only root can install packages"));
    }
    let apt = in_path("apt-get").ok_or_else(|| missing("there is no apt-get here"))?;
    let progress = Progress::start(&format!("installing {} with apt-get", PACKAGES.join(" ")));
    let apt = |args: &[&str]| {
        let mut command = Command::new(&apt);
        // Another apt-get may be at work on a machine that was just started.
        command.args(["-q", "-o", "DPkg::Lock::Timeout=300"]).args(args);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt(&["update"])).await?;
    progress.step("package lists are up to date");
    run(apt(&[
        "install",
        "-y",
        "--no-install-recommends",
        PACKAGES[0],
        PACKAGES[1],
    ]))
    .await?;
    // Where systemd runs, the package starts a server of its own, which nobody here asked for.
    if PathBuf::from("/run/systemd/system").is_dir() {
        let mut command = Command::new("systemctl");
        command.args(["disable", "--now", "nfs-ganesha.service"]);
        run(command).await?;
        progress.step("stopped and disabled the service that the package started");
    }
    progress.done("installed nfs-ganesha");
    Ok(())
}
