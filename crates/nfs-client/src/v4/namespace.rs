//! Operations on the namespace: CREATE of directories, SETATTR, RENAME, LINK and REMOVE.

use std::collections::VecDeque;

use super::attributes;
use super::client::Client;
use super::compound::Compound;
use super::constants::{code, kind, op};
use crate::call_options::{Backoff, CallOptions};
use crate::error::split_status;
use crate::{Attributes, FileHandle, MkdirResult, Name, NfsError, RemoveOutcome, SetAttributes, Status};

const MAKE: &str = "making a directory";
const SET: &str = "setting attributes";
const RENAME: &str = "renaming";
const REMOVE: &str = "removing";
const REMOVE_BATCH: &str = "removing many names";

/// Room for the headers of a request and one more name, in bytes.
const REQUEST_HEADERS: usize = 1024;

/// Splits `set` into owner and group, and mode, size and times.
fn split_attributes(set: SetAttributes) -> (Option<SetAttributes>, Option<SetAttributes>) {
    let owner = SetAttributes {
        uid: set.uid,
        gid: set.gid,
        ..SetAttributes::default()
    };
    let mode = SetAttributes {
        uid: None,
        gid: None,
        ..set
    };
    let some = |part| (part != SetAttributes::default()).then_some(part);
    (some(owner), some(mode))
}

impl Client {
    /// Creates a directory. The owner is set before the mode: a change of owner clears setuid and setgid bits.
    pub async fn make_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        set: SetAttributes,
        options: CallOptions,
    ) -> Result<MkdirResult, NfsError> {
        let (owner, mode) = split_attributes(set);
        let mut compound = Compound::new(MAKE);
        compound.at(directory);
        let message = compound.modifying_op(op::CREATE);
        message.u32(kind::DIRECTORY).opaque(name.as_bytes());
        // CREATE sets the mode too: the directory never permits more than requested.
        attributes::settable(message, mode.unwrap_or_default());
        compound.file_ref();
        for part in [owner, mode].into_iter().flatten() {
            compound.set_attributes(part);
        }
        compound.attributes(attributes::FILE_ATTRIBUTES);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        reply.op(op::CREATE)?;
        reply.change_info()?;
        reply.take(|results| attributes::read_bitmap(results).map(drop))?;
        // The directory exists now: a refusal is returned with it.
        let (node, looked) = match split_status(reply.file_ref())? {
            Ok(node) => (node, true),
            Err(status) => match self.lookup(directory, name, options).await? {
                Some(node) => (node, false),
                None => return Err(NfsError::Status { action: MAKE, status }),
            },
        };
        let mut made = MkdirResult {
            node,
            mode_refused: None,
            owner_refused: None,
        };
        if looked {
            let mut left = [owner, mode].into_iter().flatten();
            let refused = left.find_map(|_| reply.set_attributes().err());
            match split_status(refused.map_or_else(|| reply.file_attributes(), Err))? {
                Ok(attributes) => {
                    made.node.attributes = attributes;
                    return Ok(made);
                }
                Err(_) if owner.or(mode).is_none() => {
                    made.node.attributes = self.attributes(&made.node.handle, options).await?;
                    return Ok(made);
                }
                Err(_) => {}
            }
        }
        // The compound stopped at a refusal or a delay: each part gets a compound of its own. Setting one twice is
        // harmless.
        if let Some(owner) = owner {
            made.owner_refused = self
                .try_set(&mut made.node.attributes, &made.node.handle, owner, options)
                .await?;
        }
        if let Some(mode) = mode {
            made.mode_refused = self
                .try_set(&mut made.node.attributes, &made.node.handle, mode, options)
                .await?;
        }
        Ok(made)
    }

    /// Sets some attributes and reads them back; returns the status if the server refuses.
    async fn try_set(
        &self,
        now: &mut Attributes,
        object: &FileHandle,
        part: SetAttributes,
        options: CallOptions,
    ) -> Result<Option<Status>, NfsError> {
        let refused = match split_status(self.set_parts(object, &[part], options).await)? {
            Ok(attributes) => {
                *now = attributes;
                return Ok(None);
            }
            Err(status) => status,
        };
        *now = self.attributes(object, options).await?;
        Ok(Some(refused))
    }

    /// Sets attributes, owner first; returns the attributes after the change.
    pub async fn set_attributes(
        &self,
        object: &FileHandle,
        set: SetAttributes,
        options: CallOptions,
    ) -> Result<Attributes, NfsError> {
        match split_attributes(set) {
            (None, None) => self.attributes(object, options).await,
            (Some(owner), Some(mode)) => self.set_parts(object, &[owner, mode], options).await,
            (Some(part), None) | (None, Some(part)) => self.set_parts(object, &[part], options).await,
        }
    }

    async fn set_parts(
        &self,
        object: &FileHandle,
        parts: &[SetAttributes],
        options: CallOptions,
    ) -> Result<Attributes, NfsError> {
        let mut compound = Compound::new(SET);
        compound.at(object);
        for part in parts {
            compound.set_attributes(*part);
        }
        compound.attributes(attributes::FILE_ATTRIBUTES);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        for _ in parts {
            reply.set_attributes()?;
        }
        match reply.file_attributes() {
            // The attributes are set; only GETATTR was delayed.
            Err(NfsError::Status {
                status: Status::Delayed,
                ..
            }) => {
                Backoff::new().pause_before(options.deadline).await;
                self.attributes(object, options).await
            }
            attributes => attributes,
        }
    }

    /// Renames the object with this fileid, unless the new name exists.
    pub async fn rename(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        options: CallOptions,
    ) -> Result<(), NfsError> {
        if self.lookup(to.0, to.1, options).await?.is_some() {
            return Err(NfsError::Status {
                action: RENAME,
                status: Status::Exists,
            });
        }
        self.rename_over(from, fileid, to, options).await
    }

    /// Renames the object with this fileid and replaces an object with the new name.
    pub(super) async fn rename_over(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        options: CallOptions,
    ) -> Result<(), NfsError> {
        let mut compound = Compound::new(RENAME);
        compound.at(from.0).op(op::SAVEFH);
        compound.lookup(from.1).verify(fileid).at(to.0);
        compound
            .modifying_op(op::RENAME)
            .opaque(from.1.as_bytes())
            .opaque(to.1.as_bytes());
        let mut reply = self.call(options, &compound).await?;
        for before in [op::PUTFH, op::SAVEFH, op::LOOKUP, op::VERIFY, op::PUTFH, op::RENAME] {
            reply.op(before)?;
        }
        // The change_info of both directories.
        reply.change_info()?;
        reply.change_info()
    }

    /// Creates a hard link.
    pub async fn link(
        &self,
        object: &FileHandle,
        directory: &FileHandle,
        name: &Name,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        let mut compound = Compound::new("linking a file");
        compound.at(object).op(op::SAVEFH);
        compound.at(directory).modifying_op(op::LINK).opaque(name.as_bytes());
        let mut reply = self.call(options, &compound).await?;
        for before in [op::PUTFH, op::SAVEFH, op::PUTFH, op::LINK] {
            reply.op(before)?;
        }
        reply.change_info()
    }

    /// Removes the empty directory with this fileid.
    pub async fn remove_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        self.remove(directory, name, fileid, true, options).await
    }

    /// Removes the object with this fileid, which must not be a directory.
    pub async fn remove_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        self.remove(directory, name, fileid, false, options).await
    }

    async fn remove(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        is_directory: bool,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        // REMOVE removes files and directories in NFSv4: VERIFY and NVERIFY check the type.
        let (check, other) = if is_directory {
            (op::VERIFY, Status::NotDirectory)
        } else {
            (op::NVERIFY, Status::IsDirectory)
        };
        let mut compound = Compound::new(REMOVE);
        compound.at(directory).lookup(name).verify(fileid);
        attributes::directory(compound.op(check));
        compound.at(directory).modifying_op(op::REMOVE).opaque(name.as_bytes());
        let mut reply = self.call(options, &compound).await?;
        for before in [op::PUTFH, op::LOOKUP, op::VERIFY] {
            reply.op(before)?;
        }
        match split_status(reply.op(check))? {
            Ok(()) => {}
            Err(Status::NotSame | Status::Other(code::SAME)) => {
                return Err(NfsError::Status {
                    action: REMOVE,
                    status: other,
                });
            }
            Err(status) => return Err(NfsError::Status { action: REMOVE, status }),
        }
        reply.op(op::PUTFH)?;
        reply.op(op::REMOVE)?;
        reply.change_info()
    }

    /// Removes names from a directory, as many in a compound as the server allows. A compound stops at the first failure;
    /// the names after it are sent again.
    pub async fn remove_batch(
        &self,
        directory: &FileHandle,
        names: &[Name],
        options: CallOptions,
    ) -> Result<Vec<RemoveOutcome>, NfsError> {
        let mut outcomes: Vec<Option<RemoveOutcome>> = vec![None; names.len()];
        let mut left: VecDeque<(usize, &Name)> = names.iter().enumerate().collect();
        // Names delayed since the last one was done: once that is all of them, pause.
        let mut put_off = 0;
        let mut pause = Backoff::new();
        while !left.is_empty() {
            if put_off >= left.len() {
                if !pause.pause_before(options.deadline).await {
                    break;
                }
                put_off = 0;
            }
            let room = self.max_operations().saturating_sub(1).max(1);
            let mut compound = Compound::new(REMOVE_BATCH);
            compound.at(directory);
            let longest = self.max_request().saturating_sub(REQUEST_HEADERS);
            for (_, name) in left.iter().take(room) {
                if compound.count() > 1 && compound.len() > longest {
                    break;
                }
                compound.modifying_op(op::REMOVE).opaque(name.as_bytes());
            }
            // The reply to a large compound exceeds the reply cache; a name that is removed twice is absent.
            compound.cache_reply = false;
            compound.retry_on_delay = false;
            let mut reply = self.call(options, &compound).await?;
            if reply.is_rejected_as_too_large() {
                self.reduce_max_operations(&compound)?;
                continue;
            }
            match split_status(reply.op(op::PUTFH))? {
                Ok(()) => {}
                Err(Status::Delayed) if pause.pause_before(options.deadline).await => continue,
                Err(status) => {
                    return Err(NfsError::Status {
                        action: REMOVE_BATCH,
                        status,
                    });
                }
            }
            for _ in 1..compound.count() {
                let refused = split_status(reply.op(op::REMOVE))?;
                let Some((index, name)) = left.pop_front() else { break };
                let outcome = match refused {
                    Ok(()) => {
                        reply.change_info()?;
                        RemoveOutcome::Removed
                    }
                    Err(Status::NotFound) => RemoveOutcome::Absent,
                    // Possibly the delegation of a client that is gone, which takes a lease time. The other names need not wait.
                    Err(Status::Delayed) => {
                        left.push_back((index, name));
                        put_off += 1;
                        break;
                    }
                    // Some servers detect in the middle of a compound that it is too long.
                    Err(_) if reply.is_too_large() && self.reduce_max_operations(&compound).is_ok() => {
                        left.push_front((index, name));
                        break;
                    }
                    Err(status) => RemoveOutcome::Refused(status),
                };
                let stopped = refused.is_err();
                put_off = 0;
                if let Some(place) = outcomes.get_mut(index) {
                    *place = Some(outcome);
                }
                if stopped {
                    break;
                }
            }
        }
        let delayed = RemoveOutcome::Refused(Status::Delayed);
        Ok(outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|| delayed.clone()))
            .collect())
    }
}
