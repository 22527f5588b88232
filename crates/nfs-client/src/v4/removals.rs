//! Removing: one object that is checked by its fileid, or many names of a directory in the trash.

use std::collections::VecDeque;

use super::attributes;
use super::call::{Backoff, CallOptions};
use super::client::Client;
use super::compound::{Compound, refusal};
use super::numbers::{code, op};
use crate::{FileHandle, Name, NfsError, RemoveOutcome, Status};

const REMOVE: &str = "removing";
const REMOVE_MANY: &str = "removing many names";

/// Room for a request's headers and one more name, in bytes.
const REQUEST_HEADERS: usize = 1024;

impl Client {
    /// Removes the empty directory with this fileid.
    pub async fn remove_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        self.remove(directory, name, fileid, true, terms).await
    }

    /// Removes the object with this fileid, which is no directory.
    pub async fn remove_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        self.remove(directory, name, fileid, false, terms).await
    }

    async fn remove(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        is_directory: bool,
        terms: CallOptions,
    ) -> Result<(), NfsError> {
        // REMOVE takes both kinds in NFSv4: VERIFY and NVERIFY of the type tell them apart.
        let (check, other) = if is_directory {
            (op::VERIFY, Status::NotDirectory)
        } else {
            (op::NVERIFY, Status::IsDirectory)
        };
        let mut compound = Compound::new(REMOVE);
        compound.at(directory).lookup(name).verify(fileid);
        attributes::directory(compound.op(check));
        compound.at(directory).change(op::REMOVE).opaque(name.as_bytes());
        let mut reply = self.call(terms, &compound).await?;
        for before in [op::PUTFH, op::LOOKUP, op::VERIFY] {
            reply.op(before)?;
        }
        match refusal(reply.op(check))? {
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

    /// Removes names of a directory, as many in a compound as the server takes. A compound stops at the first that
    /// fails; what comes after it is sent again.
    pub async fn remove_many(
        &self,
        directory: &FileHandle,
        names: &[Name],
        terms: CallOptions,
    ) -> Result<Vec<RemoveOutcome>, NfsError> {
        let mut outcomes: Vec<Option<RemoveOutcome>> = vec![None; names.len()];
        let mut left: VecDeque<(usize, &Name)> = names.iter().enumerate().collect();
        // Names that the server put off since any other was settled: once that is all of them, we pause.
        let mut put_off = 0;
        let mut pause = Backoff::new();
        while !left.is_empty() {
            if put_off >= left.len() {
                if !pause.until(terms.deadline).await {
                    break;
                }
                put_off = 0;
            }
            let room = self.most_operations().saturating_sub(1).max(1);
            let mut compound = Compound::new(REMOVE_MANY);
            compound.at(directory);
            let longest = self.longest_request().saturating_sub(REQUEST_HEADERS);
            for (_, name) in left.iter().take(room) {
                if compound.count() > 1 && compound.len() > longest {
                    break;
                }
                compound.change(op::REMOVE).opaque(name.as_bytes());
            }
            // The replies of a big compound are more than a slot keeps; a name that is removed twice is absent.
            compound.keep_reply = false;
            compound.repeat_delayed = false;
            let mut reply = self.call(terms, &compound).await?;
            if reply.too_much_at_all() {
                self.fewer_operations(&compound)?;
                continue;
            }
            match refusal(reply.op(op::PUTFH))? {
                Ok(()) => {}
                Err(Status::Delayed) if pause.until(terms.deadline).await => continue,
                Err(status) => {
                    return Err(NfsError::Status {
                        action: REMOVE_MANY,
                        status,
                    });
                }
            }
            for _ in 1..compound.count() {
                let refused = refusal(reply.op(op::REMOVE))?;
                let Some((index, name)) = left.pop_front() else { break };
                let outcome = match refused {
                    Ok(()) => {
                        reply.change_info()?;
                        RemoveOutcome::Removed
                    }
                    Err(Status::NotFound) => RemoveOutcome::Absent,
                    // Perhaps a delegation of a client that is gone: that takes a lease. The others need not wait.
                    Err(Status::Delayed) => {
                        left.push_back((index, name));
                        put_off += 1;
                        break;
                    }
                    // Some servers notice in the middle that a compound is too long for them.
                    Err(_) if reply.too_much() && self.fewer_operations(&compound).is_ok() => {
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
