//! Every change of the client, with a fault at each of its calls: executed once, or its outcome is unknown. What the client
//! reports as refused left nothing behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nfs_client::{Client, FileHandle, NfsError, Protocol, SetAttributes};

use super::*;

/// What is on the disk, by path: type, mode, number of links, and content.
type Snapshot = BTreeMap<Vec<u8>, (u32, u32, u32, Vec<u8>)>;

fn snapshot(server: &NfsServer) -> Snapshot {
    let found = server.inspect("disk", |disk| {
        disk.check_invariants().unwrap();
        let found = disk.walk(disk.root()).into_iter().map(|found| {
            let content = found.inode.content().map(file_system::Content::bytes);
            let inode = found.inode;
            let what = (
                inode.kind.number(),
                inode.mode,
                inode.links(),
                content.unwrap_or_default(),
            );
            (found.path, what)
        });
        found.collect()
    });
    found.unwrap()
}

/// The changes of the client that are tested.
const OPERATIONS: &[&str] = &[
    "make_directory",
    "set_attributes",
    "rename",
    "rename_over",
    "remove_directory",
    "remove_file",
    "remove_batch",
    "create_file",
    "replace_file",
    "create_symlink",
    "link",
    "write",
];

/// An export with a few objects, and what an operation needs to know of them.
struct Fixture {
    server: NfsServer,
    client: Client,
    root: FileHandle,
    file: FileHandle,
    ids: BTreeMap<&'static str, u64>,
}

impl Fixture {
    async fn new(protocol: Protocol) -> Self {
        let (server, host) = start();
        let mount = Mount::new(&server, "node", "/data", Caller::ROOT).unwrap();
        let mut ids = BTreeMap::new();
        for directory in ["full", "empty", "full/inside"] {
            ids.insert(directory, mount.make_directory(directory).unwrap().ino);
        }
        for file in ["file", "other", "full/inside/data"] {
            ids.insert(file, mount.write(file, b"content").unwrap().ino);
        }
        let client = connect(&host, protocol, 1).await;
        let root = client.root().await.unwrap().handle;
        let file = client.lookup(&root, &name("file")).await.unwrap().unwrap().handle;
        Self {
            server,
            client,
            root,
            file,
            ids,
        }
    }

    async fn perform(&self, operation: &str) -> Result<(), NfsError> {
        let (client, root) = (&self.client, &self.root);
        let id = |name| self.ids.get(name).copied().unwrap();
        let mode = SetAttributes {
            mode: Some(0o751),
            ..SetAttributes::default()
        };
        match operation {
            "make_directory" => client.make_directory(root, &name("made"), mode).await.map(drop),
            "set_attributes" => client.set_attributes(&self.file, mode).await.map(drop),
            "rename" => {
                let to = (root, &name("renamed"));
                client.rename((root, &name("full")), id("full"), to).await
            }
            "rename_over" => {
                let to = (root, &name("other"));
                client.rename_over((root, &name("file")), id("file"), to).await
            }
            "remove_directory" => client.remove_directory(root, &name("empty"), id("empty")).await,
            "remove_file" => client.remove_file(root, &name("file"), id("file")).await,
            "remove_batch" => {
                let names = [name("file"), name("other")];
                client.remove_batch(root, &names).await.map(drop)
            }
            "create_file" => {
                let content = [7; 5000];
                client.create_file(root, &name("made"), &content, 0o640).await.map(drop)
            }
            "replace_file" => {
                let (file, draft) = (name("file"), name("draft"));
                client.replace_file(root, &file, &draft, b"new", 0o600).await.map(drop)
            }
            "create_symlink" => client.create_symlink(root, &name("made"), b"file").await.map(drop),
            "link" => client.link(&self.file, root, &name("made")).await,
            _ => {
                let data = bytes::Bytes::from_static(b"written");
                client.write(&self.file, 3, &data).await.map(drop)
            }
        }
    }
}

/// Performs an operation with a fault at its call number `at`. Returns its result, the disk before and after, and the number of
/// calls.
async fn perform(
    protocol: Protocol,
    operation: &str,
    fault: Option<(usize, Fault)>,
) -> (Result<(), NfsError>, Snapshot, Snapshot, usize) {
    let fixture = Fixture::new(protocol).await;
    let before = snapshot(&fixture.server);
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, at) = (calls.clone(), fault.map(|(at, _)| at));
    let matches = move |_: &faults::CallSummary| Some(counted.fetch_add(1, Ordering::Relaxed)) == at;
    let fault = fault.map_or(Fault::Busy, |(_, fault)| fault);
    fixture.server.with_faults(|faults| faults.script(matches, fault));
    let result = fixture.perform(operation).await;
    fixture.server.with_faults(Faults::clear);
    // Whatever happened, the client is usable, and late calls have arrived.
    tokio::time::sleep(Duration::from_secs(100)).await;
    fixture.client.root().await.unwrap();
    let after = snapshot(&fixture.server);
    (result, before, after, calls.load(Ordering::Relaxed))
}

async fn every_operation(protocol: Protocol) {
    let has_sessions = WITH_SESSIONS.contains(&protocol);
    let second = Duration::from_secs(1);
    let faults = [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::RepeatReply,
        Fault::LoseReply,
        Fault::Busy,
        Fault::Hang,
        Fault::Hold(2 * second),
        Fault::Hold(50 * second),
        Fault::Interleave(second / 10),
    ];
    let crashes = (1..10).map(Fault::CrashAfter);
    let faults: Vec<_> = faults.into_iter().chain(crashes).collect();
    for operation in OPERATIONS {
        let (undisturbed, before, done, calls) = perform(protocol, operation, None).await;
        undisturbed.unwrap();
        assert_ne!(before, done, "{operation}");
        for fault in &faults {
            for at in 0..calls {
                let (result, before, after, _) = perform(protocol, operation, Some((at, *fault))).await;
                let case = format!("{operation} over {protocol}, {fault:?} at call {at}: {result:?}");
                match result {
                    Ok(()) => assert_eq!(after, done, "{case}"),
                    // The reply to a batch is not cached.
                    Err(_) if has_sessions && is_recoverable(*fault) && *operation != "remove_batch" => {
                        unreachable!("{case}")
                    }
                    Err(error) if !error.outcome_unknown() => {
                        // An interrupted replacement leaves its draft.
                        let mut after = after;
                        if *operation == "replace_file" {
                            after.remove(&b"draft"[..]);
                        }
                        assert_eq!(after, before, "{case}");
                    }
                    Err(_) => {
                        // Nothing that the operation does not touch has changed.
                        for path in [&b"full/inside/data"[..], b"full/inside"] {
                            let renamed = [b"renamed", path.strip_prefix(b"full").unwrap()].concat();
                            let found = after.get(path).or_else(|| after.get(renamed.as_slice()));
                            assert_eq!(found, before.get(path), "{case}");
                        }
                    }
                }
            }
        }
    }
}

/// Whether the session survives a fault, and the call is answered before its deadline: then it is executed once, and the
/// client knows it.
fn is_recoverable(fault: Fault) -> bool {
    match fault {
        Fault::CutBefore | Fault::CutAfter | Fault::RepeatReply | Fault::Busy | Fault::Interleave(_) => true,
        Fault::Hold(time) => time < Duration::from_secs(10),
        _ => false,
    }
}

#[tokio::test(start_paused = true)]
async fn every_change_is_executed_once_over_4_2() {
    every_operation(Protocol::V4_2).await;
}

#[tokio::test(start_paused = true)]
async fn every_change_is_executed_once_over_4_1() {
    every_operation(Protocol::V4_1).await;
}

#[tokio::test(start_paused = true)]
async fn every_change_is_executed_once_or_its_outcome_is_unknown_over_4_0() {
    every_operation(Protocol::V4_0).await;
}

#[tokio::test(start_paused = true)]
async fn every_change_is_executed_once_or_its_outcome_is_unknown_over_3() {
    every_operation(Protocol::V3).await;
}
