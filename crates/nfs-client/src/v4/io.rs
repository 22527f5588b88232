//! READ, WRITE and COMMIT, symbolic links, and all attributes of an object.
//!
//! Nothing here opens a file: reads and writes carry the anonymous stateid (RFC 8881 section 8.2.3), which servers accept
//! from any caller with access to the file. So an interrupted copy leaves nothing open.

use bytes::Bytes;

use super::attributes;
use super::client::Client;
use super::compound::{Compound, Reply, StateId, stateid};
use super::constants::{kind, op};
use super::small_files::data;
use crate::call_options::CallOptions;
use crate::client::LOOKUP;
use crate::error::split_status;
use crate::small_file::READ;
use crate::{
    FileHandle, FileRef, FullAttributes, LookupResult, Name, NfsError, ReadResult, SetAttributes, Status, WriteResult,
};

const WRITE: &str = "writing a file";

/// stable_how: the server may keep it in memory until the COMMIT (RFC 8881 section 18.32).
const UNSTABLE: u32 = 0;
/// stable_how: all is on stable storage.
const FILE_SYNC: u32 = 2;
/// Room for the headers of a request or a reply that carries data, in bytes.
const HEADERS: usize = 4 << 10;
/// Maximum size of a READ or WRITE, in bytes: large enough to keep a copy busy over a round trip, small enough that several
/// fit into little memory.
const MAX_TRANSFER: usize = 512 << 10;
/// Maximum length of the target of a symbolic link, in bytes (PATH_MAX on Linux).
pub(super) const MAX_SYMLINK_TARGET: usize = 4096;

/// Decodes the result of READLINK, after its status.
pub(super) fn link_target(reply: &mut Reply) -> Result<Bytes, NfsError> {
    let target = reply.take(|results| results.opaque("link's target", MAX_SYMLINK_TARGET))?;
    Ok(Bytes::copy_from_slice(&target))
}

/// Decodes the result of COMMIT, after its status.
pub(super) fn verifier(reply: &mut Reply) -> Result<[u8; 8], NfsError> {
    reply.take(|results| results.array("write verifier"))
}

/// Decodes the result of READ: no more than requested, and not empty before the end of the file.
pub(super) fn part(reply: &mut Reply, requested: usize) -> Result<ReadResult, NfsError> {
    let (eof, bytes) = data(reply, requested)?;
    if bytes.is_empty() && !eof {
        return Err(reply.protocol_error("empty READ before the end of the file".to_owned()));
    }
    Ok(ReadResult { bytes, eof })
}

/// Decodes the result of WRITE: at least one byte, and no more than sent.
pub(super) fn decode_write(reply: &mut Reply, requested: usize) -> Result<WriteResult, NfsError> {
    reply.op(op::WRITE)?;
    let count = reply.u32("count")? as usize;
    let committed = reply.u32("committed")?;
    let verifier = verifier(reply)?;
    if count == 0 || count > requested || committed > FILE_SYNC {
        return Err(reply.protocol_error(format!("{count} of {requested} bytes written, stability {committed}")));
    }
    Ok(WriteResult {
        count,
        stable: committed != UNSTABLE,
        verifier,
    })
}

/// Decodes the result of GETATTR of [`attributes::FULL_ATTRIBUTES`].
pub(super) fn details(reply: &mut Reply) -> Result<FullAttributes, NfsError> {
    let found = reply.attributes()?;
    found
        .full_attributes()
        .map_err(|missing| reply.protocol_error(format!("attribute {missing:?} is missing")))
}

pub(super) fn read(compound: &mut Compound, state: StateId, offset: u64, count: usize) {
    let message = compound.op(op::READ);
    stateid(message, state);
    message.u64(offset).u32(u32::try_from(count).unwrap_or(u32::MAX));
}

impl Client {
    /// Returns the maximum sizes of one READ and one WRITE.
    pub fn max_transfer_sizes(&self) -> (usize, usize) {
        let fits = |longest: usize| longest.saturating_sub(HEADERS).clamp(512, MAX_TRANSFER);
        (fits(self.max_reply()), fits(self.max_request()))
    }

    /// Looks up a name, with all attributes and the first bytes.
    pub async fn lookup_and_read(
        &self,
        directory: &FileHandle,
        name: &Name,
        first: usize,
        options: CallOptions,
    ) -> Result<Option<LookupResult>, NfsError> {
        let first = first.min(self.max_transfer_sizes().0);
        let mut compound = Compound::new(LOOKUP);
        compound.at(directory).lookup(name).op(op::GETFH);
        compound.attributes(attributes::FULL_ATTRIBUTES);
        read(&mut compound, StateId::ANONYMOUS, 0, first);
        compound.attributes(attributes::CHANGE_TOKEN);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        match split_status(reply.op(op::LOOKUP))? {
            Ok(()) => {}
            Err(Status::NotFound) => return Ok(None),
            Err(status) => return Err(NfsError::Status { action: LOOKUP, status }),
        }
        let handle = reply.handle()?;
        let details = details(&mut reply)?;
        // The compound ends here for directories, links and special files.
        let begin = match split_status(data(&mut reply, first))? {
            Ok((eof, bytes)) => {
                let token = reply.attributes()?.change_token();
                token.map(|token| (ReadResult { bytes, eof }, token))
            }
            Err(_) => None,
        };
        Ok(Some(LookupResult { handle, details, begin }))
    }

    /// Reads all attributes.
    pub async fn full_attributes(&self, object: &FileHandle, options: CallOptions) -> Result<FullAttributes, NfsError> {
        let mut compound = Compound::new("reading attributes");
        compound.at(object).attributes(attributes::FULL_ATTRIBUTES);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        details(&mut reply)
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
        let mut compound = Compound::new(READ);
        read(compound.at(file), StateId::ANONYMOUS, offset, count);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        part(&mut reply, count)
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
        let mut compound = Compound::new(WRITE);
        let message = compound.at(file).modifying_op(op::WRITE);
        stateid(message, StateId::ANONYMOUS);
        message.u64(offset).u32(UNSTABLE).opaque(content);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        decode_write(&mut reply, content.len())
    }

    /// Commits what was written to stable storage.
    pub async fn commit(&self, file: &FileHandle, options: CallOptions) -> Result<[u8; 8], NfsError> {
        let mut compound = Compound::new("committing a file");
        // The whole file.
        compound.at(file).modifying_op(op::COMMIT).u64(0).u32(0);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        reply.op(op::COMMIT)?;
        verifier(&mut reply)
    }

    /// Reads the target of a symbolic link.
    pub async fn read_link(&self, link: &FileHandle, options: CallOptions) -> Result<Bytes, NfsError> {
        let mut compound = Compound::new("reading a symbolic link");
        compound.at(link).op(op::READLINK);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        reply.op(op::READLINK)?;
        link_target(&mut reply)
    }

    /// Creates a symbolic link.
    pub async fn create_symlink(
        &self,
        directory: &FileHandle,
        name: &Name,
        target: &[u8],
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        let mut compound = Compound::new("creating a symbolic link");
        let message = compound.at(directory).modifying_op(op::CREATE);
        message.u32(kind::LINK).opaque(target).opaque(name.as_bytes());
        attributes::settable(message, SetAttributes::default());
        compound.file_ref();
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        reply.op(op::CREATE)?;
        reply.change_info()?;
        reply.take(|results| attributes::read_bitmap(results).map(drop))?;
        reply.file_ref()
    }
}
