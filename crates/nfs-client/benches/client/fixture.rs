//! A server, a proxy that adds a round trip, and a store on the export.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use export_store::{
    ExpectedIdentity, ExportStore, PathReservations, PurgeLimits, PurgeReport, RecordsKey, ReservedPath, StoreConfig,
};
use nfs_client::{Client, ClientOwner, Credential, FileRef, Name, Protocol, SourcePort, Target, VersionChoice};
use rig::{NfsOptions, NfsServer, Proxy, RunDir};

use crate::Failure;

const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
/// Space for a million empty files, whose directories alone need space.
const EXPORT_BYTES: u64 = 8 << 30;
/// Number of calls that measure the round trip.
const ECHOES: u32 = 20;

/// Everything stops with its server.
pub struct Fixture {
    pub nfs: Client,
    pub proxy: Proxy,
    pub disk: PathBuf,
    managed: ExportStore,
    _server: NfsServer,
    _run: RunDir,
}

impl Fixture {
    pub async fn start(protocol: Protocol, round_trip: Duration) -> Result<Self, Failure> {
        let run = RunDir::new()?;
        // In memory, because a disk that needs 2 ms for a create would dominate the result.
        let options = NfsOptions {
            v3: protocol == Protocol::V3,
            exports: vec![rig::Export::new("/export").tmpfs(EXPORT_BYTES, None)],
            ..NfsOptions::default()
        };
        let server = NfsServer::start(&run, options).await?;
        let proxy = Proxy::start(server.address()).await?;
        let nfs = Client::connect(target(protocol, proxy.port(), server.mount_port())).await?;
        let managed = ExportStore::new(nfs.clone(), keeper(), Arc::new(PathReservations::new()));
        let expected = ExpectedIdentity {
            may_create: true,
            ..ExpectedIdentity::default()
        };
        managed.confirm_identity(expected).await?;
        // In one direction only, so that the inaccuracy of timers counts once.
        proxy.delay(round_trip, Duration::ZERO);
        Ok(Self {
            disk: server.data_dir("/export")?.to_owned(),
            nfs,
            proxy,
            managed,
            _server: server,
            _run: run,
        })
    }

    /// Returns the time of a call to which the server replies at once.
    pub async fn round_trip(&self) -> Result<Duration, Failure> {
        let root = self.nfs.root().await?;
        let began = Instant::now();
        for _ in 0..ECHOES {
            self.nfs.attributes(&root.handle).await?;
        }
        Ok(began.elapsed() / ECHOES)
    }

    /// Creates a directory at the root of the export on disk, and looks it up with the client.
    pub async fn directory(&self, name: &str) -> Result<FileRef, Failure> {
        fs::create_dir_all(self.disk.join(name))?;
        self.node(&[name]).await
    }

    pub async fn node(&self, path: &[&str]) -> Result<FileRef, Failure> {
        let root = self.nfs.root().await?;
        let names: Vec<Name> = path.iter().map(|name| named(name)).collect::<Result<_, _>>()?;
        let nodes = self.nfs.walk(&root.handle, &names).await?;
        let found = nodes.len() == names.len();
        nodes
            .into_iter()
            .next_back()
            .filter(|_| found)
            .ok_or_else(|| format!("{path:?} is not there").into())
    }

    /// Returns the trash on disk.
    pub fn trash(&self) -> PathBuf {
        self.disk.join(".nfs-operator").join(CLUSTER).join("trash")
    }

    /// Purges the trash completely.
    pub async fn purge(&self) -> Result<PurgeReport, Failure> {
        let limits = PurgeLimits {
            removals: u64::MAX,
            time: Duration::from_secs(3600),
            ..PurgeLimits::default()
        };
        let report = self.managed.purge_trash(limits).await?;
        match report.left.entries {
            0 => Ok(report),
            _ => Err(format!("something is left: {report:?}").into()),
        }
    }
}

pub fn named(name: &str) -> Result<Name, Failure> {
    Ok(Name::new(name.to_owned())?)
}

/// Creates this number of directories, each with this number of empty files. A single directory is the top itself.
pub fn tree(top: &Path, directories: usize, files: usize) -> Result<(), Failure> {
    for directory in 0..directories {
        let folder = match directories {
            1 => top.to_owned(),
            _ => top.join(format!("directory-{directory}")),
        };
        fs::create_dir_all(&folder)?;
        for file in 0..files {
            fs::File::create(folder.join(format!("file-{file}")))?;
        }
    }
    Ok(())
}

fn target(protocol: Protocol, port: u16, mount_port: u16) -> Target {
    Target {
        version: VersionChoice::Exactly(protocol),
        port,
        mount_port: Some(mount_port),
        source_port: SourcePort::Any,
        credential: Credential::default(),
        owner: ClientOwner {
            owner: rand::random::<[u8; 16]>().to_vec(),
            verifier: rand::random(),
        },
        deadline: Duration::from_secs(60),
        ..Target::new("127.0.0.1", "/export")
    }
}

fn keeper() -> StoreConfig {
    StoreConfig {
        cluster_id: CLUSTER.into(),
        records_key: RecordsKey::random(),
        backend: "bench".into(),
        backend_uid: "uid-of-bench".into(),
        credential: Credential::default(),
        roots: vec![ReservedPath::on_server("127.0.0.1", "/export")],
    }
}
