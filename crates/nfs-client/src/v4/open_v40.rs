//! Creating a file in NFSv4.0 (RFC 7530 sections 9.1 and 16.16): OPEN needs a client ID, an open owner with a sequence ID,
//! and possibly a confirmation.
//!
//! Each open has a random open owner of its own: calls need no common order, and no sequence ID must be known after a lost
//! reply. The content is written in the compound of the open, with the anonymous stateid, so that the file appears
//! with its content. No other operation of this client needs an open.

use super::attributes;
use super::client::Client;
use super::compound::{Compound, Reply, StateId, stateid};
use super::constants::{code, op};
use super::small_files::{CREATE, write, written};
use crate::call_options::{Backoff, CallOptions};
use crate::error::split_status;
use crate::types::RemoveKind;
use crate::xdr::{Decoder, XdrError};
use crate::{FileHandle, FileRef, Name, NfsError, SetAttributes, Status};

/// share_access: writing (RFC 7530 section 16.16.1).
const ACCESS_WRITE: u32 = 2;

/// rflags: the open must be confirmed (OPEN4_RESULT_CONFIRM).
const CONFIRM: u32 = 2;

/// How often an open is repeated because the server no longer has the client ID.
const MAX_RESTARTS: u32 = 3;

/// Maximum length of the principal in a delegation's permissions, in bytes.
const MAX_PRINCIPAL: usize = 1024;

/// Room for the parts of a request other than data, in bytes.
const HEADERS: usize = 4 << 10;

/// Result of OPEN.
pub(super) struct Open {
    stateid: StateId,
    /// Whether it must be confirmed.
    confirm: bool,
    /// A delegation, which was not requested.
    delegation: Option<StateId>,
}

pub(super) fn read_stateid(results: &mut Decoder) -> Result<StateId, XdrError> {
    Ok(StateId {
        sequence: results.u32("stateid")?,
        other: results.array("stateid")?,
    })
}

/// Decodes the result of OPEN.
pub(super) fn read_open(results: &mut Decoder) -> Result<Open, XdrError> {
    let stateid = read_stateid(results)?;
    results.array::<20>("change_info")?;
    let confirm = results.u32("open flags")? & CONFIRM != 0;
    attributes::read_bitmap(results)?;
    let kind = results.u32("delegation")?;
    let delegation = match kind {
        0 => None,
        1 | 2 => {
            let stateid = read_stateid(results)?;
            results.boolean("recall")?;
            if kind == 2 {
                // The space limit: in bytes, or in blocks of a size.
                results.u32("space limit")?;
                results.u64("space limit")?;
            }
            results.array::<12>("permission")?;
            results.opaque("permission's principal", MAX_PRINCIPAL)?;
            Some(stateid)
        }
        value => {
            return Err(XdrError::Invalid {
                what: "delegation",
                value,
            });
        }
    };
    Ok(Open {
        stateid,
        confirm,
        delegation,
    })
}

/// Builds the compound that creates and fills a file.
fn create_compound(client_id: u64, directory: &FileHandle, name: &Name, content: &[u8], mode: u32) -> Compound {
    let mut compound = Compound::new(CREATE);
    // A delayed open used its sequence ID: the next attempt needs another open owner.
    compound.retry_on_delay = false;
    let message = compound.at(directory).modifying_op(op::OPEN);
    message.u32(0).u32(ACCESS_WRITE).u32(0);
    message.u64(client_id).opaque(&rand::random::<[u8; 16]>());
    // Created, and only if it does not exist (GUARDED4).
    message.u32(1).u32(1);
    let set = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    attributes::settable(message, set);
    // By name (CLAIM_NULL).
    message.u32(0).opaque(name.as_bytes());
    compound.file_ref();
    if !content.is_empty() {
        write(&mut compound, StateId::ANONYMOUS, 0, content);
    }
    compound.attributes(attributes::FILE_ATTRIBUTES);
    compound
}

impl Client {
    /// Creates a file with its content, without a session.
    pub(super) async fn create_file_v40(
        &self,
        directory: &FileHandle,
        name: &Name,
        content: &[u8],
        mode: u32,
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        let mut pause = Backoff::new();
        let mut restarts = 0;
        loop {
            let id = self.client_id(options).await?;
            let first = content.get(..self.max_write()).unwrap_or(content);
            let compound = create_compound(id, directory, name, first, mode);
            let mut reply = self.call(options, &compound).await?;
            let opened = reply
                .op(op::PUTFH)
                .and_then(|()| reply.op(op::OPEN))
                .and_then(|()| reply.take(read_open));
            match split_status(opened)? {
                Ok(open) => {
                    return self
                        .finish_create_v40((directory, name), reply, open, content, options)
                        .await;
                }
                Err(Status::Delayed) if pause.pause_before(options.deadline).await => {}
                Err(Status::Other(code::STALE_CLIENTID | code::EXPIRED | code::BAD_SEQID))
                    if restarts < MAX_RESTARTS =>
                {
                    restarts += 1;
                    self.invalidate_client_id(id).await;
                }
                Err(status) => return Err(NfsError::Status { action: CREATE, status }),
            }
        }
    }

    /// Returns the maximum size of one WRITE, in bytes.
    fn max_write(&self) -> usize {
        self.max_request().saturating_sub(HEADERS).max(512)
    }

    /// Decodes the results that follow OPEN, completes what is missing, and closes the file.
    async fn finish_create_v40(
        &self,
        (directory, name): (&FileHandle, &Name),
        mut reply: Reply,
        open: Open,
        content: &[u8],
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        // The file exists, whatever the status: without its handle, it is looked up.
        let (mut node, has_handle) = match split_status(reply.file_ref())? {
            Ok(node) => (node, true),
            Err(status) => match self.lookup(CREATE, directory, name, options).await? {
                Some(node) => (node, false),
                None => return Err(NfsError::Status { action: CREATE, status }),
            },
        };
        let mut whole = Ok(None);
        let mut written_count = 0;
        if has_handle && !content.is_empty() {
            match split_status(written(&mut reply)) {
                Ok(Ok(count)) => written_count = count.min(content.len()),
                // Delayed, or refused with the anonymous stateid: the stateid of the open may work.
                Ok(Err(_)) => {}
                Err(error) => whole = Err(error),
            }
        }
        if has_handle && written_count == content.len() && whole.is_ok() {
            whole = reply.file_attributes().map(Some).or(Ok(None));
        }
        let handle = &node.handle;
        let state = self.confirm_open(handle, &open, options).await;
        if whole.is_ok() && written_count < content.len() {
            whole = self
                .write_rest_v40(handle, state, written_count, content, options)
                .await
                .map(|()| None);
        }
        self.close_v40(handle, &open, state, options).await;
        let whole = match whole {
            Ok(Some(attributes)) => Ok(attributes),
            Ok(None) => self.attributes(handle, options).await,
            Err(error) => Err(error),
        };
        match whole {
            Ok(attributes) => {
                node.attributes = attributes;
                Ok(node)
            }
            Err(error) => {
                // A file without its content is worse than none: a reader would mistake it for the complete file.
                let _ = self
                    .remove(
                        directory,
                        name,
                        node.attributes.fileid,
                        RemoveKind::NonDirectory,
                        options,
                    )
                    .await;
                Err(error)
            }
        }
    }

    /// Confirms an open if the server requires it; returns the stateid to use from then on. After a failure, the server closes
    /// the file when the lease expires, and the anonymous stateid is used for writing.
    async fn confirm_open(&self, file: &FileHandle, open: &Open, options: CallOptions) -> StateId {
        if !open.confirm {
            return open.stateid;
        }
        let mut compound = Compound::new("confirming an open (OPEN_CONFIRM)");
        let message = compound.at(file).op(op::OPEN_CONFIRM);
        stateid(message, open.stateid);
        message.u32(1);
        let confirmed = match self.call(options, &compound).await {
            Ok(mut reply) => reply
                .op(op::PUTFH)
                .and_then(|()| reply.op(op::OPEN_CONFIRM))
                .and_then(|()| reply.take(read_stateid)),
            Err(error) => Err(error),
        };
        confirmed.unwrap_or(StateId::ANONYMOUS)
    }

    /// Writes the rest of the content.
    async fn write_rest_v40(
        &self,
        file: &FileHandle,
        state: StateId,
        mut written_count: usize,
        content: &[u8],
        options: CallOptions,
    ) -> Result<(), NfsError> {
        while let Some(rest) = content.get(written_count..).filter(|rest| !rest.is_empty()) {
            let part = rest.get(..self.max_write()).unwrap_or(rest);
            let mut compound = Compound::new(CREATE);
            write(compound.at(file), state, written_count, part);
            let mut reply = self.call(options, &compound).await?;
            reply.op(op::PUTFH)?;
            written_count += written(&mut reply)?.min(part.len());
        }
        Ok(())
    }

    /// Closes the file and returns a delegation. After a failure, the server does both when the lease expires.
    async fn close_v40(&self, file: &FileHandle, open: &Open, state: StateId, options: CallOptions) {
        if let Some(delegation) = open.delegation {
            let mut compound = Compound::new("returning a delegation (DELEGRETURN)");
            stateid(compound.at(file).op(op::DELEGRETURN), delegation);
            let _ = self.call(options, &compound).await;
        }
        if state == StateId::ANONYMOUS {
            return;
        }
        let mut compound = Compound::new("closing a file");
        let message = compound.at(file).op(op::CLOSE);
        message.u32(if open.confirm { 2 } else { 1 });
        stateid(message, state);
        let _ = self.call(options, &compound).await;
    }
}
