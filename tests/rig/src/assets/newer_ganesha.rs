//! A newer nfs-ganesha than that of this machine's Debian release: packages of another release, with their libraries, are
//! unpacked and not installed.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::{PACKAGES_LOCK, cache_dir, lock_cache, short_hash, unpacked};
use crate::error::{Error, Result};

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
        let what = unpacked::Packages {
            what: "nfs-ganesha",
            size: "30 MB, and 60 MB",
            names: &PACKAGES,
            scripts: &[("ganesha.nfsd", WRAPPER)],
        };
        let downloaded = unpacked::download(&what, &folder).await;
        downloaded.map_err(|error| missing(&error.to_string()))?;
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
        remedy: format!("{why}; {}", unpacked::SOURCE),
    }
}
