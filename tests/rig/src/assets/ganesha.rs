//! nfs-ganesha, which comes as Debian packages.

use std::{
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use super::{apt, find_program, lock_cache};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

const PACKAGES: [&str; 2] = ["nfs-ganesha", "nfs-ganesha-vfs"];
/// Where nfs-ganesha looks for the file system of an export.
const MOUNT_TABLE: &str = "/etc/mtab";

/// The path of `ganesha.nfsd`; installs it when it is missing and this is root on Debian.
pub(super) async fn find_or_install() -> Result<PathBuf> {
    // Who is not root can neither make it nor serve files.
    if rustix::process::geteuid().is_root() {
        make_mount_table(Path::new(MOUNT_TABLE))?;
    }
    if let Some(program) = find_installed() {
        return Ok(program);
    }
    let _lock = lock_cache().await?;
    if find_installed().is_none() {
        install().await?;
    }
    find_installed().ok_or_else(|| missing("they were installed, but ganesha.nfsd or libfsalvfs.so is not there"))
}

/// The path of `rpcbind`, which nfs-ganesha's package depends on.
pub(super) fn find_rpcbind() -> Result<PathBuf> {
    find_program("rpcbind").ok_or_else(|| missing("they were installed, but rpcbind is not there"))
}

fn find_installed() -> Option<PathBuf> {
    // The two packages bring one file each that nothing works without.
    let plugins = [
        "/usr/lib/ganesha",
        "/usr/lib/x86_64-linux-gnu/ganesha",
        "/usr/lib/aarch64-linux-gnu/ganesha",
    ];
    let vfs = plugins
        .iter()
        .any(|folder| PathBuf::from(folder).join("libfsalvfs.so").is_file());
    find_program("ganesha.nfsd").filter(|_| vfs)
}

fn missing(why: &str) -> Error {
    let packages = PACKAGES.join(" ");
    Error::Missing {
        what: format!("the NFS server for the tests ({packages})"),
        remedy: format!("{why}; on Debian: apt-get install {packages}"),
    }
}

/// The list of mounts that systemd or a container's runtime makes at the machine's start; one that was made by neither
/// (debootstrap) has none, and nfs-ganesha exports nothing then.
fn make_mount_table(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    match symlink("../proc/self/mounts", path) {
        Ok(()) => eprintln!(
            "rig: made {} a link to /proc/self/mounts, as Debian has it: it was not there",
            path.display()
        ),
        // Another run was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("make {}, which nfs-ganesha reads", path.display())),
    }
    Ok(())
}

async fn install() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(missing("only root can install packages"));
    }
    find_program("apt-get").ok_or_else(|| missing("there is no apt-get here"))?;
    apt::install(&PACKAGES, "1 MB to download")
        .await
        .map_err(|error| missing(&error.to_string()))?;
    // Where systemd runs, the package starts a server of its own, which nobody here asked for.
    if PathBuf::from("/run/systemd/system").is_dir() {
        let mut command = Command::new("systemctl");
        command.args(["disable", "--now", "nfs-ganesha.service"]);
        run(command).await?;
        eprintln!("rig: stopped and disabled the service that nfs-ganesha's package started");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    #[test]
    fn the_mount_table_is_made_where_it_is_missing_and_left_where_it_is_there() {
        let folder = std::env::temp_dir().join(format!("mount-table-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let table = folder.join("mtab");
        super::make_mount_table(&table).unwrap();
        assert_eq!(
            std::fs::read_link(&table).unwrap(),
            std::path::Path::new("../proc/self/mounts")
        );
        std::fs::remove_file(&table).unwrap();
        std::fs::write(&table, "of somebody's").unwrap();
        super::make_mount_table(&table).unwrap();
        assert_eq!(std::fs::read_to_string(&table).unwrap(), "of somebody's");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
