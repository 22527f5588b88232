//! Operations on the namespace: MKDIR, SETATTR, RENAME, LINK, REMOVE and RMDIR.

use futures::StreamExt as _;
use futures::stream::FuturesOrdered;

use super::attributes;
use super::call::{Call, Effect};
use super::client::Client;
use super::constants::nfs;
use super::results;
use crate::call_options::CallOptions;
use crate::client::RENAME;
use crate::error::split_status;
use crate::types::RemoveKind;
use crate::{
    Attributes, Conditional, FileHandle, FileKind, FileRef, FullAttributes, Name, NfsError, RemoveOutcome, Rename,
    SetAttributes, Status, Unchanged,
};

const CREATE: &str = "creating a directory";
const REMOVE: &str = "removing";
const REMOVE_BATCH: &str = "removing entries";

/// Removals in flight at a time: half of the slots, so that a batch leaves room for other calls.
const MAX_IN_FLIGHT: usize = 64;

impl Client {
    /// Creates a directory with the requested mode. Returns false with it: the caller sets the owner, and the mode again if it
    /// did not take effect.
    pub async fn create_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        set: SetAttributes,
        options: CallOptions,
    ) -> Result<(FileRef, bool), NfsError> {
        self.check_name_length(CREATE, name)?;
        let mut call = Call::new(CREATE, nfs::MKDIR, Effect::NonIdempotent).at(directory, name);
        // MKDIR sets the mode too: the directory never permits more than requested.
        attributes::settable(&mut call.arguments, set.without_owner(), false);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        let reported = reply.take(results::created)?;
        let node = self.created_object(CREATE, directory, name, reported, options).await?;
        Ok((node, false))
    }

    /// Returns the object that was just created; reads what the server did not report.
    pub(super) async fn created_object(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        reported: (Option<FileHandle>, Option<Attributes>),
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        match reported {
            (Some(handle), Some(attributes)) => Ok(FileRef { handle, attributes }),
            (Some(handle), None) => {
                let attributes = self.attributes(&handle, options).await?;
                Ok(FileRef { handle, attributes })
            }
            (None, _) => {
                let found = self.lookup(action, directory, name, options).await?;
                found.ok_or(NfsError::Status {
                    action,
                    status: Status::NotFound,
                })
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
        let (owner, mode) = (set.owner(), set.without_owner());
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
        // sattrguard3: none.
        call.arguments.boolean(false);
        let mut reply = self.call(options, &call).await?;
        reply.ok()?;
        match reply.wcc_data()? {
            Some(attributes) => Ok(attributes),
            None => self.attributes(object, options).await,
        }
    }

    /// Reports whether no directory was changed, in a call for each. `false` also if one cannot be checked.
    pub async fn are_unchanged(&self, unchanged: &[Unchanged], options: CallOptions) -> Result<bool, NfsError> {
        for Unchanged { directory, change } in unchanged {
            let found = split_status(self.full_attributes(directory, options).await)?;
            if !found.is_ok_and(|found| found.change == *change) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Renames an object and replaces an object with the new name. Conditions and fileid are compared just before, in calls
    /// of their own: the protocol has no conditional rename. Sets no attributes.
    pub async fn rename_over(
        &self,
        rename: &Rename<'_>,
        options: CallOptions,
    ) -> Result<Conditional<Option<Attributes>>, NfsError> {
        let (from, to) = (rename.from, rename.to);
        self.check_name_length(RENAME, to.1)?;
        if !self.are_unchanged(rename.unchanged, options).await? {
            return Ok(Conditional::Changed);
        }
        self.lookup_expected(RENAME, from.0, from.1, rename.fileid, options)
            .await?;
        let mut call = Call::new(RENAME, nfs::RENAME, Effect::NonIdempotent).at(from.0, from.1);
        call.arguments.opaque(&to.0.0).opaque(to.1.as_bytes());
        self.call(options, &call).await?.ok()?;
        Ok(Conditional::Done(None))
    }

    /// Looks up a name; fails unless it belongs to the object with this fileid.
    pub(super) async fn lookup_expected(
        &self,
        action: &'static str,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        let refused = |status| NfsError::Status { action, status };
        match self.lookup(action, directory, name, options).await? {
            None => Err(refused(Status::NotFound)),
            Some(node) if node.attributes.fileid != fileid => Err(refused(Status::NotSame)),
            Some(node) => Ok(node),
        }
    }

    /// Creates a hard link.
    pub async fn link(
        &self,
        object: &FileHandle,
        directory: &FileHandle,
        name: &Name,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        const LINK: &str = "creating a hard link";
        self.check_name_length(LINK, name)?;
        let mut call = Call::new(LINK, nfs::LINK, Effect::NonIdempotent).on(object);
        call.arguments.opaque(&directory.0).opaque(name.as_bytes());
        self.call(options, &call).await?.ok()
    }

    /// Creates a hard link to the object with this name and fileid, which is compared just before; returns the object's
    /// attributes from before.
    pub async fn link_entry(
        &self,
        from: (&FileHandle, &Name),
        fileid: u64,
        to: (&FileHandle, &Name),
        options: CallOptions,
    ) -> Result<FullAttributes, NfsError> {
        let action = "creating a hard link";
        let object = self.lookup_expected(action, from.0, from.1, fileid, options).await?;
        let details = self.full_attributes(&object.handle, options).await?;
        self.link(&object.handle, to.0, to.1, options).await?;
        Ok(details)
    }

    /// Creates hard links to entries of a directory with these fileids, under the same names in another directory, several
    /// at a time.
    pub async fn link_entries(
        &self,
        from: &FileHandle,
        to: &FileHandle,
        entries: &[(Name, u64)],
        options: CallOptions,
    ) -> Result<Vec<Result<FullAttributes, Status>>, NfsError> {
        let (mut remaining, mut in_flight) = (entries.iter(), FuturesOrdered::new());
        let mut outcomes = Vec::with_capacity(entries.len());
        loop {
            while in_flight.len() < crate::Client::MAX_LINKS_IN_FLIGHT
                && let Some((name, fileid)) = remaining.next()
            {
                in_flight.push_back(self.link_entry((from, name), *fileid, (to, name), options));
            }
            match in_flight.next().await {
                Some(linked) => outcomes.push(split_status(linked)?),
                None => break,
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
        let found = self.lookup_expected(REMOVE, directory, name, fileid, options).await?;
        let is_directory = found.attributes.kind == FileKind::Directory;
        let refused = |status| Err(NfsError::Status { action: REMOVE, status });
        let procedure = match kind {
            RemoveKind::Directory if is_directory => nfs::RMDIR,
            RemoveKind::Directory => return refused(Status::NotDirectory),
            RemoveKind::NonDirectory if is_directory => return refused(Status::IsDirectory),
            RemoveKind::NonDirectory => nfs::REMOVE,
        };
        let call = Call::new(REMOVE, procedure, Effect::NonIdempotent).at(directory, name);
        self.call(options, &call).await?.ok()
    }

    /// Removes names from a directory, with many calls in flight.
    pub async fn remove_batch(
        &self,
        directory: &FileHandle,
        names: &[Name],
        options: CallOptions,
    ) -> Result<Vec<RemoveOutcome>, NfsError> {
        let (mut remaining, mut in_flight) = (names.iter(), FuturesOrdered::new());
        let mut outcomes = Vec::with_capacity(names.len());
        loop {
            let room = MAX_IN_FLIGHT.saturating_sub(in_flight.len());
            in_flight.extend(
                remaining
                    .by_ref()
                    .take(room)
                    .map(|name| self.remove_any(directory, name, options)),
            );
            match in_flight.next().await {
                Some(outcome) => outcomes.push(outcome?),
                None => break,
            }
        }
        Ok(outcomes)
    }

    /// Removes a name of any kind. Everything in the directory is to be deleted, so a removal that may have been executed
    /// can be sent again.
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
            // The status of the directory itself: none of its names can be removed.
            Status::Stale | Status::NotDirectory => {
                return Err(NfsError::Status {
                    action: REMOVE_BATCH,
                    status,
                });
            }
            // REMOVE of a directory: the status differs between servers.
            Status::IsDirectory | Status::NotPermitted | Status::Access | Status::Invalid => {}
            status => return Ok(RemoveOutcome::Refused(status)),
        }
        match split_status(self.call(options, &remove(nfs::RMDIR)).await?.ok())? {
            Ok(()) => Ok(RemoveOutcome::Removed),
            Err(Status::NotFound) => Ok(RemoveOutcome::Absent),
            // No directory: the status of REMOVE counts.
            Err(Status::NotDirectory) => Ok(RemoveOutcome::Refused(status)),
            // Some servers answer EXIST instead of NOTEMPTY (RFC 1813 section 3.3.13).
            Err(Status::Exists) => Ok(RemoveOutcome::Refused(Status::NotEmpty)),
            Err(refused) => Ok(RemoveOutcome::Refused(refused)),
        }
    }
}
