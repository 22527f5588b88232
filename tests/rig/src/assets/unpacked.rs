//! Packages of Debian 13 that are unpacked with the libraries that they need, and not installed.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use super::{BuildDir, Debian, Progress, apt, find_program};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// Where they come from.
pub(super) const SOURCE: &str = "it is downloaded with apt-get from the mirror of this machine's own release";

/// Packages to unpack.
pub(super) struct Packages<'a> {
    /// Their name for people.
    pub what: &'a str,
    /// The sizes of the download and of the files.
    pub size: &'a str,
    pub names: &'a [&'a str],
    /// Programs to add, which start those of the packages.
    pub scripts: &'a [(&'a str, &'a str)],
}

/// Downloads packages and unpacks them into a folder. The caller holds the lock for packages.
pub(super) async fn download(packages: &Packages<'_>, folder: &Path) -> Result<()> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb"] {
        find_program(tool).ok_or_else(|| Error::Missing {
            what: tool.into(),
            remedy: "only Debian has it".into(),
        })?;
    }
    let Packages { what, size, .. } = packages;
    let progress = Progress::start(&format!(
        "downloading {what} of Debian 13: packages are unpacked, not installed ({size} for {})",
        folder.display()
    ));
    let work = BuildDir::new("packages")?;
    let [lists, archives, root] = ["lists", "archives", "root"].map(|name| work.path().join(name));
    for path in [&archives, &root] {
        fs::create_dir(path).with_context(|| format!("create {}", path.display()))?;
    }
    let release = apt::Release::open(Debian::V13, &lists).await?;
    let mut names = release.depends(packages.names, true).await?;
    names.retain(|name| apt::is_library(name));
    names.extend(packages.names.iter().map(|&name| name.to_owned()));
    release.download(&names, &archives).await?;
    progress.step("packages are downloaded");
    let entries = fs::read_dir(&archives).with_context(|| format!("list {}", archives.display()))?;
    for package in entries.flatten() {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(package.path()).arg(&root);
        run(unpack).await?;
    }
    for (name, text) in packages.scripts {
        work.write(&format!("root/{name}"), text)?;
        let script = root.join(name);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("make {} executable", script.display()))?;
    }
    work.publish("root", folder)?;
    progress.done(&format!("downloaded {what}"));
    Ok(())
}
