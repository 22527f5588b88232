//! Capacity that volumes use on each backend, and capacity reserved for claims whose volume does not exist yet.
//!
//! Placement reads these numbers under one lock, so that concurrent claims cannot both get the last free space.

use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tracks used and reserved capacity. The lock is never held across an await point.
#[derive(Default)]
pub struct CapacityTracker {
    state: Mutex<CapacityState>,
}

/// Capacity used by volumes and reserved for claims.
#[derive(Default)]
pub struct CapacityState {
    allocations: HashMap<String, Allocation>,
    totals: HashMap<Arc<str>, Totals>,
    /// Archives, which use capacity like the volumes that they were.
    archives: HashMap<String, ArchiveAllocation>,
    /// Export identities, shared by the volumes to save memory.
    export_ids: HashSet<Arc<str>>,
}

/// Capacity of one volume. There is one for each volume in the cluster, so it must be small.
struct Allocation {
    backend: Arc<str>,
    bytes: u128,
    /// Identity of the export; present only for a volume that exists.
    export_id: Option<Arc<str>>,
    /// Size after the expansion in progress; boxed because few volumes are expanded at the same time.
    growing_to: Option<Box<u128>>,
    /// False for a reservation.
    exists: bool,
}

/// Capacity of one archive.
struct ArchiveAllocation {
    backend: Arc<str>,
    bytes: u128,
}

impl Allocation {
    /// Returns the bytes that count on the backend.
    fn counted_bytes(&self) -> u128 {
        self.growing_to
            .as_deref()
            .map_or(self.bytes, |&growing_to| growing_to.max(self.bytes))
    }
}

/// Totals of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of volumes and reservations.
    pub volumes: u64,
    /// Sum of the requested sizes of volumes, reservations and archives, in bytes.
    pub bytes: u128,
}

impl CapacityState {
    /// Returns the totals of a backend.
    pub fn totals(&self, backend: &str) -> Totals {
        self.totals.get(backend).copied().unwrap_or_default()
    }

    fn put(&mut self, volume: &str, allocation: Allocation) {
        self.take(volume);
        let totals = self.totals.entry(Arc::clone(&allocation.backend)).or_default();
        totals.volumes += 1;
        totals.bytes += allocation.counted_bytes();
        self.allocations.insert(volume.to_owned(), allocation);
    }

    /// Returns the shared copy of a backend's name.
    fn shared_name(&self, name: &str) -> Arc<str> {
        let known = self.totals.get_key_value(name);
        known.map_or_else(|| name.into(), |(known, _)| Arc::clone(known))
    }

    fn export_id(&mut self, id: &str) -> Arc<str> {
        if let Some(known) = self.export_ids.get(id) {
            return Arc::clone(known);
        }
        let id: Arc<str> = id.into();
        self.export_ids.insert(Arc::clone(&id));
        id
    }

    fn take(&mut self, volume: &str) -> Option<Allocation> {
        let allocation = self.allocations.remove(volume)?;
        if let Some(totals) = self.totals.get_mut(&allocation.backend) {
            totals.volumes = totals.volumes.saturating_sub(1);
            totals.bytes = totals.bytes.saturating_sub(allocation.counted_bytes());
        }
        Some(allocation)
    }

    fn take_archive(&mut self, archive: &str) -> Option<ArchiveAllocation> {
        let allocation = self.archives.remove(archive)?;
        if let Some(totals) = self.totals.get_mut(&allocation.backend) {
            totals.bytes = totals.bytes.saturating_sub(allocation.bytes);
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
        let mut state = self.state();
        let former = state.take(volume);
        let (backend, answer) = choose(&state);
        let backend = backend.filter(|_| former.as_ref().is_none_or(|former| !former.exists));
        if let Some(backend) = backend {
            let backend = state.shared_name(&backend);
            state.put(
                volume,
                Allocation {
                    backend,
                    bytes,
                    export_id: None,
                    growing_to: None,
                    exists: false,
                },
            );
        } else if let Some(former) = former {
            state.put(volume, former);
        }
        answer
    }

    /// Records a volume that exists, on the export with this identity.
    pub fn record_volume(&self, volume: &str, backend: &str, bytes: u128, export_id: Option<&str>) {
        let mut state = self.state();
        // The expanded size counts until the volume has it: this may be the volume before the expansion.
        let former = state.take(volume).and_then(|former| former.growing_to);
        let growing_to = former.filter(|growing_to| **growing_to > bytes);
        let backend = state.shared_name(backend);
        let export_id = export_id.map(|id| state.export_id(id));
        state.put(
            volume,
            Allocation {
                backend,
                bytes,
                export_id,
                growing_to,
                exists: true,
            },
        );
    }

    /// Counts a volume with its new size of `bytes` if `check` allows the expansion. `check` gets the state without
    /// this volume.
    pub fn expand<E>(
        &self,
        volume: &str,
        bytes: u128,
        check: impl FnOnce(&CapacityState) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state();
        let former = state.take(volume);
        let answer = check(&state);
        if let Some(mut allocation) = former {
            if answer.is_ok() {
                allocation.growing_to = Some(Box::new(bytes));
            }
            state.put(volume, allocation);
        }
        answer
    }

    /// Ends the expansion of a volume that is not expanded anymore: its current size counts. Returns true if one was in
    /// progress.
    pub fn finish_expansion(&self, volume: &str) -> bool {
        let mut state = self.state();
        if state
            .allocations
            .get(volume)
            .is_none_or(|allocation| allocation.growing_to.is_none())
        {
            return false;
        }
        if let Some(mut allocation) = state.take(volume) {
            allocation.growing_to = None;
            state.put(volume, allocation);
        }
        true
    }

    /// Forgets a deleted volume. Returns true if it used capacity of a backend.
    pub fn remove(&self, volume: &str) -> bool {
        self.state().take(volume).is_some()
    }

    /// Records an archive on a backend.
    pub fn record_archive(&self, archive: &str, backend: &str, bytes: u128) {
        let mut state = self.state();
        state.take_archive(archive);
        let backend = state.shared_name(backend);
        let totals = state.totals.entry(Arc::clone(&backend)).or_default();
        totals.bytes = totals.bytes.saturating_add(bytes);
        state
            .archives
            .insert(archive.to_owned(), ArchiveAllocation { backend, bytes });
    }

    /// Forgets a deleted archive. Returns true if it used capacity of a backend.
    pub fn remove_archive(&self, archive: &str) -> bool {
        self.state().take_archive(archive).is_some()
    }

    /// Returns the names of the archives.
    pub fn archives(&self) -> HashSet<String> {
        self.state().archives.keys().cloned().collect()
    }

    /// Returns what `read` returns for the current state.
    pub fn read<T>(&self, read: impl FnOnce(&CapacityState) -> T) -> T {
        read(&self.state())
    }

    /// Releases a reservation whose directory was not created or is removed. A volume that exists remains.
    pub fn release(&self, volume: &str) {
        let mut state = self.state();
        if state
            .allocations
            .get(volume)
            .is_some_and(|allocation| !allocation.exists)
        {
            state.take(volume);
        }
    }

    /// Returns true if a volume object with this name is known.
    pub fn has_volume(&self, volume: &str) -> bool {
        self.state()
            .allocations
            .get(volume)
            .is_some_and(|allocation| allocation.exists)
    }

    /// Returns the backend of the volume object with this name.
    pub fn backend_of(&self, volume: &str) -> Option<String> {
        self.state()
            .allocations
            .get(volume)
            .filter(|allocation| allocation.exists)
            .map(|allocation| allocation.backend.to_string())
    }

    /// Returns the size of the volume object with this name, in bytes.
    pub fn size_of(&self, volume: &str) -> Option<u128> {
        let state = self.state();
        state
            .allocations
            .get(volume)
            .filter(|allocation| allocation.exists)
            .map(|allocation| allocation.bytes)
    }

    /// Returns the size of the volume object with this name, in bytes, or that to which it is being expanded.
    pub fn counted_size_of(&self, volume: &str) -> Option<u128> {
        let state = self.state();
        let allocation = state.allocations.get(volume).filter(|allocation| allocation.exists)?;
        Some(allocation.counted_bytes())
    }

    /// Returns the size of the volume that an archive was, in bytes.
    pub fn archive_size_of(&self, archive: &str) -> Option<u128> {
        self.state().archives.get(archive).map(|archive| archive.bytes)
    }

    /// Returns the backend of the volume object with this name and, if the volume records it, the identity of the
    /// export.
    pub fn location_of(&self, volume: &str) -> Option<(String, Option<String>)> {
        let state = self.state();
        let allocation = state.allocations.get(volume).filter(|allocation| allocation.exists)?;
        let export_id = allocation.export_id.as_deref().map(str::to_owned);
        Some((allocation.backend.to_string(), export_id))
    }

    /// Returns at limit `limit` names of existing volumes on a backend, in order, starting after `after`. This allows
    /// iteration in batches while volumes are created and deleted.
    pub fn volumes_after(&self, backend: &str, after: &str, limit: usize) -> Vec<String> {
        let state = self.state();
        let existing = state.allocations.iter().filter(|(_, allocation)| allocation.exists);
        let names = existing.filter(|(name, allocation)| &*allocation.backend == backend && name.as_str() > after);
        let mut first: BinaryHeap<&String> = BinaryHeap::with_capacity(limit + 1);
        for (name, _) in names {
            first.push(name);
            if first.len() > limit {
                first.pop();
            }
        }
        first.into_sorted_vec().into_iter().cloned().collect()
    }

    /// Returns the identities of exports that the volumes of a backend record.
    pub fn export_ids(&self, backend: &str) -> BTreeSet<String> {
        let state = self.state();
        let on_backend = state
            .allocations
            .values()
            .filter(|allocation| *allocation.backend == *backend);
        let ids: BTreeSet<&str> = on_backend
            .filter_map(|allocation| allocation.export_id.as_deref())
            .collect();
        ids.into_iter().map(str::to_owned).collect()
    }

    /// Returns the totals of a backend.
    pub fn totals(&self, backend: &str) -> Totals {
        self.state().totals(backend)
    }

    /// Returns the names of the volumes that exist.
    pub fn volumes(&self) -> HashSet<String> {
        let state = self.state();
        let existing = state.allocations.iter().filter(|(_, allocation)| allocation.exists);
        existing.map(|(name, _)| name.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, CapacityState> {
        // The state is consistent between any two statements above, so a panic leaves no partial update.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(inventory.totals("a"), Totals { volumes: 20, bytes: 20 });
    }

    #[test]
    fn archives_use_capacity_like_the_volumes_that_they_were() {
        let inventory = CapacityTracker::default();
        inventory.record_volume("v", "a", 15, None);
        // Recorded before the volume is deleted, so that no claim gets the space in between.
        inventory.record_archive("v", "a", 15);
        inventory.record_archive("v", "a", 15);
        assert_eq!(inventory.totals("a"), Totals { volumes: 1, bytes: 30 });
        inventory.remove("v");
        assert_eq!(inventory.totals("a"), Totals { volumes: 0, bytes: 15 });
        assert!(inventory.reserve("w", 5, within(20)));
        assert!(!inventory.reserve("x", 5, within(20)));
        inventory.release("v");
        assert!(inventory.remove_archive("v") && !inventory.remove_archive("v"));
        assert_eq!(inventory.totals("a"), Totals { volumes: 1, bytes: 5 });
    }

    #[test]
    fn a_repeated_reservation_counts_once() {
        let inventory = CapacityTracker::default();
        assert!(inventory.reserve("v", 20, within(20)));
        assert!(inventory.reserve("v", 20, within(20)));
        inventory.record_volume("v", "a", 20, None);
        inventory.record_volume("v", "a", 20, None);
        assert_eq!(inventory.totals("a"), Totals { volumes: 1, bytes: 20 });
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
        assert_eq!(inventory.totals("a"), Totals { volumes: 2, bytes: 20 });
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
        assert_eq!(inventory.totals("a"), Totals { volumes: 1, bytes: 5 });
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
