//! An NFS server for one test.

use std::path::PathBuf;

use rig::{Export, NfsOptions, NfsServer, RunDir, Squash, StableStorage};

/// A running server of NFSv4 with the export `/data`; killed and its folder removed when dropped.
pub struct DedicatedServer {
    server: NfsServer,
    pub port: u16,
    // Last: the server's files go after the server.
    _run: RunDir,
}

impl DedicatedServer {
    /// Speaks every minor version.
    pub async fn start() -> Self {
        Self::offering(Export::new("/data")).await
    }

    /// Offers this export, whose path is `/data`.
    pub async fn offering(export: Export) -> Self {
        Self::with(of(export)).await
    }

    /// Takes root for nobody, and calls that one by its name.
    pub async fn naming_nobody() -> Self {
        Self::with(NfsOptions {
            named_owners: true,
            ..of(Export::new("/data").squash(Squash::Root))
        })
        .await
    }

    /// Speaks these minor versions.
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

    /// The exported folder, as the server's file system has it.
    pub fn data(&self) -> PathBuf {
        self.server.data_dir("/data").unwrap()
    }

    /// Kills it and starts it again, with what it remembers of its clients.
    pub async fn restart(&mut self) {
        self.server.restart(StableStorage::Kept).await.unwrap();
    }
}

fn of(export: Export) -> NfsOptions {
    NfsOptions {
        exports: vec![export],
        ..NfsOptions::default()
    }
}
