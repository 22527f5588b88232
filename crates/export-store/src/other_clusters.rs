//! Directories of other clusters on the same export, to avoid them. They are read and never changed (data-safety rule
//! 1).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::error::ExportError;
use crate::naming::DirectoryPath;
use crate::record::{Record, State};
use crate::records::ReadRecord;
use crate::request::ClaimRef;
use crate::store::ExportStore;
use crate::unsigned_records::records_folder;
use crate::verified_root::VerifiedRoot;
use crate::{layout, readdir, records};
use nfs_client::{FileHandle, FileRef};

/// Maximum age of the records of other clusters for checks of parent directories. Adoption always reads them again.
const FRESH: Duration = Duration::from_secs(60);
/// Number of concurrent reads of records.
const READS: usize = 16;
/// Maximum numbers of other clusters, and of records of one cluster.
const MAX_CLUSTERS: usize = 64;
const MAX_RECORDS: usize = 100_000;

/// A directory of another cluster.
#[derive(Debug)]
struct Theirs {
    cluster: String,
    volume: String,
    segments: Vec<String>,
    file_id: Option<u64>,
}

/// A volume in use in a record of another cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignDirectory {
    /// ID of the other cluster.
    pub cluster: String,
    /// Name of the volume.
    pub volume: String,
    /// Name of the backend.
    pub backend: String,
    /// The claim of the volume.
    pub claim: ClaimRef,
}

/// The directories of all other clusters, as read at one time.
#[derive(Debug)]
pub(super) struct OtherClusters {
    read: Instant,
    directories: Vec<Theirs>,
}

impl OtherClusters {
    /// Returns the cluster that has an overlapping directory, by path or by the file ID of a node on the path. `but`
    /// names one record, by cluster and volume, to ignore.
    pub(super) fn holder(&self, directory: &DirectoryPath, way: &[FileRef], but: Option<(&str, &str)>) -> Option<&str> {
        let ours = directory.folded();
        let mut others = self
            .directories
            .iter()
            .filter(|theirs| but != Some((theirs.cluster.as_str(), theirs.volume.as_str())));
        let found = others.find(|theirs| {
            ours.starts_with(&theirs.segments)
                || theirs.segments.starts_with(&ours)
                || theirs
                    .file_id
                    .is_some_and(|id| way.iter().any(|node| node.attributes.fileid == id))
        })?;
        Some(&found.cluster)
    }
}

fn refusal(directory: &DirectoryPath, holder: Option<&str>) -> Result<(), ExportError> {
    match holder {
        Some(cluster) => Err(ExportError::HeldByOtherCluster {
            directory: directory.to_string(),
            cluster: cluster.to_owned(),
        }),
        None => Ok(()),
    }
}

/// Reports whether the record's directory is in use at its path, and not merely the source of a copy.
fn holds_directory(record: &Record) -> bool {
    !matches!(record.state, State::Copying(_)) && record.state.archive().is_none()
}

/// Fails if a directory overlaps one of another cluster.
pub(crate) async fn refuse(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    way: &[FileRef],
    refresh: bool,
) -> Result<(), ExportError> {
    let foreign = directories(store, verified, refresh).await?;
    refusal(directory, foreign.holder(directory, way, None))
}

/// Fails if a directory overlaps one of another cluster, except that of the record being adopted. Reads the records
/// again.
pub(crate) async fn refuse_except(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    way: &[FileRef],
    but: Option<(&str, &str)>,
) -> Result<(), ExportError> {
    let foreign = directories(store, verified, true).await?;
    refusal(directory, foreign.holder(directory, way, but))
}

async fn directories(
    store: &ExportStore,
    verified: &VerifiedRoot,
    refresh: bool,
) -> Result<Arc<OtherClusters>, ExportError> {
    let known = store.state().foreign.clone();
    if let Some(known) = known
        && !refresh
        && known.read.elapsed() < FRESH
    {
        return Ok(known);
    }
    let read = Instant::now();
    let directories = read_directories(store, verified).await?;
    let foreign = Arc::new(OtherClusters { read, directories });
    store.state().foreign = Some(Arc::clone(&foreign));
    Ok(foreign)
}

async fn read_directories(store: &ExportStore, verified: &VerifiedRoot) -> Result<Vec<Theirs>, ExportError> {
    let mut directories = Vec::new();
    for (cluster, read) in read_records(store, verified).await? {
        directories.extend(read.into_iter().filter(holds_directory).map(|record| Theirs {
            cluster: cluster.clone(),
            volume: record.volume.clone(),
            segments: record.directory.folded(),
            file_id: record.file_id,
        }));
    }
    Ok(directories)
}

/// Returns the volumes in use of all other clusters.
pub(crate) async fn live_volumes(
    store: &ExportStore,
    verified: &VerifiedRoot,
) -> Result<Vec<ForeignDirectory>, ExportError> {
    let mut volumes = Vec::new();
    for (cluster, read) in read_records(store, verified).await? {
        let released = |record: &Record| record.note.as_ref().is_some_and(|note| note.released);
        let live = read
            .into_iter()
            .filter(|record| record.state == State::Live && !released(record));
        volumes.extend(live.map(|record| ForeignDirectory {
            cluster: cluster.clone(),
            volume: record.volume,
            backend: record.backend,
            claim: record.claim,
        }));
    }
    Ok(volumes)
}

async fn read_records(store: &ExportStore, verified: &VerifiedRoot) -> Result<Vec<(String, Vec<Record>)>, ExportError> {
    let ours = layout::cluster(&store.config.cluster_id)?;
    let names = readdir::list_names(store, &verified.reserved.handle, layout::RESERVED, MAX_CLUSTERS).await?;
    let mut found = Vec::new();
    for name in names.into_iter().filter(|name| *name != ours) {
        let Some(folder) = records_folder(store, verified, &name).await? else {
            continue;
        };
        let path = format!("the records of the cluster {name}");
        let read = read_folder(store, verified, &folder.handle, &path).await?;
        found.push((name.to_string(), read));
    }
    Ok(found)
}

async fn read_folder(
    store: &ExportStore,
    verified: &VerifiedRoot,
    records: &FileHandle,
    path: &str,
) -> Result<Vec<Record>, ExportError> {
    let names = readdir::list_names(store, records, path, MAX_RECORDS).await?;
    let read = stream::iter(
        names
            .into_iter()
            .filter(|name| !layout::is_draft(name))
            .map(async |name| {
                let Ok(volume) = std::str::from_utf8(name.as_bytes()) else {
                    return Ok(None);
                };
                match records::read_in(store, verified, records, volume).await {
                    // An unsigned record is enough to avoid a directory.
                    Ok(ReadRecord::Record(record, _)) => Ok(Some(*record)),
                    // An unreadable record has no information.
                    Ok(ReadRecord::Nothing | ReadRecord::Unreadable(_)) | Err(ExportError::NameUnusable { .. }) => {
                        Ok(None)
                    }
                    Err(error) => Err(error),
                }
            }),
    );
    let read: Vec<Option<Record>> = read.buffer_unordered(READS).try_collect().await?;
    Ok(read.into_iter().flatten().collect())
}
