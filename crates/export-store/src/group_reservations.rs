//! Groups of directories in memory, shared by all backends, so that each volume gets a group of its own from the range
//! of its backend (data-safety rule 25).
//!
//! Computed from the volumes, which the controllers report, and from the records of this cluster, which this layer reads
//! after a start and writes later. A group is free once neither a volume nor a record has it. The lock inside is never
//! held over an await.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::record::{Record, State};
use crate::uid_map::UidMap;

/// Groups from which each volume of a backend gets one of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRange {
    /// The lowest group.
    pub min: u32,
    /// The highest group.
    pub max: u32,
}

impl GroupRange {
    /// Reports whether a group is in the range.
    pub fn contains(&self, group: u32) -> bool {
        (self.min..=self.max).contains(&group)
    }

    /// Returns the number of groups.
    pub fn size(&self) -> u64 {
        u64::from(self.max)
            .saturating_sub(u64::from(self.min))
            .saturating_add(1)
    }
}

impl std::fmt::Display for GroupRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.min, self.max)
    }
}

/// The groups that are in use on each export.
#[derive(Debug, Default)]
pub struct GroupReservations {
    index: Mutex<Index>,
    freed: Notify,
}

#[derive(Debug)]
struct Index {
    /// By name of the volume, or of the object that requested an archive. A volume is on one export, except while a claim
    /// changes from one backend to another.
    holders: UidMap<SmallVec<[Holding; 1]>>,
    /// Holders of each group, by export and group.
    used: BTreeMap<(Arc<str>, u32), Holders>,
    exports: HashSet<Arc<str>>,
    serial: u64,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            holders: UidMap::by_volume(),
            used: BTreeMap::new(),
            exports: HashSet::new(),
            serial: 0,
        }
    }
}

/// Number of holders of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Holders {
    all: u32,
    /// Without archives, whose group goes to the volume that they become.
    volumes: u32,
}

/// What a name holds on one export. Both groups are the same, except while a volume is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holding {
    export: Arc<str>,
    /// Group of the volume's object, as long as that exists.
    volume: Option<u32>,
    record: Recorded,
    /// Changes with each change of the record, to recognize one that was not changed since.
    serial: u64,
}

/// Group in the record, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recorded {
    /// The record was not read since the start: the volume's object exists, and its record has the same group.
    Unread,
    /// The record has this group, or is about to have it.
    Group { group: u32, archive: bool },
    /// There is no record, or one without a group.
    None,
}

impl Holding {
    /// Returns the groups that this holds.
    fn groups(&self) -> impl Iterator<Item = u32> + use<> {
        let recorded = match self.record {
            Recorded::Group { group, .. } => Some(group),
            Recorded::Unread | Recorded::None => None,
        };
        self.volume
            .into_iter()
            .chain(recorded.filter(|recorded| Some(*recorded) != self.volume))
    }

    fn is_empty(&self) -> bool {
        self.volume.is_none() && !matches!(self.record, Recorded::Group { .. })
    }

    /// Reports whether a volume has the group, and not only an archive.
    fn is_volume_with(&self, group: u32) -> bool {
        self.volume == Some(group) || self.record == (Recorded::Group { group, archive: false })
    }
}

impl Index {
    fn export(&mut self, id: &str) -> Arc<str> {
        if let Some(known) = self.exports.get(id) {
            return Arc::clone(known);
        }
        let id: Arc<str> = id.into();
        self.exports.insert(Arc::clone(&id));
        id
    }

    /// Changes what a name holds on an export. Returns true if a group is free since.
    fn change(&mut self, name: &str, export: &str, change: impl FnOnce(&mut Holding)) -> bool {
        let export = self.export(export);
        self.serial = self.serial.wrapping_add(1);
        let known = self.holders.get(name);
        let before = known.and_then(|holdings| holdings.iter().find(|held| held.export == export));
        let before = before.cloned();
        let mut after = before.clone().unwrap_or_else(|| Holding {
            export: Arc::clone(&export),
            volume: None,
            record: Recorded::Unread,
            serial: 0,
        });
        change(&mut after);
        after.serial = self.serial;
        for group in after.groups() {
            let holders = self.used.entry((Arc::clone(&export), group)).or_default();
            holders.all += 1;
            holders.volumes += u32::from(after.is_volume_with(group));
        }
        let mut freed = false;
        for (before, group) in before
            .iter()
            .flat_map(|before| before.groups().map(move |group| (before, group)))
        {
            let key = (Arc::clone(&export), group);
            if let Some(holders) = self.used.get_mut(&key) {
                holders.all = holders.all.saturating_sub(1);
                holders.volumes = holders.volumes.saturating_sub(u32::from(before.is_volume_with(group)));
                if holders.all == 0 {
                    self.used.remove(&key);
                    freed = true;
                }
            }
        }
        let mut holdings = self.holders.remove(name).unwrap_or_default();
        holdings.retain(|held| held.export != export);
        if !after.is_empty() {
            holdings.push(after);
        }
        if !holdings.is_empty() {
            self.holders.insert(name, holdings);
        }
        freed
    }

    /// Returns true if a volume other than the one of this name has a group.
    fn has_other_volume(&mut self, export: &str, group: u32, name: &str) -> bool {
        let export = self.export(export);
        let own = self.holders.get(name).into_iter().flatten();
        let own = own.filter(|held| held.export == export && held.is_volume_with(group));
        let own = own.count();
        let holders = self.used.get(&(export, group));
        holders.is_some_and(|holders| holders.volumes as usize > own)
    }

    /// Returns the lowest group of a range that nobody has, neither here nor in another cluster.
    fn lowest_free(&mut self, export: &str, range: GroupRange, elsewhere: &HashSet<u32>) -> Option<u32> {
        let export = self.export(export);
        let used = self.used.range((Arc::clone(&export), range.min)..=(export, range.max));
        let mut used = used.map(|((_, group), _)| *group).peekable();
        (range.min..=range.max).find(|group| {
            let is_used = used.next_if_eq(group).is_some();
            !is_used && !elsewhere.contains(group)
        })
    }
}

impl GroupReservations {
    /// Reports a volume that exists, and the group that its pods get. A volume without a group holds none.
    pub fn observe_volume(&self, volume: &str, export_id: &str, group: Option<u32>) {
        let mut index = self.index.lock();
        if group.is_none() && !index.holders.contains_key(volume) {
            return;
        }
        let freed = index.change(volume, export_id, |holding| holding.volume = group);
        self.report(freed);
    }

    /// Reports that a volume's object is gone. Its group remains in use until its record is removed.
    pub fn forget_volume(&self, volume: &str) {
        let mut index = self.index.lock();
        let known = index.holders.get(volume).into_iter().flatten();
        let exports: Vec<Arc<str>> = known.map(|holding| Arc::clone(&holding.export)).collect();
        let mut freed = false;
        for export in exports {
            freed |= index.change(volume, &export, |holding| {
                if let (Recorded::Unread, Some(group)) = (holding.record, holding.volume) {
                    holding.record = Recorded::Group { group, archive: false };
                }
                holding.volume = None;
            });
        }
        self.report(freed);
    }

    /// Returns the number of groups of a range that nobody has in this cluster.
    pub fn free(&self, export_id: &str, range: GroupRange) -> u64 {
        let mut index = self.index.lock();
        let export = index.export(export_id);
        let used = index.used.range((Arc::clone(&export), range.min)..=(export, range.max));
        range.size().saturating_sub(used.count() as u64)
    }

    /// Reports whether a volume has a group on an export.
    #[cfg(test)]
    fn has_group(&self, volume: &str, export_id: &str) -> bool {
        let index = self.index.lock();
        let mut holdings = index.holders.get(volume).into_iter().flatten();
        holdings.any(|holding| *holding.export == *export_id)
    }

    /// Waits until a group became free.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Reports the content of a record that was read or written.
    pub(crate) fn record(&self, export_id: &str, record: &Record) {
        let is_archive = matches!(
            record.state,
            State::Archived(_) | State::Purging { .. } | State::Restoring { .. } | State::Copying(_)
        );
        let recorded = record.group.map_or(Recorded::None, |group| Recorded::Group {
            group,
            archive: is_archive,
        });
        self.set_record(export_id, &record.volume, recorded);
    }

    /// Reports that a record does not exist, or no longer.
    pub(crate) fn remove_record(&self, export_id: &str, volume: &str) {
        self.set_record(export_id, volume, Recorded::None);
    }

    fn set_record(&self, export_id: &str, volume: &str, recorded: Recorded) {
        let mut index = self.index.lock();
        if recorded == Recorded::None && !index.holders.contains_key(volume) {
            return;
        }
        let freed = index.change(volume, export_id, |holding| holding.record = recorded);
        self.report(freed);
    }

    /// Reserves a group for a volume, until its record is removed: `preferred` unless another volume has it, or else the
    /// lowest one of the range that nobody has. `elsewhere` are the groups in the records of other clusters.
    pub(crate) fn allocate(
        &self,
        export_id: &str,
        volume: &str,
        range: GroupRange,
        preferred: Option<u32>,
        elsewhere: &HashSet<u32>,
    ) -> Option<u32> {
        let mut index = self.index.lock();
        // Its former group, if any, is free for itself.
        let mut freed = index.change(volume, export_id, |holding| holding.record = Recorded::None);
        let preferred =
            preferred.filter(|group| !elsewhere.contains(group) && !index.has_other_volume(export_id, *group, volume));
        let group = preferred.or_else(|| index.lowest_free(export_id, range, elsewhere));
        if let Some(group) = group {
            freed |= index.change(volume, export_id, |holding| {
                holding.record = Recorded::Group { group, archive: false };
            });
        }
        drop(index);
        self.report(freed);
        group
    }

    /// Returns the records with a group that are known on an export, to pass to [`Self::sweep`] later.
    pub(crate) fn snapshot(&self, export_id: &str) -> HashMap<String, u64> {
        let index = self.index.lock();
        let mut known = HashMap::new();
        index.holders.for_each_where(
            |_| true,
            |name, holdings| {
                let here = holdings.iter().filter(|holding| *holding.export == *export_id);
                let recorded = here.filter(|holding| matches!(holding.record, Recorded::Group { .. }));
                known.extend(recorded.map(|holding| (name.to_owned(), holding.serial)));
            },
        );
        known
    }

    /// Releases the groups of the records of a snapshot that are not in a listing, which was read afterwards. A record that
    /// changed since is left alone.
    pub(crate) fn sweep(&self, export_id: &str, unlisted: &HashMap<String, u64>) {
        let mut index = self.index.lock();
        let mut freed = false;
        for (name, serial) in unlisted {
            let holdings = index.holders.get(name).into_iter().flatten();
            let unchanged = holdings
                .filter(|holding| *holding.export == *export_id)
                .any(|holding| holding.serial == *serial);
            if unchanged {
                freed |= index.change(name, export_id, |holding| holding.record = Recorded::None);
            }
        }
        self.report(freed);
    }

    fn report(&self, freed: bool) {
        if freed {
            self.freed.notify_one();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const RANGE: GroupRange = GroupRange { min: 5000, max: 5002 };

    fn allocate(groups: &GroupReservations, volume: &str, preferred: Option<u32>) -> Option<u32> {
        groups.allocate("export", volume, RANGE, preferred, &HashSet::new())
    }

    fn archive(groups: &GroupReservations, name: &str, group: u32) {
        groups.set_record("export", name, Recorded::Group { group, archive: true });
    }

    #[test]
    fn each_volume_gets_a_group_of_its_own_until_there_is_none() {
        let groups = GroupReservations::default();
        let got: Vec<Option<u32>> = ["a", "b", "c", "d"]
            .iter()
            .map(|volume| allocate(&groups, volume, None))
            .collect();
        assert_eq!(got, [Some(5000), Some(5001), Some(5002), None]);
        assert_eq!(groups.free("export", RANGE), 0);
        assert_eq!(groups.free("other", RANGE), 3, "each export has its own directories");
        assert!(groups.has_group("c", "export") && !groups.has_group("d", "export"));
        groups.remove_record("export", "b");
        assert_eq!(allocate(&groups, "d", None), Some(5001));
    }

    #[test]
    fn a_group_is_free_once_neither_its_volume_nor_its_record_is_left() {
        for volume_first in [true, false] {
            let groups = GroupReservations::default();
            let group = allocate(&groups, "a", None);
            groups.observe_volume("a", "export", group);
            assert_eq!(groups.free("export", RANGE), 2, "counted once");
            if volume_first {
                groups.forget_volume("a");
                assert_eq!(groups.free("export", RANGE), 2);
                groups.remove_record("export", "a");
            } else {
                groups.remove_record("export", "a");
                assert_eq!(groups.free("export", RANGE), 2);
                groups.forget_volume("a");
            }
            assert_eq!(groups.free("export", RANGE), 3);
            assert!(groups.index.lock().holders.is_empty() && groups.index.lock().used.is_empty());
        }
    }

    #[test]
    fn after_a_start_a_volume_stands_for_its_record_until_that_is_removed() {
        let groups = GroupReservations::default();
        groups.observe_volume("a", "export", Some(5000));
        groups.forget_volume("a");
        assert_eq!(
            allocate(&groups, "b", None),
            Some(5001),
            "the record was not read, so it may exist"
        );
        groups.remove_record("export", "a");
        assert_eq!(allocate(&groups, "c", None), Some(5000));
    }

    #[test]
    fn a_listing_releases_what_has_no_record_anymore() {
        let groups = GroupReservations::default();
        allocate(&groups, "a", None);
        allocate(&groups, "b", None);
        let unlisted = groups.snapshot("export");
        // Written after the listing began.
        allocate(&groups, "b", Some(5001));
        allocate(&groups, "c", None);
        groups.sweep("export", &unlisted);
        assert_eq!(groups.free("export", RANGE), 1);
        assert!(!groups.has_group("a", "export"));
        let mut unlisted = groups.snapshot("export");
        unlisted.retain(|name, _| !["b", "c"].contains(&name.as_str()));
        groups.sweep("export", &unlisted);
        assert_eq!(groups.free("export", RANGE), 1);
    }

    #[test]
    fn the_group_of_an_archive_is_reserved_and_goes_to_the_volume_that_it_becomes() {
        let groups = GroupReservations::default();
        archive(&groups, "a", 5000);
        assert_eq!(allocate(&groups, "b", None), Some(5001), "nobody else gets it");
        assert_eq!(allocate(&groups, "c", Some(5000)), Some(5000), "a restore keeps it");
        groups.remove_record("export", "a");
        assert_eq!(groups.free("export", RANGE), 1, "the restored volume has it");
        assert_eq!(allocate(&groups, "d", Some(5000)), Some(5002), "a volume has it");
    }

    #[test]
    fn groups_of_other_clusters_and_groups_that_were_chosen_are_not_given_away() {
        let groups = GroupReservations::default();
        groups.observe_volume("chosen", "export", Some(5000));
        groups.observe_volume("chosen-too", "export", Some(5000));
        let elsewhere = HashSet::from([5001]);
        assert_eq!(
            groups.allocate("export", "a", RANGE, Some(5001), &elsewhere),
            Some(5002)
        );
        groups.forget_volume("chosen");
        groups.remove_record("export", "chosen");
        assert_eq!(allocate(&groups, "b", Some(5000)), Some(5001), "the second one has it");
    }

    #[test]
    fn a_volume_that_gets_a_group_again_keeps_it_or_returns_it() {
        let groups = GroupReservations::default();
        assert_eq!(allocate(&groups, "a", None), Some(5000));
        assert_eq!(allocate(&groups, "a", Some(5000)), Some(5000));
        assert_eq!(allocate(&groups, "a", Some(5002)), Some(5002));
        assert_eq!(groups.free("export", RANGE), 2);
    }

    #[tokio::test]
    async fn whoever_waits_learns_of_a_freed_group() {
        let groups = GroupReservations::default();
        allocate(&groups, "a", None);
        groups.remove_record("export", "a");
        groups.freed().await;
    }
}
