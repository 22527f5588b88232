//! Parent directories that a pattern with `/` needs: made and recorded, and removed once nothing is left below them.
//!
//! A parent is recorded before it is made, and its fileid afterwards, in the cluster's folder. Only a directory that its
//! record describes is removed, by RMDIR, so only if it is empty. Whoever makes a directory below at the same time finds
//! the parent missing, and makes it again.

mod record;

use tokio::sync::OwnedMutexGuard;

use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::parents::record::{PARENT_MODE, ParentDirectory, ParentRecord};
use crate::path_reservations::{Holder, Sharing};
use crate::record::RecordedHandle;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{file_holders, folders, layout, other_clusters, paths, readdir};
use nfs_client::{FileRef, Name, SetAttributes, Status};

/// Maximum number of records in a listing: an endless listing must not exhaust the memory.
const MAX_RECORDS: usize = 1_000_000;

/// What became of a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// It does not exist any more, and neither does its record.
    Gone,
    /// It is in use, or it is not the operator's.
    Kept,
}

/// Creates missing parents and returns the parent of the directory. Returns `None` if another process created or removed
/// one meanwhile, so that the caller observes again.
pub(crate) async fn make(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    nodes: &[FileRef],
) -> Result<Option<FileRef>, ExportError> {
    let paths = above(directory);
    let existing = nodes.get(..paths.len().min(nodes.len())).unwrap_or_default();
    let mut parent = existing.last().unwrap_or(&verified.root).clone();
    // The shortest path first.
    let missing: Vec<&DirectoryPath> = paths.iter().rev().skip(existing.len()).collect();
    if missing.is_empty() {
        return Ok(Some(parent));
    }
    let folder = make_folder(store, verified).await?;
    for path in missing {
        match make_one(store, verified, &folder, &parent, path).await? {
            Some(node) => parent = node,
            None => return Ok(None),
        }
    }
    Ok(Some(parent))
}

/// Records a parent, creates it, and records its fileid. Returns `None` if the name is taken or the parent is missing.
async fn make_one(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    parent: &FileRef,
    path: &DirectoryPath,
) -> Result<Option<FileRef>, ExportError> {
    let doing = || format!("creating the parent directory {path}");
    let name = layout::name(path.last_segment())?;
    let _lock = lock(store, verified, &record::file_name(path)).await;
    // Another volume may have made it since its path was looked up.
    let found = store.nfs.lookup(&parent.handle, &name).await.context(doing)?;
    if found.is_some() {
        return Ok(None);
    }
    let mut announced = ParentRecord {
        path: path.clone(),
        directory: None,
    };
    record::write(store, verified, folder, &announced).await?;
    let attributes = SetAttributes {
        mode: Some(PARENT_MODE),
        ..SetAttributes::default()
    };
    let nfs = store.for_write(verified)?;
    let made = nfs.make_directory(&parent.handle, &name, attributes).await;
    match made {
        Ok(made) => {
            announced.directory = Some(ParentDirectory {
                file_id: made.node.attributes.fileid,
                handle: RecordedHandle::new(verified, &made.node),
            });
            record::write(store, verified, folder, &announced).await?;
            Ok(Some(made.node))
        }
        Err(error) => {
            // Without an answer, the directory may exist, and the record stays.
            if error.status().is_some() {
                record::remove(store, verified, folder, &layout::name(&record::file_name(path))?).await?;
            }
            match error.status() {
                Some(Status::Exists | Status::NotFound) => Ok(None),
                _ => Err(error).context(doing),
            }
        }
    }
}

/// Removes the parents of a directory that is gone: the deepest first, up to one that is not empty or that the operator
/// did not make. `own` is the holder of the directory.
pub(crate) async fn remove_empty(
    store: &ExportStore,
    verified: &VerifiedRoot,
    own: &Holder,
    directory: &DirectoryPath,
) -> Result<(), ExportError> {
    let removed = remove_chain(store, verified, own, &above(directory)).await;
    unless_refused(store, removed)
}

/// Leaves a parent for the next scan if the server or a check refuses its removal: the volume's own directory is done. Other
/// errors stay errors, because the caller repeats the whole operation.
fn unless_refused(store: &ExportStore, removed: Result<(), ExportError>) -> Result<(), ExportError> {
    let is_answer = |error: &ExportError| match error {
        ExportError::ReservedDirectoryUnsafe { .. } => true,
        error => !error.outcome_unknown() && error.status().is_some_and(|status| status != Status::Stale),
    };
    match removed {
        Err(error) if is_answer(&error) => {
            tracing::warn!(
                backend = store.config.backend,
                "an empty parent directory may be left: {error}"
            );
            Ok(())
        }
        removed => removed,
    }
}

/// Removes all parents that are recorded and empty: those that an interrupted process, another cluster or a file of
/// somebody else left behind.
pub(crate) async fn remove_all_empty(store: &ExportStore, verified: &VerifiedRoot) -> Result<(), ExportError> {
    let remove_each = async {
        for name in list(store, verified).await? {
            remove_recorded(store, verified, &name).await?;
        }
        Ok(())
    };
    unless_refused(store, remove_each.await)
}

/// Lists the files with the records of parents.
pub(crate) async fn list(store: &ExportStore, verified: &VerifiedRoot) -> Result<Vec<Name>, ExportError> {
    match folder(store, verified).await? {
        Some(folder) => readdir::list_names(store, &folder.handle, "the records of parents", MAX_RECORDS).await,
        None => Ok(Vec::new()),
    }
}

/// Removes the parent of a record if it is empty, and then those above it.
pub(crate) async fn remove_recorded(
    store: &ExportStore,
    verified: &VerifiedRoot,
    name: &Name,
) -> Result<(), ExportError> {
    let Some(folder) = folder(store, verified).await? else {
        return Ok(());
    };
    if let Some(written) = layout::drafted_volume(name) {
        // Nobody writes it now, so an interrupted process left it.
        let _lock = lock(store, verified, written).await;
        return record::remove(store, verified, &folder, name).await;
    }
    let Ok(text) = std::str::from_utf8(name.as_bytes()) else {
        return Ok(());
    };
    let Some(record) = record::read(store, verified, &folder, text).await? else {
        return Ok(());
    };
    let mut paths = above(&record.path);
    paths.insert(0, record.path);
    let nobody = Holder::Volume(String::new());
    remove_chain(store, verified, &nobody, &paths).await
}

/// Forgets that a directory is a parent that the operator made, before a volume adopts it. Returns true if it was: it may
/// have been removed until now, and stays from now on.
pub(crate) async fn disown(
    store: &ExportStore,
    verified: &VerifiedRoot,
    path: &DirectoryPath,
) -> Result<bool, ExportError> {
    let Some(folder) = folder(store, verified).await? else {
        return Ok(false);
    };
    let file = record::file_name(path);
    let _lock = lock(store, verified, &file).await;
    if record::read(store, verified, &folder, &file).await?.is_none() {
        return Ok(false);
    }
    record::remove(store, verified, &folder, &layout::name(&file)?).await?;
    Ok(true)
}

/// Removes parents, until one stays.
async fn remove_chain(
    store: &ExportStore,
    verified: &VerifiedRoot,
    own: &Holder,
    paths: &[DirectoryPath],
) -> Result<(), ExportError> {
    for path in paths {
        // Most often, another volume has its directory there, and these two calls are all.
        let Some(nodes) = walk(store, verified, path).await? else {
            return Ok(());
        };
        if let Some(node) = paths::leaf(&nodes, path)
            && !(verified.is_plain_directory(node) && is_empty(store, node, path).await?)
        {
            return Ok(());
        }
        let Some(folder) = folder(store, verified).await? else {
            return Ok(());
        };
        if remove_one(store, verified, &folder, own, path).await? == Removal::Kept {
            return Ok(());
        }
    }
    Ok(())
}

/// Removes a parent that is recorded and not in use, or the record of one that is gone.
async fn remove_one(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    own: &Holder,
    path: &DirectoryPath,
) -> Result<Removal, ExportError> {
    let file = record::file_name(path);
    let _lock = lock(store, verified, &file).await;
    let Some(record) = record::read(store, verified, folder, &file).await? else {
        return Ok(Removal::Kept);
    };
    // Looked up under the lock: nobody makes it again meanwhile.
    let Some(nodes) = walk(store, verified, path).await? else {
        return Ok(Removal::Kept);
    };
    let file = layout::name(&file)?;
    let Some(node) = paths::leaf(&nodes, path) else {
        record::remove(store, verified, folder, &file).await?;
        return Ok(Removal::Gone);
    };
    if !record.is_of(verified, node) {
        // Somebody replaced the directory, or made one after the operator had failed to.
        record::remove(store, verified, folder, &file).await?;
        return Ok(Removal::Kept);
    }
    if is_in_use(store, verified, own, path, &nodes, node).await? {
        return Ok(Removal::Kept);
    }
    let name = layout::name(path.last_segment())?;
    let (parent, file_id) = (paths::parent(verified, &nodes, path), node.attributes.fileid);
    let nfs = store.for_write(verified)?;
    if let Err(error) = nfs.remove_directory(&parent.handle, &name, file_id).await {
        match error.status() {
            Some(Status::NotFound) => {}
            None | Some(Status::Stale) => {
                return Err(error).context(|| format!("removing the parent directory {path}"));
            }
            // Somebody uses it again, or the server does not allow it: the next volume or scan tries again.
            Some(_) => {
                tracing::debug!(backend = store.config.backend, directory = %path, "the parent directory stays: {error}");
                return Ok(Removal::Kept);
            }
        }
    }
    record::remove(store, verified, folder, &file).await?;
    Ok(Removal::Gone)
}

/// Reports whether a parent is there and empty.
async fn is_empty(store: &ExportStore, node: &FileRef, path: &DirectoryPath) -> Result<bool, ExportError> {
    match readdir::is_empty(store, node, path).await {
        // Another volume's reclaim removed it meanwhile, and goes on with those above it.
        Err(error) if error.status() == Some(Status::NotFound) => Ok(false),
        empty => empty,
    }
}

/// Looks up a path. Returns `None` if something on it is not a directory.
async fn walk(
    store: &ExportStore,
    verified: &VerifiedRoot,
    path: &DirectoryPath,
) -> Result<Option<Vec<FileRef>>, ExportError> {
    match paths::walk(store, verified, path).await {
        Ok(nodes) => Ok(Some(nodes)),
        Err(ExportError::PathUnusable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports whether a parent is needed although it is empty: a volume has it or is being created below it, a backend's path
/// is or lies below it, or another cluster has a record of it or below it.
async fn is_in_use(
    store: &ExportStore,
    verified: &VerifiedRoot,
    own: &Holder,
    path: &DirectoryPath,
    nodes: &[FileRef],
    node: &FileRef,
) -> Result<bool, ExportError> {
    let places = paths::reserved_paths(store, &verified.identity.id, &path.to_string());
    if store.reservations.is_needed(&places, own, &*store.servers).await
        || file_holders::holder_of(store, verified, node, None, Sharing::Exclusive)
            .await?
            .is_some()
    {
        return Ok(true);
    }
    match other_clusters::refuse(store, verified, path, nodes, Sharing::Exclusive, true).await {
        Ok(()) => Ok(false),
        Err(ExportError::OwnedByOtherCluster { .. } | ExportError::OtherClusterUnreadable { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the paths that contain a directory, the deepest first, without the export's root.
fn above(directory: &DirectoryPath) -> Vec<DirectoryPath> {
    let segments = directory.segments();
    let depths = (1..segments.len()).rev();
    depths
        .filter_map(|depth| DirectoryPath::parse(&segments.get(..depth)?.join("/")).ok())
        .collect()
}

/// Returns the folder with the records of parents, if it exists.
async fn folder(store: &ExportStore, verified: &VerifiedRoot) -> Result<Option<FileRef>, ExportError> {
    let path = folder_path(store);
    let name = layout::name(layout::PARENTS)?;
    let found = store.nfs.lookup(&verified.cluster.handle, &name).await;
    let Some(node) = found.context(|| format!("looking up {path}"))? else {
        return Ok(None);
    };
    folders::check_folder(&node, &verified.root, Some(&verified.reserved), &path)?;
    Ok(Some(node))
}

/// Returns the folder with the records of parents, and creates it if missing.
async fn make_folder(store: &ExportStore, verified: &VerifiedRoot) -> Result<FileRef, ExportError> {
    let (nfs, path) = (store.for_write(verified)?, folder_path(store));
    let owner = Some(&verified.reserved);
    folders::ensure_folder(nfs, &verified.root, &verified.cluster, layout::PARENTS, &path, owner).await
}

fn folder_path(store: &ExportStore) -> String {
    format!("{}/{}/{}", layout::RESERVED, store.config.cluster_id, layout::PARENTS)
}

/// Waits until nobody in this process makes or removes this parent.
async fn lock(store: &ExportStore, verified: &VerifiedRoot, file: &str) -> OwnedMutexGuard<()> {
    // No volume has a name with a slash.
    let key = format!("{}/{file}", layout::PARENTS);
    store.lock(&verified.identity.id, &key).await
}
