//! Operations on the namespace: CREATE of directories, SETATTR, RENAME, LINK and REMOVE.

use std::collections::VecDeque;

use super::attributes;
use super::client::Client;
use super::compound::{Compound, Reply};
use super::constants::{code, kind, op};
use super::io::details;
use crate::call_options::{Backoff, CallOptions};
use crate::client::RENAME;
use crate::error::split_status;
use crate::types::RemoveKind;
use crate::{
    Attributes, Conditional, FileHandle, FileRef, FullAttributes, Name, NewDirectory, NfsError, RemoveOutcome, Rename,
    SetAttributes, Status, Unchanged,
};

const CREATE: &str = "creating a directory";
const SET: &str = "setting attributes";
const VERIFY: &str = "checking for changes";
const LINK: &str = "creating a hard link";
const REMOVE: &str = "removing";
const REMOVE_BATCH: &str = "removing entries";

/// Number of operations that create a hard link to an entry.
const LINK_OPERATIONS: usize = 7;
/// Room for the headers of a request and one more name, in bytes.
const REQUEST_HEADERS: usize = 1024;

/// Returns the attributes to set in the order in which they are set: the owner, then the rest, unless they are empty.
fn parts(set: SetAttributes) -> impl Iterator<Item = SetAttributes> {
    let parts = [set.owner(), set.without_owner()];
    parts.into_iter().filter(|part| *part != SetAttributes::default())
}

/// Appends the creation of a directory, and everything that is set and read afterwards.
pub(super) fn append_directory(compound: &mut Compound, new: &NewDirectory<'_>) {
    let message = compound.at(new.at.0).modifying_op(op::CREATE);
    message.u32(kind::DIRECTORY).opaque(new.at.1.as_bytes());
    // CREATE sets the mode too: the directory never permits more than requested.
    attributes::settable(message, new.attributes.without_owner());
    compound.file_ref();
    for part in parts(new.attributes) {
        compound.set_attributes(part);
    }
    compound.attributes(attributes::FILE_ATTRIBUTES);
}

/// Decodes the results of PUTFH and CREATE of [`append_directory`].
pub(super) fn directory_created(reply: &mut Reply) -> Result<(), NfsError> {
    reply.op(op::PUTFH)?;
    reply.op(op::CREATE)?;
    reply.change_info()?;
    reply.take(|results| attributes::read_bitmap(results).map(drop))
}

/// Appends the creation of a hard link to the object with this name and fileid: [`LINK_OPERATIONS`] operations.
fn append_link(compound: &mut Compound, from: (&FileHandle, &Name), fileid: u64, to: (&FileHandle, &Name)) {
    compound.at(from.0).lookup(from.1).verify(fileid);
    compound.attributes(attributes::FULL_ATTRIBUTES).op(op::SAVEFH);
    compound.at(to.0).modifying_op(op::LINK).opaque(to.1.as_bytes());
}

/// Decodes the results of [`append_link`]: the object's attributes from before.
fn linked(reply: &mut Reply) -> Result<FullAttributes, NfsError> {
    for operation in [op::PUTFH, op::LOOKUP, op::VERIFY] {
        reply.op(operation)?;
    }
    let object = details(reply)?;
    for operation in [op::SAVEFH, op::PUTFH, op::LINK] {
        reply.op(operation)?;
    }
    reply.change_info()?;
    Ok(object)
}

fn rename_compound(
    rename: &Rename<'_>,
    unchanged: &[Unchanged],
    then_set: Option<(&FileHandle, SetAttributes)>,
) -> Compound {
    let (from, to) = (rename.from, rename.to);
    let mut compound = Compound::new(RENAME);
    compound.verify_unchanged(unchanged).at(from.0).op(op::SAVEFH);
    compound.lookup(from.1).verify(rename.fileid).at(to.0);
    compound
        .modifying_op(op::RENAME)
        .opaque(from.1.as_bytes())
        .opaque(to.1.as_bytes());
    if let Some((object, set)) = then_set {
        compound.at(object);
        for part in parts(set) {
            compound.set_attributes(part);
        }
        compound.attributes(attributes::FILE_ATTRIBUTES);
    }
    compound
}

/// Decodes the results of a rename up to RENAME.
fn renamed(reply: &mut Reply) -> Result<(), NfsError> {
    for operation in [op::PUTFH, op::SAVEFH, op::LOOKUP, op::VERIFY, op::PUTFH, op::RENAME] {
        reply.op(operation)?;
    }
    // The change_info of both directories.
    reply.change_info()?;
    reply.change_info()
}

/// Decodes what follows a rename: the attributes that were set.
fn then_set(reply: &mut Reply, set: SetAttributes) -> Result<Attributes, NfsError> {
    reply.op(op::PUTFH)?;
    for _ in parts(set) {
        reply.set_attributes()?;
    }
    reply.file_attributes()
}

impl Client {
    /// Creates a directory and sets its attributes, in one compound. The owner is set before the mode: a change of owner
    /// clears setuid and setgid bits. Returns whether the compound set everything; if not, it stopped after CREATE.
    pub async fn create_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        set: SetAttributes,
        options: CallOptions,
    ) -> Result<(FileRef, bool), NfsError> {
        let new = NewDirectory {
            at: (directory, name),
            attributes: set,
        };
        let mut compound = Compound::new(CREATE);
        append_directory(&mut compound, &new);
        let mut reply = self.call(options, &compound).await?;
        directory_created(&mut reply)?;
        self.created_directory(&mut reply, &new, options).await
    }

    /// Decodes what follows the CREATE of [`append_directory`]: the directory exists now, whatever the status. Returns
    /// whether everything was set.
    pub(super) async fn created_directory(
        &self,
        reply: &mut Reply,
        new: &NewDirectory<'_>,
        options: CallOptions,
    ) -> Result<(FileRef, bool), NfsError> {
        let mut node = match split_status(reply.file_ref())? {
            Ok(node) => node,
            Err(status) => {
                let found = self.lookup(CREATE, new.at.0, new.at.1, options).await?;
                let node = found.ok_or(NfsError::Status { action: CREATE, status })?;
                return Ok((node, false));
            }
        };
        let refused = parts(new.attributes).find_map(|_| reply.set_attributes().err());
        match split_status(refused.map_or_else(|| reply.file_attributes(), Err))? {
            Ok(attributes) => {
                node.attributes = attributes;
                Ok((node, true))
            }
            // A refusal, or a delay. Some attributes may be set already.
            Err(_) => {
                node.attributes = self.attributes(&node.handle, options).await?;
                Ok((node, false))
            }
        }
    }

    /// Sets attributes, owner first; returns the attributes after the change.
    pub async fn set_attributes(
        &self,
        object: &FileHandle,
        set: SetAttributes,
        options: CallOptions,
    ) -> Result<Attributes, NfsError> {
        if set == SetAttributes::default() {
            return self.attributes(object, options).await;
        }
        let mut compound = Compound::new(SET);
        compound.at(object);
        for part in parts(set) {
            compound.set_attributes(part);
        }
        compound.attributes(attributes::FILE_ATTRIBUTES);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        for _ in parts(set) {
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

    /// Reports whether no directory was changed, in one compound. `false` also if one cannot be checked.
    pub async fn are_unchanged(&self, unchanged: &[Unchanged], options: CallOptions) -> Result<bool, NfsError> {
        let mut compound = Compound::new(VERIFY);
        compound.verify_unchanged(unchanged);
        if unchanged.is_empty() {
            return Ok(true);
        }
        let mut reply = self.call(options, &compound).await?;
        Ok(split_status(reply.verify_unchanged(unchanged))?.is_ok())
    }

    /// Renames an object and replaces an object with the new name, in one compound with its conditions and with what is
    /// set afterwards. Returns the attributes, if all were set.
    pub async fn rename_over(
        &self,
        rename: &Rename<'_>,
        options: CallOptions,
    ) -> Result<Conditional<Option<Attributes>>, NfsError> {
        let (mut unchanged, mut set) = (rename.unchanged, rename.then_set);
        let mut compound = rename_compound(rename, unchanged, set);
        if compound.count() > self.max_operations() {
            if !self.are_unchanged(unchanged, options).await? {
                return Ok(Conditional::Changed);
            }
            (unchanged, set) = (&[], None);
            compound = rename_compound(rename, unchanged, set);
        }
        let mut reply = self.call(options, &compound).await?;
        if split_status(reply.verify_unchanged(unchanged))?.is_err() {
            return Ok(Conditional::Changed);
        }
        renamed(&mut reply)?;
        let Some((_, set)) = set else {
            return Ok(Conditional::Done(None));
        };
        // The object is renamed, whatever the status.
        let attributes = split_status(then_set(&mut reply, set))?;
        Ok(Conditional::Done(attributes.ok()))
    }

    /// Creates a hard link.
    pub async fn link(
        &self,
        object: &FileHandle,
        directory: &FileHandle,
        name: &Name,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        let mut compound = Compound::new(LINK);
        compound.at(object).op(op::SAVEFH);
        compound.at(directory).modifying_op(op::LINK).opaque(name.as_bytes());
        let mut reply = self.call(options, &compound).await?;
        for operation in [op::PUTFH, op::SAVEFH, op::PUTFH, op::LINK] {
            reply.op(operation)?;
        }
        reply.change_info()
    }

    /// Creates a hard link to the object with this name and fileid; returns the object's attributes from before.
    pub async fn link_entry(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        options: CallOptions,
    ) -> Result<FullAttributes, NfsError> {
        let mut compound = Compound::new(LINK);
        append_link(&mut compound, from, fileid, to);
        linked(&mut self.call(options, &compound).await?)
    }

    /// Executes a compound of many changes, which may be executed twice: its reply exceeds the reply cache. Returns `None` if
    /// the server refused it as too large; the next one must have fewer operations.
    async fn call_batch(&self, options: CallOptions, compound: &mut Compound) -> Result<Option<Reply>, NfsError> {
        compound.cache_reply = false;
        compound.retry_on_delay = false;
        let reply = self.call(options, compound).await?;
        if reply.is_rejected_as_too_large() {
            self.reduce_max_operations(compound)?;
            return Ok(None);
        }
        Ok(Some(reply))
    }

    /// Creates hard links to entries of a directory with these fileids, under the same names in another directory, as many in a
    /// compound as the server allows. A compound stops at the first failure; the entries after it are sent again.
    pub async fn link_entries(
        &self,
        from: &FileHandle,
        to: &FileHandle,
        entries: &[(Name, u64)],
        options: CallOptions,
    ) -> Result<Vec<Result<FullAttributes, Status>>, NfsError> {
        let mut outcomes = Vec::with_capacity(entries.len());
        while let Some(remaining) = entries.get(outcomes.len()..).filter(|remaining| !remaining.is_empty()) {
            let mut compound = Compound::new(LINK);
            let longest = self.max_request().saturating_sub(REQUEST_HEADERS);
            let room = (self.max_operations() / LINK_OPERATIONS).max(1);
            for (name, fileid) in remaining.iter().take(room) {
                if compound.count() > 0 && compound.len() > longest {
                    break;
                }
                append_link(&mut compound, (from, name), *fileid, (to, name));
            }
            // A link that is created twice is refused as `Exists`.
            let Some(mut reply) = self.call_batch(options, &mut compound).await? else {
                continue;
            };
            for _ in 0..compound.count() / LINK_OPERATIONS {
                let outcome = split_status(linked(&mut reply))?;
                let stopped = outcome.is_err();
                // Some servers detect only in the middle of a compound that it is too long.
                if stopped && reply.is_too_large() && self.reduce_max_operations(&compound).is_ok() {
                    break;
                }
                outcomes.push(outcome);
                if stopped {
                    break;
                }
            }
        }
        Ok(outcomes)
    }

    /// Removes the object with this fileid, which must be of this kind.
    pub async fn remove(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        kind: RemoveKind,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        // REMOVE removes files and directories in NFSv4: VERIFY and NVERIFY check the type.
        let (check, mismatch) = match kind {
            RemoveKind::Directory => (op::VERIFY, Status::NotDirectory),
            RemoveKind::NonDirectory => (op::NVERIFY, Status::IsDirectory),
        };
        let mut compound = Compound::new(REMOVE);
        compound.at(directory).lookup(name).verify(fileid);
        attributes::directory(compound.op(check));
        compound.at(directory).modifying_op(op::REMOVE).opaque(name.as_bytes());
        let mut reply = self.call(options, &compound).await?;
        for operation in [op::PUTFH, op::LOOKUP, op::VERIFY] {
            reply.op(operation)?;
        }
        match split_status(reply.op(check))? {
            Ok(()) => {}
            Err(Status::NotSame | Status::Other(code::SAME)) => {
                return Err(NfsError::Status {
                    action: REMOVE,
                    status: mismatch,
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
        let mut remaining: VecDeque<(usize, &Name)> = names.iter().enumerate().collect();
        // Names delayed since the last one that was not: once that is all of them, pause.
        let mut delayed_in_a_row = 0;
        let mut pause = Backoff::new();
        while !remaining.is_empty() {
            if delayed_in_a_row >= remaining.len() {
                if !pause.pause_before(options.deadline).await {
                    break;
                }
                delayed_in_a_row = 0;
            }
            let room = self.max_operations().saturating_sub(1).max(1);
            let mut compound = Compound::new(REMOVE_BATCH);
            compound.at(directory);
            let longest = self.max_request().saturating_sub(REQUEST_HEADERS);
            for (_, name) in remaining.iter().take(room) {
                if compound.count() > 1 && compound.len() > longest {
                    break;
                }
                compound.modifying_op(op::REMOVE).opaque(name.as_bytes());
            }
            // A name that is removed twice is absent.
            let Some(mut reply) = self.call_batch(options, &mut compound).await? else {
                continue;
            };
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
                let Some((index, name)) = remaining.pop_front() else {
                    break;
                };
                let outcome = match refused {
                    Ok(()) => {
                        reply.change_info()?;
                        RemoveOutcome::Removed
                    }
                    Err(Status::NotFound) => RemoveOutcome::Absent,
                    // Possibly the server recalls a delegation from a dead client, which takes a lease time. The other names need
                    // not wait.
                    Err(Status::Delayed) => {
                        remaining.push_back((index, name));
                        delayed_in_a_row += 1;
                        break;
                    }
                    // Some servers detect only in the middle of a compound that it is too long.
                    Err(_) if reply.is_too_large() && self.reduce_max_operations(&compound).is_ok() => {
                        remaining.push_front((index, name));
                        break;
                    }
                    Err(status) => RemoveOutcome::Refused(status),
                };
                let stopped = refused.is_err();
                delayed_in_a_row = 0;
                if let Some(slot) = outcomes.get_mut(index) {
                    *slot = Some(outcome);
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
