//! The NFSv3 server of the library go-nfs, built with Go and kept in the cache.

use std::{path::PathBuf, process::Command};

use sha2::{Digest, Sha256};

use super::{BuildDir, Progress, cache_dir, find_go, go_build, lock_cache, short_hash};
use crate::{error::Result, process::run};

/// The source of the program. It is embedded, so that a built rig works without the repository.
const SOURCES: [(&str, &str); 3] = [
    ("go.mod", include_str!("../../go-nfs/go.mod")),
    ("go.sum", include_str!("../../go-nfs/go.sum")),
    ("main.go", include_str!("../../go-nfs/main.go")),
];

/// Returns the path of the program; builds it if it is not in the cache.
pub(crate) async fn find_or_build() -> Result<PathBuf> {
    let go = find_go("the NFSv3 server go-nfs", "")?;
    let mut hash = Sha256::new();
    for (_, text) in SOURCES {
        hash.update(text);
    }
    let program = cache_dir()?.join(format!("go-nfs-{}", short_hash(&hash.finalize())));
    let _lock = lock_cache("go-nfs").await?;
    if !program.is_file() {
        let progress = Progress::start("building the NFSv3 server go-nfs with Go");
        let work = BuildDir::new("go-nfs")?;
        for (name, text) in SOURCES {
            work.write(name, text)?;
        }
        let mut download = Command::new(&go);
        download.args(["mod", "download"]).current_dir(work.path());
        run(download).await?;
        let mut build = go_build(&go, "build", "");
        build.args(["-o", "go-nfs", "."]).current_dir(work.path());
        run(build).await?;
        work.publish("go-nfs", &program)?;
        progress.done("built go-nfs");
    }
    Ok(program)
}
