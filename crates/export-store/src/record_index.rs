//! Index of this cluster's records on all exports, so that adoption reads only those that may be about a directory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use crate::naming::DirectoryPath;
use crate::path_reservations::Sharing;
use crate::record::Record;
use crate::uid_map::UidMap;

/// Maximum number of records in the index, about 20 MiB. The others are read for each adoption.
const MAX_INDEXED: usize = 200_000;

/// Directories in the records that this process wrote or read, by export and volume. Shared by the backends of an export.
#[derive(Debug, Default)]
pub(crate) struct RecordIndex {
    exports: Mutex<HashMap<String, UidMap<IndexedRecord>>>,
    hasher: RandomState,
}

/// There is one for each volume that was provisioned, so it must be small.
#[derive(Debug)]
struct IndexedRecord {
    /// Hash of the path in lower case, and before it those of the paths that contain it. Paths with the same hash are read
    /// for nothing.
    hashes: Box<[u64]>,
    file_id: Option<u64>,
    /// The path, if other volumes may have it.
    shared: Option<Box<[String]>>,
}

impl RecordIndex {
    /// Remembers a record that was written.
    pub(crate) fn insert(&self, export_id: &str, record: &Record) {
        self.insert_where(export_id, record, |_| true);
    }

    /// Remembers a record that was read, unless it is known: it may have been written since.
    pub(crate) fn insert_if_unknown(&self, export_id: &str, record: &Record) {
        self.insert_where(export_id, record, |is_known| !is_known);
    }

    fn insert_where(&self, export_id: &str, record: &Record, may_insert: impl Fn(bool) -> bool) {
        let mut exports = self.exports.lock();
        let indexed: usize = exports.values().map(UidMap::len).sum();
        let known = exports
            .get(export_id)
            .is_some_and(|records| records.contains_key(&record.volume));
        if !may_insert(known) || (indexed >= MAX_INDEXED && !known) {
            return;
        }
        let records = exports.entry(export_id.to_owned()).or_insert_with(UidMap::by_volume);
        records.insert(&record.volume, self.indexed(record));
    }

    fn indexed(&self, record: &Record) -> IndexedRecord {
        let path = record.directory.folded();
        IndexedRecord {
            hashes: self.hashes(&path),
            file_id: record.file_id,
            shared: (record.sharing() == Sharing::Shared).then(|| path.into_boxed_slice()),
        }
    }

    /// Returns the hashes of a path and of those that contain it, the shortest path first.
    fn hashes(&self, path: &[String]) -> Box<[u64]> {
        (1..=path.len())
            .filter_map(|segments| path.get(..segments))
            .map(|path| self.hasher.hash_one(path))
            .collect()
    }

    /// Forgets a record that is removed, or whose content is not known.
    pub(crate) fn remove(&self, export_id: &str, volume: &str) {
        let mut exports = self.exports.lock();
        let Some(records) = exports.get_mut(export_id) else {
            return;
        };
        records.remove(volume);
        if records.is_empty() {
            exports.remove(export_id);
        }
    }

    /// Reports whether a volume is known to have a record.
    pub(crate) fn contains(&self, export_id: &str, volume: &str) -> bool {
        let exports = self.exports.lock();
        exports
            .get(export_id)
            .is_some_and(|records| records.contains_key(volume))
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
        let (exports, path) = (self.exports.lock(), directory.folded());
        let indexed = exports.get(export_id).and_then(|records| records.get(volume));
        indexed.is_none_or(|indexed| {
            let is_shared = sharing == Sharing::Shared && indexed.shared.as_deref() == Some(&*path);
            let hashes = self.hashes(&path);
            // One path is, or contains, the other.
            let overlaps = hashes.starts_with(&indexed.hashes) || indexed.hashes.starts_with(&hashes);
            let may_be_it = indexed.file_id.is_none_or(|known| known == file_id) || overlaps;
            may_be_it && !is_shared
        })
    }
}
