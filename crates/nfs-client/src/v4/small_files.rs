//! Small files: read as a whole, created with their content, replaced atomically.

use super::attributes;
use super::client::Client;
use super::compound::{Compound, Reply, StateId, stateid};
use super::constants::{code, op};
use super::io::{part, read};
use super::namespace::{append_directory, directory_created};
use crate::call_options::CallOptions;
use crate::client::REPLACE;
use crate::error::split_status;
use crate::small_file::{Content, READ, require_regular};
use crate::types::RemoveKind;
use crate::xdr::XdrError;
use crate::{
    FileHandle, FileRef, Name, NewDirectory, NewFile, NfsError, ReadResult, SetAttributes, SmallFile, Status, Unchanged,
};

pub(super) const CREATE: &str = "creating a file";

/// share_access: reading or writing, and no delegation (RFC 8881 section 18.16.3), as this client receives no recalls.
const ACCESS_READ: u32 = 0x1 | NO_DELEGATION;
const ACCESS_WRITE: u32 = 0x2 | NO_DELEGATION;
const NO_DELEGATION: u32 = 0x0400;
/// stable_how: on stable storage before the reply.
const FILE_SYNC: u32 = 2;
/// Room for the headers of a reply that carries data, in bytes.
const REPLY_HEADERS: usize = 2048;

/// A file that was just opened, and may still be open.
struct Opened {
    stateid: StateId,
    node: FileRef,
}

fn open(compound: &mut Compound, changes: bool, access: u32) -> &mut crate::xdr::Encoder {
    let message = if changes {
        compound.modifying_op(op::OPEN)
    } else {
        compound.op(op::OPEN)
    };
    // Sequence, access, no denial; the owner is random, so that two calls never share an open.
    message
        .u32(0)
        .u32(access)
        .u32(0)
        .u64(0)
        .opaque(&rand::random::<[u8; 12]>())
}

/// Appends the creation of a file that does not exist, and GETFH and GETATTR of it.
fn open_new(compound: &mut Compound, directory: &FileHandle, name: &Name, mode: u32) {
    let message = open(compound.at(directory), true, ACCESS_WRITE);
    // Created, and only if it does not exist (GUARDED4).
    message.u32(1).u32(1);
    attributes::settable(
        message,
        SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        },
    );
    // By name (CLAIM_NULL).
    message.u32(0).opaque(name.as_bytes());
    compound.file_ref();
}

/// Appends the creation of a file with its content, and everything that is read afterwards.
fn append_file(compound: &mut Compound, file: &NewFile<'_>) {
    open_new(compound, file.at.0, file.at.1, file.mode);
    if !file.content.is_empty() {
        write(compound, StateId::CURRENT, 0, file.content);
    }
    compound.attributes(attributes::FILE_ATTRIBUTES);
    close(compound, StateId::CURRENT);
}

pub(super) fn opened(reply: &mut Reply) -> Result<StateId, NfsError> {
    reply.op(op::OPEN)?;
    let stateid = reply.stateid()?;
    reply.change_info()?;
    reply.take(|results| {
        results.u32("open flags")?;
        attributes::read_bitmap(results)?;
        match results.u32("delegation")? {
            0 => Ok(()),
            // OPEN_DELEGATE_NONE_EXT: two of its reasons carry a boolean.
            3 => match results.u32("reason for no delegation")? {
                1 | 2 => results.boolean("delegation promised").map(drop),
                _ => Ok(()),
            },
            value => Err(XdrError::Invalid {
                what: "delegation that was not requested",
                value,
            }),
        }
    })?;
    Ok(stateid)
}

pub(super) fn write(compound: &mut Compound, state: StateId, offset: usize, content: &[u8]) {
    let message = compound.modifying_op(op::WRITE);
    stateid(message, state);
    message.u64(offset as u64).u32(FILE_SYNC).opaque(content);
}

pub(super) fn written(reply: &mut Reply) -> Result<usize, NfsError> {
    reply.op(op::WRITE)?;
    let (count, committed) = reply.take(|results| {
        let (count, committed) = (results.u32("count")?, results.u32("committed")?);
        results.array::<8>("write verifier")?;
        Ok((count as usize, committed))
    })?;
    if committed == FILE_SYNC && count > 0 {
        return Ok(count);
    }
    Err(reply.protocol_error(format!("{count} bytes written, stability {committed}")))
}

/// Decodes the results of WRITE, VERIFY, CLOSE and RENAME of a replacement.
fn written_and_renamed(reply: &mut Reply) -> Result<(), NfsError> {
    written(reply)?;
    reply.op(op::VERIFY)?;
    reply.op(op::CLOSE)?;
    reply.stateid()?;
    for operation in [op::PUTFH, op::SAVEFH, op::RENAME] {
        reply.op(operation)?;
    }
    // The change_info of the directory, as source and as target.
    reply.change_info()?;
    reply.change_info()
}

fn close(compound: &mut Compound, state: StateId) {
    stateid(compound.op(op::CLOSE).u32(0), state);
}

pub(super) fn data(reply: &mut Reply, count: usize) -> Result<(bool, bytes::Bytes), NfsError> {
    reply.op(op::READ)?;
    reply.take(|results| Ok((results.boolean("end of file")?, results.opaque("data", count)?)))
}

/// Whether a server that refuses a READ with this status may accept it after an OPEN.
fn may_need_open(status: Status) -> bool {
    matches!(
        status,
        Status::Other(code::BAD_STATEID | code::OPENMODE) | Status::NotSupported
    )
}

impl Client {
    /// Reads a file of at most `limit` bytes.
    pub async fn read_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        limit: usize,
        options: CallOptions,
    ) -> Result<Option<SmallFile>, NfsError> {
        let count = (limit + 1).min(self.max_reply().saturating_sub(REPLY_HEADERS).max(512));
        let mut compound = Compound::new(READ);
        compound.at(directory).lookup(name).file_ref();
        read(&mut compound, StateId::ANONYMOUS, 0, count);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        match split_status(reply.op(op::LOOKUP))? {
            Ok(()) => {}
            Err(Status::NotFound) => return Ok(None),
            Err(status) => return Err(NfsError::Status { action: READ, status }),
        }
        let node = reply.file_ref()?;
        require_regular(node.attributes.kind)?;
        let mut content = Content::new(limit);
        let mut opens = false;
        let mut next = match split_status(part(&mut reply, count))? {
            Ok(part) => part,
            Err(status) if may_need_open(status) && !self.is_sessionless() => {
                opens = true;
                self.read_opened(&node.handle, 0, count, options).await?
            }
            Err(status) => return Err(NfsError::Status { action: READ, status }),
        };
        while !content.append(&next)? {
            let count = count.min(content.missing());
            next = if opens {
                self.read_opened(&node.handle, content.offset(), count, options).await?
            } else {
                self.read(&node.handle, content.offset(), count, options).await?
            };
        }
        let content = content.into_bytes();
        Ok(Some(SmallFile { node, content }))
    }

    /// Opens a file, reads from it and closes it. An open whose reply was lost ends with its session.
    async fn read_opened(
        &self,
        file: &FileHandle,
        offset: u64,
        count: usize,
        options: CallOptions,
    ) -> Result<ReadResult, NfsError> {
        let mut compound = Compound::new(READ);
        // Not created; by the current handle (CLAIM_FH).
        open(compound.at(file), false, ACCESS_READ).u32(0).u32(4);
        read(&mut compound, StateId::CURRENT, offset, count);
        close(&mut compound, StateId::CURRENT);
        // An open is state: a retransmission must find it.
        compound.cache_reply = true;
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        let state = opened(&mut reply)?;
        let read = part(&mut reply, count);
        if read.is_err() || reply.op(op::CLOSE).is_err() {
            self.close_file(file, state, options).await;
        }
        read
    }

    /// Creates a file with its content, in one request: if the server accepts only smaller requests, it fails with
    /// [`NfsError::Limit`]. Meant for small files: the lowest limit seen was 135,168 bytes (knfsd on a machine with little
    /// memory).
    pub async fn create_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        content: &[u8],
        mode: u32,
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        if self.is_sessionless() {
            return self.create_file_v40(directory, name, content, mode, options).await;
        }
        let file = NewFile {
            at: (directory, name),
            content,
            mode,
        };
        let mut compound = Compound::new(CREATE);
        append_file(&mut compound, &file);
        let mut reply = self.call(options, &compound).await?;
        let (node, _) = self.created_file(&mut reply, &file, options).await?;
        Ok(node)
    }

    /// Creates a file with its content, verifies that no directory was changed, and creates a directory, in one compound: the
    /// content is on stable storage and complete before the directory is created. Returns `None` if the file was created,
    /// and the compound did not get to the directory: then the caller does the rest step by step.
    pub async fn create_file_and_directory(
        &self,
        file: &NewFile<'_>,
        unchanged: &[Unchanged],
        directory: &NewDirectory<'_>,
        options: CallOptions,
    ) -> Result<Option<(FileRef, bool)>, NfsError> {
        let mut compound = Compound::new(CREATE);
        append_file(&mut compound, file);
        // After a short write, the compound ends here.
        attributes::size(compound.op(op::VERIFY), file.content.len() as u64);
        compound.verify_unchanged(unchanged);
        append_directory(&mut compound, directory);
        if self.is_sessionless() || self.is_too_large(&compound) {
            let (at, name) = file.at;
            self.create_file(at, name, file.content, file.mode, options).await?;
            return Ok(None);
        }
        let mut reply = self.call(options, &compound).await?;
        let (_, is_complete) = self.created_file(&mut reply, file, options).await?;
        if !is_complete {
            return Ok(None);
        }
        let verified = reply.op(op::VERIFY).and_then(|()| reply.verify_unchanged(unchanged));
        let created = verified.and_then(|()| directory_created(&mut reply));
        match split_status(created)? {
            Ok(()) => self.created_directory(&mut reply, directory, options).await.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Decodes the results of [`append_file`]; completes in steps what the compound did not. Returns whether the compound did
    /// all of it, so that what follows in it was executed, too.
    async fn created_file(
        &self,
        reply: &mut Reply,
        new: &NewFile<'_>,
        options: CallOptions,
    ) -> Result<(FileRef, bool), NfsError> {
        let (directory, name) = new.at;
        reply.op(op::PUTFH)?;
        let stateid = opened(reply)?;
        let (node, has_handle) = match split_status(reply.file_ref())? {
            Ok(node) => (node, true),
            // The file exists, whatever the status.
            Err(status) => match self.lookup(CREATE, directory, name, options).await? {
                Some(node) => (node, false),
                None => return Err(NfsError::Status { action: CREATE, status }),
            },
        };
        let mut file = Opened { stateid, node };
        let result = if has_handle {
            self.finish_create(reply, &mut file, new.content, options).await
        } else {
            let written = self.write_and_close(&mut file, new.content, options).await;
            written.map(|()| false)
        };
        match result {
            Ok(is_complete) => Ok((file.node, is_complete)),
            Err(error) => {
                // A file without its content is worse than none: a reader would mistake it for the complete file.
                let _ = self
                    .remove(
                        directory,
                        name,
                        file.node.attributes.fileid,
                        RemoveKind::NonDirectory,
                        options,
                    )
                    .await;
                Err(error)
            }
        }
    }

    /// Decodes the results of WRITE and CLOSE; completes in steps what the compound did not. Returns whether it did all.
    async fn finish_create(
        &self,
        reply: &mut Reply,
        file: &mut Opened,
        content: &[u8],
        options: CallOptions,
    ) -> Result<bool, NfsError> {
        let mut written_count = 0;
        if !content.is_empty() {
            match split_status(written(reply)) {
                Ok(Ok(count)) => written_count = count,
                // Delayed, or the server does not support the current stateid: try a compound of its own.
                Ok(Err(_)) => {
                    return self.write_and_close(file, content, options).await.map(|()| false);
                }
                Err(error) => {
                    self.close_file(&file.node.handle, file.stateid, options).await;
                    return Err(error);
                }
            }
        }
        if written_count < content.len() {
            let rest = content.get(written_count..).unwrap_or_default();
            let written = self.write_rest(file, written_count, rest, options).await;
            return written.map(|()| false);
        }
        let attributes = reply.file_attributes();
        let is_closed = attributes.is_ok() && reply.op(op::CLOSE).and_then(|()| reply.stateid().map(drop)).is_ok();
        if !is_closed {
            self.close_file(&file.node.handle, file.stateid, options).await;
        }
        file.node.attributes = match attributes {
            Ok(attributes) => attributes,
            Err(_) => self.attributes(&file.node.handle, options).await?,
        };
        Ok(is_closed)
    }

    /// Creates a file with its content and renames it over another one, in one compound: the content is on stable storage
    /// and complete before the rename. Returns `None` if the server did not do all of that; then nothing was renamed, and the
    /// caller does it step by step.
    pub async fn replace_at_once(
        &self,
        directory: &FileHandle,
        name: &Name,
        temporary: &Name,
        content: &[u8],
        mode: u32,
        options: CallOptions,
    ) -> Result<Option<FileRef>, NfsError> {
        let mut compound = Compound::new(REPLACE);
        open_new(&mut compound, directory, temporary, mode);
        write(&mut compound, StateId::CURRENT, 0, content);
        // After a short write, the compound ends here.
        attributes::size(compound.op(op::VERIFY), content.len() as u64);
        close(&mut compound, StateId::CURRENT);
        compound.at(directory).op(op::SAVEFH);
        let message = compound.modifying_op(op::RENAME);
        message.opaque(temporary.as_bytes()).opaque(name.as_bytes());
        if self.is_sessionless() || content.is_empty() || self.is_too_large(&compound) {
            return Ok(None);
        }
        let mut reply = self.call(options, &compound).await?;
        let began = reply.op(op::PUTFH).and_then(|()| opened(&mut reply));
        let Ok(state) = split_status(began)? else {
            return Ok(None);
        };
        // The file exists now, whatever the status.
        let Ok(node) = split_status(reply.file_ref())? else {
            return Ok(None);
        };
        match split_status(written_and_renamed(&mut reply))? {
            Ok(()) => Ok(Some(node)),
            Err(_) => {
                self.close_file(&node.handle, state, options).await;
                Ok(None)
            }
        }
    }

    /// Whether a compound exceeds what the server accepts.
    fn is_too_large(&self, compound: &Compound) -> bool {
        // Headers and SEQUENCE take less than 512 bytes.
        compound.count() > self.max_operations() || compound.len() + 512 > self.max_request()
    }

    async fn write_and_close(&self, file: &mut Opened, content: &[u8], options: CallOptions) -> Result<(), NfsError> {
        if content.is_empty() {
            return self.write_rest(file, 0, content, options).await;
        }
        let mut compound = Compound::new(CREATE);
        write(compound.at(&file.node.handle), file.stateid, 0, content);
        let result = match self.call(options, &compound).await {
            Ok(mut reply) => reply.op(op::PUTFH).and_then(|()| written(&mut reply)),
            Err(error) => Err(error),
        };
        match result {
            Ok(count) if count == content.len() => {
                self.close_file(&file.node.handle, file.stateid, options).await;
                file.node.attributes = self.attributes(&file.node.handle, options).await?;
                Ok(())
            }
            Ok(count) => {
                self.write_rest(file, count, content.get(count..).unwrap_or_default(), options)
                    .await
            }
            Err(error) => {
                self.close_file(&file.node.handle, file.stateid, options).await;
                Err(error)
            }
        }
    }

    /// Writes the rest after a short WRITE, without an open.
    async fn write_rest(
        &self,
        file: &mut Opened,
        mut offset: usize,
        mut rest: &[u8],
        options: CallOptions,
    ) -> Result<(), NfsError> {
        self.close_file(&file.node.handle, file.stateid, options).await;
        while !rest.is_empty() {
            let mut compound = Compound::new(CREATE);
            write(compound.at(&file.node.handle), StateId::ANONYMOUS, offset, rest);
            let mut reply = self.call(options, &compound).await?;
            reply.op(op::PUTFH)?;
            let count = written(&mut reply)?.min(rest.len());
            rest = rest.get(count..).unwrap_or_default();
            offset += count;
        }
        file.node.attributes = self.attributes(&file.node.handle, options).await?;
        Ok(())
    }

    /// Closes a file. If that fails, it is closed already, or closed with the session.
    async fn close_file(&self, file: &FileHandle, state: StateId, options: CallOptions) {
        let mut compound = Compound::new("closing a file");
        close(compound.at(file), state);
        let _ = self.call(options, &compound).await;
    }
}
