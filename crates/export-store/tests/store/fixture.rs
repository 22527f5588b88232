//! A server with an export, a proxy in front of it, and stores on the export.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use export_store::ErrorKind;
use export_store::Existing;
use export_store::naming::DirectoryPath;
use export_store::{
    ArchiveMetadata, ClaimRef, DirectoryRequest, ExpectedIdentity, ExportStore, Identity, PathReservations, RecordsKey,
    ReservedPath, StoreConfig, VolumeDirectory,
};
use nfs_client::{Client, ClientOwner, Credential, Protocol, SourcePort, Target, VersionChoice};
use rig::{Ceph, NfsOptions, NfsServer, Proxy, RunDir};

pub const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
pub const OTHER_CLUSTER: &str = "99999999-2222-3333-4444-555555555555";

/// A dedicated server, with a proxy in front of it.
pub struct StoreFixture {
    pub nfs: NfsServer,
    pub proxy: Proxy,
    pub disk: PathBuf,
    version: VersionChoice,
    _ceph: Option<Ceph>,
    _run: RunDir,
}

/// The configuration of a store and its connection.
#[derive(Clone)]
pub struct StoreClient {
    pub cluster: &'static str,
    /// The value of all bytes of the key that signs its records.
    pub key: u8,
    pub backend: &'static str,
    pub credential: Credential,
    pub reservations: Arc<PathReservations>,
    pub port: u16,
    pub mount_port: u16,
    pub version: VersionChoice,
    pub path: &'static str,
}

impl StoreFixture {
    pub async fn start() -> Self {
        Self::with(rig::Export::new("/export")).await
    }

    pub async fn with(export: rig::Export) -> Self {
        Self::over(VersionChoice::Auto, export).await
    }

    pub async fn over(version: VersionChoice, export: rig::Export) -> Self {
        let run = RunDir::new().unwrap();
        let options = NfsOptions {
            exports: vec![export],
            v3: version == VersionChoice::Exactly(Protocol::V3),
            ..NfsOptions::default()
        };
        let nfs = NfsServer::start(&run, options).await.unwrap();
        let proxy = Proxy::start(nfs.address()).await.unwrap();
        let disk = nfs.data_dir("/export").unwrap();
        Self {
            nfs,
            proxy,
            disk,
            version,
            _ceph: None,
            _run: run,
        }
    }

    /// Exports the file system of a Ceph cluster. It is on no disk.
    pub async fn on_ceph(version: VersionChoice) -> Self {
        let run = RunDir::new().unwrap();
        let ceph = Ceph::start(&run).await.unwrap();
        let options = NfsOptions {
            v3: version == VersionChoice::Exactly(Protocol::V3),
            ..NfsOptions::default()
        };
        let nfs = ceph.serve(&run, options).await.unwrap();
        Self {
            proxy: Proxy::start(nfs.address()).await.unwrap(),
            nfs,
            disk: PathBuf::new(),
            version,
            _ceph: Some(ceph),
            _run: run,
        }
    }

    pub fn client(&self) -> StoreClient {
        StoreClient {
            cluster: CLUSTER,
            key: 7,
            backend: "fast",
            credential: Credential::default(),
            reservations: Arc::new(PathReservations::new()),
            port: self.nfs.port(),
            mount_port: self.nfs.mount_port(),
            version: self.version,
            path: "/export",
        }
    }

    /// Opens a store with a confirmed identity.
    pub async fn store(&self) -> ExportStore {
        self.client().open().await
    }

    /// Opens the stores of two backends on the export, `fast` and `slow`, in one process.
    pub async fn two_backends(&self) -> (ExportStore, ExportStore) {
        let fast = self.client();
        let slow = StoreClient {
            backend: "slow",
            ..fast.clone()
        };
        (fast.open().await, slow.open().await)
    }

    pub fn on_disk(&self, path: &str) -> PathBuf {
        self.disk.join(path)
    }

    pub fn record(&self, volume: &str) -> serde_json::Value {
        let path = self.disk.join(format!(".nfs-operator/{CLUSTER}/records/{volume}"));
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
    }

    pub fn records(&self) -> Vec<String> {
        names(&self.disk.join(format!(".nfs-operator/{CLUSTER}/records")))
    }

    /// Returns the names at the root of the export, without the operator's folder.
    pub fn listed(&self) -> Vec<String> {
        let mut names = names(&self.disk);
        names.retain(|name| name != ".nfs-operator");
        names
    }
}

impl StoreClient {
    pub async fn connect(&self) -> ExportStore {
        let target = Target {
            version: self.version,
            port: self.port,
            mount_port: Some(self.mount_port),
            source_port: SourcePort::Any,
            credential: self.credential,
            owner: ClientOwner {
                owner: rand::random::<[u8; 16]>().to_vec(),
                verifier: rand::random(),
            },
            // A machine that stalls must not fail a call.
            deadline: Duration::from_secs(60),
            ..Target::new("127.0.0.1", self.path)
        };
        let keeper = StoreConfig {
            cluster_id: self.cluster.into(),
            records_key: RecordsKey::new(&[self.key; 32]),
            backend: self.backend.into(),
            backend_uid: format!("uid-of-{}", self.backend),
            credential: self.credential,
            roots: vec![ReservedPath::on_server("127.0.0.1", self.path)],
        };
        let export = Client::connect(target).await.unwrap();
        ExportStore::new(export, keeper, Arc::clone(&self.reservations))
    }

    pub async fn open(&self) -> ExportStore {
        let export = self.connect().await;
        identify(&export).await;
        export
    }
}

/// Returns the store once it knows that no other cluster uses the export: each change of a folder shows in its change
/// attribute on the file system of the tests, two looks apart.
pub async fn alone(export: ExportStore) -> ExportStore {
    let export = export.with_change_resolution(Duration::ZERO);
    export.provision(&request("alone", "alone")).await.unwrap();
    export.rollback("pvc-alone", "alone").await.unwrap();
    export
}

/// Confirms the existing identity, or creates one.
pub async fn identify(export: &ExportStore) -> Identity {
    let expected = ExpectedIdentity {
        may_create: true,
        ..ExpectedIdentity::default()
    };
    export.confirm_identity(expected).await.unwrap()
}

pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

pub fn claim(uid: &str) -> ClaimRef {
    ClaimRef {
        namespace: "team".into(),
        namespace_uid: "ns".into(),
        name: "data".into(),
        uid: uid.into(),
    }
}

/// Returns a request for the volume `pvc-<uid>` with this directory.
pub fn request(uid: &str, directory: &str) -> DirectoryRequest {
    DirectoryRequest {
        claim: claim(uid),
        volume: format!("pvc-{uid}"),
        directory: DirectoryPath::parse(directory).unwrap(),
        mode: 0o777,
        mode_requested: false,
        adopted_mode: None,
        uid: None,
        gid: None,
        gid_range: None,
        existing: Existing::Refuse,
        adoptable: true,
        restore: None,
        metadata: None,
    }
}

pub fn adopting(uid: &str, directory: &str) -> DirectoryRequest {
    DirectoryRequest {
        existing: Existing::Adopt,
        ..request(uid, directory)
    }
}

pub fn sharing(uid: &str, directory: &str) -> DirectoryRequest {
    DirectoryRequest {
        existing: Existing::Share,
        ..request(uid, directory)
    }
}

pub fn reclaim(uid: &str, directory: &str, file_id: u64) -> VolumeDirectory {
    VolumeDirectory {
        claim: claim(uid),
        volume: format!("pvc-{uid}"),
        directory: DirectoryPath::parse(directory).unwrap(),
        file_id: Some(file_id),
        archive_metadata: ArchiveMetadata::default(),
    }
}

/// Returns why a directory is refused, and whether definitely.
pub async fn refused(export: &ExportStore, request: &DirectoryRequest) -> (ErrorKind, bool) {
    let error = export.provision(request).await.unwrap_err();
    println!("{error}");
    (error.kind(), error.definite_refusal())
}
