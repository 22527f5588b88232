//! Reads the folders and records of other clusters, one page of a listing at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Deserialize;

use crate::error::{ErrorContext as _, ExportError};
use crate::own_files::{self, OwnFile};
use crate::path_reservations::Sharing;
use crate::readdir::DirectoryReader;
use crate::record::{MAX_RECORD_LEN, Record, RecordError, State};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, readdir};
use nfs_client::{Entry, FileHandle, FileKind, Name, Status};

/// Maximum number of names in the operator's folder: an endless listing must not exhaust the memory.
const MAX_CLUSTERS: usize = 1_000_000;
/// Number of concurrent reads of records.
const READS: usize = 16;
/// Number of reads, and their interval, of a record that another operator is writing.
const PATIENCE: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// The folder with another cluster's records.
#[derive(Debug, Clone)]
pub(super) struct ClusterFolder {
    /// ID of the cluster.
    pub id: String,
    pub handle: FileHandle,
    /// The folder's change attribute when it was looked up. It changes when a record is created, replaced or removed.
    pub change: u64,
}

impl ClusterFolder {
    /// Looks up the folder of a cluster. Files, such as the identity, and links are not clusters' folders.
    pub async fn find(
        store: &ExportStore,
        verified: &VerifiedRoot,
        cluster: &Name,
    ) -> Result<Option<Self>, ExportError> {
        let doing = || format!("looking for the records of the cluster {cluster}");
        let names = [cluster.clone(), layout::name(layout::RECORDS)?];
        let nodes = match store.nfs.walk(&verified.reserved.handle, &names).await {
            Err(error) if matches!(error.status(), Some(Status::NotDirectory | Status::Symlink)) => return Ok(None),
            nodes => nodes.context(doing)?,
        };
        let Some(folder) = nodes.get(1).filter(|node| node.attributes.kind == FileKind::Directory) else {
            return Ok(None);
        };
        let found = store.nfs.full_attributes(&folder.handle).await.context(doing)?;
        Ok(Some(Self {
            id: cluster.to_string(),
            handle: folder.handle.clone(),
            change: found.change,
        }))
    }

    fn doing(&self) -> String {
        format!("listing the records of the cluster {}", self.id)
    }
}

/// The path of a directory in lower case, and its fileid.
pub(super) type HeldDirectory = (Vec<String>, Option<u64>);

/// A record of another cluster. An unsigned record is enough to avoid a directory.
pub(super) enum ForeignRecord {
    Valid(Box<Record>),
    /// A record in a format that this release does not read, apart from where the directory is.
    Newer {
        directory: String,
        file_id: Option<u64>,
        group: Option<u32>,
    },
    /// Nothing is known about the directory.
    Unreadable(String),
}

/// What every version of a record contains.
#[derive(Deserialize)]
struct AnyVersion {
    directory: String,
    #[serde(default, rename = "fileID")]
    file_id: Option<u64>,
    #[serde(default)]
    group: Option<u32>,
}

impl ForeignRecord {
    fn parse(volume: &str, content: &[u8]) -> Result<Self, RecordError> {
        match Record::parse(volume, content) {
            Ok(record) => Ok(Self::Valid(Box::new(record))),
            Err(RecordError::Truncated) => Err(RecordError::Truncated),
            Err(why) => Ok(match serde_json::from_slice::<AnyVersion>(content) {
                Ok(AnyVersion {
                    directory,
                    file_id,
                    group,
                }) if !directory.is_empty() => Self::Newer {
                    directory,
                    file_id,
                    group,
                },
                _ => Self::Unreadable(why.to_string()),
            }),
        }
    }

    /// Reports whether the other cluster has written its record, and may still find that it comes second.
    pub fn is_beginning(&self) -> bool {
        matches!(self, Self::Valid(record) if record.state == State::Creating)
    }

    /// Returns whether other volumes may have the directory. In doubt, none may.
    pub fn sharing(&self) -> Sharing {
        match self {
            Self::Valid(record) => record.sharing(),
            Self::Newer { .. } | Self::Unreadable(_) => Sharing::Exclusive,
        }
    }

    /// Returns the group that pods of the volume get.
    pub fn group(&self) -> Option<u32> {
        match self {
            Self::Valid(record) => record.group,
            Self::Newer { group, .. } => *group,
            Self::Unreadable(_) => None,
        }
    }

    /// Returns the directory that the record holds, `None` if it holds none, and the reason if that is unknown.
    pub fn holds(self) -> Result<Option<HeldDirectory>, String> {
        let record = match self {
            Self::Valid(record) => record,
            Self::Newer { directory, file_id, .. } => {
                let segments = directory.split('/').filter(|segment| !segment.is_empty());
                return Ok(Some((segments.map(str::to_ascii_lowercase).collect(), file_id)));
            }
            Self::Unreadable(why) => return Err(why),
        };
        Ok(match (&record.state, record.state.archive()) {
            // The directory is the source of the copy, and belongs to another record.
            (State::Copying(_), _) => None,
            (_, Some(archive)) => Some((vec![archive.target.to_ascii_lowercase()], record.file_id)),
            (_, None) => Some((record.directory.folded(), record.file_id)),
        })
    }
}

/// A record about whose directory nothing is known.
#[derive(Debug, Clone)]
pub(super) struct UnreadableRecord {
    /// Path of the file.
    pub path: String,
    pub why: String,
}

impl UnreadableRecord {
    pub fn new(folder: &ClusterFolder, entry: &Entry, why: String) -> Self {
        Self {
            path: format!("{}/{}/{}/{}", layout::RESERVED, folder.id, layout::RECORDS, entry.name),
            why,
        }
    }
}

/// A visitor of one cluster's records.
pub(super) trait VisitRecords {
    /// The listing begins, or begins again.
    fn begin(&mut self) {}
    /// Reports whether the record is to be read.
    fn wants(&mut self, entry: &Entry) -> bool;
    /// Takes a record. Returns false if no others are needed.
    fn visit(&mut self, entry: &Entry, record: ForeignRecord) -> bool;
}

/// Returns the names in the operator's folder that may be those of other clusters' folders.
pub(super) async fn list_clusters(store: &ExportStore, verified: &VerifiedRoot) -> Result<Vec<Name>, ExportError> {
    let ours = layout::cluster(&store.config.cluster_id)?;
    let is_folder = |entry: &Entry| matches!(entry.kind, None | Some(FileKind::Directory));
    let not_ours = |entry: Entry| (is_folder(&entry) && entry.name != ours).then_some(entry.name);
    readdir::select_names(
        store,
        &verified.reserved.handle,
        layout::RESERVED,
        MAX_CLUSTERS,
        not_ours,
    )
    .await
}

/// Counts the records of a cluster, and returns the names of the first few.
pub(super) async fn count_names(
    store: &ExportStore,
    folder: &ClusterFolder,
    named: usize,
) -> Result<(usize, BTreeSet<String>), ExportError> {
    let (mut records, mut first) = (0, BTreeSet::new());
    let mut reader = DirectoryReader::new(folder.handle.clone());
    while let Some(page) = reader.next_page(&store.nfs).await.context(|| folder.doing())? {
        if page.is_first {
            records = 0;
        }
        for entry in page.entries.iter().filter(|entry| is_record(entry)) {
            records += 1;
            first.insert(entry.name.to_string());
            if first.len() > named {
                first.pop_last();
            }
        }
    }
    Ok((records, first))
}

/// Reads the records of a cluster that the visitor wants.
pub(super) async fn visit_records(
    store: &ExportStore,
    folder: &ClusterFolder,
    visitor: &mut (impl VisitRecords + Send),
) -> Result<(), ExportError> {
    let mut reader = DirectoryReader::new(folder.handle.clone());
    while let Some(page) = reader.next_page(&store.nfs).await.context(|| folder.doing())? {
        if page.is_first {
            visitor.begin();
        }
        let mut wanted = page.entries;
        wanted.retain(|entry| is_record(entry) && visitor.wants(entry));
        let read = stream::iter(wanted.into_iter().map(|entry| async move {
            let record = read(store, folder, &entry).await?;
            Ok::<_, ExportError>((entry, record))
        }));
        let mut read = read.buffer_unordered(READS);
        while let Some((entry, record)) = read.try_next().await? {
            if let Some(record) = record
                && !visitor.visit(&entry, record)
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Reports whether a name may be a record: drafts, and the files that servers keep for removed ones, begin with a dot.
fn is_record(entry: &Entry) -> bool {
    !entry.name.as_bytes().starts_with(b".")
}

/// Reads a record. Returns `None` if it was removed meanwhile.
async fn read(
    store: &ExportStore,
    folder: &ClusterFolder,
    entry: &Entry,
) -> Result<Option<ForeignRecord>, ExportError> {
    let unreadable = |why: &str| Ok(Some(ForeignRecord::Unreadable(why.to_owned())));
    let Ok(volume) = std::str::from_utf8(entry.name.as_bytes()) else {
        return unreadable("no volume has this name");
    };
    let doing = || format!("reading the record of volume {volume} of the cluster {}", folder.id);
    for _ in 0..PATIENCE {
        let file = match own_files::read(&store.nfs, &folder.handle, &entry.name, MAX_RECORD_LEN, doing).await? {
            OwnFile::Nothing => return Ok(None),
            OwnFile::File(file) => file,
            OwnFile::Unusable(why) => return unreadable(&why),
        };
        match ForeignRecord::parse(volume, &file.content) {
            Ok(record) => return Ok(Some(record)),
            // The other operator may be writing it.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    unreadable("it is incomplete")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_newer_record_is_read_for_path_and_file_id_and_anything_else_is_in_doubt() {
        let holds = |content: &str| ForeignRecord::parse("pvc-1", content.as_bytes()).map(ForeignRecord::holds);
        let newer = r#"{"version": 3, "volume": "pvc-1", "directory": "Team/data", "fileID": 7, "new": {}}"#;
        let path = vec!["team".to_owned(), "data".to_owned()];
        assert_eq!(holds(newer), Ok(Ok(Some((path.clone(), Some(7))))));
        let without = r#"{"version": 9, "directory": "team/data"}"#;
        assert_eq!(holds(without), Ok(Ok(Some((path, None)))));
        for unknown in [
            r#"{"version": 2}"#,
            r#"{"version": 2, "directory": ""}"#,
            "[]",
            "rubbish",
        ] {
            assert!(holds(unknown).unwrap().is_err(), "{unknown}");
        }
        for short in ["", "\0\0\0", r#"{"version": 1, "vol"#] {
            assert_eq!(holds(short), Err(RecordError::Truncated), "{short:?}");
        }
    }
}
