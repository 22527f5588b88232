//! An NFS server for one test.

use std::path::PathBuf;
use std::time::Duration;

use rig::{Export, NfsOptions, NfsServer, RunDir, Squash, StableStorage};

/// The lease of its clients: longer than a machine stalls, because a client whose lease expired connects again.
pub const LEASE: Duration = Duration::from_secs(90);

/// A running NFSv4 server with the export `/data`. It is killed, and its folder removed, on drop.
pub struct DedicatedServer {
    server: NfsServer,
    pub port: u16,
    // Dropped last, because it contains the server's files.
    _run: RunDir,
}

impl DedicatedServer {
    /// Starts a server with all minor versions.
    pub async fn start() -> Self {
        Self::offering(Export::new("/data")).await
    }

    /// Starts a server with this export, whose path is `/data`.
    pub async fn offering(export: Export) -> Self {
        Self::with(of(export)).await
    }

    /// Starts a server that squashes root and sends the anonymous user by name.
    pub async fn naming_nobody() -> Self {
        Self::with(NfsOptions {
            named_owners: true,
            ..of(Export::new("/data").squash(Squash::Root))
        })
        .await
    }

    /// Starts a server with these minor versions.
    pub async fn speaking(minor_versions: &[u8]) -> Self {
        Self::with(NfsOptions {
            minor_versions: minor_versions.to_vec(),
            ..of(Export::new("/data"))
        })
        .await
    }

    async fn with(options: NfsOptions) -> Self {
        let run = RunDir::new().unwrap();
        let server = NfsServer::start(&run, options).await.unwrap();
        let port = server.port();
        Self {
            server,
            port,
            _run: run,
        }
    }

    /// Returns the exported folder on disk.
    pub fn data(&self) -> PathBuf {
        self.server.data_dir("/data").unwrap()
    }

    /// Kills and restarts it, with its client state.
    pub async fn restart(&mut self) {
        self.server.restart(StableStorage::Kept).await.unwrap();
    }
}

fn of(export: Export) -> NfsOptions {
    NfsOptions {
        exports: vec![export],
        lease_seconds: u32::try_from(LEASE.as_secs()).unwrap(),
        ..NfsOptions::default()
    }
}
