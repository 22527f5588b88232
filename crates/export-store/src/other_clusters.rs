//! Directories of other clusters on the same export, to avoid them. They are read and never changed (data-safety rules
//! 1 and 20).
//!
//! A former cluster leaves its folder behind, so neither the number of folders nor that of records is limited. What is
//! remembered about them is limited ([`index`]).

mod index;
mod read;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
pub(crate) use index::{CHANGE_RESOLUTION, OtherClusters};
use index::{CandidatePath, Candidates, Hashes, NoOthers};
use read::{ClusterFolder, ForeignRecord, UnreadableRecord, VisitRecords};
use tokio::time::Instant;

use crate::error::{ErrorContext as _, ExportError};
use crate::layout;
use crate::naming::DirectoryPath;
use crate::path_reservations::Sharing;
use crate::record::State;
use crate::request::ClaimRef;
use crate::store::ExportStore;
use crate::unsigned_records::OtherCluster;
use crate::verified_root::VerifiedRoot;
use nfs_client::{Entry, FileHandle, FileRef, Name, Unchanged};

/// Maximum age of the records of other clusters for checks of parent directories before anything is recorded. All other
/// checks look for changes first.
const FRESH: Duration = Duration::from_secs(60);
/// Number of concurrent lookups of folders.
const LOOKUPS: usize = 16;
/// Number of checks, and their interval, while another cluster that comes second removes its record.
const PATIENCE: u32 = 25;
const PAUSE: Duration = Duration::from_millis(200);

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

/// Another cluster's record of an overlapping directory.
struct Holding {
    cluster: String,
    /// The other cluster has written its record, and may still remove it.
    beginning: bool,
}

/// Fails if a directory overlaps one of another cluster. Without `refresh`, the records may have been read up to a
/// minute ago.
pub(crate) async fn refuse(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    nodes: &[FileRef],
    sharing: Sharing,
    refresh: bool,
) -> Result<(), ExportError> {
    let place = CandidatePath::new(directory.folded(), nodes, sharing);
    refusal(directory, holder(store, verified, &place, None, refresh).await?)
}

/// Fails if a directory overlaps one of another cluster, except that of the record being adopted, which `but` names by
/// cluster and volume.
pub(crate) async fn refuse_except(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    nodes: &[FileRef],
    sharing: Sharing,
    but: Option<(&str, &str)>,
) -> Result<(), ExportError> {
    let place = CandidatePath::new(directory.folded(), nodes, sharing);
    refusal(directory, holder(store, verified, &place, but, true).await?)
}

/// Checks a directory again after this cluster recorded it (data-safety rule 20). On failure, the caller removes the
/// record.
///
/// Each cluster writes its record before it reads those of the others, so at least one of two clusters that record the
/// same directory at the same time finds the other's record. If both do, the one with the smaller ID waits until the
/// other has removed its record. It does not win before that: the other one may have made its check earlier.
pub(crate) async fn recheck(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    nodes: &[FileRef],
    sharing: Sharing,
) -> Result<(), ExportError> {
    let place = CandidatePath::new(directory.folded(), nodes, sharing);
    let mut found = holder(store, verified, &place, None, true).await?;
    for _ in 0..PATIENCE {
        match &found {
            Some(other) if other.beginning && store.config.cluster_id < other.cluster => {
                tokio::time::sleep(PAUSE).await;
                found = holder(store, verified, &place, None, true).await?;
            }
            _ => break,
        }
    }
    refusal(directory, found)
}

/// Fails if another cluster has a record of what is about to be moved or removed (data-safety rule 20). `segments` is
/// its path.
pub(crate) async fn refuse_removal(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    segments: &[String],
    nodes: &[FileRef],
) -> Result<(), ExportError> {
    refuse_recorded(store, verified, (volume, segments), nodes, true).await
}

/// The same before this cluster records what it is about to do, after which they are read again. What was read up to a
/// minute ago is enough to go on, and not to refuse.
pub(crate) async fn refuse_known_removal(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    segments: &[String],
    nodes: &[FileRef],
) -> Result<(), ExportError> {
    match refuse_recorded(store, verified, (volume, segments), nodes, false).await {
        Ok(()) => Ok(()),
        Err(_) => refuse_removal(store, verified, volume, segments, nodes).await,
    }
}

async fn refuse_recorded(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (volume, segments): (&str, &[String]),
    nodes: &[FileRef],
    refresh: bool,
) -> Result<(), ExportError> {
    let folded = segments.iter().map(|segment| segment.to_ascii_lowercase()).collect();
    let place = CandidatePath::new(folded, nodes, Sharing::Exclusive);
    match holder(store, verified, &place, None, refresh).await? {
        Some(other) => Err(ExportError::RecordMismatch {
            volume: volume.to_owned(),
            directory: segments.join("/"),
            what: format!("the cluster with id {} has a record of it, too", other.cluster),
        }),
        None => Ok(()),
    }
}

/// Returns those of `file_ids` that another cluster has a record of, with the cluster's ID. The records may have been read
/// up to a minute ago, and those that are not indexed are left out: a purge calls this for each page of a listing.
pub(crate) async fn recorded_among(
    store: &ExportStore,
    verified: &VerifiedRoot,
    file_ids: &HashSet<u64>,
) -> Result<HashMap<u64, String>, ExportError> {
    if file_ids.is_empty() {
        return Ok(HashMap::new());
    }
    let known = current(store, verified, false).await?;
    let recorded = known.clusters.iter().flat_map(|cluster| {
        let of_cluster = cluster.recorded_among(file_ids);
        of_cluster.map(move |file_id| (file_id, cluster.folder.id.clone()))
    });
    Ok(recorded.collect())
}

/// The groups in the records of all other clusters.
#[derive(Debug, Default)]
pub(crate) struct ForeignGroups {
    pub all: HashSet<u32>,
    /// Those that are not about to be given up.
    kept: HashSet<u32>,
}

impl ForeignGroups {
    /// Reports whether only clusters that come second have the group.
    fn is_given_up(&self, group: u32) -> bool {
        self.all.contains(&group) && !self.kept.contains(&group)
    }
}

/// Returns the groups in the records of all other clusters. Without `refresh`, the records may have been read up to a
/// minute ago.
pub(crate) async fn groups(
    store: &ExportStore,
    verified: &VerifiedRoot,
    refresh: bool,
) -> Result<ForeignGroups, ExportError> {
    let known = current(store, verified, refresh).await?;
    let mut groups = ForeignGroups::default();
    for cluster in &known.clusters {
        let comes_second = store.config.cluster_id < cluster.folder.id;
        let mut add = |group, beginning| {
            groups.all.insert(group);
            if !(beginning && comes_second) {
                groups.kept.insert(group);
            }
        };
        match cluster.groups() {
            Some(of_cluster) => of_cluster.for_each(|(group, beginning)| add(group, beginning)),
            None => read::visit_records(store, &cluster.folder, &mut UnindexedGroups(add)).await?,
        }
    }
    Ok(groups)
}

/// Returns the groups in the records of all other clusters, once those that come second have chosen another group than
/// this one, or did not in time: two that choose again at the same time could do so for ever.
pub(crate) async fn groups_without(
    store: &ExportStore,
    verified: &VerifiedRoot,
    group: Option<u32>,
) -> Result<ForeignGroups, ExportError> {
    let mut found = groups(store, verified, true).await?;
    for _ in 0..PATIENCE {
        if !group.is_some_and(|group| found.is_given_up(group)) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        found = groups(store, verified, true).await?;
    }
    Ok(found)
}

/// Reads the groups of a cluster with too many records for the index.
struct UnindexedGroups<F>(F);

impl<F: FnMut(u32, bool)> VisitRecords for UnindexedGroups<F> {
    fn wants(&mut self, _: &Entry) -> bool {
        true
    }

    fn visit(&mut self, _: &Entry, record: ForeignRecord) -> bool {
        if let Some(group) = record.group() {
            self.0(group, record.is_beginning());
        }
        true
    }
}

fn refusal(directory: &DirectoryPath, holding: Option<Holding>) -> Result<(), ExportError> {
    match holding {
        Some(other) => Err(ExportError::OwnedByOtherCluster {
            directory: directory.to_string(),
            cluster: other.cluster,
        }),
        None => Ok(()),
    }
}

/// Returns another cluster's record of an overlapping directory. `but` names one record to ignore, by cluster and
/// volume.
///
/// Fails if there is none and a record cannot be read: it may hold any directory.
async fn holder(
    store: &ExportStore,
    verified: &VerifiedRoot,
    place: &CandidatePath,
    but: Option<(&str, &str)>,
    refresh: bool,
) -> Result<Option<Holding>, ExportError> {
    let known = current(store, verified, refresh).await?;
    let mut unreadable = None;
    for cluster in &known.clusters {
        let mut search = Search {
            folder: &cluster.folder,
            hashes: &known.hashes,
            candidates: cluster.candidates(place, &known.hashes),
            place,
            but,
            found: None,
            unreadable: cluster.unreadable.clone(),
        };
        if !search.candidates.is_empty() {
            read::visit_records(store, &cluster.folder, &mut search).await?;
        }
        if search.found.is_some() {
            return Ok(search.found);
        }
        unreadable = unreadable.or(search.unreadable);
    }
    match unreadable {
        Some(record) => Err(ExportError::OtherClusterUnreadable {
            path: record.path,
            why: record.why,
        }),
        None => Ok(None),
    }
}

/// Search for the record of an overlapping directory among the candidates of one cluster.
struct Search<'a> {
    folder: &'a ClusterFolder,
    hashes: &'a Hashes,
    candidates: Candidates,
    place: &'a CandidatePath,
    but: Option<(&'a str, &'a str)>,
    found: Option<Holding>,
    unreadable: Option<UnreadableRecord>,
}

impl VisitRecords for Search<'_> {
    fn wants(&mut self, entry: &Entry) -> bool {
        let name = entry.name.as_bytes();
        let but = self.but;
        let excepted = but.is_some_and(|(cluster, volume)| cluster == self.folder.id && volume.as_bytes() == name);
        !excepted && self.candidates.contains(self.hashes.of_name(&entry.name))
    }

    fn visit(&mut self, entry: &Entry, record: ForeignRecord) -> bool {
        let (beginning, sharing) = (record.is_beginning(), record.sharing());
        match record.holds() {
            Ok(Some((segments, file_id))) if self.place.conflicts(&segments, file_id, sharing) => {
                self.found = Some(Holding {
                    cluster: self.folder.id.clone(),
                    beginning,
                });
            }
            Ok(_) => {}
            Err(why) => {
                self.unreadable
                    .get_or_insert_with(|| UnreadableRecord::new(self.folder, entry, why));
            }
        }
        self.found.is_none()
    }
}

/// Returns what is known about the other clusters, as of this call if `refresh` is set.
async fn current(
    store: &ExportStore,
    verified: &VerifiedRoot,
    refresh: bool,
) -> Result<Arc<OtherClusters>, ExportError> {
    let requested = Instant::now();
    let usable = |known: &Arc<OtherClusters>| known.began >= requested || (!refresh && known.began.elapsed() < FRESH);
    let known = || store.state().foreign.clone();
    if let Some(known) = known().filter(usable) {
        return Ok(known);
    }
    // Concurrent checks share one look at the folders.
    let _reading = store.reading_clusters.lock().await;
    let former = known();
    if let Some(known) = former.clone().filter(usable) {
        return Ok(known);
    }
    let mut current = OtherClusters::new(former.as_ref().map(|former| former.hashes.clone()));
    if let Some(former) = &former
        && let Some(condition) = former.none_while(verified)
        && is_unchanged(store, condition).await?
    {
        let current = Arc::new(former.as_of(current.began));
        store.state().foreign = Some(Arc::clone(&current));
        return Ok(current);
    }
    let names = read::list_clusters(store, verified).await?;
    // A folder without records may get them unnoticed.
    if names.is_empty() {
        let no_others = no_others(store, verified, current.began, former.as_deref()).await?;
        current.no_others = Some(no_others);
    }
    for folder in find_folders(store, verified, names).await? {
        let former = former.as_ref().and_then(|former| former.of(&folder));
        let cluster = match former {
            Some(former) if former.is_settled(&folder) => Arc::clone(former),
            _ => {
                let mut index = current.start(folder.clone(), former.cloned());
                read::visit_records(store, &folder, &mut index).await?;
                Arc::new(index.finish())
            }
        };
        current.clusters.push(cluster);
    }
    let current = Arc::new(current);
    store.state().foreign = Some(Arc::clone(&current));
    Ok(current)
}

async fn is_unchanged(store: &ExportStore, condition: &Unchanged) -> Result<bool, ExportError> {
    let unchanged = store.nfs.are_unchanged(std::slice::from_ref(condition)).await;
    unchanged.context(|| format!("looking for changes of {}", layout::RESERVED))
}

/// Returns what shows from now on that no other cluster has a folder, after a look that began at `began` and found none.
async fn no_others(
    store: &ExportStore,
    verified: &VerifiedRoot,
    began: Instant,
    former: Option<&OtherClusters>,
) -> Result<NoOthers, ExportError> {
    // Read after the listing: what changes later has another change attribute, if the former look had the same one.
    let found = store.nfs.full_attributes(&verified.reserved.handle).await;
    let found = found.context(|| format!("reading the attributes of {}", layout::RESERVED))?;
    let condition = Unchanged {
        directory: verified.reserved.handle.clone(),
        change: found.change,
    };
    let former = former.and_then(|former| former.no_others.as_ref());
    let look = (began, store.change_resolution);
    Ok(NoOthers::new(&verified.identity.id, condition, look, former))
}

/// Returns the condition under which no other cluster has anything on the export, as far as that is known. A change with this
/// condition needs no other look at the records of other clusters (data-safety rule 20).
pub(crate) fn none_while(store: &ExportStore, verified: &VerifiedRoot) -> Option<Unchanged> {
    store.state().foreign.as_ref()?.none_while(verified).cloned()
}

/// Looks up the folders of the other clusters' records.
async fn folders(store: &ExportStore, verified: &VerifiedRoot) -> Result<Vec<ClusterFolder>, ExportError> {
    let names = read::list_clusters(store, verified).await?;
    find_folders(store, verified, names).await
}

async fn find_folders(
    store: &ExportStore,
    verified: &VerifiedRoot,
    names: Vec<Name>,
) -> Result<Vec<ClusterFolder>, ExportError> {
    let found = stream::iter(
        names
            .into_iter()
            .map(|name| async move { ClusterFolder::find(store, verified, &name).await }),
    );
    let found: Vec<Option<ClusterFolder>> = found.buffered(LOOKUPS).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Returns the volumes in use on a backend of this name in the records of all other clusters.
pub(crate) async fn live_volumes(
    store: &ExportStore,
    verified: &VerifiedRoot,
    backend: &str,
) -> Result<Vec<ForeignDirectory>, ExportError> {
    let mut volumes = Vec::new();
    for folder in folders(store, verified).await? {
        let mut live = LiveVolumes {
            cluster: &folder.id,
            backend,
            found: Vec::new(),
        };
        read::visit_records(store, &folder, &mut live).await?;
        volumes.append(&mut live.found);
    }
    Ok(volumes)
}

struct LiveVolumes<'a> {
    cluster: &'a str,
    backend: &'a str,
    found: Vec<ForeignDirectory>,
}

impl VisitRecords for LiveVolumes<'_> {
    fn begin(&mut self) {
        self.found.clear();
    }

    fn wants(&mut self, _: &Entry) -> bool {
        true
    }

    fn visit(&mut self, _: &Entry, record: ForeignRecord) -> bool {
        if let ForeignRecord::Valid(record) = record
            && record.state == State::Live
            && record.backend == self.backend
            && !record.metadata.as_ref().is_some_and(|metadata| metadata.released)
        {
            self.found.push(ForeignDirectory {
                cluster: self.cluster.to_owned(),
                volume: record.volume,
                backend: record.backend,
                claim: record.claim,
            });
        }
        true
    }
}

/// Returns the cluster that has records of these volumes, if this cluster has a record of none of them.
pub(crate) async fn cluster_with_records_of(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volumes: &[String],
) -> Result<Option<String>, ExportError> {
    let names: Vec<Name> = volumes
        .iter()
        .map(|volume| layout::record(volume))
        .collect::<Result<_, _>>()?;
    if has_any(store, &verified.records.handle, &names).await? {
        return Ok(None);
    }
    for folder in folders(store, verified).await? {
        if has_any(store, &folder.handle, &names).await? {
            return Ok(Some(folder.id));
        }
    }
    Ok(None)
}

async fn has_any(store: &ExportStore, folder: &FileHandle, names: &[Name]) -> Result<bool, ExportError> {
    for name in names {
        let found = store.nfs.lookup(folder, name).await;
        if found
            .context(|| format!("looking for the record of volume {name}"))?
            .is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Counts the records of each other cluster that has any, and names the first few.
pub(crate) async fn count_records(
    store: &ExportStore,
    verified: &VerifiedRoot,
    named: usize,
) -> Result<Vec<OtherCluster>, ExportError> {
    let mut others = Vec::new();
    for folder in folders(store, verified).await? {
        let (records, first) = read::count_names(store, &folder, named).await?;
        if records > 0 {
            others.push(OtherCluster {
                id: folder.id,
                records,
                named: first.into_iter().collect(),
            });
        }
    }
    others.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    Ok(others)
}
