//! Inspection of what the export holds of a volume, to compare it with the cluster. Changes nothing.

use crate::error::{ErrorContext as _, ExportError};
use crate::naming::DirectoryPath;
use crate::path_reservations::{Holder, Relation};
use crate::record::{Record, State};
use crate::records::ReadRecord;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, paths, readdir, records};
use nfs_client::{FileRef, Name};

/// What exists under a name on the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// Unknown: no path was given.
    Unknown,
    /// The path does not exist.
    Nothing,
    /// A directory on the export's own file system.
    Directory {
        /// Fileid of the directory.
        file_id: u64,
    },
    /// Something else: a file, a link or another file system; or a node on the path that is not a directory.
    Other,
}

/// What the export holds of a volume.
#[derive(Debug)]
pub struct Inspection {
    /// The record.
    pub record: ReadRecord,
    /// State of the directory's path. The path is the record's, or without a record the caller's.
    pub directory: PathState,
    /// State of the archive's name, if the record has one.
    pub archive: PathState,
    /// Another volume with the same path, unless the two share it.
    pub other_volume: Option<String>,
}

/// Maximum number of records in a listing: an endless listing must not exhaust the memory.
const MAX_RECORDS: usize = 1_000_000;

fn what_is(verified: &VerifiedRoot, node: &FileRef) -> PathState {
    if verified.is_plain_directory(node) {
        let file_id = node.attributes.fileid;
        return PathState::Directory { file_id };
    }
    PathState::Other
}

pub(crate) async fn recorded_volumes(
    store: &ExportStore,
    verified: &VerifiedRoot,
    leave_out: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<Vec<String>, ExportError> {
    // Names that the caller leaves out take no memory.
    let volume_of = |name: Name| {
        let volume = std::str::from_utf8(name.as_bytes()).ok()?;
        let is_volume = !layout::is_draft(&name) && layout::record(volume).is_ok() && !leave_out(volume);
        is_volume.then(|| volume.to_owned())
    };
    let records = &verified.records.handle;
    let mut volumes = readdir::select_names(store, records, "the records", MAX_RECORDS, |entry| {
        volume_of(entry.name)
    })
    .await?;
    // Servers list entries in their own order, which may differ between calls.
    volumes.sort_unstable();
    volumes.dedup();
    Ok(volumes)
}

pub(crate) async fn inspect(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    elsewhere: Option<&DirectoryPath>,
) -> Result<Inspection, ExportError> {
    let record = records::read(store, verified, volume).await?;
    let (directory, archive, other_volume) = match &record {
        ReadRecord::Record(record, _) => (
            state_of_path(store, verified, &record.directory).await?,
            match &record.state {
                State::Archiving(archive) | State::Archived(archive) => {
                    state_at_root(store, verified, &archive.target).await?
                }
                _ => PathState::Unknown,
            },
            other_volume(store, verified, record).await,
        ),
        ReadRecord::Nothing | ReadRecord::Unreadable(_) => {
            let directory = match elsewhere {
                Some(directory) => state_of_path(store, verified, directory).await?,
                None => PathState::Unknown,
            };
            (directory, PathState::Unknown, None)
        }
    };
    Ok(Inspection {
        record,
        directory,
        archive,
        other_volume,
    })
}

async fn state_of_path(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
) -> Result<PathState, ExportError> {
    match paths::walk(store, verified, directory).await {
        Ok(nodes) => Ok(paths::leaf(&nodes, directory).map_or(PathState::Nothing, |leaf| what_is(verified, leaf))),
        Err(ExportError::PathUnusable { .. }) => Ok(PathState::Other),
        Err(error) => Err(error),
    }
}

async fn state_at_root(store: &ExportStore, verified: &VerifiedRoot, name: &str) -> Result<PathState, ExportError> {
    let found = store.nfs.lookup(&verified.root.handle, &layout::name(name)?).await;
    let found = found.context(|| format!("looking up {name}"))?;
    Ok(found.map_or(PathState::Nothing, |node| what_is(verified, &node)))
}

/// Returns another volume with the same path that does not share it, such as one created manually to reuse the data.
async fn other_volume(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Option<String> {
    let (own, directory) = (Holder::Volume(record.volume.clone()), record.directory.to_string());
    let conflict = paths::conflict(store, verified, &own, record.sharing(), &directory).await?;
    match (conflict.holder, conflict.relation) {
        (Holder::Volume(name), Relation::Same) => Some(name),
        _ => None,
    }
}
