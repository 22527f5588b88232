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

/// What an administrator confirms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed<'a> {
    /// The record, which is in the folder of another cluster if one is named. The directory must have the recorded fileid.
    Record(Option<&'a str>),
    /// The directory, whatever its fileid is.
    Directory,
}

/// Returns the path of the archive or directory in a record, relative to the export's path.
pub(crate) fn path(record: &Record) -> String {
    let archive = record.state.archive();
    archive.map_or_else(|| record.directory.to_string(), |archive| archive.target.clone())
}

/// Returns the directory at the place of a record of a volume in use or an archive, or why it is not confirmed.
pub(crate) async fn find(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    confirmed: Confirmed<'_>,
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
        State::Archived(archive) => find_archive(store, verified, record, archive, confirmed).await?,
        _ => find_directory(store, verified, record, confirmed).await?,
    };
    let is_confirmed = |node: &FileRef| match confirmed {
        Confirmed::Record(_) => record.file_id == Some(node.attributes.fileid),
        Confirmed::Directory => true,
    };
    let Some(node) = node.filter(|node| verified.is_plain_directory(node) && is_confirmed(node)) else {
        let expected = match confirmed {
            Confirmed::Record(_) => "the recorded directory",
            Confirmed::Directory => "a directory",
        };
        return Ok(Err(format!("{place} does not exist, or is not {expected}")));
    };
    let (loss, sharing) = (confirmed.loss(), record.sharing());
    if let Some(other) = file_holders::find_holder(store, verified, &node, (Some(volume), sharing), loss).await? {
        return Ok(Err(format!("{place} has the fileid of {other}")));
    }
    if paths::is_backend_root(store, &node, &place).await? {
        return Ok(Err(format!("{place} is the path of a backend")));
    }
    Ok(Ok(node))
}

impl Confirmed<'_> {
    fn loss(self) -> Loss {
        match self {
            Self::Record(_) => Loss::Certain,
            Self::Directory => Loss::Confirmed,
        }
    }
}

async fn find_archive(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    archive: &ArchiveState,
    confirmed: Confirmed<'_>,
) -> Result<Option<FileRef>, ExportError> {
    let target = &archive.target;
    let found = store.nfs.lookup(&verified.root.handle, &layout::name(target)?).await;
    let found = found.context(|| format!("looking up {target}"))?;
    // A record that is adopted may be one of another cluster.
    if confirmed == Confirmed::Directory
        && let Some(node) = &found
    {
        let (segments, nodes) = (std::slice::from_ref(target), std::slice::from_ref(node));
        other_clusters::refuse_removal(store, verified, &record.volume, segments, nodes).await?;
    }
    Ok(found)
}

async fn find_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    confirmed: Confirmed<'_>,
) -> Result<Option<FileRef>, ExportError> {
    let directory = &record.directory;
    let nodes = paths::walk(store, verified, directory).await?;
    paths::check_parents(store, verified, directory, &nodes, confirmed.loss()).await?;
    let except = match confirmed {
        Confirmed::Record(Some(cluster)) => Some((cluster, record.volume.as_str())),
        Confirmed::Record(None) | Confirmed::Directory => None,
    };
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
