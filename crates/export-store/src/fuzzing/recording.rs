#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
//! Recreates `fuzz/corpus` from a conversation with a real server, through the test proxy.

mod contents;
mod v3;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rig::{Action, Direction, NfsOptions, NfsServer, Proxy, RunDir};

use crate::Existing;
use crate::naming::DirectoryPath;
use crate::{
    ArchiveMetadata, ArchiveRequest, ClaimRef, CopyLimits, CopyProgress, DirectoryRequest, ExpectedIdentity,
    ExportStore, PathReservations, PurgeLimits, RecordsKey, ReservedPath, RetentionTerms, StoreConfig, TermsRevision,
    VolumeDirectory, copy_to_archive,
};
use nfs_client::fuzzing::{framed, results_of};
use nfs_client::{Client, ClientOwner, Credential, Protocol, SourcePort, Target, VersionChoice};

const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
/// Maximum number of inputs to keep for one decoder, those with different shapes first.
const MAX_MESSAGES: usize = 48;
/// Maximum size of an input to keep, in bytes: a fuzzer works best with small inputs.
const MAX_MESSAGE_LEN: usize = 2048;
/// Operation numbers (RFC 8881 section 16.2).
const GETATTR: u32 = 9;
const READDIR: u32 = 26;
const EXCHANGE_ID: u32 = 42;
const CREATE_SESSION: u32 = 43;
const OPEN: u32 = 18;
const OPEN_CONFIRM: u32 = 20;
const SETCLIENTID: u32 = 35;

/// Inputs by decoder and shape.
#[derive(Default)]
struct Corpus(BTreeMap<&'static str, BTreeMap<String, Vec<u8>>>);

impl Corpus {
    /// Keeps the first input of each shape.
    fn add(&mut self, decoder: &'static str, shape: String, input: &[u8]) {
        if input.len() <= MAX_MESSAGE_LEN {
            let inputs = self.0.entry(decoder).or_default();
            inputs.entry(shape).or_insert_with(|| input.to_vec());
        }
    }

    fn write(self) {
        for (decoder, inputs) in self.0 {
            let owner = if decoder.starts_with("export-") {
                "."
            } else {
                "../nfs-client"
            };
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(owner)
                .join("fuzz/corpus")
                .join(decoder);
            // Inputs that caused a failure in the past stay.
            std::fs::create_dir_all(&folder).unwrap();
            for (shape, input) in inputs.into_iter().take(MAX_MESSAGES) {
                std::fs::write(folder.join(format!("recorded-{shape}")), input).unwrap();
            }
        }
    }
}

#[ignore = "writes fuzz/corpus; cargo test -p export-store --lib fuzzing::recording -- --ignored"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_corpus_is_recorded_from_a_real_server() {
    let run = RunDir::new().unwrap();
    let options = NfsOptions {
        v3: true,
        ..NfsOptions::default()
    };
    let nfs = NfsServer::start(&run, options).await.unwrap();
    let disk = nfs.data_dir("/export").unwrap();
    let mounts = SocketAddr::new(nfs.address().ip(), nfs.mount_port());
    for protocol in [Protocol::V3, Protocol::V4_0, Protocol::V4_1, Protocol::V4_2] {
        // One corpus per protocol, so that each protocol contributes to every decoder.
        let mut corpus = Corpus::default();
        let (proxy, mount_proxy) = (Tapped::start(nfs.address()).await, Tapped::start(mounts).await);
        let ports = (proxy.port(), mount_proxy.port());
        converse(ports, protocol, &disk, &mut corpus).await;
        match protocol {
            Protocol::V3 => {
                v3::record_missing_export(ports).await;
                v3::take_apart(&proxy.answers(), &mount_proxy.answers(), &mut corpus);
            }
            _ => {
                let replies: Vec<_> = proxy.answers().into_iter().map(|(_, reply)| reply).collect();
                take_apart(protocol, &replies, &mut corpus);
                contents::add_replies_that_ganesha_never_sends(&mut corpus);
            }
        }
        corpus.write();
    }
}

/// A proxy that records the replies.
struct Tapped {
    proxy: Proxy,
    /// Procedures of the calls, by XID.
    calls: Arc<Mutex<BTreeMap<[u8; 4], u32>>>,
    replies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tapped {
    async fn start(server: SocketAddr) -> Self {
        let tapped = Self {
            proxy: Proxy::start(server).await.unwrap(),
            calls: Arc::default(),
            replies: Arc::default(),
        };
        let calls = Arc::clone(&tapped.calls);
        tapped.proxy.on_record(Direction::Up, move |record| {
            let words: Vec<[u8; 4]> = record.as_chunks().0.to_vec();
            // XID, CALL, RPC version, program, version, procedure (RFC 5531 section 9).
            calls.lock().insert(words[0], u32::from_be_bytes(words[5]));
            Action::Forward
        });
        let replies = Arc::clone(&tapped.replies);
        tapped.proxy.on_record(Direction::Down, move |record| {
            replies.lock().push(record.to_vec());
            Action::Forward
        });
        tapped
    }

    fn port(&self) -> u16 {
        self.proxy.port()
    }

    /// Returns all replies in order, each with the procedure of its call.
    fn answers(&self) -> Vec<(u32, Vec<u8>)> {
        let calls = self.calls.lock();
        let replies = std::mem::take(&mut *self.replies.lock());
        let procedure = |reply: &Vec<u8>| calls[reply.first_chunk().unwrap()];
        replies.into_iter().map(|reply| (procedure(&reply), reply)).collect()
    }
}

/// Performs all operations of the client. The server refuses some of them.
async fn converse(ports: (u16, u16), protocol: Protocol, disk: &Path, corpus: &mut Corpus) {
    let export = Client::connect(target(ports, protocol)).await.unwrap();
    let managed = Arc::new(ExportStore::new(
        export.clone(),
        keeper(),
        Arc::new(PathReservations::new()),
    ));
    let expected = ExpectedIdentity {
        may_create: true,
        ..ExpectedIdentity::default()
    };
    managed.confirm_identity(expected).await.unwrap();
    managed.probe_write().await.unwrap();
    for (number, above) in [("1", ""), ("2", "home/")] {
        let uid = &format!("{number}-{protocol}");
        let path = format!("{above}{uid}");
        let made = managed.provision(&request(uid, &path)).await.unwrap();
        std::fs::write(disk.join(&path).join("file"), "x").unwrap();
        std::fs::create_dir(disk.join(&path).join("folder")).unwrap();
        std::os::unix::fs::symlink("../file", disk.join(&path).join("folder/link")).unwrap();
        keep_files(disk, &format!("{uid}-live"), corpus);
        let reclaim = VolumeDirectory {
            claim: claim(uid),
            volume: format!("pvc-{uid}"),
            directory: DirectoryPath::parse(&path).unwrap(),
            file_id: Some(made.file_id),
            archive_metadata: ArchiveMetadata::default(),
        };
        back_up(&managed, uid, &reclaim).await;
        keep_files(disk, &format!("{uid}-backup"), corpus);
        match number {
            "1" => drop(managed.archive(&reclaim, &crate::Decided).await.unwrap()),
            _ => drop(managed.delete(&reclaim, &crate::Decided).await.unwrap()),
        }
        keep_files(disk, &format!("{uid}-reclaimed"), corpus);
        managed.forget_volume(&format!("pvc-{uid}")).await.unwrap();
    }
    managed.purge_trash(PurgeLimits::default()).await.unwrap();
    let root = export.root().await.unwrap();
    let odd = disk.join(format!("odd-{protocol}"));
    std::fs::create_dir_all(&odd).unwrap();
    for number in 0..40 {
        std::fs::write(odd.join(format!("file-{number}")), "").unwrap();
    }
    let name = |name: &str| nfs_client::Name::new(name.to_owned()).unwrap();
    let listed = export
        .lookup(&root.handle, &name(&format!("odd-{protocol}")))
        .await
        .unwrap()
        .unwrap();
    export.list(&listed.handle, None).await.unwrap();
    export.statistics().await.unwrap();
    contents::record_copy_operations(&export, &listed.handle).await.unwrap();
    // A refused operation is part of the conversation, too.
    export
        .remove_directory(&root.handle, &name(&format!("odd-{protocol}")), 1)
        .await
        .unwrap_err();
    export
        .create_file(&listed.handle, &name("file-1"), b"", 0o600)
        .await
        .unwrap_err();
    Client::probe_versions(&target(ports, protocol)).await.unwrap();
    export.close().await;
}

/// Makes a backup of a volume, which has a manifest.
async fn back_up(managed: &Arc<ExportStore>, uid: &str, of: &VolumeDirectory) {
    let request = ArchiveRequest {
        name: format!("backup-{uid}"),
        requested_by: uid.into(),
        claim: claim(uid),
        of: of.clone(),
        terms: RetentionTerms::default(),
        revision: TermsRevision {
            uid: uid.into(),
            generation: 1,
        },
        bases: Vec::new(),
        snapshot: None,
    };
    let (limits, progress) = (CopyLimits::default(), Arc::new(CopyProgress::default()));
    copy_to_archive(managed, (managed, &request), &limits, &progress)
        .await
        .unwrap();
}

fn keep_files(disk: &Path, when: &str, corpus: &mut Corpus) {
    let own = disk.join(".nfs-operator");
    corpus.add(
        "export-identities",
        "identity".into(),
        &std::fs::read(own.join("identity")).unwrap(),
    );
    for entry in std::fs::read_dir(own.join(CLUSTER).join("records")).unwrap() {
        let record = std::fs::read(entry.unwrap().path()).unwrap();
        corpus.add("export-records", when.to_owned(), &record);
    }
    // There is no folder before the first backup.
    for entry in std::fs::read_dir(own.join(CLUSTER).join("manifests"))
        .into_iter()
        .flatten()
    {
        let manifest = std::fs::read(entry.unwrap().path()).unwrap();
        corpus.add("export-manifests", when.to_owned(), &manifest);
    }
}

/// Assigns replies to the decoders that read them, by the operations of the calls.
fn take_apart(protocol: Protocol, replies: &[Vec<u8>], corpus: &mut Corpus) {
    let mut pages = BTreeSet::new();
    for (number, reply) in replies.iter().enumerate() {
        let mut operations = Vec::new();
        results_of(reply, &mut |operation, result| {
            operations.push(operation.to_string());
            let shape = format!("{protocol}-{}", result.len());
            match operation {
                GETATTR => corpus.add("v4-attributes", shape, &result),
                READDIR => drop(pages.insert(result)),
                SETCLIENTID | OPEN_CONFIRM => corpus.add("v40-opens", shape, &result),
                OPEN if protocol == Protocol::V4_0 => corpus.add("v40-opens", shape, &result),
                EXCHANGE_ID | CREATE_SESSION => corpus.add("v4-sessions", shape, &result),
                _ => {}
            }
        });
        let shape = format!("{protocol}-{}-{}", operations.join("-"), reply.len() / 64);
        corpus.add("v4-replies", shape, reply);
        if number < 4 {
            corpus.add("messages", format!("{protocol}-{number}"), reply);
        }
    }
    let stream = |records: &[&[u8]]| framed(records);
    let short: Vec<&[u8]> = replies
        .iter()
        .map(Vec::as_slice)
        .filter(|reply| reply.len() < 150)
        .collect();
    for (number, records) in short.chunks(5).take(3).enumerate() {
        corpus.add("records", format!("{protocol}-{number}"), &stream(records));
    }
    for (number, page) in pages.iter().enumerate() {
        corpus.add("v4-directories", format!("{protocol}-{number}"), &stream(&[page, page]));
    }
    // A word before each item selects its type. The words of a reply serve as well as any.
    corpus.add("xdr", protocol.to_string(), replies.first().unwrap());
}

fn target((port, mount_port): (u16, u16), protocol: Protocol) -> Target {
    Target {
        version: VersionChoice::Exactly(protocol),
        port,
        mount_port: Some(mount_port),
        source_port: SourcePort::Any,
        credential: Credential::default(),
        owner: ClientOwner {
            owner: b"corpus".to_vec(),
            verifier: *b"recorded",
        },
        deadline: Duration::from_secs(20),
        ..Target::new("127.0.0.1", "/export")
    }
}

fn keeper() -> StoreConfig {
    StoreConfig {
        cluster_id: CLUSTER.into(),
        records_key: RecordsKey::new(&[7; 32]),
        backend: "fast".into(),
        backend_uid: "uid-of-fast".into(),
        credential: Credential::default(),
        roots: vec![ReservedPath::on_server("127.0.0.1", "/export")],
    }
}

fn claim(uid: &str) -> ClaimRef {
    ClaimRef {
        namespace: "team".into(),
        namespace_uid: "ns".into(),
        name: "data".into(),
        uid: uid.into(),
    }
}

fn request(uid: &str, directory: &str) -> DirectoryRequest {
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
