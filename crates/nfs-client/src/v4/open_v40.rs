//! Creating a file in NFSv4.0 (RFC 7530 sections 9.1 and 16.16): the open needs a client id, an owner with a sequence
//! number, and perhaps a confirmation.
//!
//! Each open has an owner of its own, made up for it: so no two calls have to be kept in order, and no sequence number
//! has to be known after a lost reply. The content goes with the open, by the anonymous stateid, so that a file is
//! whole when it is there. Everything else that we do needs no open.

use super::attributes;
use super::client::Client;
use super::compound::{Compound, Reply, StateId, stateid};
use super::constants::{code, op};
use super::small_files::{CREATE, write, written};
use crate::call_options::{Backoff, CallOptions};
use crate::error::split_status;
use crate::xdr::{Decoder, XdrError};
use crate::{FileHandle, FileRef, Name, NfsError, SetAttributes, Status};

/// share_access: writing (RFC 7530 section 16.16.1).
const ACCESS_WRITE: u32 = 2;

/// rflags: the open counts only once it is confirmed (OPEN4_RESULT_CONFIRM).
const CONFIRM: u32 = 2;

/// How often an open starts again because the server forgot our client id.
const MAX_RESTARTS: u32 = 3;

/// The longest principal in a delegation's permission, in bytes.
const MAX_PRINCIPAL: usize = 1024;

/// Room for what a request holds besides data, in bytes.
const HEADERS: usize = 4 << 10;

/// An open that succeeded.
pub(super) struct Open {
    stateid: StateId,
    /// Whether it is to be confirmed.
    confirm: bool,
    /// A delegation that nobody asked for.
    delegation: Option<StateId>,
}

pub(super) fn read_stateid(results: &mut Decoder) -> Result<StateId, XdrError> {
    Ok(StateId {
        sequence: results.u32("stateid")?,
        other: results.array("stateid")?,
    })
}

/// Reads OPEN's result.
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
                // The space that may be used: in bytes, or in blocks of a size.
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

/// The compound that opens and fills a file that does not exist.
fn opening(client_id: u64, directory: &FileHandle, name: &Name, content: &[u8], mode: u32) -> Compound {
    let mut compound = Compound::new(CREATE);
    // An open that was put off used its sequence number up: the next needs another owner.
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
    /// Creates a file that does not exist, with its content, without a session.
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
            let compound = opening(id, directory, name, first, mode);
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
                    self.forget_client_id(id).await;
                }
                Err(status) => return Err(NfsError::Status { action: CREATE, status }),
            }
        }
    }

    /// How much of a file goes in one WRITE, in bytes.
    fn max_write(&self) -> usize {
        self.max_request().saturating_sub(HEADERS).max(512)
    }

    /// Takes the results of what came with the open, does what is left, and closes.
    async fn finish_create_v40(
        &self,
        (directory, name): (&FileHandle, &Name),
        mut reply: Reply,
        open: Open,
        content: &[u8],
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        // The file is there, whatever is said of it: without its handle, it is looked up.
        let (mut node, looked) = match split_status(reply.file_ref())? {
            Ok(node) => (node, true),
            Err(status) => match self.lookup(directory, name, options).await? {
                Some(node) => (node, false),
                None => return Err(NfsError::Status { action: CREATE, status }),
            },
        };
        let mut whole = Ok(None);
        let mut done = 0;
        if looked && !content.is_empty() {
            match split_status(written(&mut reply)) {
                Ok(Ok(count)) => done = count.min(content.len()),
                // Put off, or not taken without an open: the open's own stateid may do.
                Ok(Err(_)) => {}
                Err(error) => whole = Err(error),
            }
        }
        if looked && done == content.len() && whole.is_ok() {
            whole = reply.file_attributes().map(Some).or(Ok(None));
        }
        let handle = &node.handle;
        let state = self.confirmed(handle, &open, options).await;
        if whole.is_ok() && done < content.len() {
            whole = self
                .write_on(handle, state, done, content, options)
                .await
                .map(|()| None);
        }
        self.let_go(handle, &open, state, options).await;
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
                // A file without its content is worse than none: whoever reads it would take it for the whole.
                let _ = self.remove_file(directory, name, node.attributes.fileid, options).await;
                Err(error)
            }
        }
    }

    /// Confirms an open, if the server wants that; the stateid to use from then on. What goes wrong leaves an open that
    /// the server forgets a lease later, and the anonymous stateid for what is to be written.
    async fn confirmed(&self, file: &FileHandle, open: &Open, options: CallOptions) -> StateId {
        if !open.confirm {
            return open.stateid;
        }
        let mut compound = Compound::new("confirming an open");
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

    /// Writes what is not written yet.
    async fn write_on(
        &self,
        file: &FileHandle,
        state: StateId,
        mut done: usize,
        content: &[u8],
        options: CallOptions,
    ) -> Result<(), NfsError> {
        while let Some(rest) = content.get(done..).filter(|rest| !rest.is_empty()) {
            let part = rest.get(..self.max_write()).unwrap_or(rest);
            let mut compound = Compound::new(CREATE);
            write(compound.at(file), state, done, part);
            let mut reply = self.call(options, &compound).await?;
            reply.op(op::PUTFH)?;
            done += written(&mut reply)?.min(part.len());
        }
        Ok(())
    }

    /// Closes, and gives a delegation back. What goes wrong the server cures a lease later.
    async fn let_go(&self, file: &FileHandle, open: &Open, state: StateId, options: CallOptions) {
        if let Some(delegation) = open.delegation {
            let mut compound = Compound::new("giving a delegation back");
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
