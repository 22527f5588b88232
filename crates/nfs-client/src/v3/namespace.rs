//! Operations on the namespace: MKDIR, SETATTR, RENAME, LINK, REMOVE and RMDIR.

use futures::StreamExt as _;
use futures::stream::FuturesOrdered;

use super::attributes;
use super::call::{Call, Effect};
use super::client::Client;
use super::constants::nfs;
use super::results;
use crate::call_options::CallOptions;
use crate::error::split_status;
use crate::{
    Attributes, FileHandle, FileKind, FileRef, MkdirResult, Name, NfsError, RemoveOutcome, SetAttributes, Status,
};

const MAKE: &str = "making a directory";
const RENAME: &str = "renaming";
const REMOVE: &str = "removing";
const REMOVE_BATCH: &str = "removing many names";

/// Removals of many that are in flight at once: half of the slots, so that a purge leaves room for claims.
const AT_ONCE: usize = 64;

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
        options: CallOptions,
    ) -> Result<MkdirResult, NfsError> {
        self.fits(MAKE, name)?;
        let mut call = Call::new(MAKE, nfs::MKDIR, Effect::NonIdempotent).at(directory, name);
        // The mode at once: the directory is never open wider than it shall be.
        attributes::settable(&mut call.arguments, set.only_mode(), false);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        let told = reply.take(results::made)?;
        let mut made = MkdirResult {
            node: self.made(MAKE, directory, name, told, options).await?,
            mode_refused: None,
            owner_refused: None,
        };
        // From here on the directory exists: what the server refuses stands beside it.
        made.owner_refused = self.try_set(&mut made.node, set.owner(), options).await?;
        made.mode_refused = self.try_set(&mut made.node, set.only_mode(), options).await?;
        Ok(made)
    }

    /// What was made just now, of which the server may not have told all.
    pub(super) async fn made(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        told: (Option<FileHandle>, Option<Attributes>),
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        match told {
            (Some(handle), Some(attributes)) => Ok(FileRef { handle, attributes }),
            (Some(handle), None) => {
                let attributes = self.attributes(&handle, options).await?;
                Ok(FileRef { handle, attributes })
            }
            (None, _) => {
                let found = self.lookup_for(action, directory, name, options).await?;
                found.ok_or(NfsError::Status {
                    action,
                    status: Status::NotFound,
                })
            }
        }
    }

    /// Sets one part where it differs; answers the refusal, if any, and reads back what is there then.
    async fn try_set(
        &self,
        node: &mut FileRef,
        part: SetAttributes,
        options: CallOptions,
    ) -> Result<Option<Status>, NfsError> {
        if are(&node.attributes, part) {
            return Ok(None);
        }
        match split_status(self.set_part(&node.handle, part, false, options).await)? {
            Ok(attributes) => {
                node.attributes = attributes;
                Ok(None)
            }
            Err(status) => {
                node.attributes = self.attributes(&node.handle, options).await?;
                Ok(Some(status))
            }
        }
    }

    /// Sets attributes, owner first, and answers what is there afterwards.
    pub async fn set_attributes(
        &self,
        object: &FileHandle,
        set: SetAttributes,
        options: CallOptions,
    ) -> Result<Attributes, NfsError> {
        let (owner, mode) = (set.owner(), set.only_mode());
        let nothing = SetAttributes::default();
        if owner == nothing && mode == nothing {
            return self.attributes(object, options).await;
        }
        if owner == nothing {
            return self.set_part(object, mode, false, options).await;
        }
        let attributes = self.set_part(object, owner, false, options).await?;
        if mode == nothing {
            return Ok(attributes);
        }
        self.set_part(object, mode, false, options).await
    }

    pub(super) async fn set_part(
        &self,
        object: &FileHandle,
        part: SetAttributes,
        touch: bool,
        options: CallOptions,
    ) -> Result<Attributes, NfsError> {
        let mut call = Call::new("setting attributes", nfs::SETATTR, Effect::Idempotent).on(object);
        attributes::settable(&mut call.arguments, part, touch);
        // No guard: whatever its ctime is.
        call.arguments.boolean(false);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        match reply.wcc_data()? {
            Some(attributes) => Ok(attributes),
            None => self.attributes(object, options).await,
        }
    }

    /// Renames the object with this fileid to a name that is free.
    pub async fn rename(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        options: CallOptions,
    ) -> Result<(), NfsError> {
        if self.lookup_for(RENAME, to.0, to.1, options).await?.is_some() {
            return Err(NfsError::Status {
                action: RENAME,
                status: Status::Exists,
            });
        }
        self.rename_over(from, fileid, to, options).await
    }

    /// Renames the object with this fileid, over what has the new name. The fileid is compared just before: the
    /// protocol has no way to do both at once.
    pub(super) async fn rename_over(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        options: CallOptions,
    ) -> Result<(), NfsError> {
        self.fits(RENAME, to.1)?;
        self.expect(RENAME, from.0, from.1, fileid, options).await?;
        let mut call = Call::new(RENAME, nfs::RENAME, Effect::NonIdempotent).at(from.0, from.1);
        call.arguments.opaque(&to.0.0).opaque(to.1.as_bytes());
        self.call(options, &call).await?.ok()
    }

    /// The object of that name, if it is the one that is meant.
    pub(super) async fn expect(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        let refused = |status| NfsError::Status { action, status };
        match self.lookup_for(action, directory, name, options).await? {
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
        options: CallOptions,
    ) -> Result<(), NfsError> {
        const LINK: &str = "linking a file";
        self.fits(LINK, name)?;
        let mut call = Call::new(LINK, nfs::LINK, Effect::NonIdempotent).on(object);
        call.arguments.opaque(&directory.0).opaque(name.as_bytes());
        self.call(options, &call).await?.ok()
    }

    /// Removes the empty directory with this fileid.
    pub async fn remove_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        let found = self.expect(REMOVE, directory, name, fileid, options).await?;
        if found.attributes.kind != FileKind::Directory {
            return Err(NfsError::Status {
                action: REMOVE,
                status: Status::NotDirectory,
            });
        }
        let call = Call::new(REMOVE, nfs::RMDIR, Effect::NonIdempotent).at(directory, name);
        self.call(options, &call).await?.ok()
    }

    /// Removes the object with this fileid, which is no directory.
    pub async fn remove_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        let found = self.expect(REMOVE, directory, name, fileid, options).await?;
        if found.attributes.kind == FileKind::Directory {
            return Err(NfsError::Status {
                action: REMOVE,
                status: Status::IsDirectory,
            });
        }
        let call = Call::new(REMOVE, nfs::REMOVE, Effect::NonIdempotent).at(directory, name);
        self.call(options, &call).await?.ok()
    }

    /// Removes names of a directory, many calls at a time on the one connection.
    pub async fn remove_batch(
        &self,
        directory: &FileHandle,
        names: &[Name],
        options: CallOptions,
    ) -> Result<Vec<RemoveOutcome>, NfsError> {
        let (mut left, mut flying) = (names.iter(), FuturesOrdered::new());
        let mut outcomes = Vec::with_capacity(names.len());
        loop {
            let room = AT_ONCE.saturating_sub(flying.len());
            flying.extend(
                left.by_ref()
                    .take(room)
                    .map(|name| self.remove_any(directory, name, options)),
            );
            match flying.next().await {
                Some(outcome) => outcomes.push(outcome?),
                None => break,
            }
        }
        Ok(outcomes)
    }

    /// Removes what has the name, whatever it is. In a directory that holds nothing but what must go, a removal that
    /// was perhaps done can be sent again.
    async fn remove_any(
        &self,
        directory: &FileHandle,
        name: &Name,
        options: CallOptions,
    ) -> Result<RemoveOutcome, NfsError> {
        let remove = |procedure| Call::new(REMOVE_BATCH, procedure, Effect::Idempotent).at(directory, name);
        let status = match split_status(self.call(options, &remove(nfs::REMOVE)).await?.ok())? {
            Ok(()) => return Ok(RemoveOutcome::Removed),
            Err(status) => status,
        };
        match status {
            Status::NotFound => return Ok(RemoveOutcome::Absent),
            // The directory that the names are in: nothing of it can be removed.
            Status::Stale | Status::NotDirectory => {
                return Err(NfsError::Status {
                    action: REMOVE_BATCH,
                    status,
                });
            }
            // Each of these is what some server says when REMOVE meets a directory.
            Status::IsDirectory | Status::NotPermitted | Status::Access | Status::Invalid => {}
            status => return Ok(RemoveOutcome::Refused(status)),
        }
        match split_status(self.call(options, &remove(nfs::RMDIR)).await?.ok())? {
            Ok(()) => Ok(RemoveOutcome::Removed),
            Err(Status::NotFound) => Ok(RemoveOutcome::Absent),
            // No directory: what REMOVE said is it.
            Err(Status::NotDirectory) => Ok(RemoveOutcome::Refused(status)),
            // EXIST is how some say NOTEMPTY (RFC 1813 section 3.3.13).
            Err(Status::Exists) => Ok(RemoveOutcome::Refused(Status::NotEmpty)),
            Err(refused) => Ok(RemoveOutcome::Refused(refused)),
        }
    }
}
