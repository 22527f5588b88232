//! Connections that are cut in the middle of a request or a reply, for every operation of `Client`.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use nfs_client::{
    Client, Conditional, NewDirectory, NewFile, NfsError, Protocol, RemoveOutcome, Rename, SetAttributes, Status,
    Target, Unchanged, VersionChoice,
};
use parking_lot::Mutex;
use rig::proxy::{Action, Direction};
use rig::{NfsServer, Proxy, RunDir};

use crate::support::{name, server, target};

/// Every operation, and whether it makes a change.
const OPERATIONS: &[(&str, bool)] = &[
    ("root", false),
    ("attributes", false),
    ("lookup", false),
    ("walk", false),
    ("walk_and_list", false),
    ("make_directory", true),
    ("create_file_and_directory", true),
    ("set_attributes", true),
    ("rename", true),
    ("rename_over", true),
    ("rename_if", true),
    ("are_unchanged", false),
    ("remove_directory", true),
    ("remove_file", true),
    ("remove_batch", true),
    ("read_file", false),
    ("create_file", true),
    ("replace_file", true),
    ("link", true),
    ("link_entry", true),
    ("link_entries", true),
    ("list", false),
    ("list_with_usage", false),
    ("list_with_attributes", false),
    ("statistics", false),
    ("has_unique_handles", false),
];

/// Operations that are tested elsewhere: connecting and closing, and access to content.
const TESTED_ELSEWHERE: &[&str] = &[
    "connect",
    "connect_over",
    "connect_observed",
    "resolve",
    "test_connection",
    "probe_versions",
    "close",
    "lookup_and_read",
    "full_attributes",
    "read",
    "write",
    "commit",
    "read_link",
    "create_symlink",
    "seek_data",
    "copy",
    "clone_file",
    "list_xattrs",
    "get_xattr",
    "set_xattr",
];

/// path → mode, links, content.
type Snapshot = BTreeMap<String, (u32, u64, Vec<u8>)>;

fn snapshot(folder: &Path) -> Snapshot {
    let mut found = Snapshot::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let data = std::fs::symlink_metadata(&path).unwrap();
            let content = if data.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else {
                std::fs::read(&path).unwrap()
            };
            let relative = path.strip_prefix(folder).unwrap().display().to_string();
            // The links of a directory only count its content, which is in the snapshot.
            let links = if data.is_dir() { 0 } else { data.nlink() };
            found.insert(relative, (data.mode(), links, content));
        }
    }
    found
}

fn grow(folder: &Path) {
    std::fs::create_dir_all(folder.join("empty")).unwrap();
    std::fs::create_dir_all(folder.join("deep/er/est")).unwrap();
    for file in ["file", "one", "two", "deep/file"] {
        std::fs::write(folder.join(file), b"content").unwrap();
    }
}

/// Executes an operation in `folder` of the export, and checks its result.
async fn perform(operation: &str, export: &Client, folder: &str, disk: &Path) -> Result<(), NfsError> {
    let root = export.root().await?;
    let here = export.lookup(&root.handle, &name(folder)).await?.unwrap();
    let file = export.lookup(&here.handle, &name("file")).await?.unwrap();
    let here = &here.handle;
    let watched = export.lookup(here, &name("empty")).await?.unwrap().handle;
    let unchanged = [Unchanged {
        change: export.full_attributes(&watched).await?.change,
        directory: watched,
    }];
    let fileid = |name: &str| std::fs::symlink_metadata(disk.join(name)).unwrap().ino();
    let mode = SetAttributes {
        mode: Some(0o751),
        ..SetAttributes::default()
    };
    ARMED.with(|arm| arm.borrow_mut().take().map_or((), |arm| arm()));
    match operation {
        "root" => assert_eq!(export.root().await?, root),
        "attributes" => assert_eq!(export.attributes(&file.handle).await?.size, 7),
        "lookup" => assert_eq!(export.lookup(here, &name("file")).await?, Some(file)),
        "walk" => {
            let names = ["deep", "er", "est", "none"].map(name);
            assert_eq!(export.walk(here, &names).await?.len(), 3);
        }
        "make_directory" => {
            let owned = SetAttributes { uid: Some(5), ..mode };
            let created = export.make_directory(here, &name("made"), owned).await?;
            assert_eq!((created.mode_refused, created.owner_refused), (None, None));
            assert_eq!(
                (created.node.attributes.mode, created.node.attributes.uid),
                (0o751, Some(5))
            );
        }
        "walk_and_list" => {
            let names = ["deep", "er", "est", "none"].map(name);
            let walked = export.walk_and_list(here, &names).await?;
            assert_eq!(walked.nodes.len(), 3);
            assert!(walked.entries.is_none_or(|page| page.entries.is_empty()));
        }
        "create_file_and_directory" => {
            let (file, directory) = (name("made file"), name("made"));
            let file = NewFile {
                at: (here, &file),
                content: b"new",
                mode: 0o600,
            };
            let directory = NewDirectory {
                at: (here, &directory),
                attributes: SetAttributes { uid: Some(5), ..mode },
            };
            let created = export.create_file_and_directory(&file, &unchanged, &directory).await?;
            assert!(created.is_none_or(|created| created.node.attributes.uid == Some(5)));
        }
        "set_attributes" => {
            let set = SetAttributes { gid: Some(6), ..mode };
            assert_eq!(export.set_attributes(&file.handle, set).await?.gid, Some(6));
        }
        "rename" => {
            let to = (here, &name("renamed"));
            export.rename((here, &name("file")), fileid("file"), to).await?;
        }
        "rename_over" => {
            let to = (here, &name("one"));
            export.rename_over((here, &name("file")), fileid("file"), to).await?;
        }
        "rename_if" => {
            let rename = Rename {
                from: (here, &name("file")),
                fileid: fileid("file"),
                to: (here, &name("renamed")),
                replaces: false,
                unchanged: &unchanged,
                then_set: Some((&file.handle, mode)),
            };
            assert!(matches!(export.rename_if(&rename).await?, Conditional::Done(_)));
        }
        "are_unchanged" => assert!(export.are_unchanged(&unchanged).await?),
        "remove_directory" => export.remove_directory(here, &name("empty"), fileid("empty")).await?,
        "remove_file" => export.remove_file(here, &name("file"), fileid("file")).await?,
        "remove_batch" => {
            let outcomes = export.remove_batch(here, &["one", "two"].map(name)).await?;
            // Without a cached reply, a repeated removal finds no such name.
            let deleted = |outcome: &RemoveOutcome| matches!(outcome, RemoveOutcome::Removed | RemoveOutcome::Absent);
            assert!(outcomes.iter().all(deleted), "{outcomes:?}");
        }
        "read_file" => {
            let read = export.read_file(here, &name("file"), 100).await?.unwrap();
            assert_eq!(read.content, b"content");
        }
        "create_file" => {
            let created = export.create_file(here, &name("made"), &[7; 3000], 0o640).await?;
            assert_eq!((created.attributes.size, created.attributes.mode), (3000, 0o640));
        }
        "replace_file" => {
            let (file, draft) = (name("file"), name("draft"));
            export.replace_file(here, &file, &draft, b"new", 0o600).await?;
        }
        "link" => export.link(&file.handle, here, &name("linked")).await?,
        "link_entry" => {
            let from = (here, &name("file"));
            drop(export.link_entry(from, fileid("file"), (here, &name("linked"))).await?);
        }
        "link_entries" => {
            let entries = [(name("file"), fileid("file"))];
            let linked = export.link_entries(here, &unchanged[0].directory, &entries).await?;
            // Without a cached reply, a repeated link exists.
            let is_linked = |linked: &Result<_, Status>| matches!(linked, Ok(_) | Err(Status::Exists));
            assert!(linked.len() == 1 && linked.iter().all(is_linked), "{linked:?}");
        }
        "list" => assert_eq!(export.list(here, None).await?.entries.len(), 5),
        "list_with_usage" => assert_eq!(export.list_with_usage(here, None, 32 << 10).await?.entries.len(), 5),
        "list_with_attributes" => {
            assert_eq!(
                export.list_with_attributes(here, None, 32 << 10).await?.entries.len(),
                5
            );
        }
        "statistics" => assert!(export.statistics().await?.total > 0),
        "has_unique_handles" => drop(export.has_unique_handles().await?),
        unknown => panic!("{unknown} has no test"),
    }
    Ok(())
}

thread_local! {
    /// Starts the fault just before the operation. The tests run on one thread.
    static ARMED: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) };
}

struct Fixture {
    server: NfsServer,
    proxy: Arc<Proxy>,
    version: VersionChoice,
    runs: usize,
    _run: RunDir,
}

impl Fixture {
    async fn new(protocol: Protocol) -> Self {
        let (server, run) = server(protocol).await;
        let proxy = Proxy::start(server.address()).await.unwrap();
        Self {
            server,
            proxy: Arc::new(proxy),
            version: VersionChoice::Exactly(protocol),
            runs: 0,
            _run: run,
        }
    }

    /// Returns the server behind the proxy. MOUNT of NFSv3 uses a separate connection without the proxy.
    fn target(&self) -> Target {
        Target {
            mount_port: Some(self.server.mount_port()),
            ..target(self.proxy.port(), self.version)
        }
    }

    /// Runs one operation with its own folder and connection. Returns its result, and the folder before and after.
    async fn run(
        &mut self,
        operation: &str,
        arm: impl FnOnce(Arc<Proxy>) + 'static,
    ) -> (Result<(), NfsError>, Snapshot, Snapshot) {
        self.runs += 1;
        let folder = format!("run{}", self.runs);
        let disk = self.server.data_dir("/data").unwrap().join(&folder);
        grow(&disk);
        let before = snapshot(&disk);
        let export = Client::connect(self.target()).await.unwrap();
        let proxy = self.proxy.clone();
        ARMED.set(Some(Box::new(move || arm(proxy))));
        let outcome = perform(operation, &export, &folder, &disk).await;
        self.proxy.clear_hooks();
        // In any case, the next call succeeds.
        export.root().await.unwrap();
        let after = snapshot(&disk);
        export.close().await;
        (outcome, before, after)
    }
}

/// Cuts each record of each operation in its middle.
async fn every_operation_is_cut(protocol: Protocol) {
    let mut fixture = Fixture::new(protocol).await;
    // Without a session, the server has no reply cache.
    let bare = matches!(protocol, Protocol::V3 | Protocol::V4_0);
    for (operation, changes) in OPERATIONS {
        let passed: Arc<Mutex<Vec<(Direction, usize)>>> = Arc::default();
        let seen = passed.clone();
        let (undisturbed, before, done) = fixture
            .run(operation, move |proxy| {
                for direction in [Direction::Up, Direction::Down] {
                    let seen = seen.clone();
                    proxy.on_record(direction, move |record| {
                        seen.lock().push((direction, record.len() + 4));
                        Action::Forward
                    });
                }
            })
            .await;
        undisturbed.unwrap();
        assert_eq!(before == done, !changes, "{operation}");
        let passed = std::mem::take(&mut *passed.lock());
        for direction in [Direction::Up, Direction::Down] {
            let mut bytes = 0;
            let of_operation = passed
                .iter()
                .filter(|(way, _)| *way == direction)
                .map(|(_, length)| length);
            let lengths: Vec<usize> = of_operation.copied().collect();
            for (place, length) in lengths.iter().enumerate() {
                let cut = bytes + length / 2;
                bytes += length;
                let (outcome, before, after) = fixture
                    .run(operation, move |proxy| proxy.cut_after(direction, cut))
                    .await;
                let case = format!("{operation} over {protocol}, {direction:?} record {place}: {outcome:?}");
                match outcome {
                    Ok(()) => assert_eq!(after, done, "{case}"),
                    Err(error) if *changes && (bare || ["remove_batch", "link_entries"].contains(operation)) => {
                        assert!(error.outcome_unknown(), "{case}");
                        assert!(is_between(operation, &before, &after, &done), "{case}: {after:?}");
                    }
                    Err(_) => panic!("{case}"),
                }
            }
        }
    }
}

/// Returns whether the state is consistent: before, after, or between the calls of an operation with several calls.
fn is_between(operation: &str, before: &Snapshot, now: &Snapshot, done: &Snapshot) -> bool {
    let has_draft = |snapshot: &Snapshot| {
        let mut without = snapshot.clone();
        without.remove("draft").is_some() && without == *before
    };
    now == before || now == done || (operation == "replace_file" && has_draft(now))
}

#[tokio::test]
async fn every_interrupted_operation_is_executed_once_over_4_2() {
    every_operation_is_cut(Protocol::V4_2).await;
}

#[tokio::test]
async fn every_interrupted_operation_is_executed_once_over_4_1() {
    every_operation_is_cut(Protocol::V4_1).await;
}

#[tokio::test]
async fn every_interrupted_operation_is_executed_once_or_its_outcome_is_unknown_over_4_0() {
    every_operation_is_cut(Protocol::V4_0).await;
}

#[tokio::test]
async fn every_interrupted_operation_is_executed_once_or_its_outcome_is_unknown_over_3() {
    every_operation_is_cut(Protocol::V3).await;
}

#[tokio::test]
async fn a_connect_that_is_cut_anywhere_fails_and_the_next_attempt_connects() {
    for protocol in [Protocol::V3, Protocol::V4_0, Protocol::V4_1, Protocol::V4_2] {
        let fixture = Fixture::new(protocol).await;
        for direction in [Direction::Up, Direction::Down] {
            for bytes in (1..2000).step_by(97) {
                fixture.proxy.cut_after(direction, bytes);
                let connected = Client::connect(fixture.target()).await;
                if let Err(error) = connected {
                    assert!(!error.outcome_unknown(), "{error}");
                    assert!(matches!(error, NfsError::ConnectionLost { .. }), "{error}");
                }
                // The limit may not have been reached.
                fixture.proxy.cut_after(direction, usize::MAX);
                Client::connect(fixture.target()).await.unwrap();
            }
        }
    }
}

#[test]
fn every_operation_of_the_client_is_tested_with_cuts() {
    let source = include_str!("../../../src/client.rs");
    let operations: Vec<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub async fn "))
        .map(|line| line.split('(').next().unwrap())
        .collect();
    let known: Vec<&str> = OPERATIONS
        .iter()
        .map(|(name, _)| *name)
        .chain(TESTED_ELSEWHERE.iter().copied())
        .collect();
    for operation in &operations {
        assert!(known.contains(operation), "{operation} is not tested with cuts");
    }
    for (operation, _) in OPERATIONS {
        assert!(
            operations.contains(operation),
            "{operation} is not an operation of the client"
        );
    }
}
