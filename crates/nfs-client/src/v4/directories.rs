//! Making directories, setting attributes, renaming, linking.

use super::attributes;
use super::call::{Backoff, CallOptions};
use super::client::Client;
use super::compound::{Compound, refusal};
use super::numbers::{kind, op};
use crate::{Attributes, FileHandle, MkdirResult, Name, NfsError, SetAttributes, Status};

const MAKE: &str = "making a directory";
const SET: &str = "setting attributes";
const RENAME: &str = "renaming";

/// The part of `set` that is about the owner, and the part that is about the mode, the size and the times.
fn parts(set: SetAttributes) -> (Option<SetAttributes>, Option<SetAttributes>) {
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
    /// Makes a directory. The owner is set before the mode: a change of owner clears setuid and setgid bits.
    pub async fn make_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        set: SetAttributes,
        terms: CallOptions,
    ) -> Result<MkdirResult, NfsError> {
        let (owner, mode) = parts(set);
        let mut compound = Compound::new(MAKE);
        compound.at(directory);
        let message = compound.change(op::CREATE);
        message.u32(kind::DIRECTORY).opaque(name.as_bytes());
        // Asked for at once too: the directory is never open wider than it shall be.
        attributes::settable(message, mode.unwrap_or_default());
        compound.node();
        for part in [owner, mode].into_iter().flatten() {
            compound.set_attributes(part);
        }
        compound.attributes(attributes::NODE);
        let mut reply = self.call(terms, &compound).await?;
        reply.op(op::PUTFH)?;
        reply.op(op::CREATE)?;
        reply.change_info()?;
        reply.take(|results| attributes::read_bitmap(results).map(drop))?;
        // From here on the directory exists, whatever happens: what the server refuses stands beside it.
        let (node, looked) = match refusal(reply.node())? {
            Ok(node) => (node, true),
            Err(status) => match self.lookup(directory, name, terms).await? {
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
            match refusal(refused.map_or_else(|| reply.node_attributes(), Err))? {
                Ok(attributes) => {
                    made.node.attributes = attributes;
                    return Ok(made);
                }
                Err(_) if owner.or(mode).is_none() => {
                    made.node.attributes = self.attributes(&made.node.handle, terms).await?;
                    return Ok(made);
                }
                Err(_) => {}
            }
        }
        // The compound stopped at a refusal, or was put off there: each part gets a compound of its own. Setting one
        // twice does no harm.
        if let Some(owner) = owner {
            made.owner_refused = self
                .try_to_set(&mut made.node.attributes, &made.node.handle, owner, terms)
                .await?;
        }
        if let Some(mode) = mode {
            made.mode_refused = self
                .try_to_set(&mut made.node.attributes, &made.node.handle, mode, terms)
                .await?;
        }
        Ok(made)
    }

    /// Sets one part; answers the refusal, if any, and reads back what is there then.
    async fn try_to_set(
        &self,
        now: &mut Attributes,
        object: &FileHandle,
        part: SetAttributes,
        terms: CallOptions,
    ) -> Result<Option<Status>, NfsError> {
        let refused = match refusal(self.set_parts(object, &[part], terms).await)? {
            Ok(attributes) => {
                *now = attributes;
                return Ok(None);
            }
            Err(status) => status,
        };
        *now = self.attributes(object, terms).await?;
        Ok(Some(refused))
    }

    /// Sets attributes, owner first, and answers what is there afterwards.
    pub async fn set_attributes(
        &self,
        object: &FileHandle,
        set: SetAttributes,
        terms: CallOptions,
    ) -> Result<Attributes, NfsError> {
        match parts(set) {
            (None, None) => self.attributes(object, terms).await,
            (Some(owner), Some(mode)) => self.set_parts(object, &[owner, mode], terms).await,
            (Some(part), None) | (None, Some(part)) => self.set_parts(object, &[part], terms).await,
        }
    }

    async fn set_parts(
        &self,
        object: &FileHandle,
        parts: &[SetAttributes],
        terms: CallOptions,
    ) -> Result<Attributes, NfsError> {
        let mut compound = Compound::new(SET);
        compound.at(object);
        for part in parts {
            compound.set_attributes(*part);
        }
        compound.attributes(attributes::NODE);
        let mut reply = self.call(terms, &compound).await?;
        reply.op(op::PUTFH)?;
        for _ in parts {
            reply.set_attributes()?;
        }
        match reply.node_attributes() {
            // Set, and only the look at it was put off.
            Err(NfsError::Status {
                status: Status::Delayed,
                ..
            }) => {
                Backoff::new().until(terms.deadline).await;
                self.attributes(object, terms).await
            }
            attributes => attributes,
        }
    }

    /// Renames the object with this fileid to a name that is free.
    pub async fn rename(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        if self.lookup(to.0, to.1, terms).await?.is_some() {
            return Err(NfsError::Status {
                action: RENAME,
                status: Status::Exists,
            });
        }
        self.rename_over(from, fileid, to, terms).await
    }

    /// Renames the object with this fileid, over what has the new name.
    pub(super) async fn rename_over(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        let mut compound = Compound::new(RENAME);
        compound.at(from.0).op(op::SAVEFH);
        compound.lookup(from.1).verify(fileid).at(to.0);
        compound
            .change(op::RENAME)
            .opaque(from.1.as_bytes())
            .opaque(to.1.as_bytes());
        let mut reply = self.call(terms, &compound).await?;
        for before in [op::PUTFH, op::SAVEFH, op::LOOKUP, op::VERIFY, op::PUTFH, op::RENAME] {
            reply.op(before)?;
        }
        // The changes of both directories: nothing in them that we use.
        reply.change_info()?;
        reply.change_info()
    }

    /// Gives the object another name.
    pub async fn link(
        &self,
        object: &FileHandle,
        directory: &FileHandle,
        name: &Name,
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        let mut compound = Compound::new("linking a file");
        compound.at(object).op(op::SAVEFH);
        compound.at(directory).change(op::LINK).opaque(name.as_bytes());
        let mut reply = self.call(terms, &compound).await?;
        for before in [op::PUTFH, op::SAVEFH, op::PUTFH, op::LINK] {
            reply.op(before)?;
        }
        reply.change_info()
    }
}
