//! Index of this cluster's records on all exports, so that adoption reads only those that may be about a directory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::naming::{DirectoryPath, overlap};
use crate::path_reservations::Sharing;
use crate::record::Record;

/// Maximum number of records in the index, about 30 MiB. The others are read for each adoption.
const MAX_INDEXED: usize = 200_000;

/// Directories in the records that this process wrote or read, by export and volume. Shared by the backends of an export.
#[derive(Debug, Default)]
pub(crate) struct RecordIndex(Mutex<HashMap<(String, String), IndexedRecord>>);

#[derive(Debug)]
struct IndexedRecord {
    /// The path in lower case.
    path: Vec<String>,
    file_id: Option<u64>,
    sharing: Sharing,
}

impl From<&Record> for IndexedRecord {
    fn from(record: &Record) -> Self {
        Self {
            path: record.directory.folded(),
            file_id: record.file_id,
            sharing: record.sharing(),
        }
    }
}

impl RecordIndex {
    /// Remembers a record that was written.
    pub(crate) fn insert(&self, export_id: &str, record: &Record) {
        let mut records = self.records();
        let key = (export_id.to_owned(), record.volume.clone());
        if records.len() < MAX_INDEXED || records.contains_key(&key) {
            records.insert(key, IndexedRecord::from(record));
        }
    }

    /// Remembers a record that was read, unless it is known: it may have been written since.
    pub(crate) fn insert_if_unknown(&self, export_id: &str, record: &Record) {
        let mut records = self.records();
        let key = (export_id.to_owned(), record.volume.clone());
        if records.len() < MAX_INDEXED {
            records.entry(key).or_insert_with(|| IndexedRecord::from(record));
        }
    }

    /// Forgets a record that is removed, or whose content is not known.
    pub(crate) fn remove(&self, export_id: &str, volume: &str) {
        self.records().remove(&(export_id.to_owned(), volume.to_owned()));
    }

    /// Reports whether a record may stand in the way of a directory: it has its fileid, or none yet, or its path overlaps,
    /// or it is not known. One that shares the directory does not: thousands of volumes may share it.
    pub(crate) fn may_conflict(
        &self,
        export_id: &str,
        volume: &str,
        (directory, file_id): (&DirectoryPath, u64),
        sharing: Sharing,
    ) -> bool {
        let (records, path) = (self.records(), directory.folded());
        let indexed = records.get(&(export_id.to_owned(), volume.to_owned()));
        indexed.is_none_or(|indexed| {
            let is_shared = (indexed.sharing, sharing) == (Sharing::Shared, Sharing::Shared) && indexed.path == path;
            let may_be_it = indexed.file_id.is_none_or(|known| known == file_id) || overlap(&indexed.path, &path);
            may_be_it && !is_shared
        })
    }

    fn records(&self) -> MutexGuard<'_, HashMap<(String, String), IndexedRecord>> {
        // A panic leaves no partial change, because the methods only insert and remove.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
