//! An NFS server for one test, beside the one that the tests share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rig::objects::merge;
use rig::{Export, NfsOptions, NfsServer, RunDir, StableStorage, TestEnv};
use serde_json::{Value, json};

use crate::support::shared::{self, Failure, Test, text};

/// A server with a ready backend.
pub struct Server {
    pub nfs: NfsServer,
    /// Path of the export.
    pub export: String,
    /// Name of the backend.
    pub backend: String,
    /// Dropped last: the server's folder.
    _run: RunDir,
}

impl Server {
    /// Starts a server and creates a backend for it. `spec` is merged into the backend.
    pub async fn start(env: &TestEnv, backend: &str, spec: Value) -> Result<Self, Failure> {
        Self::start_with(env, backend, NfsOptions::default(), spec).await
    }

    /// The same, over NFSv3.
    pub async fn start_with_v3(env: &TestEnv, backend: &str, spec: Value) -> Result<Self, Failure> {
        let options = NfsOptions {
            v3: true,
            ..NfsOptions::default()
        };
        Self::start_with(env, backend, options, spec).await
    }

    async fn start_with(env: &TestEnv, backend: &str, options: NfsOptions, spec: Value) -> Result<Self, Failure> {
        let (run, export, is_v3) = (RunDir::new()?, format!("/{backend}-{}", env.name), options.v3);
        let options = NfsOptions {
            exports: vec![Export::new(export.as_str())],
            ..options
        };
        let nfs = NfsServer::start(&run, options).await?;
        let mut settings = json!({"path": export, "nfs": {"port": nfs.port()}, "probeInterval": "1s"});
        if is_v3 {
            let version = json!({"nfs": {"version": "3", "mountPort": nfs.mount_port()}});
            merge(&mut settings, &version);
        }
        merge(&mut settings, &spec);
        shared::backend(env, backend, settings).await?;
        Ok(Self {
            nfs,
            export,
            backend: env.unique_name(backend),
            _run: run,
        })
    }

    /// Returns the export on the disk of the server.
    pub fn data(&self) -> rig::Result<PathBuf> {
        self.nfs.data_dir(&self.export)
    }

    /// Returns the directory of a volume on the disk of the server.
    pub fn directory(&self, volume: &Value) -> Result<PathBuf, Failure> {
        let path = Path::new(text(volume, "/spec/nfs/path")).strip_prefix(&self.export)?;
        Ok(self.data()?.join(path))
    }

    /// Kills the server, and starts it again after a while.
    pub async fn restart(&mut self) -> Test {
        self.nfs.kill9().await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.nfs.restart(StableStorage::Kept).await?;
        Ok(())
    }
}

/// Returns the settings of a backend whose claims tenants may back up, to another backend of the test.
pub fn backed_up_to(env: &TestEnv, destination: &str) -> Value {
    json!({"backups": {
        "selfService": {"maxBytesPerNamespace": "1Gi"},
        "destination": {"backendName": env.unique_name(destination)},
    }})
}
