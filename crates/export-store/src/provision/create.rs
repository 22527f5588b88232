//! Creates the directory and its parents, sets mode and owner, and records the result.

use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::provision::Recorded;
use crate::provision::applied_attributes::{self, AppliedAttributes};
use crate::record::{Record, RecordedHandle, State};
use crate::records;
use crate::request::DirectoryRequest;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{Attributes, FileRef, Name, NfsError, SetAttributes, Status};

/// Mode of parent directories: anyone may traverse them. The directories below protect their own content.
const PARENT_MODE: u32 = 0o755;

/// A directory that exists and whose attributes were checked.
pub(super) struct CreatedDirectory {
    pub file_id: u64,
    pub handle: RecordedHandle,
    pub adopted: bool,
    pub mode_not_kept: Option<u32>,
}

/// Creates missing parents and the directory. Returns `None` if another process created one first, so that the caller
/// observes again.
pub(super) async fn create_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    directory: &DirectoryPath,
    record: &Recorded,
    nodes: &[FileRef],
) -> Result<Option<CreatedDirectory>, ExportError> {
    let names = directory.names();
    let (Some(last), Some(parent)) = (names.last(), make_parents(store, verified, directory, nodes).await?) else {
        return Ok(None);
    };
    let attributes = SetAttributes {
        mode: Some(request.mode),
        uid: request.uid,
        gid: request.gid,
        ..SetAttributes::default()
    };
    let made = create_one(store, verified, &parent, last, attributes, directory).await?;
    let Some((node, mode_refused, owner_refused)) = made else {
        return Ok(None);
    };
    let kept = AppliedAttributes {
        attributes: &node.attributes,
        mode_refused,
        owner_refused,
    };
    let made = check_attributes(store, verified, request, directory, &node, &kept)?;
    mark_live(store, verified, record, &made).await.map(|()| Some(made))
}

/// Creates missing parents and returns the parent of the directory. Returns `None` if another process created one
/// first.
pub(crate) async fn make_parents(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    nodes: &[FileRef],
) -> Result<Option<FileRef>, ExportError> {
    let names = directory.names();
    let Some((_, parents)) = names.split_last() else {
        return Ok(None);
    };
    let existing = nodes.get(..parents.len().min(nodes.len())).unwrap_or_default();
    let mut parent = existing.last().unwrap_or(&verified.root).clone();
    for name in parents.iter().skip(existing.len()) {
        let attributes = SetAttributes {
            mode: Some(PARENT_MODE),
            ..SetAttributes::default()
        };
        match create_one(store, verified, &parent, name, attributes, directory).await? {
            Some((node, ..)) => parent = node,
            None => return Ok(None),
        }
    }
    Ok(Some(parent))
}

async fn create_one(
    store: &ExportStore,
    verified: &VerifiedRoot,
    parent: &FileRef,
    name: &Name,
    attributes: SetAttributes,
    directory: &DirectoryPath,
) -> Result<Option<(FileRef, Option<Status>, Option<Status>)>, ExportError> {
    let made = store
        .for_write(verified)?
        .make_directory(&parent.handle, name, attributes)
        .await;
    match made {
        Ok(made) => Ok(Some((made.node, made.mode_refused, made.owner_refused))),
        Err(error) if error.status() == Some(Status::Exists) => Ok(None),
        Err(error) => Err(error).context(|| format!("creating {directory}")),
    }
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
    let owner_refused = apply_part(store, verified, leaf, owner, &mut attributes, directory).await?;
    let mode_part = SetAttributes {
        mode,
        ..SetAttributes::default()
    };
    let mode_refused = apply_part(store, verified, leaf, mode_part, &mut attributes, directory).await?;
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

async fn apply_part(
    store: &ExportStore,
    verified: &VerifiedRoot,
    leaf: &FileRef,
    part: SetAttributes,
    now: &mut Attributes,
    directory: &DirectoryPath,
) -> Result<Option<Status>, ExportError> {
    if part == SetAttributes::default() {
        return Ok(None);
    }
    match store.for_write(verified)?.set_attributes(&leaf.handle, part).await {
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
