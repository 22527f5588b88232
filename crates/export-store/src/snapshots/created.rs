//! Snapshots that the operator creates for its copies, where a server lets clients do that: CephFS makes a snapshot of a
//! directory for each directory that is created in its `.snap`, and removes it with that directory.
//!
//! Their names contain the UID of the backend, so that nobody else's snapshot is ever removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{MAX_SNAPSHOTS, NOT_EXPOSED, own_folder, unavailable, walk};
use crate::error::{ErrorContext as _, ExportError};
use crate::layout;
use crate::readdir::select_names;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{FileRef, Name, NfsError, SetAttributes, Status};

/// The snapshot that shows whether the server creates snapshots.
const TRIAL: &str = "trial";

/// A snapshot that this process created, until it is removed. If this is dropped before, a later probe removes the snapshot.
pub(crate) struct CreatedSnapshot {
    store: Arc<ExportStore>,
    name: Name,
}

impl CreatedSnapshot {
    /// Creates a snapshot for a copy that an object with this UID requested. Replaces one that an earlier attempt left.
    ///
    /// # Errors
    /// `SnapshotUnavailable` if the server creates none.
    pub(crate) async fn create(store: &Arc<ExportStore>, requested_by: &str) -> Result<Self, ExportError> {
        let name = layout::name(&format!("{}{requested_by}", prefix(store)))?;
        // Before it exists, so that no probe removes it.
        store.state().snapshots.insert(name.clone());
        let created = Self {
            store: Arc::clone(store),
            name: name.clone(),
        };
        let create = |verified: Arc<VerifiedRoot>| {
            let name = name.clone();
            async move { create(store, &verified, &name).await }
        };
        match store.with_verified(create).await {
            Ok(()) => Ok(created),
            Err(error) => {
                // What could be created before may not be any more.
                store.state().creates_snapshots = false;
                Err(error)
            }
        }
    }

    /// Returns the name of the snapshot.
    pub(crate) fn name(&self) -> String {
        self.name.to_string()
    }

    /// Removes the snapshot.
    pub(crate) async fn remove(self) -> Result<(), ExportError> {
        let (store, name) = (&self.store, &self.name);
        let remove = |verified: Arc<VerifiedRoot>| async move { remove(store, &verified, name).await };
        store.with_verified(remove).await
    }
}

impl Drop for CreatedSnapshot {
    fn drop(&mut self) {
        self.store.state().snapshots.remove(&self.name);
    }
}

/// Removes the snapshots that earlier processes left, and checks that the server creates snapshots, by creating one, unless
/// that is known.
///
/// # Errors
/// `SnapshotUnavailable` if the server creates none.
pub(crate) async fn maintain(store: &ExportStore, verified: &VerifiedRoot) -> Result<(), ExportError> {
    let trial = layout::name(&format!("{}{TRIAL}", prefix(store)))?;
    if !store.state().creates_snapshots {
        create(store, verified, &trial).await?;
        store.state().creates_snapshots = true;
    }
    // The trial, too.
    remove_left(store, verified).await
}

fn prefix(store: &ExportStore) -> String {
    format!("nfs-operator-{}-", store.config.backend_uid)
}

/// Returns the directory in which snapshots are created.
async fn open_directory(store: &ExportStore, verified: &VerifiedRoot) -> Result<(&'static str, FileRef), ExportError> {
    let found = super::open_directory(store, &verified.root).await?;
    found.ok_or_else(|| unavailable(NOT_EXPOSED))
}

/// Creates a snapshot of the export. Fails if the server makes a directory that is no snapshot.
async fn create(store: &ExportStore, verified: &VerifiedRoot, name: &Name) -> Result<(), ExportError> {
    let (path, directory) = open_directory(store, verified).await?;
    let doing = || format!("creating snapshot {name} in {path}");
    let nfs = store.for_write(verified)?;
    let made = nfs
        .make_directory(&directory.handle, name, SetAttributes::default())
        .await;
    let made = match made {
        Err(error) if error.status() == Some(Status::Exists) => {
            remove_from(store, verified, (path, &directory), name).await?;
            nfs.make_directory(&directory.handle, name, SetAttributes::default())
                .await
        }
        made => made,
    };
    match made {
        Ok(_) => {}
        Err(error) if is_refusal(&error) => {
            return Err(unavailable(format!(
                "the server refuses to create one in {path}: {error}"
            )));
        }
        Err(error) => return Err(error).context(doing),
    }
    if shows_export(store, verified, (&directory, name)).await? {
        return Ok(());
    }
    remove_from(store, verified, (path, &directory), name).await?;
    Err(unavailable(format!(
        "the server creates none in {path}: a directory there is not a snapshot"
    )))
}

/// Reports whether the server has definitely refused to create a snapshot.
fn is_refusal(error: &NfsError) -> bool {
    matches!(
        error.status(),
        Some(
            Status::Access
                | Status::NotPermitted
                | Status::ReadOnly
                | Status::NotSupported
                | Status::Invalid
                | Status::NoSpace
                | Status::QuotaExceeded
                | Status::TooManyLinks
                | Status::NotFound
        )
    )
}

/// Reports whether a snapshot shows the export: the operator's folder is there, with its fileid.
async fn shows_export(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (directory, name): (&FileRef, &Name),
) -> Result<bool, ExportError> {
    let path: Vec<Name> = std::iter::once(name.clone()).chain(own_folder(store)?).collect();
    let folder = walk(store, directory, &path).await?;
    Ok(folder.is_some_and(|folder| folder.attributes.fileid == verified.cluster.attributes.fileid))
}

async fn remove(store: &ExportStore, verified: &VerifiedRoot, name: &Name) -> Result<(), ExportError> {
    let (path, directory) = open_directory(store, verified).await?;
    remove_from(store, verified, (path, &directory), name).await
}

async fn remove_from(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (path, directory): (&str, &FileRef),
    name: &Name,
) -> Result<(), ExportError> {
    let doing = || format!("removing snapshot {name} from {path}");
    let Some(found) = store.nfs.lookup(&directory.handle, name).await.context(doing)? else {
        return Ok(());
    };
    let nfs = store.for_write(verified)?;
    match nfs
        .remove_directory(&directory.handle, name, found.attributes.fileid)
        .await
    {
        // An earlier call, whose reply was lost.
        Err(error) if error.status() == Some(Status::NotFound) => Ok(()),
        removed => removed.context(doing),
    }
}

/// Removes the snapshots of this backend that no copy of this process uses.
async fn remove_left(store: &ExportStore, verified: &VerifiedRoot) -> Result<(), ExportError> {
    let (path, directory) = open_directory(store, verified).await?;
    let prefix = prefix(store);
    let own = |entry: nfs_client::Entry| {
        let is_own = entry.name.as_bytes().starts_with(prefix.as_bytes());
        is_own.then_some(entry.name)
    };
    let names = select_names(store, &directory.handle, path, MAX_SNAPSHOTS, own).await?;
    let used: BTreeSet<Name> = store.state().snapshots.clone();
    for name in names.iter().filter(|name| !used.contains(name)) {
        remove_from(store, verified, (path, &directory), name).await?;
    }
    Ok(())
}
