//! OpenZFS for the virtual machine: Debian has it as source text in its section contrib, because its license forbids to
//! distribute it together with the kernel. Its modules are compiled for the kernel of the machine.

use std::{fs, path::Path};

use super::{BuildDir, apt::Release, find_program};
use crate::{
    error::{Error, Result, ResultExt},
    process::{command_bound_to_parent, run},
};

/// Packages of the programs in the machine.
pub(super) const PACKAGES: [&str; 1] = ["zfsutils-linux"];
/// The programs.
pub(super) const PROGRAMS: &str = "sbin/zpool sbin/zfs sbin/mount.zfs";
/// The module that needs all others.
pub(super) const MODULE: &str = "zfs";
/// The script that compiles the modules.
pub(super) const COMPILE: &str = include_str!("../../kernel-vm/compile-zfs.sh");
/// The package with the source text.
const SOURCE_PACKAGE: &str = "zfs-dkms";
/// A package that depends on the headers of the newest kernel of the Debian release.
const HEADERS_PACKAGE: &str = "linux-headers-cloud-amd64";
/// Where the packages are unpacked from.
const FOLDER: &str = "sources.d";

fn missing(why: &str) -> Error {
    Error::Missing {
        what: "the virtual machine with ZFS".into(),
        remedy: format!(
            "{why}; the modules are compiled from {SOURCE_PACKAGE} and {HEADERS_PACKAGE}, which are downloaded, with: \
             apt-get install make gcc libc6-dev libelf1"
        ),
    }
}

/// Downloads the source text and the headers of the kernel.
pub(super) async fn download(release: &Release, work: &Path) -> Result<()> {
    let folder = work.join(FOLDER);
    fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
    let mut names = vec![SOURCE_PACKAGE.to_owned()];
    for name in release.depends(&[HEADERS_PACKAGE], false).await? {
        let needed = release.depends(&[&name], false).await?;
        names.extend(needed.into_iter().filter(|name| !name.starts_with("linux-compiler-")));
        names.push(name);
    }
    release.download(&names, &folder).await
}

/// Compiles the modules from what was downloaded, into the directory `extra`.
pub(super) async fn compile(work: &BuildDir) -> Result<()> {
    for tool in ["make", "gcc"] {
        find_program(tool).ok_or_else(|| missing(&format!("there is no {tool} here")))?;
    }
    work.write("compile-zfs.sh", COMPILE)?;
    let mut compile = command_bound_to_parent("nice");
    compile.args(["sh", "compile-zfs.sh"]).current_dir(work.path());
    run(compile)
        .await
        .map(drop)
        .map_err(|error| missing(&error.to_string()))
}
