//! Snapshots that the operator creates for its copies, where a server lets clients do that: CephFS makes a snapshot of a
//! directory for each directory that is created in its `.snap`, and removes it with that directory. So does ZFS in
//! `.zfs/snapshot`, but it does not remove a snapshot that is mounted, which it is for minutes after it was read.
//!
//! Their names contain the UID of the backend, so that nobody else's snapshot is ever removed.

use std::sync::Arc;

use super::{MAX_SNAPSHOTS, NOT_EXPOSED, ZFS, enter, own_folder, unavailable, walk};
use crate::error::{ErrorContext as _, ExportError};
use crate::layout;
use crate::readdir::select_names;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{FileRef, Name, NfsError, RemoveOutcome, SetAttributes, Status};

/// The snapshot that shows whether the server creates snapshots.
const TRIAL: &str = "trial";

/// A snapshot that this process created, until it is removed. If this is dropped before, a later probe removes the snapshot.
pub(crate) struct CreatedSnapshot {
    store: Arc<ExportStore>,
    name: Name,
    is_removed: bool,
}

/// What became of a snapshot that is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    Removed,
    /// The server still uses it.
    Later,
}

impl CreatedSnapshot {
    /// Creates a snapshot for a copy that an object with this UID requested. Replaces one that an earlier attempt left, or
    /// uses it if it cannot be removed yet.
    ///
    /// # Errors
    /// `SnapshotUnavailable` if the server creates none.
    pub(crate) async fn create(store: &Arc<ExportStore>, requested_by: &str) -> Result<Self, ExportError> {
        let name = layout::name(&format!("{}{requested_by}", prefix(store)))?;
        {
            // Before it exists, so that no probe removes it.
            let mut state = store.state();
            state.left_snapshots.remove(&name);
            state.snapshots.insert(name.clone());
        }
        let created = Self {
            store: Arc::clone(store),
            name: name.clone(),
            is_removed: false,
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

    /// Removes the snapshot, or lets a later probe remove it if the server still uses it.
    pub(crate) async fn remove(mut self) -> Result<(), ExportError> {
        let (store, name) = (&self.store, &self.name);
        let remove = |verified: Arc<VerifiedRoot>| async move { remove(store, &verified, name).await };
        let removal = store.with_verified(remove).await?;
        self.is_removed = removal == Removal::Removed;
        Ok(())
    }
}

impl Drop for CreatedSnapshot {
    fn drop(&mut self) {
        let mut state = self.store.state();
        state.snapshots.remove(&self.name);
        if !self.is_removed {
            state.left_snapshots.insert(self.name.clone());
        }
    }
}

/// Removes the snapshots that earlier copies left, and checks that the server creates snapshots, by creating one, unless
/// that is known. Returns the number of those that the server does not remove yet.
///
/// # Errors
/// `SnapshotUnavailable` if the server creates none.
pub(crate) async fn maintain(store: &ExportStore, verified: &VerifiedRoot) -> Result<usize, ExportError> {
    let (path, directory) = open_directory(store, verified).await?;
    let is_known = store.state().creates_snapshots;
    if !is_known {
        let trial = layout::name(&format!("{}{TRIAL}", prefix(store)))?;
        create(store, verified, &trial).await?;
        store.state().left_snapshots.insert(trial);
    }
    // ZFS mounts everything that it lists, and does not remove what is mounted.
    if !is_known || path != ZFS {
        find_left(store, (path, &directory)).await?;
    }
    store.state().creates_snapshots = true;
    remove_left(store, verified, (path, &directory)).await
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
    let make = || nfs.make_directory(&directory.handle, name, SetAttributes::default());
    let made = match make().await {
        Err(error) if error.status() == Some(Status::Exists) => {
            match remove_from(store, verified, (path, &directory), name).await? {
                Removal::Removed => make().await.map(drop),
                // It was created for the same copy.
                Removal::Later => Ok(()),
            }
        }
        made => made.map(drop),
    };
    match made {
        Ok(()) => {}
        Err(error) if is_refusal(&error) => {
            return Err(unavailable(format!(
                "the server refuses to create one in {path}: {error}"
            )));
        }
        Err(error) => return Err(error).context(doing),
    }
    if shows_export(store, verified, (path, &directory), name).await? {
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
    directory: (&str, &FileRef),
    name: &Name,
) -> Result<bool, ExportError> {
    let Some(snapshot) = enter(store, directory, name).await? else {
        return Ok(false);
    };
    let folder = walk(store, &snapshot, &own_folder(store)?).await?;
    Ok(folder.is_some_and(|folder| folder.attributes.fileid == verified.cluster.attributes.fileid))
}

async fn remove(store: &ExportStore, verified: &VerifiedRoot, name: &Name) -> Result<Removal, ExportError> {
    let (path, directory) = open_directory(store, verified).await?;
    remove_from(store, verified, (path, &directory), name).await
}

/// Removes a snapshot without looking at it, because ZFS would mount it then.
async fn remove_from(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (path, directory): (&str, &FileRef),
    name: &Name,
) -> Result<Removal, ExportError> {
    let doing = || format!("removing snapshot {name} from {path}");
    let nfs = store.for_write(verified)?;
    let outcomes = nfs.remove_batch(&directory.handle, std::slice::from_ref(name)).await;
    match outcomes.context(doing)?.first() {
        Some(RemoveOutcome::Removed | RemoveOutcome::Absent) => Ok(Removal::Removed),
        // What the kernel's server answers for a directory on which something is mounted: NFSv4, NFSv3.
        Some(RemoveOutcome::Refused(Status::InUse | Status::Access)) => Ok(Removal::Later),
        Some(RemoveOutcome::Refused(status)) => Err(NfsError::Status {
            action: "remove a snapshot",
            status: *status,
        })
        .context(doing),
        None => Ok(Removal::Later),
    }
}

/// Finds the snapshots of this backend that no copy of this process uses.
async fn find_left(store: &ExportStore, (path, directory): (&str, &FileRef)) -> Result<(), ExportError> {
    let prefix = prefix(store);
    let own = |entry: nfs_client::Entry| {
        let is_own = entry.name.as_bytes().starts_with(prefix.as_bytes());
        is_own.then_some(entry.name)
    };
    let names = select_names(store, &directory.handle, path, MAX_SNAPSHOTS, own).await?;
    let mut state = store.state();
    let left: Vec<Name> = names
        .into_iter()
        .filter(|name| !state.snapshots.contains(name))
        .collect();
    state.left_snapshots.extend(left);
    Ok(())
}

/// Removes the snapshots of this backend that no copy of this process uses. Returns the number of those that are left.
async fn remove_left(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: (&str, &FileRef),
) -> Result<usize, ExportError> {
    let left: Vec<Name> = {
        let state = store.state();
        state.left_snapshots.difference(&state.snapshots).cloned().collect()
    };
    for name in &left {
        if remove_from(store, verified, directory, name).await? == Removal::Removed {
            store.state().left_snapshots.remove(name);
        }
    }
    let left = store.state().left_snapshots.len();
    Ok(left)
}
