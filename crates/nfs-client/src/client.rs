//! One export of one server, whatever the version.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;

use super::connect;
use super::terms::CallOptions;
use super::{
    Attributes, Credential, FileHandle, FileRef, MkdirResult, Name, Negotiated, NfsError, OfferedVersions, Page,
    PageCookie, Protocol, Reached, RemoveOutcome, SetAttributes, SmallFile, Statistics, Target, VersionChoice,
};
use super::{v3, v4};

/// The client of the major version that was agreed on. Both offer the same, and this is the one place that tells them
/// apart.
#[derive(Debug, Clone)]
enum VersionedClient {
    V3(Arc<v3::Client>),
    V4(Arc<v4::Client>),
}

/// The same call on whichever client it is.
macro_rules! either {
    ($client:expr, $inner:ident => $call:expr) => {
        match $client {
            VersionedClient::V3($inner) => $call,
            VersionedClient::V4($inner) => $call,
        }
    };
}

mod content;

impl VersionedClient {
    /// Connects with the newest version that the target allows and the server speaks.
    async fn connect(target: Target, deadline: Instant) -> Result<Self, NfsError> {
        match target.version {
            VersionChoice::Exactly(Protocol::V3) => Self::connect_v3(target, deadline).await,
            VersionChoice::Auto => match Self::connect_v4(target.clone(), deadline).await {
                // Any other failure says nothing against NFSv4: an export must not change its version by accident.
                Err(NfsError::ProtocolNotSupported { cause, .. }) => Self::connect_v3(target, deadline)
                    .await
                    .map_err(|error| neither(error, &cause)),
                connected => connected,
            },
            VersionChoice::Newest4 | VersionChoice::Exactly(_) => Self::connect_v4(target, deadline).await,
        }
    }

    async fn connect_v3(target: Target, deadline: Instant) -> Result<Self, NfsError> {
        let client = v3::Client::connect(target, deadline).await?;
        Ok(Self::V3(Arc::new(client)))
    }

    async fn connect_v4(target: Target, deadline: Instant) -> Result<Self, NfsError> {
        let client = v4::Client::connect(target, deadline).await?;
        Ok(Self::V4(Arc::new(client)))
    }
}

/// The error where no version at all was found.
fn neither(error: NfsError, why_not_4: &str) -> NfsError {
    match error {
        NfsError::ProtocolNotSupported { cause, .. } => NfsError::ProtocolNotSupported {
            asked: "4 or 3".to_owned(),
            cause: format!("{why_not_4}; {cause}"),
        },
        error => error,
    }
}

/// A connection to an export. Cheap to clone; clones share the connection, the session and its slots.
///
/// All changes are durable on the server when a call returns `Ok` (FILE_SYNC writes; directory operations are
/// synchronous by the protocol).
#[derive(Debug, Clone)]
pub struct Client {
    client: VersionedClient,
    credential: Credential,
    deadline: std::time::Duration,
}

impl Client {
    fn terms(&self) -> CallOptions {
        CallOptions {
            credential: self.credential,
            deadline: Instant::now() + self.deadline,
        }
    }

    /// Resolves, connects, negotiates a version, makes a session, and walks to the export's path.
    pub async fn connect(target: Target) -> Result<Self, NfsError> {
        let (credential, deadline) = (target.credential, target.deadline);
        let terms = CallOptions {
            credential,
            deadline: Instant::now() + deadline,
        };
        let client = VersionedClient::connect(target, terms.deadline).await?;
        let export = Self {
            client,
            credential,
            deadline,
        };
        if let Err(error) = either!(&export.client, client => client.root(terms).await) {
            export.close().await;
            return Err(error);
        }
        Ok(export)
    }

    /// The addresses of the target's server, in the order in which they are tried.
    pub async fn addresses(target: &Target) -> Result<Vec<IpAddr>, NfsError> {
        connect::resolve(&target.server, Instant::now() + target.deadline).await
    }

    /// Connects to the target's server and no more: whether anything listens there, and how long it takes.
    pub async fn reach(target: &Target) -> Result<Reached, NfsError> {
        connect::reach(target, Instant::now() + target.deadline).await
    }

    /// The versions that the target's server offers, asked on a connection of its own; leaves nothing on the server.
    pub async fn probe_versions(target: &Target) -> Result<OfferedVersions, NfsError> {
        v4::offered(target, Instant::now() + target.deadline).await
    }

    /// The same export with another credential; shares the connection and the session.
    pub fn with_credential(&self, credential: Credential) -> Self {
        Self {
            credential,
            ..self.clone()
        }
    }

    /// What was agreed with the server, as of the newest connection.
    pub fn negotiated(&self) -> Negotiated {
        either!(&self.client, client => client.negotiated())
    }

    /// Counts connections made so far: it moves when identity must be read again.
    pub fn generation(&self) -> u64 {
        either!(&self.client, client => client.generation())
    }

    /// The export's root directory, walked to anew on the server (never from a cached handle; NFSv3's MOUNT is asked again
    /// after 5 s and after each reconnection).
    pub async fn root(&self) -> Result<FileRef, NfsError> {
        either!(&self.client, client => client.root(self.terms()).await)
    }

    /// The attributes of what a handle names.
    pub async fn attributes(&self, object: &FileHandle) -> Result<Attributes, NfsError> {
        either!(&self.client, client => client.attributes(object, self.terms()).await)
    }

    /// Looks up one name; `None` when it is not there. A symbolic link is found as itself.
    pub async fn lookup(&self, directory: &FileHandle, name: &Name) -> Result<Option<FileRef>, NfsError> {
        either!(&self.client, client => client.lookup(directory, name, self.terms()).await)
    }

    /// Walks down several names in as few round trips as the server takes; one node for each name that exists,
    /// in order: shorter than `names` where the next one is not there. Fails with NotDirectory or Symlink in between.
    pub async fn walk(&self, directory: &FileHandle, names: &[Name]) -> Result<Vec<FileRef>, NfsError> {
        either!(&self.client, client => client.walk(directory, names, self.terms()).await)
    }

    /// Makes a directory, sets mode and owner, reads them back: what the server reports is in the answer, the
    /// caller judges it. `Exists` if the name is taken. One round trip (in NFSv3 one for each part). If setting the
    /// owner or mode fails after the directory was made, the answer is Ok with what is there and the refusal beside it.
    pub async fn make_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<MkdirResult, NfsError> {
        either!(&self.client, client => client.make_directory(directory, name, attributes, self.terms()).await)
    }

    /// Sets attributes and answers what is there afterwards.
    pub async fn set_attributes(&self, object: &FileHandle, attributes: SetAttributes) -> Result<Attributes, NfsError> {
        either!(&self.client, client => client.set_attributes(object, attributes, self.terms()).await)
    }

    /// Renames the object with this fileid, checked in the same compound (VERIFY; in NFSv3 just before): `NotSame` when
    /// the name belongs to another, `NotFound` when there is none. The target is looked up just before and must not exist (`Exists`):
    /// the protocol has no atomic way to say so, so the caller holds the target's name.
    pub async fn rename(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
    ) -> Result<(), NfsError> {
        either!(&self.client, client => client.rename(from, fileid, to, self.terms()).await)
    }

    /// Removes an empty directory with this fileid; `NotSame`, `NotFound`, `NotEmpty`, `NotDirectory`.
    pub async fn remove_directory(&self, directory: &FileHandle, name: &Name, fileid: u64) -> Result<(), NfsError> {
        either!(&self.client, client => client.remove_directory(directory, name, fileid, self.terms()).await)
    }

    /// Removes a file (or link) with this fileid; `NotSame`, `NotFound`, `IsDirectory`.
    pub async fn remove_file(&self, directory: &FileHandle, name: &Name, fileid: u64) -> Result<(), NfsError> {
        either!(&self.client, client => client.remove_file(directory, name, fileid, self.terms()).await)
    }

    /// Removes many names of one directory that holds nothing but what must go (trash), any kind, without VERIFY.
    pub async fn remove_batch(&self, directory: &FileHandle, names: &[Name]) -> Result<Vec<RemoveOutcome>, NfsError> {
        either!(&self.client, client => client.remove_many(directory, names, self.terms()).await)
    }

    /// Reads a small file whole; `Limit` when it has more than `limit` bytes; `None` when it is not there;
    /// `Symlink`/`IsDirectory` if no regular file.
    pub async fn read_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        limit: usize,
    ) -> Result<Option<SmallFile>, NfsError> {
        either!(&self.client, client => client.read_file(directory, name, limit, self.terms()).await)
    }

    /// Creates a file that must not exist (`Exists`) with this content, synced, in one round trip (two in NFSv3, where a
    /// reader may see it without its content in between).
    pub async fn create_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        content: &[u8],
        mode: u32,
    ) -> Result<FileRef, NfsError> {
        either!(&self.client, client => client.create_file(directory, name, content, mode, self.terms()).await)
    }

    /// Replaces a file's content atomically: writes `temporary` beside it and renames it over `name`.
    pub async fn replace_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        temporary: &Name,
        content: &[u8],
        mode: u32,
    ) -> Result<(), NfsError> {
        either!(&self.client, client => client.replace_file(directory, (name, temporary), content, mode, self.terms()).await)
    }

    /// Gives the object another name (hard link); `Exists`, `NotSupported`.
    pub async fn link(&self, object: &FileHandle, directory: &FileHandle, name: &Name) -> Result<(), NfsError> {
        either!(&self.client, client => client.link(object, directory, name, self.terms()).await)
    }

    /// One page of a directory's listing. `None` starts from the beginning.
    pub async fn list(&self, directory: &FileHandle, from: Option<PageCookie>) -> Result<Page, NfsError> {
        either!(&self.client, client => client.list(directory, from, self.terms()).await)
    }

    /// The same with what each entry takes on the disk, in a page of at most about so many bytes: the server looks up each
    /// entry's attributes before it answers, so a short page is a short wait, for others too.
    pub async fn list_with_usage(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        most: u32,
    ) -> Result<Page, NfsError> {
        either!(&self.client, client => client.list_with_usage(directory, from, most, self.terms()).await)
    }

    /// Space and inodes at the export's root.
    pub async fn statistics(&self) -> Result<Statistics, NfsError> {
        either!(&self.client, client => client.statistics(self.terms()).await)
    }

    /// Ends session and client on the server (DESTROY_SESSION, DESTROY_CLIENTID), where it keeps any, and closes the
    /// connection.
    pub async fn close(self) {
        either!(&self.client, client => client.close().await);
    }
}
