//! nfs-ganesha, which comes as Debian packages.

use std::{path::PathBuf, process::Command};

use super::{apt, exclusive, in_path};
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
    in_path("apt-get").ok_or_else(|| missing("there is no apt-get here"))?;
    apt::install(&PACKAGES, "1 MB to download").await?;
    // Where systemd runs, the package starts a server of its own, which nobody here asked for.
    if PathBuf::from("/run/systemd/system").is_dir() {
        let mut command = Command::new("systemctl");
        command.args(["disable", "--now", "nfs-ganesha.service"]);
        run(command).await?;
        eprintln!("rig: stopped and disabled the service that nfs-ganesha's package started");
    }
    Ok(())
}
