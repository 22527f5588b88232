//! Reading and writing what trees are made of.

use bytes::Bytes;

use super::{Client, VersionedClient};
use crate::{Copied, Data, FileHandle, FileRef, FullAttributes, LookupResult, Name, NfsError, Status, Written};

/// What only NFSv4 has is `NotSupported` in NFSv3, as on a server that doesn't do it.
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

impl Client {
    /// Looks up one name with all its attributes, and reads at most `first` bytes of it if it is a regular file, in one
    /// round trip (NFSv3: two). `None` when it is not there; a symbolic link is found as itself.
    pub async fn find(
        &self,
        directory: &FileHandle,
        name: &Name,
        first: usize,
    ) -> Result<Option<LookupResult>, NfsError> {
        either!(&self.client, client => client.find(directory, name, first, self.terms()).await)
    }

    /// All attributes of what a handle names.
    pub async fn details(&self, object: &FileHandle) -> Result<FullAttributes, NfsError> {
        either!(&self.client, client => client.details(object, self.terms()).await)
    }

    /// The most bytes that go into one [`read`](Self::read) and one [`write`](Self::write).
    pub fn most_bytes(&self) -> (usize, usize) {
        either!(&self.client, client => client.most_bytes())
    }

    /// Reads at most `count` bytes (no more than [`most_bytes`](Self::most_bytes)); fewer as the server likes, none only at
    /// the end.
    pub async fn read(&self, file: &FileHandle, offset: u64, count: usize) -> Result<Data, NfsError> {
        either!(&self.client, client => client.read(file, offset, count, self.terms()).await)
    }

    /// Writes `content` (no more than [`most_bytes`](Self::most_bytes)), which is safe only after
    /// [`commit`](Self::commit) answered the same verifier. The server may take less of it.
    pub async fn write(&self, file: &FileHandle, offset: u64, content: &Bytes) -> Result<Written, NfsError> {
        either!(&self.client, client => client.write_some(file, offset, content, self.terms()).await)
    }

    /// Puts all that was written to a file on stable storage; answers the verifier of the server's present life.
    pub async fn commit(&self, file: &FileHandle) -> Result<[u8; 8], NfsError> {
        either!(&self.client, client => client.commit(file, self.terms()).await)
    }

    /// Where a symbolic link leads to, in its own bytes. Never followed by us.
    pub async fn read_link(&self, link: &FileHandle) -> Result<Bytes, NfsError> {
        either!(&self.client, client => client.read_link(link, self.terms()).await)
    }

    /// Makes a symbolic link; `Exists` if the name is taken.
    pub async fn make_link(&self, directory: &FileHandle, name: &Name, target: &[u8]) -> Result<FileRef, NfsError> {
        either!(&self.client, client => client.make_link(directory, name, target, self.terms()).await)
    }

    /// The next bytes of a file that are no hole, at or after `from`: where they begin and end; `None` when there are
    /// none. NFSv4.2's SEEK; `NotSupported` elsewhere.
    pub async fn next_data(&self, file: &FileHandle, from: u64) -> Result<Option<(u64, u64)>, NfsError> {
        only_v4!(self, "looking for holes", client => client.next_data(file, from, self.terms()).await)
    }

    /// Lets the server copy bytes from one file of this export to another (NFSv4.2's COPY); less than asked for as it
    /// likes. `NotSupported` elsewhere.
    pub async fn copy(&self, from: (&FileHandle, u64), to: (&FileHandle, u64), count: u64) -> Result<Copied, NfsError> {
        only_v4!(self, "copying on the server", client => client.copy(from, to, count, self.terms()).await)
    }

    /// Lets one file share all blocks of another of this export (NFSv4.2's CLONE), if its file system can; else
    /// `NotSupported`, `Invalid` or `CrossDevice`.
    pub async fn clone_file(&self, from: &FileHandle, to: &FileHandle) -> Result<(), NfsError> {
        only_v4!(self, "cloning a file", client => client.clone_file(from, to, self.terms()).await)
    }

    /// The names of an object's user attributes, without `user.` (RFC 8276); `NotSupported` where there can't be any.
    pub async fn xattrs(&self, object: &FileHandle) -> Result<Vec<Bytes>, NfsError> {
        only_v4!(self, "listing extended attributes", client => client.xattrs(object, self.terms()).await)
    }

    /// The value of a user attribute; `None` when it has no such.
    pub async fn xattr(&self, object: &FileHandle, name: &[u8]) -> Result<Option<Bytes>, NfsError> {
        only_v4!(self, "reading an extended attribute", client => client.xattr(object, name, self.terms()).await)
    }

    /// Sets a user attribute, whether or not it has one by that name.
    pub async fn set_xattr(&self, object: &FileHandle, name: &[u8], value: &[u8]) -> Result<(), NfsError> {
        only_v4!(self, "setting an extended attribute", client => client.set_xattr(object, name, value, self.terms()).await)
    }
}
