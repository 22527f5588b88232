//! READ, WRITE and COMMIT, symbolic links, and all attributes of an object.

use bytes::Bytes;

use super::attributes;
use super::call::{Call, Effect};
use super::client::Client;
use super::constants::nfs;
use super::results;
use crate::call_options::CallOptions;
use crate::client::LOOKUP;
use crate::error::split_status;
use crate::small_file::READ;
use crate::xdr::{Decoder, XdrError};
use crate::{
    FileHandle, FileKind, FileRef, FullAttributes, LookupResult, Name, NfsError, ReadResult, SetAttributes, WriteResult,
};

const WRITE: &str = "writing a file";
const LINK: &str = "creating a symbolic link";

/// stable_how: the server may keep it in memory until the COMMIT (RFC 1813 section 3.3.7).
const UNSTABLE: u32 = 0;
/// stable_how: all is on stable storage.
const FILE_SYNC: u32 = 2;
/// Maximum length of the target of a symbolic link, in bytes (PATH_MAX on Linux).
const MAX_SYMLINK_TARGET: usize = 4096;

/// Decodes the result of READLINK.
pub(super) fn link_target(results: &mut Decoder) -> Result<Bytes, XdrError> {
    attributes::optional(results)?;
    let target = results.opaque("link's target", MAX_SYMLINK_TARGET)?;
    Ok(Bytes::copy_from_slice(&target))
}

/// Decodes the result of COMMIT: the write verifier.
pub(super) fn verifier(results: &mut Decoder) -> Result<[u8; 8], XdrError> {
    attributes::wcc_data(results)?;
    results.array("write verifier")
}

impl Client {
    /// Returns the maximum sizes of one READ and one WRITE.
    pub fn max_transfer_sizes(&self) -> (usize, usize) {
        let limits = self.limits();
        (limits.read as usize, limits.write as usize)
    }

    /// Looks up a name, with all attributes and the first bytes.
    pub async fn lookup_and_read(
        &self,
        directory: &FileHandle,
        name: &Name,
        first: usize,
        options: CallOptions,
    ) -> Result<Option<LookupResult>, NfsError> {
        let Some(node) = self.lookup(LOOKUP, directory, name, options).await? else {
            return Ok(None);
        };
        let handle = node.handle;
        let before = self.full_attributes(&handle, options).await?;
        let mut begin = None;
        if before.attributes.kind == FileKind::Regular
            && let Ok(data) = split_status(self.read(&handle, 0, first, options).await)?
        {
            begin = Some((data, self.full_attributes(&handle, options).await?.change_token()));
        }
        Ok(Some(LookupResult {
            handle,
            details: before,
            begin,
        }))
    }

    /// Reads all attributes.
    pub async fn full_attributes(&self, object: &FileHandle, options: CallOptions) -> Result<FullAttributes, NfsError> {
        let call = Call::new("reading attributes", nfs::GETATTR, Effect::ReadOnly).on(object);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        reply.take(attributes::details)
    }

    /// Reads a part of a file.
    pub async fn read(
        &self,
        file: &FileHandle,
        offset: u64,
        count: usize,
        options: CallOptions,
    ) -> Result<ReadResult, NfsError> {
        let count = count.min(self.max_transfer_sizes().0);
        let mut call = Call::new(READ, nfs::READ, Effect::ReadOnly).on(file);
        call.arguments.u64(offset).u32(u32::try_from(count).unwrap_or(u32::MAX));
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        let (eof, bytes) = reply.take(|found| results::data(found, count))?;
        if bytes.is_empty() && !eof {
            return Err(reply.protocol_error("empty READ before the end of the file".to_owned()));
        }
        Ok(ReadResult { bytes, eof })
    }

    /// Writes a part of a file, as much as the server accepts at a time.
    pub async fn write(
        &self,
        file: &FileHandle,
        offset: u64,
        content: &Bytes,
        options: CallOptions,
    ) -> Result<WriteResult, NfsError> {
        let content = content.get(..self.max_transfer_sizes().1).unwrap_or(content);
        let requested = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let mut call = Call::new(WRITE, nfs::WRITE, Effect::Idempotent).on(file);
        call.arguments.u64(offset).u32(requested).u32(UNSTABLE).opaque(content);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        let (count, committed, verifier) = reply.take(results::written)?;
        if count == 0 || count > requested || committed > FILE_SYNC {
            return Err(reply.protocol_error(format!("{count} of {requested} bytes written, stability {committed}")));
        }
        Ok(WriteResult {
            count: count as usize,
            stable: committed != UNSTABLE,
            verifier,
        })
    }

    /// Commits what was written to stable storage.
    pub async fn commit(&self, file: &FileHandle, options: CallOptions) -> Result<[u8; 8], NfsError> {
        let mut call = Call::new("committing a file", nfs::COMMIT, Effect::Idempotent).on(file);
        // The whole file.
        call.arguments.u64(0).u32(0);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        reply.take(verifier)
    }

    /// Reads the target of a symbolic link.
    pub async fn read_link(&self, link: &FileHandle, options: CallOptions) -> Result<Bytes, NfsError> {
        let call = Call::new("reading a symbolic link", nfs::READLINK, Effect::ReadOnly).on(link);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        reply.take(link_target)
    }

    /// Creates a symbolic link.
    pub async fn create_symlink(
        &self,
        directory: &FileHandle,
        name: &Name,
        target: &[u8],
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        self.check_name_length(LINK, name)?;
        let mut call = Call::new(LINK, nfs::SYMLINK, Effect::NonIdempotent).at(directory, name);
        attributes::settable(&mut call.arguments, SetAttributes::default(), false);
        call.arguments.opaque(target);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        let reported = reply.take(results::created)?;
        self.created_object(LINK, directory, name, reported, options).await
    }
}
