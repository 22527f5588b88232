//! Removing: one object that is checked by its fileid, or many names of a directory in the trash.

use super::attributes;
use super::call::{Pause, Terms};
use super::client::Client;
use super::compound::{Compound, refusal};
use super::numbers::{code, op};
use crate::nfs::{FileHandle, Name, NfsError, RemoveOutcome, Status};

const REMOVE: &str = "removing";
const REMOVE_MANY: &str = "removing many names";

impl Client {
    /// Removes the empty directory with this fileid.
    pub async fn remove_directory(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        terms: Terms,
    ) -> Result<(), NfsError> {
        self.remove(directory, name, fileid, true, terms).await
    }

    /// Removes the object with this fileid, which is no directory.
    pub async fn remove_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        terms: Terms,
    ) -> Result<(), NfsError> {
        self.remove(directory, name, fileid, false, terms).await
    }

    async fn remove(
        &self,
        directory: &FileHandle,
        name: &Name,
        fileid: u64,
        is_directory: bool,
        terms: Terms,
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
        terms: Terms,
    ) -> Result<Vec<RemoveOutcome>, NfsError> {
        let mut outcomes = Vec::with_capacity(names.len());
        let mut pause = Pause::new();
        while let Some(rest) = names.get(outcomes.len()..).filter(|rest| !rest.is_empty()) {
            let room = self.most_operations().saturating_sub(1).max(1);
            let mut compound = Compound::new(REMOVE_MANY);
            compound.at(directory);
            for name in rest.iter().take(room) {
                compound.change(op::REMOVE).opaque(name.as_bytes());
            }
            // The replies of a big compound are more than a slot keeps; a name that is removed twice is absent.
            compound.keep_reply = false;
            let mut reply = self.call(terms, &compound).await?;
            if reply.too_many_operations() {
                self.fewer_operations(&compound)?;
                continue;
            }
            reply.op(op::PUTFH)?;
            for _ in 0..rest.len().min(room) {
                match refusal(reply.op(op::REMOVE))? {
                    Ok(()) => {
                        reply.change_info()?;
                        outcomes.push(RemoveOutcome::Removed);
                        pause = Pause::new();
                        continue;
                    }
                    Err(Status::NotFound) => outcomes.push(RemoveOutcome::Absent),
                    Err(Status::Delayed) if pause.until(terms.deadline).await => {}
                    Err(status) => outcomes.push(RemoveOutcome::Refused(status)),
                }
                break;
            }
        }
        Ok(outcomes)
    }
}
