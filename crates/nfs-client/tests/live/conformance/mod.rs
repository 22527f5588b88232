//! One suite of cases for every server and every version of NFS.
//!
//! The cases use the client alone and never read the server's disk, so that they run with any server that is described
//! by a [`ServerUnderTest`]: nfs-ganesha in [`ganesha`], the simulated server in [`simulated`], others
//! where they are started. The results are written to
//! `target/conformance/<server>-<version>.json` and compared with the table in docs/reliability.md.

mod content;
mod directories;
mod files;
mod ganesha;
mod names;
mod refusals;
mod report;
mod simulated;
mod version3_servers;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use nfs_client::{
    Client, ClientOwner, Credential, FileHandle, Name, NfsError, Protocol, SourcePort, Target, Transport, VersionChoice,
};

use crate::support::{TIMEOUT, mode, name};

pub use report::{check_table, write};

/// A server for the suite, and its exports. Paths are those of clients.
#[derive(Clone, Debug)]
pub struct ServerUnderTest {
    /// The name in the table of docs/reliability.md.
    pub name: &'static str,
    /// How clients connect to it.
    pub transport: Arc<dyn Transport>,
    /// Its address.
    pub server: String,
    /// Its NFS port.
    pub port: u16,
    /// The port of MOUNT for NFSv3. If unset, rpcbind is queried.
    pub mount_port: Option<u16>,
    /// A writable export without squashing. It contains `prepared/directory`, a symbolic link `prepared/link` to it,
    /// and a regular file `prepared/file`.
    pub plain: String,
    /// A read-only export with any content.
    pub read_only: Option<String>,
    /// An export that maps root to another user (65534), who owns the root of the export.
    pub root_squash: Option<String>,
    /// An export on a file system with at most 4 MiB, or with such a quota.
    pub small: Option<String>,
    /// An export that requires a source port below 1024.
    pub secure: Option<String>,
    /// A writable empty export.
    pub empty: Option<String>,
    /// The same server software without support for the tested version: its address, its NFS port, and that of MOUNT.
    pub without_version: Option<(String, u16, Option<u16>)>,
    /// Whether the table has cases that fail. The server does not do what it replies, or not what NFS requires.
    pub may_fail: bool,
}

impl ServerUnderTest {
    /// Returns the target for one of its exports.
    pub fn target(&self, path: &str, version: Protocol) -> Target {
        Target {
            version: VersionChoice::Exactly(version),
            port: self.port,
            mount_port: self.mount_port,
            source_port: SourcePort::Reserved,
            credential: Credential::default(),
            owner: ClientOwner {
                owner: rand::random::<[u8; 16]>().to_vec(),
                verifier: rand::random(),
            },
            // A server in an emulated machine is slow.
            deadline: Duration::from_secs(60),
            ..Target::new(self.server.clone(), path)
        }
    }

    /// Connects to a target over the server's transport.
    pub async fn connect(&self, target: Target) -> Result<Client, NfsError> {
        Client::connect_over(self.transport.clone(), target).await
    }
}

/// The environment of a case: its own folder on the plain export.
pub struct Bench {
    pub server: ServerUnderTest,
    pub version: Protocol,
    pub export: Client,
    pub folder: FileHandle,
}

impl Bench {
    /// Connects to another export of the server.
    pub async fn connect(&self, path: &str) -> Result<Client, NfsError> {
        self.server.connect(self.server.target(path, self.version)).await
    }
}

/// A case that fails, in the table of a server that [may fail](ServerUnderTest::may_fail).
const FAILS: &str = "fails";

/// The result of a case, as in the table; None if the server lacks a prerequisite.
pub type Outcome = Option<String>;
type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;
/// A case fails by panicking.
type Case = (&'static str, fn(Bench) -> Running);

/// Creates a row of [`CASES`] from an async function.
macro_rules! case {
    ($operation:literal, $case:path) => {
        ($operation, |bench| Box::pin($case(bench)))
    };
}

/// Every operation of the table with its case, in the order of the table.
pub const CASES: &[Case] = &[
    case!(
        "make a directory with mode and owner",
        directories::made_with_mode_and_owner
    ),
    case!(
        "read and change attributes",
        directories::attributes_are_read_and_changed
    ),
    case!(
        "list 5,000 entries, remove them at once",
        directories::five_thousand_entries
    ),
    case!("list an empty export", directories::an_empty_export),
    case!("walk 40 directories deep", directories::a_deep_walk),
    case!("rename to a free name", directories::renamed_to_a_free_name),
    case!(
        "rename onto an empty directory",
        directories::renamed_onto_an_empty_directory
    ),
    case!(
        "rename onto a full directory",
        directories::renamed_onto_a_full_directory
    ),
    case!(
        "rename or remove what has another fileid",
        directories::another_fileid_is_not_touched
    ),
    case!("remove a tree", directories::a_tree_is_removed),
    case!("space and inodes", directories::space_and_inodes),
    case!("create a small file", files::created_and_read),
    case!("create a file that exists", files::created_once),
    case!("one of 16 concurrent creators wins", files::one_creator_wins),
    case!("replace a file at once", files::replaced),
    case!("read no more than asked for", files::read_within_limits),
    case!("hard link", files::linked),
    case!("write in parts, commit, read back", content::written_in_parts),
    case!(
        "look up with all attributes and the first bytes",
        content::found_with_its_beginning
    ),
    case!("set size and times", content::times_and_size_are_set),
    case!("symbolic link", content::symbolic_links),
    case!("find holes", content::holes),
    case!("copy on the server", content::copied_on_the_server),
    case!("clone a file", content::cloned),
    case!("user attributes", content::user_attributes),
    case!("name that is not UTF-8", names::not_utf8),
    case!("name of 255 bytes", names::of_255_bytes),
    case!("name of 256 bytes", names::of_256_bytes),
    case!("symbolic link in the export's path", refusals::a_link_in_the_path),
    case!("file in the export's path", refusals::a_file_in_the_path),
    case!("path that is not exported", refusals::not_exported),
    case!("read-only export", refusals::read_only),
    case!("root_squash: owner asked for", refusals::root_squashed),
    case!("`secure`, from a port above 1023", refusals::not_a_reserved_port),
    case!("full disk", refusals::full),
    case!("version that the server does not speak", refusals::version_not_spoken),
];

/// Runs every case over this version, even if some fail. Panics with the names of the failed cases.
pub async fn run(server: &ServerUnderTest, version: Protocol) -> BTreeMap<&'static str, String> {
    // The kernel's server refuses MOUNT for a moment while other tests change its exports.
    let connected = rig::wait::until("the export to be available", TIMEOUT, async || {
        let target = server.target(&server.plain, version);
        server.connect(target).await.map_err(|error| error.to_string())
    });
    let export = connected.await.unwrap();
    println!("{} over {version}: {:?}", server.name, export.negotiated());
    let root = export.root().await.unwrap().handle;
    let (mut outcomes, mut failed) = (BTreeMap::new(), Vec::new());
    for (number, (operation, case)) in CASES.iter().enumerate() {
        let folder = name(&format!("{version}-{number}-{:08x}", rand::random::<u32>()));
        let folder = export.make_directory(&root, &folder, mode(0o777)).await.unwrap();
        let bench = Bench {
            server: server.clone(),
            version,
            export: export.clone(),
            folder: folder.node.handle,
        };
        // In a separate task, so that a panic does not end the other cases.
        match tokio::spawn(case(bench)).await {
            Ok(Some(outcome)) => {
                println!("{} | {version} | {operation} | {outcome}", server.name);
                outcomes.insert(*operation, outcome);
            }
            Ok(None) => println!("{} | {version} | {operation} | not run", server.name),
            Err(panic) if server.may_fail => {
                println!("{} | {version} | {operation} | {panic}", server.name);
                outcomes.insert(*operation, FAILS.to_owned());
            }
            Err(panic) => failed.push(format!("{operation}: {panic}")),
        }
    }
    export.close().await;
    assert!(failed.is_empty(), "{} over {version}: {failed:#?}", server.name);
    outcomes
}

/// Returns the result of a successful case.
fn yes() -> Outcome {
    Some("yes".to_owned())
}

/// Returns the result of a refused case.
fn refused(error: &NfsError) -> Outcome {
    let word = match error {
        NfsError::Status { status, .. } => format!("{status:?}"),
        // The variant's name.
        error => format!("{error:?}")
            .split(|letter: char| !letter.is_ascii_alphanumeric())
            .next()
            .unwrap()
            .to_owned(),
    };
    Some(word)
}

/// Returns all names of a directory.
async fn listed(export: &Client, directory: &FileHandle) -> Vec<Name> {
    let (mut names, mut next) = (Vec::new(), None);
    loop {
        let page = export.list(directory, next).await.unwrap();
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        next = page.next;
        if next.is_none() {
            names.sort();
            return names;
        }
    }
}
