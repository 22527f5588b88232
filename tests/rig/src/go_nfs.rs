//! An NFSv3 server in Go that shares no code with the others.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    assets::go_nfs,
    error::{Result, ResultExt},
    process::{Process, ProcessSpec, while_running},
    run_dir::RunDir,
    wait,
};

/// It takes milliseconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server of the library go-nfs. Dropping it kills it.
#[derive(Debug)]
pub struct GoNfs {
    _process: Process,
    exports: PathBuf,
    address: SocketAddr,
}

impl GoNfs {
    /// Starts a server with the writable exports `/plain` and `/empty`, and the read-only export `/read-only`. Builds it
    /// if necessary.
    pub async fn start(run: &RunDir) -> Result<Self> {
        let program = go_nfs::find_or_build().await?;
        let folder = run.new_dir("go-nfs")?;
        let exports = folder.join("exports");
        for name in ["plain", "empty", "read-only"] {
            let path = exports.join(name);
            fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        }
        let log = folder.join("log");
        let args = ["-read-only", "/read-only"].map(str::to_owned);
        let args = args.into_iter().chain([exports.display().to_string()]);
        let process = Process::start(ProcessSpec::new("go-nfs", program, args, log.clone())).await?;
        // The first line of its output is the port.
        let started = wait::until("go-nfs to listen", START_TIMEOUT, async || {
            let printed = fs::read_to_string(&log).map_err(|error| error.to_string())?;
            let complete = printed.split_once('\n').map_or("", |(line, _)| line);
            complete.parse::<u16>().map_err(|_| printed.clone())
        });
        let port = while_running(&[&process], started).await?;
        Ok(Self {
            _process: process,
            exports,
            address: (Ipv4Addr::LOCALHOST, port).into(),
        })
    }

    /// Returns the address of NFS and of MOUNT.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the directory of the export `/<name>`.
    pub fn data_dir(&self, name: &str) -> PathBuf {
        self.exports.join(Path::new(name))
    }
}
