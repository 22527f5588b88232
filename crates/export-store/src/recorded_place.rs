//! The place of a record, if nothing else has it: for the requests with which an administrator confirms a record, or the
//! directory at its path.

use crate::error::{ErrorContext as _, ExportError};
use crate::file_holders::{self, Loss};
use crate::path_reservations::Holder;
use crate::record::{ArchiveState, Record, State};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, layout, other_clusters, paths};
use nfs_client::FileRef;

/// What may be at the place of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The directory with the recorded fileid.
    Recorded,
    /// Any directory: the export was restored, and its directories have other fileids.
    Any,
}

/// How to search for a directory.
pub(crate) struct Search<'a> {
    /// The other cluster that has the record; unset for this cluster.
    pub cluster: Option<&'a str>,
    /// What may be there.
    pub wanted: Wanted,
}

/// Returns the path of the archive or directory in a record, relative to the export's path.
pub(crate) fn path(record: &Record) -> String {
    let archive = record.state.archive();
    archive.map_or_else(|| record.directory.to_string(), |archive| archive.target.clone())
}

/// Returns the directory at the place of a record of a volume in use or an archive, or why it cannot be confirmed.
pub(crate) async fn find(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    search: &Search<'_>,
) -> Result<Result<FileRef, String>, ExportError> {
    let (volume, place) = (&record.volume, path(record));
    let holder = match &record.state {
        State::Archived(_) => Holder::Archive(volume.clone()),
        State::Live => Holder::Volume(volume.clone()),
        other => return Ok(Err(format!("it is {}", other.name()))),
    };
    if let Some(conflict) = paths::conflict(store, verified, &holder, record.sharing(), &place).await {
        return Ok(Err(conflict.to_string()));
    }
    let node = match &record.state {
        State::Archived(archive) => find_archive(store, verified, archive).await?,
        _ => find_directory(store, verified, record, search).await?,
    };
    let (is_wanted, otherwise): (fn(&Record, &FileRef) -> bool, _) = match search.wanted {
        Wanted::Recorded => (
            |record, node| record.file_id == Some(node.attributes.fileid),
            "the recorded directory",
        ),
        Wanted::Any => (|_, _| true, "a directory"),
    };
    let Some(node) = node.filter(|node| verified.is_plain_directory(node) && is_wanted(record, node)) else {
        return Ok(Err(format!("{place} does not exist, or is not {otherwise}")));
    };
    let (loss, sharing) = (search.wanted.loss(), record.sharing());
    if let Some(other) = file_holders::find_holder(store, verified, &node, (Some(volume), sharing), loss).await? {
        return Ok(Err(format!("{place} has the fileid of {other}")));
    }
    if paths::is_backend_root(store, &node, &place).await? {
        return Ok(Err(format!("{place} is the path of a backend")));
    }
    Ok(Ok(node))
}

impl Wanted {
    fn loss(self) -> Loss {
        match self {
            Self::Recorded => Loss::Certain,
            Self::Any => Loss::Restored,
        }
    }
}

async fn find_archive(
    store: &ExportStore,
    verified: &VerifiedRoot,
    archive: &ArchiveState,
) -> Result<Option<FileRef>, ExportError> {
    let found = store
        .nfs
        .lookup(&verified.root.handle, &layout::name(&archive.target)?)
        .await;
    found.context(|| format!("looking up {}", archive.target))
}

async fn find_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    search: &Search<'_>,
) -> Result<Option<FileRef>, ExportError> {
    let directory = &record.directory;
    let nodes = paths::walk(store, verified, directory).await?;
    paths::check_parents(store, verified, directory, &nodes, search.wanted.loss()).await?;
    let except = search.cluster.map(|cluster| (cluster, record.volume.as_str()));
    other_clusters::refuse_except(store, verified, directory, &nodes, record.sharing(), except).await?;
    Ok(paths::leaf(&nodes, directory).cloned())
}

/// Reserves the place of a record.
pub(crate) fn track(store: &ExportStore, verified: &VerifiedRoot, record: &Record) {
    match record.state {
        State::Archived(_) => archives::track(store, verified, record),
        _ => paths::hold(store, verified, record),
    }
}
