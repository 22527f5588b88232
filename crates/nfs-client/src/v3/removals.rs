//! Removing: one object that is checked by its fileid, or many names of a directory in the trash.

use futures::StreamExt as _;
use futures::stream::FuturesOrdered;

use super::call::{Call, Effect};
use super::client::Client;
use super::numbers::nfs;
use crate::error::refusal;
use crate::terms::CallOptions;
use crate::{FileHandle, FileKind, Name, NfsError, RemoveOutcome, Status};

const REMOVE: &str = "removing";
const REMOVE_MANY: &str = "removing many names";

/// Removals of many that are in flight at once: half of the slots, so that a purge leaves room for claims.
const AT_ONCE: usize = 64;

impl Client {
    /// Removes the empty directory with this fileid.
    pub async fn remove_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        let found = self.expect(REMOVE, directory, name, fileid, terms).await?;
        if found.attributes.kind != FileKind::Directory {
            return Err(NfsError::Status {
                action: REMOVE,
                status: Status::NotDirectory,
            });
        }
        let call = Call::new(REMOVE, nfs::RMDIR, Effect::ChangesOnce).at(directory, name);
        self.call(terms, &call).await?.ok()
    }

    /// Removes the object with this fileid, which is no directory.
    pub async fn remove_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        let found = self.expect(REMOVE, directory, name, fileid, terms).await?;
        if found.attributes.kind == FileKind::Directory {
            return Err(NfsError::Status {
                action: REMOVE,
                status: Status::IsDirectory,
            });
        }
        let call = Call::new(REMOVE, nfs::REMOVE, Effect::ChangesOnce).at(directory, name);
        self.call(terms, &call).await?.ok()
    }

    /// Removes names of a directory, many calls at a time on the one connection.
    pub async fn remove_many(
        &self,
        directory: &FileHandle,
        names: &[Name],
        terms: CallOptions,
    ) -> Result<Vec<RemoveOutcome>, NfsError> {
        let (mut left, mut flying) = (names.iter(), FuturesOrdered::new());
        let mut outcomes = Vec::with_capacity(names.len());
        loop {
            let room = AT_ONCE.saturating_sub(flying.len());
            flying.extend(
                left.by_ref()
                    .take(room)
                    .map(|name| self.remove_any(directory, name, terms)),
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
        terms: CallOptions,
    ) -> Result<RemoveOutcome, NfsError> {
        let remove = |procedure| Call::new(REMOVE_MANY, procedure, Effect::ChangesAlike).at(directory, name);
        let status = match refusal(self.call(terms, &remove(nfs::REMOVE)).await?.ok())? {
            Ok(()) => return Ok(RemoveOutcome::Removed),
            Err(status) => status,
        };
        match status {
            Status::NotFound => return Ok(RemoveOutcome::Absent),
            // The directory that the names are in: nothing of it can be removed.
            Status::Stale | Status::NotDirectory => {
                return Err(NfsError::Status {
                    action: REMOVE_MANY,
                    status,
                });
            }
            // Each of these is what some server says when REMOVE meets a directory.
            Status::IsDirectory | Status::NotPermitted | Status::Access | Status::Invalid => {}
            status => return Ok(RemoveOutcome::Refused(status)),
        }
        match refusal(self.call(terms, &remove(nfs::RMDIR)).await?.ok())? {
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
