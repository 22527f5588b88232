//! A newer nfs-ganesha than that of this machine's Debian release: packages of another release, with their libraries, are
//! unpacked and not installed.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest, Sha256};

use super::{BuildDir, Debian, PACKAGES_LOCK, Progress, apt, cache_dir, find_program, lock_cache, short_hash};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

const PACKAGES: [&str; 2] = ["nfs-ganesha", "nfs-ganesha-vfs"];
/// Starts the server with the libraries of its own release.
const WRAPPER: &str = r#"#!/bin/sh
root=$(dirname "$(readlink -f "$0")")
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/ganesha" \
    "$root/usr/bin/ganesha.nfsd" "$@"
"#;

/// nfs-ganesha with the libraries of its own release.
#[derive(Clone, Debug)]
pub struct NewerGanesha {
    /// The path of the program.
    pub program: PathBuf,
    /// What it needs to start from there, for [`NfsOptions::core_params`](crate::NfsOptions::core_params).
    pub core_params: Vec<(&'static str, String)>,
}

/// Returns the server; downloads it if it is not in the cache.
///
/// # Errors
/// [`Error::Missing`] with what this machine lacks.
pub(super) async fn find_or_download() -> Result<NewerGanesha> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(missing("it is only available for x86-64"));
    }
    let mut hash = Sha256::new();
    for text in PACKAGES.iter().chain(&[WRAPPER]) {
        hash.update(text);
    }
    let folder = cache_dir()?.join(format!("newer-ganesha-{}", short_hash(&hash.finalize())));
    let _lock = lock_cache(PACKAGES_LOCK).await?;
    if !folder.is_dir() {
        download(&folder).await.map_err(|error| missing(&error.to_string()))?;
    }
    Ok(NewerGanesha {
        program: folder.join("ganesha.nfsd"),
        core_params: vec![
            (
                "Plugins_Dir",
                format!("\"{}\"", folder.join("usr/lib/x86_64-linux-gnu/ganesha").display()),
            ),
            // A container may lack the capability for it, and the server would exit.
            ("allow_set_io_flusher_fail", "true".to_owned()),
        ],
    })
}

fn missing(why: &str) -> Error {
    Error::Missing {
        what: "nfs-ganesha of Debian 13".into(),
        remedy: format!("{why}; it is downloaded with apt-get from the mirror of this machine's own release"),
    }
}

async fn download(folder: &Path) -> Result<()> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb"] {
        find_program(tool).ok_or_else(|| missing(&format!("there is no {tool} here")))?;
    }
    let progress = Progress::start(&format!(
        "downloading nfs-ganesha of Debian 13: packages are unpacked, not installed (30 MB, and 60 MB for {})",
        folder.display()
    ));
    let work = BuildDir::new("ganesha")?;
    let [lists, packages, root] = ["lists", "packages", "root"].map(|name| work.path().join(name));
    for path in [&packages, &root] {
        fs::create_dir(path).with_context(|| format!("create {}", path.display()))?;
    }
    let release = apt::Release::open(Debian::V13, &lists).await?;
    let mut names = release.depends(&PACKAGES, true).await?;
    names.retain(|name| apt::is_library(name));
    names.extend(PACKAGES.map(str::to_owned));
    release.download(&names, &packages).await?;
    progress.step("packages are downloaded");
    for package in entries(&packages)? {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(&package).arg(&root);
        run(unpack).await?;
    }
    work.write("root/ganesha.nfsd", WRAPPER)?;
    let wrapper = root.join("ganesha.nfsd");
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("make {} executable", wrapper.display()))?;
    work.publish("root", folder)?;
    progress.done("downloaded nfs-ganesha");
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
