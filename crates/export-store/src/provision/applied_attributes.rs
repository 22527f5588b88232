//! Checks whether the server set mode and owner as requested (data-safety rule 10). Pure.

use crate::error::ExportError;
use crate::request::DirectoryRequest;
use nfs_client::{Attributes, Credential, Status};

/// Attributes after mode and owner were set.
#[derive(Debug)]
pub(super) struct AppliedAttributes<'a> {
    pub attributes: &'a Attributes,
    pub mode_refused: Option<Status>,
    pub owner_refused: Option<Status>,
}

/// Checks the attributes. Returns the mode that the server set instead of the default one.
pub(super) fn check(
    request: &DirectoryRequest,
    directory: &str,
    credential: Credential,
    kept: &AppliedAttributes<'_>,
) -> Result<Option<u32>, ExportError> {
    let found = kept.attributes;
    check_owner(request, directory, credential, kept)?;
    if found.mode == request.mode {
        return Ok(None);
    }
    if request.mode_requested {
        return Err(ExportError::ModeRefused {
            directory: directory.to_owned(),
            requested: request.mode,
            stored: found.mode,
            refused: kept.mode_refused,
        });
    }
    Ok(Some(found.mode))
}

fn check_owner(
    request: &DirectoryRequest,
    directory: &str,
    credential: Credential,
    kept: &AppliedAttributes<'_>,
) -> Result<(), ExportError> {
    let found = kept.attributes;
    let is_met = |requested: Option<u32>, stored: Option<u32>| requested.is_none() || requested == stored;
    if is_met(request.uid, found.uid) && is_met(request.gid, found.gid) {
        return Ok(());
    }
    let text = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let directory = directory.to_owned();
    let requested = format!("{}:{}", text(request.uid), text(request.gid));
    let stored = format!("{}:{}", found.owner, found.group);
    let is_name = |requested: Option<u32>, stored: Option<u32>| requested.is_some() && stored.is_none();
    let named = is_name(request.uid, found.uid) || is_name(request.gid, found.gid);
    if named || kept.owner_refused == Some(Status::BadOwner) {
        return Err(ExportError::IdMappingRequired {
            directory,
            requested,
            stored,
        });
    }
    // Without squashing, a new directory belongs to the operator's user. Only root may change its owner.
    let refused = matches!(kept.owner_refused, Some(Status::NotPermitted | Status::Access));
    if refused && found.uid != Some(credential.uid) {
        return Err(ExportError::RootSquashed {
            directory,
            requested,
            effective: stored,
        });
    }
    Err(ExportError::OwnerRefused {
        directory,
        requested,
        stored,
        refused: kept.owner_refused,
    })
}

#[cfg(test)]
mod tests;
