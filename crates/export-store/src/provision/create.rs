//! Creates the directory and its parents, sets mode and owner, and records the result.

use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::provision::Recorded;
use crate::provision::applied_attributes::{self, AppliedAttributes};
use crate::record::{Record, RecordedHandle, State};
use crate::request::DirectoryRequest;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{parents, records};
use nfs_client::{Attributes, Credential, FileRef, MkdirResult, Name, NfsError, SetAttributes, Status};

/// A directory that exists and whose attributes were checked.
pub(super) struct CreatedDirectory {
    pub file_id: u64,
    pub handle: RecordedHandle,
    pub adopted: bool,
    pub mode_not_kept: Option<u32>,
}

/// Creates missing parents and the directory. Returns `None` if another process created or removed one meanwhile, so that
/// the caller observes again.
pub(super) async fn create_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    record: &Recorded,
    nodes: &[FileRef],
) -> Result<Option<CreatedDirectory>, ExportError> {
    let names = directory.names();
    let (Some(last), Some(parent)) = (names.last(), parents::make(store, verified, directory, nodes).await?) else {
        return Ok(None);
    };
    let made = create_one(store, verified, &parent, last, attributes(request), directory).await?;
    let Some(made) = made else {
        return Ok(None);
    };
    complete(store, verified, request, directory, record, made)
        .await
        .map(Some)
}

/// Returns the attributes of a new directory.
pub(super) fn attributes(request: &DirectoryRequest) -> SetAttributes {
    SetAttributes {
        mode: Some(request.mode),
        uid: request.uid,
        gid: request.gid,
        ..SetAttributes::default()
    }
}

/// Checks the attributes of a new directory and records it.
pub(super) async fn complete(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    record: &Recorded,
    made: MkdirResult,
) -> Result<CreatedDirectory, ExportError> {
    let node = made.node;
    if member_of(store.config.credential, request.gid).is_some() {
        let made = apply_attributes(store, verified, request, directory, &node, Some(request.mode)).await?;
        return mark_live(store, verified, record, &made).await.map(|()| made);
    }
    let kept = AppliedAttributes {
        attributes: &node.attributes,
        mode_refused: made.mode_refused,
        owner_refused: made.owner_refused,
    };
    let made = check_attributes(store, verified, request, directory, &node, &kept)?;
    mark_live(store, verified, record, &made).await.map(|()| made)
}

async fn create_one(
    store: &ExportStore,
    verified: &VerifiedRoot,
    parent: &FileRef,
    name: &Name,
    attributes: SetAttributes,
    directory: &DirectoryPath,
) -> Result<Option<MkdirResult>, ExportError> {
    let made = store
        .for_write(verified)?
        .make_directory(&parent.handle, name, attributes)
        .await;
    match made {
        Ok(made) => Ok(Some(made)),
        // Without a parent, it was empty, and another volume's reclaim or another cluster removed it.
        Err(error) if matches!(error.status(), Some(Status::Exists | Status::NotFound)) => Ok(None),
        Err(error) => Err(error).context(|| format!("creating {directory}")),
    }
}

/// Sets the owner of a directory that is adopted, and its mode if one is requested explicitly, and checks the result.
pub(super) async fn adopt(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    leaf: &FileRef,
) -> Result<CreatedDirectory, ExportError> {
    let mode = request.adopted_mode;
    let keeping = DirectoryRequest {
        mode: mode.unwrap_or(leaf.attributes.mode),
        mode_requested: mode.is_some(),
        ..request.clone()
    };
    apply_attributes(store, verified, &keeping, directory, leaf, mode).await
}

/// Sets mode and owner of an existing directory, and checks the result.
pub(super) async fn apply_attributes(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    leaf: &FileRef,
    mode: Option<u32>,
) -> Result<CreatedDirectory, ExportError> {
    let mut attributes = leaf.attributes.clone();
    let owner = SetAttributes {
        mode: None,
        uid: request.uid,
        gid: request.gid,
        ..SetAttributes::default()
    };
    let target = (leaf, request.gid);
    let owner_refused = apply_part(store, verified, target, owner, &mut attributes, directory).await?;
    let mode_part = SetAttributes {
        mode,
        ..SetAttributes::default()
    };
    let mode_refused = apply_part(store, verified, target, mode_part, &mut attributes, directory).await?;
    let kept = AppliedAttributes {
        attributes: &attributes,
        mode_refused,
        owner_refused,
    };
    let made = check_attributes(store, verified, request, directory, leaf, &kept)?;
    Ok(CreatedDirectory {
        mode_not_kept: made.mode_not_kept.filter(|_| mode.is_some()),
        ..made
    })
}

/// Returns the credential with which a directory gets a group, if it is not the operator's own. A user other than root may
/// give a directory only to a group of its own, and may set the setgid bit only as a member: it takes part in that group for
/// this one call, which the server verifies if it looks up the groups of its users.
fn member_of(operator: Credential, group: Option<u32>) -> Option<Credential> {
    let group = group.filter(|group| operator.uid != 0 && *group != operator.gid)?;
    Some(Credential { gid: group, ..operator })
}

async fn apply_part(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (leaf, group): (&FileRef, Option<u32>),
    part: SetAttributes,
    now: &mut Attributes,
    directory: &DirectoryPath,
) -> Result<Option<Status>, ExportError> {
    if part == SetAttributes::default() {
        return Ok(None);
    }
    let own = store.for_write(verified)?;
    let member = member_of(store.config.credential, group);
    let nfs = member.map_or_else(|| own.clone(), |member| own.with_credential(member));
    match nfs.set_attributes(&leaf.handle, part).await {
        Ok(attributes) => {
            *now = attributes;
            Ok(None)
        }
        Err(NfsError::Status { status, .. }) if status != Status::Stale => Ok(Some(status)),
        Err(error) => Err(error).context(|| format!("setting mode and owner of {directory}")),
    }
}

fn check_attributes(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    node: &FileRef,
    kept: &AppliedAttributes<'_>,
) -> Result<CreatedDirectory, ExportError> {
    let mode_not_kept = applied_attributes::check(request, &directory.to_string(), store.config.credential, kept)?;
    Ok(CreatedDirectory {
        file_id: node.attributes.fileid,
        handle: RecordedHandle::new(verified, node),
        adopted: false,
        mode_not_kept,
    })
}

/// Writes the final record, with the fileid and the live state.
pub(super) async fn mark_live(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Recorded,
    made: &CreatedDirectory,
) -> Result<(), ExportError> {
    let Recorded::Open(record) = record else {
        return Err(ExportError::ConcurrentlyModified {
            doing: "recording a directory".into(),
        });
    };
    let live = Record {
        file_id: Some(made.file_id),
        handle: Some(made.handle.clone()),
        adopted: made.adopted,
        ..record.in_state(State::Live)
    };
    records::replace(store, verified, &live).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_user_other_than_root_takes_part_in_a_group_to_set_it() {
        let root = Credential {
            uid: 0,
            gid: 0,
            supplementary: None,
        };
        let user = Credential {
            uid: 2000,
            gid: 2000,
            supplementary: None,
        };
        assert_eq!(member_of(root, Some(5000)), None);
        assert_eq!(member_of(user, None), None);
        assert_eq!(member_of(user, Some(2000)), None);
        assert_eq!(
            member_of(user, Some(5000)),
            Some(Credential {
                uid: 2000,
                gid: 5000,
                supplementary: None
            })
        );
    }
}
