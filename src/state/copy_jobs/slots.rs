//! Which copies run and which wait: the part of the copies' budget that docs/security.md describes by number of copies.
//!
//! The copies of one namespace, and those from or to one backend, leave slots for others. The copies of tenants leave a slot
//! for those of administrators, and the reverse: backups, and the copies for claims in namespaces that they selected.

use std::collections::{BTreeMap, VecDeque};

use crate::api::names::{COPY_PRIORITY, RESERVED};
use export_store::MAX_COPIES;

/// Maximum number of copies of tenants, and of administrators: one slot is left for the others.
const MAX_OF_KIND: usize = MAX_COPIES - 1;
/// Maximum number of these copies in one namespace.
const MAX_PER_NAMESPACE: usize = 2;
/// Maximum number of these copies that read from or write to one backend.
const MAX_PER_BACKEND: usize = 3;

/// A copy that needs a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRequest {
    /// The namespace that gets the data.
    pub namespace: String,
    /// The backends of source and target.
    pub backends: [CopyBackend; 2],
    /// It is one of the copies of administrators.
    pub is_of_administrator: bool,
}

/// A backend that a copy reads from or writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyBackend {
    /// Its name.
    pub name: String,
    /// Maximum number of its copies, of tenants and administrators together.
    pub max_copies: usize,
}

/// Returns true if an administrator gave the claims of a namespace with these labels the use of the reserved slot. Tenants
/// cannot change the labels of their namespace.
pub(super) fn is_prioritized(labels: &BTreeMap<String, String>) -> bool {
    labels.get(COPY_PRIORITY).is_some_and(|value| value == RESERVED)
}

/// The copies that run, and those that wait, in the order of their requests.
#[derive(Debug, Default)]
pub(super) struct CopySlots {
    running: BTreeMap<u64, SlotRequest>,
    waiting: VecDeque<(u64, SlotRequest)>,
}

impl CopySlots {
    /// Adds a copy that waits. Reports whether there is a slot for it: there is none for those that waited before.
    pub(super) fn add(&mut self, id: u64, request: SlotRequest) -> bool {
        let may_start = self.running.len() < MAX_COPIES && self.has_room(&request);
        self.waiting.push_back((id, request));
        may_start
    }

    /// Removes a copy that ended or was aborted.
    pub(super) fn remove(&mut self, id: u64) {
        if self.running.remove(&id).is_none() {
            self.waiting.retain(|(waiting, _)| *waiting != id);
        }
    }

    /// Gives a slot to the next copy that may have one: first to those of administrators, then to the namespace with the
    /// fewest copies.
    pub(super) fn start_next(&mut self) -> Option<u64> {
        if self.running.len() >= MAX_COPIES {
            return None;
        }
        let candidates = self.waiting.iter().enumerate();
        let (position, _) = candidates
            .filter(|(_, (_, request))| self.has_room(request))
            .min_by_key(|(position, (_, request))| {
                (
                    !request.is_of_administrator,
                    self.count_like(request, |other| other.namespace == request.namespace),
                    *position,
                )
            })?;
        let (id, request) = self.waiting.remove(position)?;
        self.running.insert(id, request);
        Some(id)
    }

    fn has_room(&self, request: &SlotRequest) -> bool {
        self.count_like(request, |_| true) < MAX_OF_KIND
            && self.count_like(request, |other| other.namespace == request.namespace) < MAX_PER_NAMESPACE
            && request.backends.iter().all(|backend| {
                let uses_it = |other: &SlotRequest| other.backends.iter().any(|used| used.name == backend.name);
                let all = self.running.values().filter(|other| uses_it(other)).count();
                self.count_like(request, uses_it) < MAX_PER_BACKEND && all < backend.max_copies
            })
    }

    /// Counts the running copies that tenants requested if a tenant requested this one, and otherwise those that
    /// administrators did.
    fn count_like(&self, request: &SlotRequest, matches: impl Fn(&SlotRequest) -> bool) -> usize {
        let running = self.running.values();
        running
            .filter(|other| other.is_of_administrator == request.is_of_administrator && matches(other))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_backend(name: &str, max_copies: usize) -> CopyBackend {
        CopyBackend {
            name: name.to_owned(),
            max_copies,
        }
    }

    #[test]
    fn a_backend_has_at_most_as_many_copies_as_it_allows_whoever_requests_them() {
        let mut slots = CopySlots::default();
        let request = |namespace: &str, source: &str, is_of_administrator| SlotRequest {
            namespace: namespace.to_owned(),
            backends: [copy_backend(source, MAX_COPIES), copy_backend("safe", 2)],
            is_of_administrator,
        };
        assert!(slots.add(0, request("one", "main", false)));
        assert_eq!(slots.start_next(), Some(0));
        assert!(slots.add(1, request("two", "other", true)));
        assert_eq!(slots.start_next(), Some(1));
        assert!(!slots.add(2, request("three", "third", false)) && !slots.add(3, request("four", "fourth", true)));
        assert_eq!(slots.start_next(), None);
        slots.remove(0);
        assert_eq!(slots.start_next(), Some(3));
        assert_eq!(slots.start_next(), None);
    }

    /// Adds copies of a namespace within a backend, and returns how many of them start.
    fn start(
        slots: &mut CopySlots,
        (namespace, backend): (&str, &str),
        ids: std::ops::Range<u64>,
        is_of_administrator: bool,
    ) -> usize {
        for id in ids {
            let request = SlotRequest {
                namespace: namespace.to_owned(),
                backends: [copy_backend(backend, MAX_COPIES), copy_backend(backend, MAX_COPIES)],
                is_of_administrator,
            };
            slots.add(id, request);
        }
        std::iter::from_fn(|| slots.start_next()).count()
    }

    #[test]
    fn copies_of_one_namespace_or_backend_leave_slots_for_others_and_for_administrators() {
        let mut slots = CopySlots::default();
        assert_eq!(start(&mut slots, ("one", "slow"), 0..100, false), MAX_PER_NAMESPACE);
        assert_eq!(
            start(&mut slots, ("two", "slow"), 100..200, false),
            MAX_PER_BACKEND - MAX_PER_NAMESPACE
        );
        assert_eq!(
            start(&mut slots, ("three", "fast"), 200..300, false),
            MAX_OF_KIND - MAX_PER_BACKEND
        );
        assert_eq!(start(&mut slots, ("four", "fast"), 300..301, false), 0);
        assert_eq!(start(&mut slots, ("one", "slow"), 301..400, true), 1);
        assert_eq!(slots.running.len(), MAX_COPIES);
    }

    #[test]
    fn copies_of_administrators_leave_slots_for_other_namespaces_and_for_tenants() {
        let mut slots = CopySlots::default();
        assert_eq!(start(&mut slots, ("one", "slow"), 0..100, true), MAX_PER_NAMESPACE);
        assert_eq!(start(&mut slots, ("two", "fast"), 100..200, true), MAX_PER_NAMESPACE);
        assert_eq!(start(&mut slots, ("three", "third"), 200..300, true), 0);
        assert_eq!(start(&mut slots, ("one", "slow"), 300..400, false), 1);
    }

    #[test]
    fn a_free_slot_is_given_to_administrators_first_and_then_to_the_namespace_with_the_fewest_copies() {
        let mut slots = CopySlots::default();
        start(&mut slots, ("one", "a"), 0..3, false);
        start(&mut slots, ("two", "b"), 3..6, false);
        start(&mut slots, ("three", "c"), 6..7, false);
        assert_eq!(slots.running.keys().copied().collect::<Vec<_>>(), [0, 1, 3, 4]);
        slots.remove(0);
        assert_eq!(slots.start_next(), Some(6), "the only one of its namespace");
        slots.remove(3);
        assert_eq!(slots.start_next(), Some(2), "the oldest of those with one copy each");
        start(&mut slots, ("one", "a"), 7..9, true);
        slots.remove(4);
        assert_eq!(slots.start_next(), Some(8));
        assert_eq!(slots.start_next(), None);
    }

    #[test]
    fn only_the_value_of_the_label_gives_priority() {
        let labels = |value: &str| BTreeMap::from([("nfs-operator.io/copy-priority".to_owned(), value.to_owned())]);
        assert!(is_prioritized(&labels("reserved")));
        assert!(!is_prioritized(&labels("")) && !is_prioritized(&BTreeMap::new()));
    }

    #[test]
    fn a_copy_that_is_aborted_while_it_waits_never_starts() {
        let mut slots = CopySlots::default();
        assert_eq!(start(&mut slots, ("one", "a"), 0..4, false), MAX_PER_NAMESPACE);
        slots.remove(2);
        slots.remove(0);
        assert_eq!(slots.start_next(), Some(3));
    }
}
