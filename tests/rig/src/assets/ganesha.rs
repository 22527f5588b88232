//! The NFS server nfs-ganesha, installed from Debian packages.

use std::{
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{PACKAGES_LOCK, apt, find_program, lock_cache};
use crate::error::{Error, Result, ResultExt};

const PACKAGES: [&str; 2] = ["nfs-ganesha", "nfs-ganesha-vfs"];
/// The file in which nfs-ganesha looks up the file system of an export.
const MOUNT_TABLE: &str = "/etc/mtab";

/// Returns the path of `ganesha.nfsd`; installs it if it is missing.
pub(super) async fn find_or_install() -> Result<PathBuf> {
    // Only root can create it, and nfs-ganesha needs root anyway.
    if rustix::process::geteuid().is_root() {
        create_mount_table(Path::new(MOUNT_TABLE))?;
    }
    if let Some(program) = find_installed() {
        return Ok(program);
    }
    let _lock = lock_cache(PACKAGES_LOCK).await?;
    if find_installed().is_none() {
        install().await?;
    }
    find_installed().ok_or_else(|| missing("they were installed, but ganesha.nfsd or libfsalvfs.so was not found"))
}

/// Returns the path of `rpcbind`, a dependency of nfs-ganesha's package.
pub(super) fn find_rpcbind() -> Result<PathBuf> {
    find_program("rpcbind").ok_or_else(|| missing("they were installed, but rpcbind was not found"))
}

/// Returns the path of the plugin with which nfs-ganesha serves file systems of the kernel.
pub(super) fn find_plugin() -> Result<PathBuf> {
    find_installed_plugin().ok_or_else(|| missing("libfsalvfs.so was not found"))
}

fn find_installed_plugin() -> Option<PathBuf> {
    let folders = [
        "/usr/lib/ganesha",
        "/usr/lib/x86_64-linux-gnu/ganesha",
        "/usr/lib/aarch64-linux-gnu/ganesha",
    ];
    let mut plugins = folders.iter().map(|folder| PathBuf::from(folder).join("libfsalvfs.so"));
    plugins.find(|plugin| plugin.is_file())
}

fn find_installed() -> Option<PathBuf> {
    // Each of the two packages installs one of these files.
    find_program("ganesha.nfsd").filter(|_| find_installed_plugin().is_some())
}

fn missing(why: &str) -> Error {
    let packages = PACKAGES.join(" ");
    Error::Missing {
        what: format!("the NFS server for the tests ({packages})"),
        remedy: format!("{why}; on Debian: apt-get install {packages}"),
    }
}

/// Creates the list of mounts if it does not exist. Usually systemd or a container runtime creates it; without it (as on
/// a machine installed by debootstrap) nfs-ganesha exports nothing.
fn create_mount_table(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    match symlink("../proc/self/mounts", path) {
        Ok(()) => eprintln!(
            "rig: created {} as a link to /proc/self/mounts, as on Debian",
            path.display()
        ),
        // Another run created it at the same time.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("create {}, which nfs-ganesha reads", path.display())),
    }
    Ok(())
}

async fn install() -> Result<()> {
    apt::install(&PACKAGES, "1 MB to download", missing).await?;
    apt::disable_service("nfs-ganesha.service").await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    #[test]
    fn a_missing_mount_table_is_created_and_an_existing_one_is_kept() {
        let folder = std::env::temp_dir().join(format!("mount-table-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let table = folder.join("mtab");
        super::create_mount_table(&table).unwrap();
        assert_eq!(
            std::fs::read_link(&table).unwrap(),
            std::path::Path::new("../proc/self/mounts")
        );
        std::fs::remove_file(&table).unwrap();
        std::fs::write(&table, "existing").unwrap();
        super::create_mount_table(&table).unwrap();
        assert_eq!(std::fs::read_to_string(&table).unwrap(), "existing");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
