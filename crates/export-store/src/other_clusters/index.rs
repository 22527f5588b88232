//! A compact index of the records of other clusters: for each record a few hashes. A match is verified with the record
//! itself.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::read::{ClusterFolder, ForeignRecord, UnreadableRecord, VisitRecords};
use crate::naming;
use crate::path_reservations::Sharing;
use crate::verified_root::VerifiedRoot;
use nfs_client::{FileHandle, FileRef, Name, Unchanged};

/// Maximum number of records in the index of one backend, about 8 MiB. The records of a cluster that does not fit are
/// read for each check.
const MAX_INDEXED: usize = 100_000;
/// Time after which each change of a directory has another change attribute: many servers derive it from a clock with
/// a coarse resolution.
pub(crate) const CHANGE_RESOLUTION: Duration = Duration::from_secs(2);

/// A path and the nodes on it, to compare with the directories of other clusters.
pub(super) struct CandidatePath {
    /// The path in lower case.
    segments: Vec<String>,
    file_ids: Vec<u64>,
    sharing: Sharing,
}

impl CandidatePath {
    pub fn new(segments: Vec<String>, nodes: &[FileRef], sharing: Sharing) -> Self {
        Self {
            segments,
            sharing,
            file_ids: nodes.iter().map(|node| node.attributes.fileid).collect(),
        }
    }

    /// Reports whether a directory equals, contains or lies inside this one, or is a node of its path, and is not shared
    /// with it.
    pub fn conflicts(&self, theirs: &[String], file_id: Option<u64>, sharing: Sharing) -> bool {
        let is_shared = (self.sharing, sharing) == (Sharing::Shared, Sharing::Shared) && self.segments == theirs;
        let overlaps = naming::overlap(&self.segments, theirs) || file_id.is_some_and(|id| self.file_ids.contains(&id));
        overlaps && !is_shared
    }
}

/// Hash function of the index. Its keys are random, so that nobody can choose names with equal hashes.
#[derive(Debug, Clone, Default)]
pub(super) struct Hashes(RandomState);

impl Hashes {
    pub fn of_name(&self, name: &Name) -> u64 {
        self.0.hash_one(name.as_bytes())
    }

    /// Returns a hash for each prefix of a path, and for the path itself at the end.
    fn of_path(&self, segments: &[String]) -> SmallVec<[u64; 2]> {
        let lengths = 1..=segments.len();
        lengths
            .filter_map(|length| Some(self.0.hash_one(segments.get(..length)?)))
            .collect()
    }
}

/// The records of all other clusters, as read at one time.
#[derive(Debug)]
pub(crate) struct OtherClusters {
    pub(super) began: Instant,
    pub(super) hashes: Hashes,
    pub(super) clusters: Vec<Arc<ClusterIndex>>,
    /// If no other cluster has a folder, what shows that there still is none.
    pub(super) no_others: Option<NoOthers>,
}

impl OtherClusters {
    pub(super) fn new(hashes: Option<Hashes>) -> Self {
        Self {
            began: Instant::now(),
            hashes: hashes.unwrap_or_default(),
            clusters: Vec::new(),
            no_others: None,
        }
    }

    /// Returns the same as of a later time, at which nothing was changed.
    pub(super) fn as_of(&self, began: Instant) -> Self {
        Self {
            began,
            hashes: self.hashes.clone(),
            clusters: self.clusters.clone(),
            no_others: self.no_others.clone(),
        }
    }

    /// Returns the condition under which no other cluster has a folder on this export.
    pub(super) fn none_while(&self, verified: &VerifiedRoot) -> Option<&Unchanged> {
        let known = self.no_others.as_ref()?;
        known.condition(&verified.identity.id, &verified.reserved.handle)
    }

    /// Returns the index of a cluster.
    pub(super) fn of(&self, folder: &ClusterFolder) -> Option<&Arc<ClusterIndex>> {
        let same = |known: &&Arc<ClusterIndex>| known.folder.id == folder.id && known.folder.handle == folder.handle;
        self.clusters.iter().find(same)
    }

    /// Starts to read the records of another cluster, or what changed since the `former` look at them.
    pub(super) fn start(&self, folder: ClusterFolder, former: Option<Arc<ClusterIndex>>) -> IndexBuilder {
        let used = self.clusters.iter().map(|cluster| cluster.records.len()).sum();
        IndexBuilder::new(folder, former, self.hashes.clone(), MAX_INDEXED.saturating_sub(used))
    }
}

/// The operator's folder without a folder of another cluster in it.
#[derive(Debug, Clone)]
pub(super) struct NoOthers {
    /// Identity of the export.
    export: String,
    /// The folder with its change attribute, as read after its listing.
    folder: Unchanged,
    /// The first time that the folder had this change attribute.
    since: Instant,
    /// A later change would have another change attribute.
    settled: bool,
}

impl NoOthers {
    /// Takes what was read after a listing that began at `began`.
    pub fn new(
        export: &str,
        folder: Unchanged,
        (began, resolution): (Instant, Duration),
        former: Option<&Self>,
    ) -> Self {
        let unchanged = former.filter(|former| former.export == export && former.folder == folder);
        Self {
            export: export.to_owned(),
            folder,
            since: unchanged.map_or_else(Instant::now, |former| former.since),
            settled: unchanged.is_some_and(|former| began.saturating_duration_since(former.since) >= resolution),
        }
    }

    fn condition(&self, export: &str, folder: &FileHandle) -> Option<&Unchanged> {
        let is_known = self.settled && self.export == export && self.folder.directory == *folder;
        is_known.then_some(&self.folder)
    }
}

/// A record in the index.
#[derive(Debug, Clone)]
struct Indexed {
    name: u64,
    /// Fileid and size of the record's file. A record that is replaced has another file.
    file: (Option<u64>, Option<u64>),
    /// The prefixes of the directory's path, and its fileid; no prefixes if the record holds none.
    prefixes: SmallVec<[u64; 2]>,
    file_id: Option<u64>,
    /// Group of its pods.
    group: Option<u32>,
    beginning: bool,
}

/// The records of one cluster.
#[derive(Debug)]
pub(super) struct ClusterIndex {
    pub folder: ClusterFolder,
    /// The first time that the folder had this change attribute.
    since: Instant,
    /// A later change would have another change attribute.
    settled: bool,
    /// Sorted by name; `complete` if all are here.
    records: Vec<Indexed>,
    complete: bool,
    /// A record that could not be read.
    pub unreadable: Option<UnreadableRecord>,
}

/// Records that may hold a directory.
pub(super) enum Candidates {
    /// Those whose names have these hashes.
    Named(HashSet<u64>),
    /// All: they are not indexed.
    All,
}

impl Candidates {
    pub fn contains(&self, name: u64) -> bool {
        match self {
            Self::Named(names) => names.contains(&name),
            Self::All => true,
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Named(names) if names.is_empty())
    }
}

impl ClusterIndex {
    /// Reports whether the index is that of the folder's current content.
    pub fn is_settled(&self, now: &ClusterFolder) -> bool {
        self.settled && self.folder.change == now.change
    }

    pub fn candidates(&self, place: &CandidatePath, hashes: &Hashes) -> Candidates {
        if !self.complete {
            return Candidates::All;
        }
        let ours = hashes.of_path(&place.segments);
        let overlaps = |record: &&Indexed| {
            let theirs = &record.prefixes;
            theirs.last().is_some_and(|whole| ours.contains(whole))
                || ours.last().is_some_and(|whole| theirs.contains(whole))
                || record.file_id.is_some_and(|id| place.file_ids.contains(&id))
        };
        Candidates::Named(self.records.iter().filter(overlaps).map(|record| record.name).collect())
    }

    /// Returns those of `file_ids` that a record of this cluster has, if the records are indexed.
    pub fn recorded_among<'a>(&'a self, file_ids: &'a HashSet<u64>) -> impl Iterator<Item = u64> + 'a {
        let recorded = self.records.iter().filter_map(|record| record.file_id);
        recorded.filter(move |id| file_ids.contains(id))
    }

    /// Returns the groups in the records of this cluster, and whether the record is beginning
    /// ([`ForeignRecord::is_beginning`]); `None` if they are not indexed.
    pub fn groups(&self) -> Option<impl Iterator<Item = (u32, bool)> + '_> {
        let groups = self
            .records
            .iter()
            .filter_map(|record| Some((record.group?, record.beginning)));
        self.complete.then_some(groups)
    }

    fn find(&self, name: u64) -> Option<&Indexed> {
        let index = self.records.binary_search_by_key(&name, |record| record.name).ok()?;
        self.records.get(index)
    }
}

/// Reads the records of one cluster into an index.
pub(super) struct IndexBuilder {
    index: ClusterIndex,
    former: Option<Arc<ClusterIndex>>,
    hashes: Hashes,
    room: usize,
    began: Instant,
}

impl IndexBuilder {
    fn new(folder: ClusterFolder, former: Option<Arc<ClusterIndex>>, hashes: Hashes, room: usize) -> Self {
        let began = Instant::now();
        let unchanged = former.as_ref().filter(|former| former.folder.change == folder.change);
        Self {
            index: ClusterIndex {
                since: unchanged.map_or(began, |former| former.since),
                folder,
                settled: false,
                records: Vec::new(),
                complete: true,
                unreadable: None,
            },
            former,
            hashes,
            room,
            began,
        }
    }

    fn push(&mut self, record: Indexed) {
        self.index.complete &= self.index.records.len() < self.room;
        if self.index.complete {
            self.index.records.push(record);
        }
    }

    pub fn finish(self) -> ClusterIndex {
        let mut index = self.index;
        if !index.complete {
            index.records = Vec::new();
        }
        index.records.shrink_to_fit();
        index.records.sort_unstable_by_key(|record| record.name);
        // A record that cannot be read may be completed in place.
        let readable = index.complete && index.unreadable.is_none();
        index.settled = readable && self.began.duration_since(index.since) >= CHANGE_RESOLUTION;
        index
    }
}

impl VisitRecords for IndexBuilder {
    fn begin(&mut self) {
        self.index.records.clear();
    }

    fn wants(&mut self, entry: &nfs_client::Entry) -> bool {
        let name = self.hashes.of_name(&entry.name);
        let file = (entry.fileid, entry.size);
        let known = self.former.as_ref().and_then(|former| former.find(name));
        match known
            .filter(|known| known.file == file && entry.fileid.is_some())
            .cloned()
        {
            Some(known) => {
                self.push(known);
                false
            }
            None => self.index.complete,
        }
    }

    fn visit(&mut self, entry: &nfs_client::Entry, record: ForeignRecord) -> bool {
        let (group, beginning) = (record.group(), record.is_beginning());
        match record.holds() {
            Ok(held) => {
                let (prefixes, file_id) = match held {
                    Some((segments, file_id)) => (self.hashes.of_path(&segments), file_id),
                    None => (SmallVec::new(), None),
                };
                self.push(Indexed {
                    name: self.hashes.of_name(&entry.name),
                    file: (entry.fileid, entry.size),
                    prefixes,
                    file_id,
                    group,
                    beginning,
                });
            }
            Err(why) => {
                let unreadable = || UnreadableRecord::new(&self.index.folder, entry, why);
                if self.index.unreadable.is_none() {
                    self.index.unreadable = Some(unreadable());
                }
            }
        }
        self.index.complete
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use nfs_client::Entry;

    fn folder(change: u64) -> ClusterFolder {
        ClusterFolder {
            id: "other".into(),
            handle: nfs_client::fuzzing::file_handle(b"records"),
            change,
        }
    }

    fn entry(number: u64) -> Entry {
        Entry {
            name: Name::new(format!("pvc-{number}")).unwrap(),
            kind: None,
            size: Some(300),
            fileid: Some(number),
            fsid: None,
            used: None,
            links: None,
            details: None,
        }
    }

    fn record(number: u64) -> ForeignRecord {
        ForeignRecord::Newer {
            directory: format!("team/dir-{number}"),
            file_id: Some(1_000 + number),
            group: Some(5_000),
        }
    }

    fn read(builder: &mut IndexBuilder, numbers: std::ops::Range<u64>) -> u64 {
        let mut reads = 0;
        for number in numbers {
            if builder.wants(&entry(number)) {
                reads += 1;
                if !builder.visit(&entry(number), record(number)) {
                    break;
                }
            }
        }
        reads
    }

    fn place(path: &str, file_ids: &[u64]) -> CandidatePath {
        CandidatePath {
            segments: path.split('/').map(str::to_owned).collect(),
            file_ids: file_ids.to_vec(),
            sharing: Sharing::Exclusive,
        }
    }

    #[test]
    fn clusters_may_share_a_directory_and_none_inside_or_around_it() {
        use Sharing::{Exclusive, Shared};
        let place = |path: &str, sharing| CandidatePath {
            sharing,
            ..place(path, &[7])
        };
        let theirs = ["team".to_owned(), "common".to_owned()];
        for (path, ours, their_sharing, conflicts) in [
            ("team/common", Shared, Shared, false),
            ("team/common", Shared, Exclusive, true),
            ("team/common", Exclusive, Shared, true),
            ("team", Shared, Shared, true),
            ("team/common/below", Shared, Shared, true),
            // The same directory by another path.
            ("other", Shared, Shared, true),
        ] {
            let found = place(path, ours).conflicts(&theirs, Some(7), their_sharing);
            assert_eq!(found, conflicts, "{path} {ours:?} {their_sharing:?}");
        }
    }

    #[test]
    fn the_index_finds_equal_enclosing_and_enclosed_paths_and_file_ids() {
        let hashes = Hashes::default();
        let mut builder = IndexBuilder::new(folder(1), None, hashes.clone(), 100);
        read(&mut builder, 0..10);
        let index = builder.finish();
        for (path, ids, held) in [
            ("team/dir-3", &[][..], 1),
            ("team/dir-3/below", &[], 1),
            ("team", &[], 10),
            ("team/dir", &[], 0),
            ("team/dir-33", &[], 0),
            ("elsewhere", &[7, 1_004], 1),
        ] {
            let Candidates::Named(found) = index.candidates(&place(path, ids), &hashes) else {
                panic!("indexed");
            };
            assert_eq!(found.len(), held, "{path}");
        }
    }

    #[test]
    fn only_new_records_are_read_again() {
        let hashes = Hashes::default();
        let mut first = IndexBuilder::new(folder(1), None, hashes.clone(), 100);
        assert_eq!(read(&mut first, 0..10), 10);
        let mut second = IndexBuilder::new(folder(2), Some(Arc::new(first.finish())), hashes.clone(), 100);
        assert_eq!(read(&mut second, 5..12), 2);
        let index = second.finish();
        assert_eq!(index.records.len(), 7);
        assert!(
            index.candidates(&place("team/dir-1", &[]), &hashes).is_empty(),
            "removed"
        );
        assert!(!index.candidates(&place("team/dir-5", &[]), &hashes).is_empty(), "kept");
    }

    #[test]
    fn what_does_not_fit_is_read_for_each_check_and_takes_no_memory() {
        let hashes = Hashes::default();
        let mut builder = IndexBuilder::new(folder(1), None, hashes.clone(), 5);
        assert_eq!(read(&mut builder, 0..100), 6, "reading stops where the room ends");
        let index = builder.finish();
        assert_eq!(index.records.capacity(), 0);
        assert!(matches!(index.candidates(&place("x", &[]), &hashes), Candidates::All));
        assert!(!index.is_settled(&folder(1)));
        let bytes = MAX_INDEXED * std::mem::size_of::<Indexed>();
        assert!(bytes <= 10 << 20, "{bytes}");
    }

    #[test]
    fn no_other_cluster_is_known_only_once_a_change_of_the_same_folder_would_show() {
        let handle = |name: &'static str| nfs_client::fuzzing::file_handle(name.as_bytes());
        let folder = |change| Unchanged {
            directory: handle("reserved"),
            change,
        };
        let first = NoOthers::new("id", folder(1), (Instant::now(), CHANGE_RESOLUTION), None);
        let later = (first.since + CHANGE_RESOLUTION, CHANGE_RESOLUTION);
        let condition = |known: &NoOthers| known.condition("id", &handle("reserved")).cloned();
        assert_eq!(condition(&first), None, "a change at the same tick would be missed");
        let early = NoOthers::new("id", folder(1), (first.since, CHANGE_RESOLUTION), Some(&first));
        assert_eq!(condition(&early), None);
        let known = NoOthers::new("id", folder(1), later, Some(&early));
        assert_eq!(condition(&known), Some(folder(1)));
        assert_eq!(known.condition("other", &handle("reserved")), None);
        assert_eq!(known.condition("id", &handle("new")), None);
        for (export, change) in [("id", 2), ("other", 1)] {
            let changed = NoOthers::new(export, folder(change), later, Some(&known));
            assert_eq!(
                changed.condition(export, &handle("reserved")),
                None,
                "{export} {change}"
            );
        }
    }

    #[test]
    fn an_index_is_used_again_only_once_a_change_would_show() {
        let read_at = |since: Duration, former: Option<Arc<ClusterIndex>>| {
            let mut builder = IndexBuilder::new(folder(1), former, Hashes::default(), 5);
            builder.began += since;
            builder.finish()
        };
        let first = read_at(Duration::ZERO, None);
        assert!(
            !first.is_settled(&folder(1)),
            "a change at the same tick would be missed"
        );
        let again = read_at(CHANGE_RESOLUTION, Some(Arc::new(first)));
        assert!(again.is_settled(&folder(1)));
        assert!(!again.is_settled(&folder(2)));
    }
}
