//! [`Client`]: one export of one server, whatever the version.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::call_options::CallOptions;
use crate::connection_manager::IDLE_TIMEOUT;
use crate::error::split_status;
use crate::transport::{self, Tcp, Transport};
use crate::types::RemoveKind;
use crate::{
    Attributes, CallObserver, Conditional, ConnectionTest, CopyResult, Credential, FileHandle, FileRef, FsStat,
    FullAttributes, ListedWalk, LookupResult, MkdirResult, Name, Negotiated, NewDirectory, NewFile, NfsError,
    OfferedVersions, Page, PageCookie, Protocol, ReadResult, RemoveOutcome, Rename, SetAttributes, SmallFile, Status,
    Target, UnansweredChanges, Unchanged, VersionChoice, WriteResult,
};
use crate::{v3, v4};

/// Actions in errors.
pub(crate) const LOOKUP: &str = "looking up a name";
pub(crate) const RENAME: &str = "renaming";
pub(crate) const REPLACE: &str = "replacing a file";

/// The client of the major version that was negotiated. Both offer the same calls; this file is the only place that
/// distinguishes them.
#[derive(Debug, Clone)]
enum VersionedClient {
    V3(Arc<v3::Client>),
    V4(Arc<v4::Client>),
}

/// Evaluates the same code with the client of either version.
macro_rules! either {
    ($client:expr, $inner:ident => $call:expr) => {
        match $client {
            VersionedClient::V3($inner) => $call,
            VersionedClient::V4($inner) => $call,
        }
    };
}

/// Makes a call that only NFSv4 has. In NFSv3 it fails with `NotSupported`, as on a server that does not support it.
macro_rules! only_v4 {
    ($self:ident, $action:literal, $inner:ident => $call:expr) => {
        match &$self.client {
            VersionedClient::V4($inner) => $call,
            VersionedClient::V3(_) => Err(NfsError::Status {
                action: $action,
                status: Status::NotSupported,
            }),
        }
    };
}

impl VersionedClient {
    /// Connects with the newest version that the target allows and the server supports.
    async fn connect(
        target: Target,
        transport: Arc<dyn Transport>,
        observer: Arc<dyn CallObserver>,
        deadline: Instant,
    ) -> Result<Self, NfsError> {
        let v3 = async |target, transport| {
            let client = v3::Client::connect(target, transport, observer.clone(), IDLE_TIMEOUT, deadline).await?;
            Ok(Self::V3(Arc::new(client)))
        };
        let v4 = async |target, transport| {
            let client = v4::Client::connect(target, transport, observer.clone(), IDLE_TIMEOUT, deadline).await?;
            Ok(Self::V4(Arc::new(client)))
        };
        match target.version {
            VersionChoice::Exactly(Protocol::V3) => v3(target, transport).await,
            VersionChoice::Auto => match v4(target.clone(), transport.clone()).await {
                // No other failure rules out NFSv4: an export must not change its version by accident.
                Err(NfsError::ProtocolNotSupported { cause, .. }) => v3(target, transport)
                    .await
                    .map_err(|error| no_version_supported(error, &cause)),
                connected => connected,
            },
            VersionChoice::Newest4 | VersionChoice::Exactly(_) => v4(target, transport).await,
        }
    }
}

/// Returns the error for a server that supports neither major version.
fn no_version_supported(error: NfsError, cause_v4: &str) -> NfsError {
    match error {
        NfsError::ProtocolNotSupported { cause, .. } => NfsError::ProtocolNotSupported {
            requested: "4 or 3".to_owned(),
            cause: format!("{cause_v4}; {cause}"),
        },
        error => error,
    }
}

/// A client of one export. Cheap to clone; clones share the connection, the session and its slots.
///
/// Every change is durable on the server when the call returns `Ok`, except [`write`](Self::write), [`copy`](Self::copy)
/// and [`clone_file`](Self::clone_file): files are written with FILE_SYNC, and directory operations are synchronous.
///
/// Errors are [`NfsError`]s; the documentation of a method names each [`Status`] with a special meaning.
#[derive(Debug, Clone)]
pub struct Client {
    client: VersionedClient,
    credential: Credential,
    deadline: std::time::Duration,
    /// The only connection for its calls; `None`: any.
    generation: Option<u64>,
}

impl Client {
    fn options(&self) -> CallOptions {
        CallOptions {
            credential: self.credential,
            deadline: Instant::now() + self.deadline,
            generation: self.generation,
        }
    }

    /// Resolves the server's name, connects, negotiates a version, creates a session, and walks to the export's path.
    pub async fn connect(target: Target) -> Result<Self, NfsError> {
        Self::connect_over(Arc::new(Tcp), target).await
    }

    /// The same over another transport than TCP, for every connection of the client.
    pub async fn connect_over(transport: Arc<dyn Transport>, target: Target) -> Result<Self, NfsError> {
        Self::connect_observed(transport, Arc::new(()), target).await
    }

    /// The same, with an observer of all calls and connections of the client and its clones, from the first attempt to
    /// connect on.
    pub async fn connect_observed(
        transport: Arc<dyn Transport>,
        observer: Arc<dyn CallObserver>,
        target: Target,
    ) -> Result<Self, NfsError> {
        let (credential, deadline) = (target.credential, target.deadline);
        let options = CallOptions {
            credential,
            deadline: Instant::now() + deadline,
            generation: None,
        };
        let client = VersionedClient::connect(target, transport, observer, options.deadline).await?;
        let client = Self {
            client,
            credential,
            deadline,
            generation: None,
        };
        if let Err(error) = either!(&client.client, inner => inner.root(options).await) {
            client.close().await;
            return Err(error);
        }
        Ok(client)
    }

    /// Resolves the target's server: its addresses, in the order in which they are tried.
    pub async fn resolve(target: &Target) -> Result<Vec<IpAddr>, NfsError> {
        transport::resolve(&target.server, Instant::now() + target.deadline).await
    }

    /// Connects to the target's server and closes the connection again, without any call.
    pub async fn test_connection(target: &Target) -> Result<ConnectionTest, NfsError> {
        let began = Instant::now();
        let deadline = began + target.deadline;
        let streams = Tcp
            .connect(&target.server, target.port, target.source_port, deadline)
            .await?;
        Ok(ConnectionTest {
            peer: streams.peer,
            local: streams.local,
            took: began.elapsed(),
        })
    }

    /// Finds the versions that the target's server offers. Uses a connection of its own and leaves no state on the server.
    pub async fn probe_versions(target: &Target) -> Result<OfferedVersions, NfsError> {
        v4::probe_versions(target, &Tcp, Instant::now() + target.deadline).await
    }

    /// Returns a client for the same export that acts with another credential. It shares connection and session.
    pub fn with_credential(&self, credential: Credential) -> Self {
        Self {
            credential,
            ..self.clone()
        }
    }

    /// Returns a client whose calls are sent only on the connection with this number, as returned by
    /// [`generation`](Self::generation). Once there is a newer one, they fail with [`NfsError::Reconnected`], or with
    /// their outcome unknown if they may have been executed before. Only a request in a session that survived its
    /// connection is repeated on the next one, because the session shows that the server is the same.
    pub fn on_connection(&self, generation: u64) -> Self {
        Self {
            generation: Some(generation),
            ..self.clone()
        }
    }

    /// Returns what was negotiated with the server on the newest connection.
    pub fn negotiated(&self) -> Negotiated {
        either!(&self.client, client => client.negotiated())
    }

    /// Returns the number of connections established so far. Once it has changed, another server may have the address:
    /// check the identity of the export again, and send changes with [`on_connection`](Self::on_connection).
    pub fn generation(&self) -> u64 {
        either!(&self.client, client => client.generation())
    }

    /// Returns the changes that ended without a reply. They outlive the client.
    pub fn unanswered_changes(&self) -> &Arc<UnansweredChanges> {
        either!(&self.client, client => client.unanswered_changes())
    }

    /// Walks to the export's root directory. NFSv4 walks on the server each time; NFSv3 sends MNT again 5 s after the last
    /// one and after each reconnection.
    pub async fn root(&self) -> Result<FileRef, NfsError> {
        either!(&self.client, client => client.root(self.options()).await)
    }

    /// Reads the attributes of an object.
    pub async fn attributes(&self, object: &FileHandle) -> Result<Attributes, NfsError> {
        either!(&self.client, client => client.attributes(object, self.options()).await)
    }

    /// Reads all attributes of an object.
    pub async fn full_attributes(&self, object: &FileHandle) -> Result<FullAttributes, NfsError> {
        either!(&self.client, client => client.full_attributes(object, self.options()).await)
    }

    /// Looks up a name; `None` if it does not exist. Does not follow symbolic links.
    pub async fn lookup(&self, directory: &FileHandle, name: &Name) -> Result<Option<FileRef>, NfsError> {
        either!(&self.client, client => client.lookup(LOOKUP, directory, name, self.options()).await)
    }

    /// Looks up a name with all attributes, and reads at most `count` bytes from the start of a regular file: in one round
    /// trip with NFSv4, in several with NFSv3. `None` if the name does not exist. Does not follow symbolic links.
    pub async fn lookup_and_read(
        &self,
        directory: &FileHandle,
        name: &Name,
        count: usize,
    ) -> Result<Option<LookupResult>, NfsError> {
        either!(&self.client, client => client.lookup_and_read(directory, name, count, self.options()).await)
    }

    /// Walks down several names, in as few round trips as the server allows. Returns one object for each name that exists,
    /// in order: fewer than `names` if one does not exist. Fails with `NotDirectory` or `Symlink` if a name in between is
    /// no directory.
    pub async fn walk(&self, directory: &FileHandle, names: &[Name]) -> Result<Vec<FileRef>, NfsError> {
        either!(&self.client, client => client.walk(directory, names, self.options()).await)
    }

    /// Walks down several names, and reads the first entries of the directory in which the last one is looked up: with NFSv4
    /// in one request if possible. Results and errors are those of [`walk`](Self::walk).
    pub async fn walk_and_list(&self, directory: &FileHandle, names: &[Name]) -> Result<ListedWalk, NfsError> {
        if let VersionedClient::V4(client) = &self.client
            && let Some(walked) = client.walk_and_list(directory, names, self.options()).await?
        {
            return Ok(walked);
        }
        let nodes = self.walk(directory, names).await?;
        Ok(ListedWalk { nodes, entries: None })
    }

    /// Creates a directory, sets mode and owner, and reads the attributes back for the caller to check: in one round trip
    /// with NFSv4, in one for each step with NFSv3. `Exists` if the name is taken. If only setting the mode or the owner
    /// fails, returns `Ok` with the directory and the refusal.
    pub async fn make_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        attributes: SetAttributes,
    ) -> Result<MkdirResult, NfsError> {
        let options = self.options();
        let created = either!(&self.client, client => {
            client.create_directory(directory, name, attributes, options).await?
        });
        self.complete_directory(created, attributes, options).await
    }

    /// Sets the attributes that are missing of a new directory, unless it is complete. The directory exists: a refusal is
    /// returned with it.
    async fn complete_directory(
        &self,
        (node, is_complete): (FileRef, bool),
        attributes: SetAttributes,
        options: CallOptions,
    ) -> Result<MkdirResult, NfsError> {
        let mut result = MkdirResult {
            node,
            mode_refused: None,
            owner_refused: None,
        };
        if is_complete {
            return Ok(result);
        }
        // The owner comes first: a change of owner clears setuid and setgid bits.
        for (part, refused) in [
            (attributes.owner(), &mut result.owner_refused),
            (attributes.without_owner(), &mut result.mode_refused),
        ] {
            let node = &mut result.node;
            if part.are_set(&node.attributes) {
                continue;
            }
            either!(&self.client, client => {
                match split_status(client.set_attributes(&node.handle, part, options).await)? {
                    Ok(attributes) => node.attributes = attributes,
                    Err(status) => {
                        *refused = Some(status);
                        node.attributes = client.attributes(&node.handle, options).await?;
                    }
                }
            });
        }
        Ok(result)
    }

    /// Creates a file with its content on stable storage, then checks that no directory in `unchanged` was changed, then
    /// creates a directory: in one request with a session of NFSv4, in which each step is executed only if those before it
    /// succeeded. `Exists` if the name of the file is taken.
    ///
    /// Returns `None` if the file was created and the request did not get to the directory, which is always so with other
    /// versions: the caller continues with the check and [`make_directory`](Self::make_directory).
    pub async fn create_file_and_directory(
        &self,
        file: &NewFile<'_>,
        unchanged: &[Unchanged],
        directory: &NewDirectory<'_>,
    ) -> Result<Option<MkdirResult>, NfsError> {
        let options = self.options();
        let created = match &self.client {
            VersionedClient::V4(client) => {
                let created = client.create_file_and_directory(file, unchanged, directory, options);
                created.await?
            }
            VersionedClient::V3(client) => {
                let (at, name) = file.at;
                client.create_file(at, name, file.content, file.mode, options).await?;
                None
            }
        };
        match created {
            Some(created) => {
                let completed = self.complete_directory(created, directory.attributes, options);
                completed.await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Sets attributes and returns the attributes after the change.
    pub async fn set_attributes(&self, object: &FileHandle, attributes: SetAttributes) -> Result<Attributes, NfsError> {
        either!(&self.client, client => client.set_attributes(object, attributes, self.options()).await)
    }

    /// Renames the object with this fileid. `NotFound` if the name does not exist, `NotSame` if it belongs to another
    /// object, `Exists` if the new name is taken.
    ///
    /// With NFSv4, the server checks the fileid in the same request, immediately before the rename (VERIFY in the compound);
    /// with NFSv3, the client checks it just before, in a request of its own. Neither is atomic: another client can still
    /// change the name between the check and the rename. That the new name is free is checked just before, in a request of
    /// its own with either version, so the caller must be the only one that creates this name.
    pub async fn rename(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
    ) -> Result<(), NfsError> {
        let rename = Rename {
            from,
            fileid,
            to,
            replaces: false,
            unchanged: &[],
            then_set: None,
        };
        self.rename_unconditionally(&rename).await
    }

    /// Renames the object with this fileid over another one, which it replaces atomically: a file over a file, a directory
    /// over an empty one. `NotFound` and `NotSame` as in [`rename`](Self::rename).
    pub async fn rename_over(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
    ) -> Result<(), NfsError> {
        let rename = Rename {
            from,
            fileid,
            to,
            replaces: true,
            unchanged: &[],
            then_set: None,
        };
        self.rename_unconditionally(&rename).await
    }

    async fn rename_unconditionally(&self, rename: &Rename<'_>) -> Result<(), NfsError> {
        match self.rename_if(rename).await? {
            Conditional::Done(_) => Ok(()),
            Conditional::Changed => Err(NfsError::Status {
                action: RENAME,
                status: Status::NotSame,
            }),
        }
    }

    /// Renames an object if no directory in `unchanged` was changed, and sets its attributes: all of it in one request with
    /// NFSv4, after a lookup of the new name unless the rename `replaces` it. With NFSv3, the conditions are checked just
    /// before, in requests of their own, and no attributes are set. Errors are those of [`rename`](Self::rename).
    ///
    /// Returns the attributes if all of them were set. If not, the object is renamed, and some may be set.
    pub async fn rename_if(&self, rename: &Rename<'_>) -> Result<Conditional<Option<Attributes>>, NfsError> {
        let (options, to) = (self.options(), rename.to);
        either!(&self.client, client => {
            if !rename.replaces && client.lookup(RENAME, to.0, to.1, options).await?.is_some() {
                return Err(NfsError::Status { action: RENAME, status: Status::Exists });
            }
            client.rename_over(rename, options).await
        })
    }

    /// Reports whether no directory in `unchanged` was changed: in one request with NFSv4, in one for each with NFSv3.
    /// `false` also if one cannot be checked.
    pub async fn are_unchanged(&self, unchanged: &[Unchanged]) -> Result<bool, NfsError> {
        either!(&self.client, client => client.are_unchanged(unchanged, self.options()).await)
    }

    /// Removes the empty directory with this fileid, checked as in [`rename`](Self::rename). `NotFound`, `NotSame`,
    /// `NotEmpty`, `NotDirectory`.
    pub async fn remove_directory(&self, directory: &FileHandle, name: &Name, fileid: u64) -> Result<(), NfsError> {
        either!(&self.client, client => client.remove(directory, name, fileid, RemoveKind::Directory, self.options()).await)
    }

    /// Removes the file or link with this fileid, checked as in [`rename`](Self::rename). `NotFound`, `NotSame`,
    /// `IsDirectory`.
    pub async fn remove_file(&self, directory: &FileHandle, name: &Name, fileid: u64) -> Result<(), NfsError> {
        either!(&self.client, client => client.remove(directory, name, fileid, RemoveKind::NonDirectory, self.options()).await)
    }

    /// Removes names of any kind from a directory whose whole content is to be deleted, without checking fileids. Returns
    /// one outcome for each name.
    pub async fn remove_batch(&self, directory: &FileHandle, names: &[Name]) -> Result<Vec<RemoveOutcome>, NfsError> {
        either!(&self.client, client => client.remove_batch(directory, names, self.options()).await)
    }

    /// Reads a whole file of at most `limit` bytes; fails with [`NfsError::Limit`] if it is larger. `None` if the name does
    /// not exist; `Symlink`, `IsDirectory` or `Invalid` if it is no regular file.
    pub async fn read_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        limit: usize,
    ) -> Result<Option<SmallFile>, NfsError> {
        either!(&self.client, client => client.read_file(directory, name, limit, self.options()).await)
    }

    /// Creates a file with this content, on stable storage. `Exists` if the name is taken. One round trip with NFSv4; two
    /// with NFSv3, between which a reader may see the file without its content.
    pub async fn create_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        content: &[u8],
        mode: u32,
    ) -> Result<FileRef, NfsError> {
        either!(&self.client, client => client.create_file(directory, name, content, mode, self.options()).await)
    }

    /// Replaces the content of a file atomically: writes `temporary` in the same directory and renames it over `name`. One
    /// round trip with a session of NFSv4. Returns the new file.
    pub async fn replace_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        temporary: &Name,
        content: &[u8],
        mode: u32,
    ) -> Result<FileRef, NfsError> {
        let options = self.options();
        if let VersionedClient::V4(client) = &self.client {
            let replaced = client.replace_at_once(directory, name, temporary, content, mode, options);
            if let Some(file) = replaced.await? {
                return Ok(file);
            }
        }
        let replaced = either!(&self.client, client => {
            let created = match client.create_file(directory, temporary, content, mode, options).await {
                Err(error) if error.status() == Some(Status::Exists) => {
                    // Left by an interrupted replacement: the name has no other use.
                    if let Some(old) = client.lookup(REPLACE, directory, temporary, options).await? {
                        let fileid = old.attributes.fileid;
                        client.remove(directory, temporary, fileid, RemoveKind::NonDirectory, options).await?;
                    }
                    client.create_file(directory, temporary, content, mode, options).await
                }
                created => created,
            };
            match created {
                Ok(file) => {
                    let rename = Rename {
                        from: (directory, temporary),
                        fileid: file.attributes.fileid,
                        to: (directory, name),
                        replaces: true,
                        unchanged: &[],
                        then_set: None,
                    };
                    client.rename_over(&rename, options).await.map(|_| file)
                }
                Err(error) => Err(error),
            }
        });
        split_status(replaced)?.map_err(|status| NfsError::Status {
            action: REPLACE,
            status,
        })
    }

    /// Creates a hard link to an object. `Exists`, `NotSupported`.
    pub async fn link(&self, object: &FileHandle, directory: &FileHandle, name: &Name) -> Result<(), NfsError> {
        either!(&self.client, client => client.link(object, directory, name, self.options()).await)
    }

    /// Creates a hard link to the object with this name and fileid; returns the object's attributes from before. `NotFound`
    /// and `NotSame` as in [`rename`](Self::rename), with which the check of the fileid has its timing in common.
    pub async fn link_entry(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
    ) -> Result<FullAttributes, NfsError> {
        either!(&self.client, client => client.link_entry(from, fileid, to, self.options()).await)
    }

    /// Maximum number of calls that one [`link_entries`](Self::link_entries) has in flight, which NFSv3 needs for each entry.
    pub const MAX_LINKS_IN_FLIGHT: usize = 4;

    /// Creates hard links to entries of a directory with these fileids, under the same names in another directory, in as few
    /// calls as the server allows. Returns for each entry, in order, what [`link_entry`](Self::link_entry) does; a link that was
    /// created by a call whose reply was lost is refused as `Exists`. An error that is not the server's answer to an entry
    /// leaves it open which of the links exist.
    pub async fn link_entries(
        &self,
        from: &FileHandle,
        to: &FileHandle,
        entries: &[(Name, u64)],
    ) -> Result<Vec<Result<FullAttributes, Status>>, NfsError> {
        either!(&self.client, client => client.link_entries(from, to, entries, self.options()).await)
    }

    /// Creates a symbolic link. `Exists` if the name is taken.
    pub async fn create_symlink(
        &self,
        directory: &FileHandle,
        name: &Name,
        target: &[u8],
    ) -> Result<FileRef, NfsError> {
        either!(&self.client, client => client.create_symlink(directory, name, target, self.options()).await)
    }

    /// Reads the target of a symbolic link.
    pub async fn read_link(&self, link: &FileHandle) -> Result<Bytes, NfsError> {
        either!(&self.client, client => client.read_link(link, self.options()).await)
    }

    /// Reads one page of a directory's listing; `None` starts at the beginning. `NotSame` if the server no longer knows
    /// the cookie: start again.
    pub async fn list(&self, directory: &FileHandle, from: Option<PageCookie>) -> Result<Page, NfsError> {
        either!(&self.client, client => client.list(directory, from, self.options()).await)
    }

    /// Like [`list`](Self::list), with the disk usage of each entry, in a page of about `max_size` bytes at most. The server
    /// reads the attributes of each entry before it replies, so a small page keeps the wait short, also for other clients.
    pub async fn list_with_usage(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        max_size: u32,
    ) -> Result<Page, NfsError> {
        either!(&self.client, client => client.list_with_usage(directory, from, max_size, self.options()).await)
    }

    /// Like [`list_with_usage`](Self::list_with_usage), with all attributes of each entry.
    pub async fn list_with_attributes(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        max_size: u32,
    ) -> Result<Page, NfsError> {
        either!(&self.client, client => client.list_with_attributes(directory, from, max_size, self.options()).await)
    }

    /// Returns the maximum sizes of one [`read`](Self::read) and one [`write`](Self::write), in bytes.
    pub fn max_transfer_sizes(&self) -> (usize, usize) {
        either!(&self.client, client => client.max_transfer_sizes())
    }

    /// Reads at most `count` bytes, and at most [`max_transfer_sizes`](Self::max_transfer_sizes). The server may return
    /// fewer, but none only at the end of the file.
    pub async fn read(&self, file: &FileHandle, offset: u64, count: usize) -> Result<ReadResult, NfsError> {
        either!(&self.client, client => client.read(file, offset, count, self.options()).await)
    }

    /// Writes `content`, at most [`max_transfer_sizes`](Self::max_transfer_sizes) of it; the server may accept less. The
    /// data is durable once [`commit`](Self::commit) has returned the same verifier.
    pub async fn write(&self, file: &FileHandle, offset: u64, content: &Bytes) -> Result<WriteResult, NfsError> {
        either!(&self.client, client => client.write(file, offset, content, self.options()).await)
    }

    /// Commits everything that was written to a file to stable storage. Returns the server's write verifier.
    pub async fn commit(&self, file: &FileHandle) -> Result<[u8; 8], NfsError> {
        either!(&self.client, client => client.commit(file, self.options()).await)
    }

    /// Finds the next range of a file that is no hole, at or after `from`: its start and its end. `None` if only a hole
    /// follows. SEEK of NFSv4.2; `NotSupported` otherwise.
    pub async fn seek_data(&self, file: &FileHandle, from: u64) -> Result<Option<(u64, u64)>, NfsError> {
        only_v4!(self, "seeking data", client => client.seek_data(file, from, self.options()).await)
    }

    /// Copies bytes on the server from one file of this export to another; the server may copy fewer. COPY of NFSv4.2;
    /// `NotSupported` otherwise.
    pub async fn copy(
        &self,
        from: (&FileHandle, u64),
        to: (&FileHandle, u64),
        count: u64,
    ) -> Result<CopyResult, NfsError> {
        only_v4!(self, "copying on the server", client => client.copy(from, to, count, self.options()).await)
    }

    /// Makes one file of this export share all blocks of another. CLONE of NFSv4.2; `NotSupported`, `Invalid` or
    /// `CrossDevice` if the server's file system does not support it.
    pub async fn clone_file(&self, from: &FileHandle, to: &FileHandle) -> Result<(), NfsError> {
        only_v4!(self, "cloning a file", client => client.clone_file(from, to, self.options()).await)
    }

    /// Lists the names of an object's user extended attributes, without the prefix `user.` (RFC 8276). `NotSupported` if the
    /// version or the server does not support them.
    pub async fn list_xattrs(&self, object: &FileHandle) -> Result<Vec<Bytes>, NfsError> {
        only_v4!(self, "listing extended attributes", client => client.list_xattrs(object, self.options()).await)
    }

    /// Reads the value of a user extended attribute; `None` if it does not exist.
    pub async fn get_xattr(&self, object: &FileHandle, name: &[u8]) -> Result<Option<Bytes>, NfsError> {
        only_v4!(self, "reading an extended attribute", client => client.get_xattr(object, name, self.options()).await)
    }

    /// Creates or replaces a user extended attribute.
    pub async fn set_xattr(&self, object: &FileHandle, name: &[u8], value: &[u8]) -> Result<(), NfsError> {
        only_v4!(self, "setting an extended attribute", client => client.set_xattr(object, name, value, self.options()).await)
    }

    /// Reads the space and the inodes of the file system at the export's root.
    pub async fn statistics(&self) -> Result<FsStat, NfsError> {
        either!(&self.client, client => client.statistics(self.options()).await)
    }

    /// Reports whether different handles are always those of different objects (RFC 8881 section 5.8.1.10). Always false on
    /// NFSv3, which does not report it.
    pub async fn has_unique_handles(&self) -> Result<bool, NfsError> {
        match &self.client {
            VersionedClient::V3(_) => Ok(false),
            VersionedClient::V4(client) => client.has_unique_handles(self.options()).await,
        }
    }

    /// Ends session and client on the server (DESTROY_SESSION, DESTROY_CLIENTID), if there are any, and closes the
    /// connection. Affects every clone.
    pub async fn close(self) {
        either!(&self.client, client => client.close().await);
    }
}
