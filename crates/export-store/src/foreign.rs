//! What other clusters keep on the same export: read, never changed (design 6.1), so as not to take what is theirs.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::layout;
use super::record::{Record, State};
use super::records::Found;
use super::request::ClaimRef;
use super::{Arc, ExportStore, PoisonError};
use crate::naming::DirectoryPath;
use nfs_client::{FileHandle, FileKind, FileRef, Name};

/// How long what was read is good enough to judge parent directories by. Taking something over reads anew.
const FRESH: Duration = Duration::from_secs(60);
/// Records read at a time: enough to hide the round trips, few enough to leave the connection to claims.
const READS: usize = 16;
/// Clusters and records a cluster that are looked at. Beyond, it is no export that clusters share.
const MOST_CLUSTERS: usize = 64;
const MOST_RECORDS: usize = 100_000;

/// A directory of another cluster.
#[derive(Debug)]
struct Theirs {
    cluster: String,
    volume: String,
    segments: Vec<String>,
    file_id: Option<u64>,
}

/// A volume in use that another cluster's record knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignDirectory {
    /// The other cluster.
    pub cluster: String,
    /// The volume.
    pub volume: String,
    /// The backend that it was made through.
    pub backend: String,
    /// Whose it is.
    pub claim: ClaimRef,
}

/// The directories of all other clusters, as of some moment.
#[derive(Debug)]
pub(super) struct OtherClusters {
    read: Instant,
    directories: Vec<Theirs>,
}

impl OtherClusters {
    /// The cluster whose directory this is, lies in, or contains, by path or by the fileid of something on the way. One
    /// record, by cluster and volume, may be left out.
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

impl ExportStore {
    /// Refuses a directory that is another cluster's, lies in one, or contains one.
    pub(super) async fn refuse_foreign(
        &self,
        ground: &VerifiedRoot,
        directory: &DirectoryPath,
        way: &[FileRef],
        anew: bool,
    ) -> Result<(), ExportError> {
        let foreign = self.foreign(ground, anew).await?;
        refusal(directory, foreign.holder(directory, way, None))
    }

    /// The same, by what is there now, for one that is adopted from another cluster's record.
    pub(super) async fn refuse_foreign_but(
        &self,
        ground: &VerifiedRoot,
        directory: &DirectoryPath,
        way: &[FileRef],
        but: Option<(&str, &str)>,
    ) -> Result<(), ExportError> {
        let foreign = self.foreign(ground, true).await?;
        refusal(directory, foreign.holder(directory, way, but))
    }

    async fn foreign(&self, ground: &VerifiedRoot, anew: bool) -> Result<Arc<OtherClusters>, ExportError> {
        let known = self.foreign.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known
            && !anew
            && known.read.elapsed() < FRESH
        {
            return Ok(known);
        }
        let read = Instant::now();
        let directories = self.read_foreign(ground).await?;
        let foreign = Arc::new(OtherClusters { read, directories });
        *self.foreign.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&foreign));
        Ok(foreign)
    }

    async fn read_foreign(&self, ground: &VerifiedRoot) -> Result<Vec<Theirs>, ExportError> {
        let mut directories = Vec::new();
        for (cluster, read) in self.records_of_others(ground).await? {
            directories.extend(read.into_iter().filter(holds_directory).map(|record| Theirs {
                cluster: cluster.clone(),
                volume: record.volume.clone(),
                segments: record.directory.folded(),
                file_id: record.file_id,
            }));
        }
        Ok(directories)
    }

    /// The volumes in use of all other clusters.
    pub(super) async fn live_of_others(&self, ground: &VerifiedRoot) -> Result<Vec<ForeignDirectory>, ExportError> {
        let mut volumes = Vec::new();
        for (cluster, read) in self.records_of_others(ground).await? {
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

    async fn records_of_others(&self, ground: &VerifiedRoot) -> Result<Vec<(String, Vec<Record>)>, ExportError> {
        let ours = layout::cluster(&self.keeper.cluster_id)?;
        let records = layout::name(layout::RECORDS)?;
        let names = self
            .names_in(&ground.reserved.handle, layout::RESERVED, MOST_CLUSTERS)
            .await?;
        let mut found = Vec::new();
        for name in names.into_iter().filter(|name| *name != ours) {
            let doing = || format!("reading the records of the cluster {name}");
            // A file, such as the identity, or a link: no cluster's folder, and not gone through.
            let Some(folder) = self.nfs.lookup(&ground.reserved.handle, &name).await.while_(doing)? else {
                continue;
            };
            if folder.attributes.kind != FileKind::Directory {
                continue;
            }
            let Some(folder) = self.nfs.lookup(&folder.handle, &records).await.while_(doing)? else {
                continue;
            };
            if folder.attributes.kind != FileKind::Directory {
                continue;
            }
            let read = self.read_all(ground, &folder.handle, &doing()).await?;
            found.push((name.to_string(), read));
        }
        Ok(found)
    }

    async fn read_all(
        &self,
        ground: &VerifiedRoot,
        records: &FileHandle,
        doing: &str,
    ) -> Result<Vec<Record>, ExportError> {
        let names = self.names_in(records, doing, MOST_RECORDS).await?;
        let read = stream::iter(
            names
                .into_iter()
                .filter(|name| !layout::is_draft(name))
                .map(async |name| {
                    let Ok(volume) = std::str::from_utf8(name.as_bytes()) else {
                        return Ok(None);
                    };
                    match self.read_record_in(ground, records, volume).await {
                        // Signed or not: to keep out of a directory's way, the mere word is enough.
                        Ok(Found::Record(record, _)) => Ok(Some(*record)),
                        // No record of a release that we know: there is nothing to learn from it.
                        Ok(Found::Nothing | Found::Unreadable(_)) | Err(ExportError::NameUnusable { .. }) => Ok(None),
                        Err(error) => Err(error),
                    }
                }),
        );
        let read: Vec<Option<Record>> = read.buffer_unordered(READS).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// The names in a directory, at most so many.
    pub(super) async fn names_in(
        &self,
        directory: &FileHandle,
        path: &str,
        most: usize,
    ) -> Result<Vec<Name>, ExportError> {
        let mut names = Vec::new();
        let mut from = None;
        loop {
            let page = self
                .nfs
                .list(directory, from)
                .await
                .while_(|| format!("listing {path}"))?;
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            if names.len() > most {
                return Err(nfs_client::NfsError::Limit {
                    action: "listing",
                    limit: format!("more than {most} entries"),
                })
                .while_(|| format!("listing {path}"));
            }
            match page.next {
                Some(next) => from = Some(next),
                None => return Ok(names),
            }
        }
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

/// Whether the directory of this record still has its name, and is not merely copied for it.
fn holds_directory(record: &Record) -> bool {
    !matches!(record.state, State::Copying(_)) && record.state.archive().is_none()
}
