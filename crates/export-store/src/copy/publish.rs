//! Publishes a complete copy as the volume's directory, or moves a partial copy into the trash.

use crate::copy::{CopyError, SourceTree, Staging, staging};
use crate::error::{ErrorContext as _, ExportError};
use crate::path_reservations::Sharing;
use crate::record::{Record, RecordedHandle, State};
use crate::request::{ClaimRef, DirectoryRequest, ProvisionedDirectory};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, parents, paths, records, trash};
use nfs_client::{FileRef, Name, RemoveOutcome, SetAttributes, Status};

/// Result of renaming a copy.
pub(super) enum Named {
    Renamed,
    /// The name is in use by something else.
    Taken,
}

/// Renames a complete copy to its final name. Mode and owner are those of the source, unless others are requested.
///
/// If the process dies before the RENAME, the copy restarts from the beginning. After the RENAME, [`staging::stage`]
/// recognizes the finished copy by the fileid that was recorded before.
pub(crate) async fn publish(
    store: &ExportStore,
    request: &DirectoryRequest,
    source: &SourceTree,
    staging: &Staging,
) -> Result<ProvisionedDirectory, CopyError> {
    let _lock = store.lock_volume(&request.volume).await?;
    after_reconnections(|| publish_once(store, request, source, staging)).await
}

/// Maximum number of attempts to publish a copy.
const ATTEMPTS: u32 = 4;

/// Runs an attempt, and repeats it on the next connection if the verified one was replaced: a copy may have taken hours.
pub(super) async fn after_reconnections<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, CopyError>
where
    F: Future<Output = Result<T, CopyError>>,
{
    let mut attempts = 1;
    loop {
        match attempt().await {
            Err(CopyError::Export(ExportError::IdentityNotConfirmed)) if attempts < ATTEMPTS => attempts += 1,
            outcome => return outcome,
        }
    }
}

async fn publish_once(
    store: &ExportStore,
    request: &DirectoryRequest,
    source: &SourceTree,
    staging: &Staging,
) -> Result<ProvisionedDirectory, CopyError> {
    let verified = store.verified_root().await?;
    if verified.differs_from(&staging.verified) {
        return Err(CopyError::ExportChanged);
    }
    let record = staging::open_record(store, &verified, request).await?;
    let Some(record) = record.filter(|record| record.state == State::Creating) else {
        return Err(CopyError::ExportChanged);
    };
    let record = Record {
        file_id: Some(staging.tree.attributes.fileid),
        handle: Some(RecordedHandle::new(&verified, &staging.tree)),
        ..record
    };
    let request = &DirectoryRequest {
        gid: record.group.filter(|_| request.gid_range.is_some()).or(request.gid),
        ..request.clone()
    };
    let mode_not_kept = apply_root_attributes(store, &verified, request, source, staging).await?;
    clear_links(store, &verified, staging).await?;
    records::replace(store, &verified, &record).await?;
    rename_published(store, &verified, &record, staging).await?;
    records::replace(store, &verified, &record.in_state(State::Live)).await?;
    reserve_published(store, &verified, &record).await?;
    // Not urgent: the next staging or rollback of this volume does it.
    if let Err(error) = discard_staged(store, &verified, (&request.claim, &request.volume)).await {
        tracing::debug!(volume = request.volume, "its staging folder is left for later: {error}");
    }
    Ok(ProvisionedDirectory {
        directory: record.directory,
        file_id: staging.tree.attributes.fileid,
        adopted: false,
        shared: false,
        mode_not_kept,
        group: record.group,
    })
}

async fn apply_root_attributes(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    source: &SourceTree,
    staging: &Staging,
) -> Result<Option<u32>, CopyError> {
    let (as_is, request) = (&source.details.attributes, &source.root_request(request));
    let mode = if request.mode_requested {
        request.mode
    } else {
        as_is.mode
    };
    let set = SetAttributes {
        mode: Some(mode),
        uid: request.uid.or(as_is.uid),
        gid: request.gid.or(as_is.gid),
        size: None,
        times: Some(source.details.times),
    };
    let root = String::from("the root of the tree");
    if set.uid.is_none() || set.gid.is_none() {
        return Err(CopyError::OwnerUnknown {
            path: root,
            owner: format!("{}:{}", as_is.owner, as_is.group),
        });
    }
    let now = store
        .for_write(verified)?
        .set_attributes(&staging.tree.handle, set)
        .await;
    let now = now.context(|| format!("setting mode and owner of {}", request.directory))?;
    if now.uid != set.uid || now.gid != set.gid {
        return Err(CopyError::OwnerNotKept {
            path: root,
            requested: format!("{}:{}", set.uid.unwrap_or_default(), set.gid.unwrap_or_default()),
            stored: format!("{}:{}", now.owner, now.group),
        });
    }
    match now.mode == mode {
        true => Ok(None),
        false if request.mode_requested => Err(CopyError::Export(ExportError::ModeRefused {
            directory: request.directory.to_string(),
            requested: mode,
            stored: now.mode,
            refused: None,
        })),
        false => Ok(Some(now.mode)),
    }
}

/// Removes the additional hard links, so that each file has as many as in the source when the copy is published.
pub(crate) async fn clear_links(
    store: &ExportStore,
    verified: &VerifiedRoot,
    staging: &Staging,
) -> Result<(), ExportError> {
    let doing = || "removing further names of hard links".to_owned();
    let mut before = usize::MAX;
    loop {
        let page = store.nfs.list(&staging.links.handle, None).await.context(doing)?;
        let names: Vec<Name> = page.entries.into_iter().map(|entry| entry.name).collect();
        if names.is_empty() {
            return Ok(());
        }
        let nfs = store.for_write(verified)?;
        let outcomes = nfs.remove_batch(&staging.links.handle, &names).await.context(doing)?;
        let removed = |outcome: &&RemoveOutcome| !matches!(outcome, RemoveOutcome::Refused(_));
        let removed_count = outcomes.iter().filter(removed).count();
        // Nothing could be removed twice in a row. The purge of the trash reports the reason.
        if removed_count == 0 && before == 0 {
            return Ok(());
        }
        before = removed_count;
    }
}

/// Renames the copy to the volume's directory, by fileid. Succeeds if this was done already. Repeats it if somebody made
/// or removed a parent meanwhile: the copy may have taken hours.
async fn rename_published(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    staging: &Staging,
) -> Result<(), CopyError> {
    for _ in 1..ATTEMPTS {
        match rename_once(store, verified, record, staging).await {
            Err(CopyError::Export(error)) if lost_its_parent(&error) => {}
            renamed => return renamed,
        }
    }
    rename_once(store, verified, record, staging).await
}

/// Reports whether an attempt to rename a copy may have failed because a parent was made or removed.
fn lost_its_parent(error: &ExportError) -> bool {
    let missing = matches!(error.status(), Some(Status::NotFound | Status::Stale));
    missing || matches!(error, ExportError::ConcurrentlyModified { .. })
}

async fn rename_once(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    staging: &Staging,
) -> Result<(), CopyError> {
    let directory = &record.directory;
    let nodes = paths::walk(store, verified, directory).await?;
    let taken = || CopyError::TargetTaken {
        directory: directory.to_string(),
    };
    if let Some(leaf) = paths::leaf(&nodes, directory) {
        return if record.matches_node(leaf) {
            Ok(())
        } else {
            Err(taken())
        };
    }
    let parent = parents::make(store, verified, directory, &nodes).await?;
    let kept_changing = || ExportError::ConcurrentlyModified {
        doing: format!("creating {directory}"),
    };
    let (parent, names) = (parent.ok_or_else(kept_changing)?, directory.names());
    let name = names.last().ok_or_else(kept_changing)?;
    match rename_staged(store, verified, record, staging, (&parent, name)).await? {
        Named::Renamed => Ok(()),
        Named::Taken => Err(taken()),
    }
}

/// Renames a complete copy to an unused name, by fileid.
pub(crate) async fn rename_staged(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    staging: &Staging,
    (parent, name): (&FileRef, &Name),
) -> Result<Named, ExportError> {
    let tree = layout::name(layout::STAGED_TREE)?;
    let from = (&staging.folder.handle, &tree);
    let renamed = store
        .for_write(verified)?
        .rename(from, staging.tree.attributes.fileid, (&parent.handle, name))
        .await;
    let Err(error) = renamed else { return Ok(Named::Renamed) };
    // The reply to the RENAME may be lost, so check what has the name.
    let found = store.nfs.lookup(&parent.handle, name).await;
    match found.context(|| format!("looking up {name}"))? {
        Some(leaf) if record.matches_node(&leaf) => Ok(Named::Renamed),
        Some(_) if error.status() == Some(Status::Exists) => Ok(Named::Taken),
        _ => Err(error).context(|| format!("renaming the copy to {name}")),
    }
}

async fn reserve_published(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<(), ExportError> {
    paths::reserve(store, verified, &record.volume, &record.directory, Sharing::Exclusive)
        .await?
        .keep(record.file_id.map(|id| verified.file_key(id)));
    Ok(())
}

/// Moves a volume's staging folder into the trash, if it exists.
pub(crate) async fn discard_staged(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (claim, volume): (&ClaimRef, &str),
) -> Result<(), ExportError> {
    let Some((staging, folder)) = find_staged(store, verified, volume).await? else {
        return Ok(());
    };
    let (name, file_id) = (layout::staged(volume)?, folder.attributes.fileid);
    trash::move_to_trash(store, verified, (claim, volume), (&staging, &name), file_id).await
}

/// Returns a volume's staging folder, behind the folder that has it, if it exists.
pub(super) async fn find_staged(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<Option<(FileRef, FileRef)>, ExportError> {
    let doing = || format!("looking up the unfinished copy of volume {volume}");
    let (staging, name) = (layout::name(layout::STAGING)?, layout::staged(volume)?);
    let staging = store.nfs.lookup(&verified.cluster.handle, &staging).await;
    let Some(staging) = staging.context(doing)? else {
        return Ok(None);
    };
    let folder = store.nfs.lookup(&staging.handle, &name).await.context(doing)?;
    Ok(folder.map(|folder| (staging, folder)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_replaced_connection_is_no_end_of_a_copy_and_an_endless_replacement_is() {
        let not_confirmed = || CopyError::Export(ExportError::IdentityNotConfirmed);
        for (replacements, succeeds) in [(0, true), (ATTEMPTS - 1, true), (ATTEMPTS, false)] {
            let mut attempts = 0;
            let outcome = after_reconnections(|| {
                attempts += 1;
                let outcome = if attempts > replacements {
                    Ok(())
                } else {
                    Err(not_confirmed())
                };
                async { outcome }
            });
            assert_eq!(outcome.await.is_ok(), succeeds, "{replacements}");
            assert_eq!(attempts, ATTEMPTS.min(replacements + 1));
        }
        let mut attempts = 0;
        let changed = after_reconnections(|| {
            attempts += 1;
            async { Err::<(), _>(CopyError::ExportChanged) }
        });
        assert!(matches!(changed.await.unwrap_err(), CopyError::ExportChanged));
        assert_eq!(attempts, 1);
    }
}
