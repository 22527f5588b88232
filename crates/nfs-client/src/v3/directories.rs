//! Making directories, setting attributes, renaming, linking.

use super::attributes;
use super::call::{Call, Effect};
use super::client::Client;
use super::numbers::nfs;
use super::results;
use crate::error::refusal;
use crate::terms::CallOptions;
use crate::{Attributes, FileHandle, FileRef, MkdirResult, Name, NfsError, SetAttributes, Status};

const MAKE: &str = "making a directory";
const RENAME: &str = "renaming";

impl SetAttributes {
    fn owner(self) -> Self {
        Self {
            uid: self.uid,
            gid: self.gid,
            ..Self::default()
        }
    }

    /// The mode, the size and the times.
    fn only_mode(self) -> Self {
        Self {
            uid: None,
            gid: None,
            ..self
        }
    }
}

/// Whether attributes are as they shall be.
fn are(attributes: &Attributes, set: SetAttributes) -> bool {
    set.size.is_none()
        && set.times.is_none()
        && set.mode.is_none_or(|mode| mode & 0o7777 == attributes.mode)
        && set.uid.is_none_or(|uid| Some(uid) == attributes.uid)
        && set.gid.is_none_or(|gid| Some(gid) == attributes.gid)
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
        self.fits(MAKE, name)?;
        let mut call = Call::new(MAKE, nfs::MKDIR, Effect::ChangesOnce).at(directory, name);
        // The mode at once: the directory is never open wider than it shall be.
        attributes::settable(&mut call.arguments, set.only_mode(), false);
        let mut reply = self.call(terms, &call).await?;
        reply.ok()?;
        let told = reply.take(results::made)?;
        let mut made = MkdirResult {
            node: self.made(MAKE, directory, name, told, terms).await?,
            mode_refused: None,
            owner_refused: None,
        };
        // From here on the directory exists: what the server refuses stands beside it.
        made.owner_refused = self.try_to_set(&mut made.node, set.owner(), terms).await?;
        made.mode_refused = self.try_to_set(&mut made.node, set.only_mode(), terms).await?;
        Ok(made)
    }

    /// What was made just now, of which the server may not have told all.
    pub(super) async fn made(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        told: (Option<FileHandle>, Option<Attributes>),
        terms: CallOptions,
    ) -> Result<FileRef, NfsError> {
        match told {
            (Some(handle), Some(attributes)) => Ok(FileRef { handle, attributes }),
            (Some(handle), None) => {
                let attributes = self.attributes(&handle, terms).await?;
                Ok(FileRef { handle, attributes })
            }
            (None, _) => {
                let found = self.look_up(action, directory, name, terms).await?;
                found.ok_or(NfsError::Status {
                    action,
                    status: Status::NotFound,
                })
            }
        }
    }

    /// Sets one part where it differs; answers the refusal, if any, and reads back what is there then.
    async fn try_to_set(
        &self,
        node: &mut FileRef,
        part: SetAttributes,
        terms: CallOptions,
    ) -> Result<Option<Status>, NfsError> {
        if are(&node.attributes, part) {
            return Ok(None);
        }
        match refusal(self.set_part(&node.handle, part, false, terms).await)? {
            Ok(attributes) => {
                node.attributes = attributes;
                Ok(None)
            }
            Err(status) => {
                node.attributes = self.attributes(&node.handle, terms).await?;
                Ok(Some(status))
            }
        }
    }

    /// Sets attributes, owner first, and answers what is there afterwards.
    pub async fn set_attributes(
        &self,
        object: &FileHandle,
        set: SetAttributes,
        terms: CallOptions,
    ) -> Result<Attributes, NfsError> {
        let (owner, mode) = (set.owner(), set.only_mode());
        let nothing = SetAttributes::default();
        if owner == nothing && mode == nothing {
            return self.attributes(object, terms).await;
        }
        if owner == nothing {
            return self.set_part(object, mode, false, terms).await;
        }
        let attributes = self.set_part(object, owner, false, terms).await?;
        if mode == nothing {
            return Ok(attributes);
        }
        self.set_part(object, mode, false, terms).await
    }

    pub(super) async fn set_part(
        &self,
        object: &FileHandle,
        part: SetAttributes,
        touch: bool,
        terms: CallOptions,
    ) -> Result<Attributes, NfsError> {
        let mut call = Call::new("setting attributes", nfs::SETATTR, Effect::ChangesAlike).on(object);
        attributes::settable(&mut call.arguments, part, touch);
        // No guard: whatever its ctime is.
        call.arguments.boolean(false);
        let mut reply = self.call(terms, &call).await?;
        reply.ok()?;
        match reply.weak()? {
            Some(attributes) => Ok(attributes),
            None => self.attributes(object, terms).await,
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
        if self.look_up(RENAME, to.0, to.1, terms).await?.is_some() {
            return Err(NfsError::Status {
                action: RENAME,
                status: Status::Exists,
            });
        }
        self.rename_over(from, fileid, to, terms).await
    }

    /// Renames the object with this fileid, over what has the new name. The fileid is compared just before: the
    /// protocol has no way to do both at once.
    pub(super) async fn rename_over(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        self.fits(RENAME, to.1)?;
        self.expect(RENAME, from.0, from.1, fileid, terms).await?;
        let mut call = Call::new(RENAME, nfs::RENAME, Effect::ChangesOnce).at(from.0, from.1);
        call.arguments.opaque(&to.0.0).opaque(to.1.as_bytes());
        self.call(terms, &call).await?.ok()
    }

    /// The object of that name, if it is the one that is meant.
    pub(super) async fn expect(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        terms: CallOptions,
    ) -> Result<FileRef, NfsError> {
        let refused = |status| NfsError::Status { action, status };
        match self.look_up(action, directory, name, terms).await? {
            None => Err(refused(Status::NotFound)),
            Some(node) if node.attributes.fileid != fileid => Err(refused(Status::NotSame)),
            Some(node) => Ok(node),
        }
    }

    /// Gives the object another name.
    pub async fn link(
        &self,
        object: &FileHandle,
        directory: &FileHandle,
        name: &Name,
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        const LINK: &str = "linking a file";
        self.fits(LINK, name)?;
        let mut call = Call::new(LINK, nfs::LINK, Effect::ChangesOnce).on(object);
        call.arguments.opaque(&directory.0).opaque(name.as_bytes());
        self.call(terms, &call).await?.ok()
    }
}
