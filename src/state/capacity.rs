//! Capacity that volumes use on each backend, and capacity reserved for claims whose volume does not exist yet.
//!
//! Placement reads these numbers under one lock, so that concurrent claims cannot both get the last free space.

use std::collections::{BTreeSet, BinaryHeap, HashMap};

use export_store::{Interner, UidMap};
use parking_lot::Mutex;

/// Tracks used and reserved capacity. The lock is never held across an await point.
#[derive(Default)]
pub struct CapacityTracker {
    state: Mutex<CapacityState>,
}

/// Capacity used by volumes and reserved for claims.
pub struct CapacityState {
    allocations: UidMap<Allocation>,
    /// Sizes of volumes after the expansion in progress. Few volumes are expanded at the same time.
    growing_to: HashMap<String, u128>,
    totals: HashMap<String, Totals>,
    /// Archives, which use capacity like the volumes that they were.
    archives: UidMap<Allocation>,
    placements: Interner<Placement>,
}

impl Default for CapacityState {
    fn default() -> Self {
        Self {
            allocations: UidMap::by_volume(),
            growing_to: HashMap::new(),
            totals: HashMap::new(),
            archives: UidMap::by_volume(),
            placements: Interner::default(),
        }
    }
}

/// Capacity of one volume or archive. There is one for each volume in the cluster, so it must be small.
#[derive(Clone, Copy)]
struct Allocation {
    bytes: Bytes,
    /// Number of the [`Placement`].
    placement: u32,
}

/// A size in bytes, without the alignment of a `u128`, which would take 12 bytes more.
#[derive(Clone, Copy)]
struct Bytes([u8; 16]);

impl From<u128> for Bytes {
    fn from(bytes: u128) -> Self {
        Self(bytes.to_ne_bytes())
    }
}

impl From<Bytes> for u128 {
    fn from(bytes: Bytes) -> Self {
        Self::from_ne_bytes(bytes.0)
    }
}

/// What the volumes on one export have in common.
#[derive(PartialEq, Eq, Hash)]
struct Placement {
    backend: String,
    /// Identity of the export; present only for a volume that exists.
    export_id: Option<String>,
    /// False for a reservation.
    exists: bool,
}

/// An allocation that is not counted.
struct Taken {
    allocation: Allocation,
    growing_to: Option<u128>,
    exists: bool,
}

/// Totals of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of volumes and reservations.
    pub volumes: u64,
    /// Sum of the requested sizes of volumes, reservations and archives, in bytes.
    pub bytes: u128,
    /// The part of these bytes that archives have.
    pub archived: u128,
}

impl CapacityState {
    /// Returns the totals of a backend.
    pub fn totals(&self, backend: &str) -> Totals {
        self.totals.get(backend).copied().unwrap_or_default()
    }

    fn put(&mut self, volume: &str, allocation: Allocation, growing_to: Option<u128>) {
        self.take(volume);
        let bytes = u128::from(allocation.bytes);
        let counted = growing_to.map_or(bytes, |growing_to| growing_to.max(bytes));
        if let Some(placement) = self.placements.get(allocation.placement) {
            let totals = self.totals.entry(placement.backend.clone()).or_default();
            totals.volumes += 1;
            totals.bytes += counted;
        }
        self.allocations.insert(volume, allocation);
        if let Some(growing_to) = growing_to {
            self.growing_to.insert(volume.to_owned(), growing_to);
        }
    }

    fn take(&mut self, volume: &str) -> Option<Taken> {
        let counted = self.counted_bytes(volume);
        let allocation = self.allocations.remove(volume)?;
        let growing_to = self.growing_to.remove(volume);
        let placement = self.placements.get(allocation.placement);
        if let Some(totals) = placement.and_then(|placement| self.totals.get_mut(&placement.backend)) {
            totals.volumes = totals.volumes.saturating_sub(1);
            totals.bytes = totals.bytes.saturating_sub(counted.unwrap_or_default());
        }
        Some(Taken {
            allocation,
            growing_to,
            exists: placement.is_some_and(|placement| placement.exists),
        })
    }

    /// Returns the bytes of a volume or reservation that count on its backend.
    fn counted_bytes(&self, volume: &str) -> Option<u128> {
        let bytes = u128::from(self.allocations.get(volume)?.bytes);
        let growing_to = self.growing_to.get(volume);
        Some(growing_to.map_or(bytes, |growing_to| bytes.max(*growing_to)))
    }

    /// Returns the allocation and the placement of a volume that exists.
    fn existing(&self, volume: &str) -> Option<(&Allocation, &Placement)> {
        let allocation = self.allocations.get(volume)?;
        let placement = self.placements.get(allocation.placement)?;
        placement.exists.then_some((allocation, placement))
    }

    fn exists(&self, allocation: &Allocation) -> bool {
        let placement = self.placements.get(allocation.placement);
        placement.is_some_and(|placement| placement.exists)
    }

    fn take_archive(&mut self, archive: &str) -> Option<Allocation> {
        let allocation = self.archives.remove(archive)?;
        let placement = self.placements.get(allocation.placement);
        if let Some(totals) = placement.and_then(|placement| self.totals.get_mut(&placement.backend)) {
            totals.bytes = totals.bytes.saturating_sub(allocation.bytes.into());
            totals.archived = totals.archived.saturating_sub(allocation.bytes.into());
        }
        Some(allocation)
    }
}

impl CapacityTracker {
    /// Reserves capacity for a volume on the backend that `choose` selects. `choose` gets the state without this
    /// volume. If it selects none, an earlier reservation remains, because a directory may exist for it. A volume that
    /// exists, for example because another provisioner created it in the meantime, needs no reservation and is not
    /// released with one.
    pub fn reserve<T>(
        &self,
        volume: &str,
        bytes: u128,
        choose: impl FnOnce(&CapacityState) -> (Option<String>, T),
    ) -> T {
        let mut state = self.state.lock();
        let former = state.take(volume);
        let (backend, answer) = choose(&state);
        let backend = backend.filter(|_| former.as_ref().is_none_or(|former| !former.exists));
        if let Some(backend) = backend {
            let placement = state.placements.insert(Placement {
                backend,
                export_id: None,
                exists: false,
            });
            let bytes = bytes.into();
            state.put(volume, Allocation { bytes, placement }, None);
        } else if let Some(former) = former {
            state.put(volume, former.allocation, former.growing_to);
        }
        answer
    }

    /// Records a volume that exists, on the export with this identity.
    pub fn record_volume(&self, volume: &str, backend: &str, bytes: u128, export_id: Option<&str>) {
        let mut state = self.state.lock();
        // The expanded size counts until the volume has it: this may be the volume before the expansion.
        let former = state.take(volume).and_then(|former| former.growing_to);
        let growing_to = former.filter(|growing_to| *growing_to > bytes);
        let placement = state.placements.insert(Placement {
            backend: backend.to_owned(),
            export_id: export_id.map(str::to_owned),
            exists: true,
        });
        let bytes = bytes.into();
        state.put(volume, Allocation { bytes, placement }, growing_to);
    }

    /// Counts a volume with its new size of `bytes` if `check` allows the expansion. `check` gets the state without
    /// this volume.
    pub fn expand<E>(
        &self,
        volume: &str,
        bytes: u128,
        check: impl FnOnce(&CapacityState) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        let former = state.take(volume);
        let answer = check(&state);
        if let Some(former) = former {
            let growing_to = if answer.is_ok() { Some(bytes) } else { former.growing_to };
            state.put(volume, former.allocation, growing_to);
        }
        answer
    }

    /// Returns true if an expansion of a volume is in progress.
    pub fn is_expanding(&self, volume: &str) -> bool {
        self.state.lock().growing_to.contains_key(volume)
    }

    /// Ends the expansion of a volume that is not expanded anymore: its current size counts.
    pub fn finish_expansion(&self, volume: &str) {
        let mut state = self.state.lock();
        if let Some(former) = state.take(volume) {
            state.put(volume, former.allocation, None);
        }
    }

    /// Forgets a deleted volume. Returns true if it used capacity of a backend.
    pub fn remove(&self, volume: &str) -> bool {
        self.state.lock().take(volume).is_some()
    }

    /// Records an archive on a backend.
    pub fn record_archive(&self, archive: &str, backend: &str, bytes: u128) {
        let mut state = self.state.lock();
        state.take_archive(archive);
        let totals = state.totals.entry(backend.to_owned()).or_default();
        totals.bytes = totals.bytes.saturating_add(bytes);
        totals.archived = totals.archived.saturating_add(bytes);
        let placement = state.placements.insert(Placement {
            backend: backend.to_owned(),
            export_id: None,
            exists: true,
        });
        let bytes = bytes.into();
        state.archives.insert(archive, Allocation { bytes, placement });
    }

    /// Forgets a deleted archive. Returns true if it used capacity of a backend.
    pub fn remove_archive(&self, archive: &str) -> bool {
        self.state.lock().take_archive(archive).is_some()
    }

    /// Calls `visit` with the name of each archive.
    pub fn for_each_archive(&self, mut visit: impl FnMut(&str)) {
        self.state
            .lock()
            .archives
            .for_each_where(|_| true, |name, _| visit(name));
    }

    /// Returns what `read` returns for the current state.
    pub fn read<T>(&self, read: impl FnOnce(&CapacityState) -> T) -> T {
        read(&self.state.lock())
    }

    /// Releases a reservation whose directory was not created or is removed. A volume that exists remains.
    pub fn release(&self, volume: &str) {
        let mut state = self.state.lock();
        if state.existing(volume).is_none() {
            state.take(volume);
        }
    }

    /// Returns true if a volume object with this name is known.
    pub fn has_volume(&self, volume: &str) -> bool {
        self.state.lock().existing(volume).is_some()
    }

    /// Returns the backend of the volume object with this name.
    pub fn backend_of(&self, volume: &str) -> Option<String> {
        let state = self.state.lock();
        state.existing(volume).map(|(_, placement)| placement.backend.clone())
    }

    /// Returns the size of the volume object with this name, in bytes.
    pub fn size_of(&self, volume: &str) -> Option<u128> {
        let state = self.state.lock();
        state.existing(volume).map(|(allocation, _)| allocation.bytes.into())
    }

    /// Returns the size of the volume object with this name, in bytes, or that to which it is being expanded.
    pub fn counted_size_of(&self, volume: &str) -> Option<u128> {
        let state = self.state.lock();
        state.existing(volume).and_then(|_| state.counted_bytes(volume))
    }

    /// Returns the size of the volume that an archive was, in bytes.
    pub fn archive_size_of(&self, archive: &str) -> Option<u128> {
        self.state
            .lock()
            .archives
            .get(archive)
            .map(|archive| archive.bytes.into())
    }

    /// Returns the backend of the volume object with this name and, if the volume records it, the identity of the
    /// export.
    pub fn location_of(&self, volume: &str) -> Option<(String, Option<String>)> {
        let state = self.state.lock();
        let (_, placement) = state.existing(volume)?;
        Some((placement.backend.clone(), placement.export_id.clone()))
    }

    /// Returns at most `limit` names of existing volumes on a backend, in order, starting after `after`. This allows
    /// iteration in batches while volumes are created and deleted.
    pub fn volumes_after(&self, backend: &str, after: &str, limit: usize) -> Vec<String> {
        let state = self.state.lock();
        let placements = state.placements.iter();
        let on_backend = placements.filter(|(_, placement)| placement.exists && placement.backend == backend);
        let on_backend: Vec<u32> = on_backend.map(|(number, _)| number).collect();
        let mut first: BinaryHeap<String> = BinaryHeap::with_capacity(limit.saturating_add(1));
        let visit = |name: &str, _: &Allocation| {
            let is_first = first.len() < limit || first.peek().is_some_and(|last| name < last.as_str());
            if name > after && is_first {
                first.push(name.to_owned());
                if first.len() > limit {
                    first.pop();
                }
            }
        };
        let allocations = &state.allocations;
        allocations.for_each_where(|allocation| on_backend.contains(&allocation.placement), visit);
        first.into_sorted_vec()
    }

    /// Returns the identities of exports that the volumes of a backend record.
    pub fn export_ids(&self, backend: &str) -> BTreeSet<String> {
        let state = self.state.lock();
        let used: BTreeSet<u32> = state
            .allocations
            .values()
            .map(|allocation| allocation.placement)
            .collect();
        let placements = used.into_iter().filter_map(|number| state.placements.get(number));
        let on_backend = placements.filter(|placement| placement.backend == backend);
        on_backend.filter_map(|placement| placement.export_id.clone()).collect()
    }

    /// Returns the totals of a backend.
    pub fn totals(&self, backend: &str) -> Totals {
        self.state.lock().totals(backend)
    }

    /// Calls `visit` with the name of each volume that exists.
    pub fn for_each_volume(&self, mut visit: impl FnMut(&str)) {
        let state = self.state.lock();
        let allocations = &state.allocations;
        allocations.for_each_where(|allocation| state.exists(allocation), |name, _| visit(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(volumes: u64, bytes: u128, archived: u128) -> Totals {
        Totals {
            volumes,
            bytes,
            archived,
        }
    }

    fn within(limit: u128) -> impl Fn(&CapacityState) -> (Option<String>, bool) {
        move |state| {
            let fits = state.totals("a").bytes < limit;
            (fits.then(|| "a".to_owned()), fits)
        }
    }

    #[test]
    fn claims_that_race_for_capacity_get_exactly_what_is_free() {
        let inventory = CapacityTracker::default();
        let served = (0..50)
            .filter(|n| inventory.reserve(&format!("v{n}"), 1, within(20)))
            .count();
        assert_eq!(served, 20);
        assert_eq!(inventory.totals("a"), totals(20, 20, 0));
    }

    #[test]
    fn archives_use_capacity_like_the_volumes_that_they_were() {
        let inventory = CapacityTracker::default();
        inventory.record_volume("v", "a", 15, None);
        // Recorded before the volume is deleted, so that no claim gets the space in between.
        inventory.record_archive("v", "a", 15);
        inventory.record_archive("v", "a", 15);
        assert_eq!(inventory.totals("a"), totals(1, 30, 15));
        inventory.remove("v");
        assert_eq!(inventory.totals("a"), totals(0, 15, 15));
        assert!(inventory.reserve("w", 5, within(20)));
        assert!(!inventory.reserve("x", 5, within(20)));
        inventory.release("v");
        assert!(inventory.remove_archive("v") && !inventory.remove_archive("v"));
        assert_eq!(inventory.totals("a"), totals(1, 5, 0));
    }

    #[test]
    fn a_repeated_reservation_counts_once() {
        let inventory = CapacityTracker::default();
        assert!(inventory.reserve("v", 20, within(20)));
        assert!(inventory.reserve("v", 20, within(20)));
        inventory.record_volume("v", "a", 20, None);
        inventory.record_volume("v", "a", 20, None);
        assert_eq!(inventory.totals("a"), totals(1, 20, 0));
    }

    #[test]
    fn an_expanded_size_counts_until_the_expansion_ends() {
        let inventory = CapacityTracker::default();
        let fits = |bytes: u128| {
            move |state: &CapacityState| {
                let rest = 20 - state.totals("a").bytes.min(20);
                if bytes <= rest { Ok(()) } else { Err(rest) }
            }
        };
        inventory.record_volume("v", "a", 5, None);
        inventory.record_volume("w", "a", 5, None);
        assert_eq!(
            inventory.expand("v", 15, fits(15)),
            Ok(()),
            "its own 5 are not counted twice"
        );
        assert_eq!(inventory.totals("a"), totals(2, 20, 0));
        assert_eq!(inventory.expand("w", 6, fits(6)), Err(5));
        assert!(!inventory.reserve("x", 1, within(20)));
        // The watch reports the volume before the expansion, then after it.
        inventory.record_volume("v", "a", 5, None);
        assert_eq!(inventory.totals("a").bytes, 20);
        inventory.record_volume("v", "a", 15, None);
        assert_eq!(inventory.totals("a").bytes, 20);
        // After a cancelled expansion, the current size counts again.
        assert_eq!(inventory.expand("v", 10, fits(10)), Ok(()), "no less than it has");
        assert_eq!(inventory.totals("a").bytes, 20);
        inventory.finish_expansion("v");
        inventory.remove("v");
        inventory.finish_expansion("v");
        assert_eq!(inventory.totals("a"), totals(1, 5, 0));
    }

    #[test]
    fn the_volumes_of_a_backend_are_listed_in_batches() {
        let inventory = CapacityTracker::default();
        for number in [3, 1, 5, 2, 4] {
            inventory.record_volume(&format!("v{number}"), "a", 1, None);
        }
        inventory.record_volume("v0", "b", 1, Some("export"));
        inventory.reserve("v6", 1, |_| (Some("a".to_owned()), ()));
        assert_eq!(inventory.volumes_after("a", "", 2), ["v1", "v2"]);
        inventory.remove("v3");
        assert_eq!(inventory.volumes_after("a", "v2", 2), ["v4", "v5"]);
        assert!(
            inventory.volumes_after("a", "v5", 2).is_empty(),
            "a promise is no volume"
        );
        assert_eq!(
            inventory.location_of("v0"),
            Some(("b".to_owned(), Some("export".to_owned())))
        );
        assert_eq!(inventory.location_of("v6"), None);
    }

    #[test]
    fn a_volume_that_another_provisioner_created_is_not_released_with_a_reservation() {
        let inventory = CapacityTracker::default();
        inventory.record_volume("v", "a", 5, Some("export"));
        assert!(inventory.reserve("v", 5, |_| (Some("b".to_owned()), true)));
        inventory.release("v");
        assert_eq!(inventory.backend_of("v").as_deref(), Some("a"));
        assert_eq!(inventory.export_ids("a").len(), 1);
        assert_eq!(inventory.totals("b"), Totals::default());
    }

    #[test]
    fn releasing_frees_a_reservation_but_not_a_volume() {
        let inventory = CapacityTracker::default();
        assert!(inventory.reserve("v", 20, within(20)));
        inventory.release("v");
        assert_eq!(inventory.totals("a"), Totals::default());
        inventory.record_volume("v", "a", 20, None);
        inventory.release("v");
        assert_eq!(inventory.totals("a").volumes, 1);
        inventory.remove("v");
        assert_eq!(inventory.totals("a"), Totals::default());
    }
}
