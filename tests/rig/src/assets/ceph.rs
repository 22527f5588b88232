//! Ceph, and nfs-ganesha with its plugin for CephFS: packages of Debian 13, unpacked and not installed.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{PACKAGES_LOCK, cache_dir, lock_cache, short_hash, unpacked};
use crate::error::{Error, Result};

/// The programs, and the interpreter with the libraries that set up a cluster.
const PACKAGES: [&str; 11] = [
    "ceph-mon",
    "ceph-osd",
    "ceph-mds",
    "ceph-base",
    "ceph-common",
    "nfs-ganesha",
    "nfs-ganesha-ceph",
    "python3.13",
    "python3.13-minimal",
    "python3-rados",
    "python3-cephfs",
];
/// Runs a program with the libraries of its own release.
const WRAPPER: &str = r#"#!/bin/sh
root=$(dirname "$(readlink -f "$0")")
lib=$root/usr/lib/x86_64-linux-gnu
program=$1
shift
export PYTHONHOME="$root/usr" PYTHONPATH="$root/usr/lib/python3/dist-packages"
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib:$lib/ceph:$root/usr/lib/ganesha" \
    "$root/usr/bin/$program" "$@"
"#;
/// Runs nfs-ganesha, as its own program.
const GANESHA: &str = "#!/bin/sh\nexec \"$(dirname \"$(readlink -f \"$0\")\")/run\" ganesha.nfsd \"$@\"\n";

/// The programs of Ceph.
#[derive(Clone, Debug)]
pub struct CephPrograms {
    /// The folder with everything.
    pub root: PathBuf,
}

impl CephPrograms {
    /// Returns the programs; downloads them if they are not in the cache.
    ///
    /// # Errors
    /// [`Error::Missing`] with what this machine lacks.
    pub async fn find_or_download() -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(missing("it is only available for x86-64"));
        }
        let mut hash = Sha256::new();
        for text in PACKAGES.iter().chain(&[WRAPPER, GANESHA]) {
            hash.update(text);
        }
        let root = cache_dir()?.join(format!("ceph-{}", short_hash(&hash.finalize())));
        let _lock = lock_cache(PACKAGES_LOCK).await?;
        if !root.is_dir() {
            let what = unpacked::Packages {
                what: "Ceph",
                size: "100 MB, and 370 MB",
                names: &PACKAGES,
                scripts: &[("run", WRAPPER), ("ganesha.nfsd", GANESHA)],
            };
            let downloaded = unpacked::download(&what, &root).await;
            downloaded.map_err(|error| missing(&error.to_string()))?;
        }
        Ok(Self { root })
    }

    /// Returns the program that runs the others: its first argument is the name of one.
    pub fn runner(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Returns nfs-ganesha's server.
    pub fn ganesha(&self) -> PathBuf {
        self.root.join("ganesha.nfsd")
    }

    /// Returns a folder with libraries of the programs.
    pub fn libraries(&self, folder: &str) -> PathBuf {
        self.root.join(Path::new("usr/lib/x86_64-linux-gnu")).join(folder)
    }
}

fn missing(why: &str) -> Error {
    Error::Missing {
        what: "Ceph of Debian 13".into(),
        remedy: format!("{why}; {}", unpacked::SOURCE),
    }
}
