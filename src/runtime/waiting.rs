//! Objects that wait for something other than their own change, and their wake-ups.
//!
//! All claims that wait for a volume are woken by changes of this operator's StorageClasses (`app/caches.rs`), by backends that
//! work again, change or go (`controllers/backend/reconcile.rs`, `removal.rs`), and by the end of a recovery pass
//! (`recovery/mod.rs`). Of these, only changes of its backend concern a claim that has a volume and waits for a larger size.
//! Changes that tenants can cause wake only the claims that wait for them ([`Blockers`]): capacity, space or a group that
//! becomes free (`state/candidates.rs`), a Namespace or a Node (`app/caches.rs`), a source that becomes Bound
//! (`app/controllers.rs`), an outdated probe that is repeated (`controllers/backend/reconcile.rs`), the end of a copy
//! (`state/copy_jobs/job.rs`), an archive's change (`Context::wake_restores`), a recovered volume that is deleted
//! (`state/volume_indexer.rs`), and a slot that becomes free (`concurrency_limiter.rs`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

/// A claim by name.
pub type ClaimRef = ObjectRef<PersistentVolumeClaim>;

/// Returns a claim by name. [`ObjectRef::from_obj`] would add UID and version, which nothing compares.
pub fn claim_ref(claim: &PersistentVolumeClaim) -> ClaimRef {
    let own_ref = ObjectRef::new(claim.metadata.name.as_deref().unwrap_or_default());
    own_ref.within(claim.metadata.namespace.as_deref().unwrap_or_default())
}
/// A volume by name.
pub type VolumeRef = ObjectRef<PersistentVolume>;

/// The objects that cannot be served now, and the channel that requeues them.
pub struct WaitSet<R> {
    state: Mutex<WaitState<R>>,
    wake_tx: mpsc::UnboundedSender<R>,
    freed: Notify,
}

/// Capacity that becomes free within this time is offered to the waiting objects at once.
const DEBOUNCE: Duration = Duration::from_millis(250);

/// What an object waits for, besides the changes that wake all objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blockers<R> {
    /// Capacity on any of several backends.
    pub capacity: Option<CapacityDemand>,
    /// The selected Node, whose labels may change.
    pub node: Option<String>,
    /// The object whose data it copies, which is not bound yet.
    pub source: Option<R>,
    /// The next probe of a backend whose last probe is outdated.
    pub probe: bool,
    /// The backend of the object, which is on it already: changes of other backends and of classes do not concern it.
    pub backend: Option<Box<str>>,
}

impl<R> Default for Blockers<R> {
    fn default() -> Self {
        Self {
            capacity: None,
            node: None,
            source: None,
            probe: false,
            backend: None,
        }
    }
}

/// Returns true if a change of this backend, or of none, does not concern an object that is on the backend `own`.
fn is_elsewhere(own: Option<&str>, changed: Option<&str>) -> bool {
    own.is_some() && own != changed
}

/// Capacity that an object waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapacityDemand {
    /// The namespace of the object. Namespaces take turns.
    pub namespace: String,
    /// The backends, any of which may serve the object, each once.
    pub backends: Box<[String]>,
    /// The size in bytes.
    pub bytes: u128,
}

struct WaitState<R> {
    /// The entries are boxed: a table is up to half empty, and any number of objects may wait.
    waiting: HashMap<Arc<R>, Box<Entry<R>>>,
    /// Objects that failed, each with the backend that it is on. Fewer changes wake them.
    failing: HashMap<R, Option<Box<str>>>,
    /// The objects that wait for capacity, by backend.
    demands: HashMap<String, Demands<R>>,
    /// The objects that wait for their source, by source.
    by_source: HashMap<R, HashSet<Arc<R>>>,
    changes: Changes,
    last: u64,
}

struct Entry<R> {
    blockers: Blockers<R>,
    /// Distinguishes demands of the same size, the earlier one first.
    number: u64,
}

/// The objects that wait for the capacity of one backend.
struct Demands<R> {
    /// By namespace, then by size.
    by_namespace: BTreeMap<String, BTreeMap<(u128, u64), Arc<R>>>,
    /// The namespace that was served last.
    last_served: String,
}

impl<R> Default for Demands<R> {
    fn default() -> Self {
        Self {
            by_namespace: BTreeMap::new(),
            last_served: String::new(),
        }
    }
}

impl<R> Demands<R> {
    /// Returns an object that needs at most `room` bytes, and its size. The namespaces take turns, and each offers its
    /// smallest object.
    fn next(&mut self, room: u128) -> Option<(Arc<R>, u128)> {
        let later = (Bound::Excluded(self.last_served.clone()), Bound::Unbounded);
        let earlier = (Bound::Unbounded, Bound::Included(self.last_served.clone()));
        let turns = self.by_namespace.range(later).chain(self.by_namespace.range(earlier));
        let (namespace, object, bytes) = turns
            .filter_map(|(namespace, objects)| {
                let ((bytes, _), object) = objects.first_key_value()?;
                Some((namespace, object, *bytes))
            })
            .find(|(_, _, bytes)| *bytes <= room)?;
        let next = (Arc::clone(object), bytes);
        self.last_served.clone_from(namespace);
        Some(next)
    }
}

/// A point in time, counted in changes. What was decided at an earlier one may be out of date.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Epoch(u64);

/// The last changes of each kind, numbered in their order: an object that was checked before them, and is not waiting yet, is
/// not woken by them.
#[derive(Default)]
struct Changes {
    last: u64,
    /// The last one that woke all objects, failed ones included.
    all: u64,
    /// The last one that woke some of the waiting objects.
    some: u64,
    /// By backend.
    backends: HashMap<String, BackendChanges>,
}

#[derive(Default)]
struct BackendChanges {
    /// The last one that woke the objects on this backend.
    changed: u64,
    /// The last look at its free capacity, and the result in bytes.
    room: (u64, u128),
}

impl Changes {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn of(&mut self, backend: &str) -> &mut BackendChanges {
        self.backends.entry(backend.to_owned()).or_default()
    }

    /// Returns true if a change since then may unblock an object with these blockers. Free capacity that would not be enough
    /// for it does not: with a thousand backends there is a look at some of it all the time, and each would repeat the check.
    fn may_unblock<R>(&self, blockers: &Blockers<R>, Epoch(since): Epoch) -> bool {
        let demand = blockers.capacity.as_ref();
        let has_room = demand.is_some_and(|demand| {
            let backends = demand.backends.iter().filter_map(|name| self.backends.get(name));
            backends
                .map(|changes| changes.room)
                .any(|(at, room)| at > since && demand.bytes <= room)
        });
        has_room || self.is_after(since, blockers.backend.as_deref(), self.all.max(self.some))
    }

    /// Returns true if the last change that concerns an object is later. `elsewhere` is that for one that is on no backend.
    fn is_after(&self, since: u64, own: Option<&str>, elsewhere: u64) -> bool {
        let last = match own {
            Some(own) => self.backends.get(own).map_or(0, |changes| changes.changed),
            None => elsewhere,
        };
        last > since
    }
}

impl<R: Eq + Hash + Clone> WaitState<R> {
    fn insert(&mut self, object: R, blockers: Blockers<R>) {
        self.remove(&object);
        self.last += 1;
        let (object, number) = (Arc::new(object), self.last);
        if let Some(demand) = &blockers.capacity {
            for backend in demand.backends.iter() {
                let demands = self.demands.entry(backend.clone()).or_default();
                let objects = demands.by_namespace.entry(demand.namespace.clone()).or_default();
                objects.insert((demand.bytes, number), Arc::clone(&object));
            }
        }
        if let Some(source) = &blockers.source {
            let objects = self.by_source.entry(source.clone()).or_default();
            objects.insert(Arc::clone(&object));
        }
        self.waiting.insert(object, Box::new(Entry { blockers, number }));
    }

    fn remove(&mut self, object: &R) {
        self.failing.remove(object);
        let Some(entry) = self.waiting.remove(object) else {
            return;
        };
        let Entry { blockers, number } = *entry;
        if let Some(demand) = &blockers.capacity {
            for backend in demand.backends.iter() {
                self.remove_demand(backend, &demand.namespace, (demand.bytes, number));
            }
        }
        if let Some(source) = blockers.source
            && let Some(objects) = self.by_source.get_mut(&source)
        {
            objects.remove(object);
            if objects.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }

    fn remove_demand(&mut self, backend: &str, namespace: &str, key: (u128, u64)) {
        let Some(demands) = self.demands.get_mut(backend) else {
            return;
        };
        if let Some(objects) = demands.by_namespace.get_mut(namespace) {
            objects.remove(&key);
            if objects.is_empty() {
                demands.by_namespace.remove(namespace);
            }
        }
        if demands.by_namespace.is_empty() {
            self.demands.remove(backend);
        }
    }
}

impl<R: Eq + Hash + Clone> WaitSet<R> {
    /// Returns the set and the stream of objects to reconcile. Each wake-up adds an object at most once, so the number
    /// of objects bounds the stream.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<R>) {
        let (wake_tx, woken) = mpsc::unbounded_channel();
        (
            Self {
                state: Mutex::new(WaitState {
                    waiting: HashMap::new(),
                    failing: HashMap::new(),
                    demands: HashMap::new(),
                    by_source: HashMap::new(),
                    changes: Changes::default(),
                    last: 0,
                }),
                wake_tx,
                freed: Notify::new(),
            },
            woken,
        )
    }

    /// Removes an object that is about to be checked, and returns the current epoch.
    pub fn begin_check(&self, object: &R) -> Epoch {
        let mut state = self.state.lock();
        state.remove(object);
        Epoch(state.changes.last)
    }

    /// Forgets a deleted object.
    pub fn forget(&self, object: &R) {
        self.state.lock().remove(object);
    }

    /// Adds an object that waits, as decided in epoch `known_at`. Returns false if a change since then may unblock it. If so,
    /// check again.
    pub fn add(&self, object: R, blockers: Blockers<R>, known_at: Epoch) -> bool {
        let mut state = self.state.lock();
        if state.changes.may_unblock(&blockers, known_at) {
            return false;
        }
        state.insert(object, blockers);
        true
    }

    /// Adds an object before its source is read: if the source becomes bound afterwards, the object is woken.
    pub fn subscribe(&self, object: R, source: R) {
        let blockers = Blockers {
            source: Some(source),
            ..Blockers::default()
        };
        self.state.lock().insert(object, blockers);
    }

    /// Adds an object that failed. Its own backoff, [`wake_all`](Self::wake_all) or
    /// [`backend_changed`](Self::backend_changed) wakes it, but nothing that a tenant can cause: thousands of failing objects
    /// must not be retried at the rate of other objects' changes. If it is on a backend, only changes of that one wake it.
    /// Returns false as [`add`](Self::add) does.
    pub fn park_failed(&self, object: R, backend: Option<&str>, known_at: Epoch) -> bool {
        let mut state = self.state.lock();
        if state.changes.is_after(known_at.0, backend, state.changes.all) {
            return false;
        }
        state.remove(&object);
        state.failing.insert(object, backend.map(Into::into));
        true
    }

    /// Wakes all objects, for a change that may unblock waiting and failed ones, unless only their own backend concerns them.
    pub fn wake_all(&self) {
        self.wake_concerned(None);
    }

    /// Wakes all objects that a change of this backend may unblock, failed ones included.
    pub fn backend_changed(&self, name: &str) {
        self.wake_concerned(Some(name));
    }

    fn wake_concerned(&self, backend: Option<&str>) {
        let mut state = self.state.lock();
        let number = state.changes.next();
        state.changes.all = number;
        if let Some(name) = backend {
            state.changes.of(name).changed = number;
        }
        let waiting = state.waiting.iter();
        let concerned = waiting.filter(|(_, entry)| !is_elsewhere(entry.blockers.backend.as_deref(), backend));
        let concerned: Vec<Arc<R>> = concerned.map(|(object, _)| Arc::clone(object)).collect();
        for object in concerned {
            state.remove(&object);
            self.wake(Arc::unwrap_or_clone(object));
        }
        let failing = state
            .failing
            .extract_if(|_, own| !is_elsewhere(own.as_deref(), backend));
        failing.for_each(|(object, _)| self.wake(object));
    }

    /// Wakes the waiting objects that a change may unblock, but no failed ones. Reads all of them, so this is for
    /// changes that tenants cannot cause.
    pub fn wake_if(&self, may_unblock: impl Fn(&R, &Blockers<R>) -> bool) {
        let mut state = self.state.lock();
        state.changes.some = state.changes.next();
        let waiting = state.waiting.iter();
        let unblocked = waiting.filter(|(object, entry)| may_unblock(object, &entry.blockers));
        let unblocked: Vec<Arc<R>> = unblocked.map(|(object, _)| Arc::clone(object)).collect();
        for object in unblocked {
            state.remove(&object);
            self.wake(Arc::unwrap_or_clone(object));
        }
    }

    /// Wakes the objects that wait for this source, which is bound now.
    pub fn wake_dependents(&self, source: &R) {
        let mut state = self.state.lock();
        for object in state.by_source.get(source).cloned().unwrap_or_default() {
            state.remove(&object);
            self.wake(Arc::unwrap_or_clone(object));
        }
    }

    /// Returns the backends whose capacity objects wait for.
    pub fn demanded_backends(&self) -> Vec<String> {
        self.state.lock().demands.keys().cloned().collect()
    }

    /// Wakes the objects that fit into `room` bytes of a backend together, at most `count` of them.
    pub fn wake_fitting(&self, backend: &str, mut room: u128, count: usize) {
        let mut state = self.state.lock();
        let number = state.changes.next();
        state.changes.of(backend).room = (number, if count == 0 { 0 } else { room });
        for _ in 0..count {
            let demands = state.demands.get_mut(backend);
            let Some((object, bytes)) = demands.and_then(|demands| demands.next(room)) else {
                break;
            };
            room = room.saturating_sub(bytes);
            state.remove(&object);
            self.wake(Arc::unwrap_or_clone(object));
        }
    }

    /// Reports that capacity became free.
    pub fn capacity_freed(&self) {
        self.freed.notify_one();
    }

    /// Reports that a group became free. An object that was refused for lack of one, and is not waiting yet, is checked
    /// again.
    pub fn group_freed(&self) {
        let mut state = self.state.lock();
        state.changes.some = state.changes.next();
        drop(state);
        self.capacity_freed();
    }

    /// Waits until capacity became free, and a moment longer: a thousand deleted volumes must not be one change each.
    pub async fn wait_for_capacity(&self) {
        self.freed.notified().await;
        tokio::time::sleep(DEBOUNCE).await;
    }

    /// Wakes one object.
    pub fn wake(&self, object: R) {
        // The receiver closes only when the operator shuts down.
        let _ = self.wake_tx.send(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what an object of a namespace waits for that needs capacity on these backends.
    fn capacity<R>(namespace: &str, backends: &[&str], bytes: u128) -> Blockers<R> {
        let demand = CapacityDemand {
            namespace: namespace.to_owned(),
            backends: backends.iter().map(|&name| name.to_owned()).collect(),
            bytes,
        };
        Blockers {
            capacity: Some(demand),
            ..Blockers::default()
        }
    }

    fn drain<R>(woken: &mut mpsc::UnboundedReceiver<R>) -> Vec<R> {
        std::iter::from_fn(|| woken.try_recv().ok()).collect()
    }

    #[test]
    fn a_wake_up_between_the_check_and_the_wait_is_not_lost() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let checked_at = waiting.begin_check(&"claim");
        waiting.wake_all();
        assert!(
            !waiting.add("claim", Blockers::default(), checked_at),
            "it must be checked again"
        );
        assert!(waiting.add("claim", Blockers::default(), waiting.begin_check(&"claim")));
        waiting.wake_all();
        assert_eq!(drain(&mut woken), ["claim"]);
        waiting.wake_all();
        assert!(drain(&mut woken).is_empty(), "each is woken once");
    }

    #[test]
    fn only_a_change_that_may_unblock_failures_wakes_a_failed_object() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let checked_at = waiting.begin_check(&"failing");
        waiting.wake_if(|_, _| true);
        assert!(
            waiting.park_failed("failing", None, checked_at),
            "that wake-up was for waiting objects"
        );
        assert!(waiting.add("waiting", Blockers::default(), waiting.begin_check(&"waiting")));
        waiting.wake_if(|_, _| true);
        assert_eq!(drain(&mut woken), ["waiting"]);
        let checked_at = waiting.begin_check(&"other");
        waiting.wake_all();
        assert_eq!(drain(&mut woken), ["failing"]);
        assert!(
            !waiting.park_failed("failing", None, checked_at),
            "it must be checked again"
        );
    }

    #[test]
    fn free_capacity_wakes_what_fits_and_namespaces_take_turns() {
        let (waiting, mut woken) = WaitSet::<String>::new();
        let epoch = waiting.begin_check(&String::new());
        let add = |name: String, blockers| assert!(waiting.add(name, blockers, epoch));
        for number in 0..3000 {
            add(format!("many-{number}"), capacity("many", &["full"], 10));
        }
        add("small".to_owned(), capacity("other", &["full", "elsewhere"], 5));
        add("large".to_owned(), capacity("other", &["full"], 100));
        add("node".to_owned(), Blockers::default());
        waiting.wake_fitting("elsewhere", 4, usize::MAX);
        waiting.wake_fitting("full", 4, usize::MAX);
        waiting.wake_fitting("unknown", u128::MAX, usize::MAX);
        assert!(drain(&mut woken).is_empty(), "nothing fits");
        let epoch = waiting.begin_check(&String::new());
        waiting.wake_fitting("full", 34, usize::MAX);
        assert!(
            !waiting.add("late".to_owned(), capacity("late", &["full"], 1), epoch),
            "it was decided before the capacity was free"
        );
        assert_eq!(drain(&mut woken), ["many-0", "small", "many-1"]);
        waiting.wake_fitting("elsewhere", u128::MAX, usize::MAX);
        assert!(drain(&mut woken).is_empty(), "each is woken once");
        assert_eq!(waiting.demanded_backends(), ["full"]);
        waiting.wake_fitting("full", 110, usize::MAX);
        let woken = drain(&mut woken);
        assert_eq!((woken.len(), woken.first().map(String::as_str)), (2, Some("large")));
    }

    #[test]
    fn an_object_is_woken_by_its_own_blockers() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let epoch = waiting.begin_check(&"node");
        let node = Blockers {
            node: Some("n1".to_owned()),
            ..Blockers::default()
        };
        assert!(waiting.add("node", node, epoch));
        waiting.subscribe("first copy", "source");
        waiting.subscribe("second copy", "source");
        waiting.subscribe("other copy", "other source");
        waiting.forget(&"second copy");
        waiting.wake_dependents(&"source");
        waiting.wake_dependents(&"source");
        assert_eq!(drain(&mut woken), ["first copy"]);
        waiting.wake_if(|_, blockers| blockers.node.as_deref() == Some("n2"));
        assert!(drain(&mut woken).is_empty());
        waiting.wake_if(|_, blockers| blockers.node.as_deref() == Some("n1"));
        assert_eq!(drain(&mut woken), ["node"]);
    }

    #[test]
    fn looks_at_capacity_that_is_not_enough_repeat_no_check() {
        let (waiting, _woken) = WaitSet::<&str>::new();
        let checked_at = waiting.begin_check(&"claim");
        waiting.wake_fitting("elsewhere", 100, usize::MAX);
        waiting.wake_fitting("full", 9, usize::MAX);
        waiting.wake_fitting("without groups", 100, 0);
        let blockers = || capacity("team", &["full", "without groups"], 10);
        assert!(waiting.add("claim", blockers(), checked_at));
        let checked_at = waiting.begin_check(&"claim");
        waiting.wake_fitting("full", 10, usize::MAX);
        assert!(!waiting.add("claim", blockers(), checked_at), "it fits in now");
        waiting.wake_fitting("full", 9, usize::MAX);
        assert!(waiting.add("claim", blockers(), checked_at), "others have used it");
    }

    #[test]
    fn only_changes_of_its_backend_and_free_capacity_concern_an_object_that_is_on_a_backend() {
        let (waiting, mut woken) = WaitSet::<&str>::new();
        let blockers = || Blockers {
            backend: Some("own".into()),
            ..capacity("team", &["own"], 10)
        };
        let checked_at = waiting.begin_check(&"grows");
        waiting.wake_all();
        waiting.wake_if(|_, _| true);
        waiting.backend_changed("other");
        assert!(waiting.add("grows", blockers(), checked_at));
        assert!(waiting.add("new", Blockers::default(), waiting.begin_check(&"new")));
        let checked_at = waiting.begin_check(&"fails");
        waiting.wake_all();
        assert!(waiting.park_failed("fails", Some("own"), checked_at));
        assert!(waiting.add("new", Blockers::default(), waiting.begin_check(&"new")));
        waiting.backend_changed("other");
        assert_eq!(drain(&mut woken), ["new", "new"]);
        let checked_at = waiting.begin_check(&"late");
        waiting.backend_changed("own");
        assert_eq!(drain(&mut woken), ["grows", "fails"]);
        assert!(!waiting.park_failed("late", Some("own"), checked_at));
        assert!(!waiting.add("late", blockers(), checked_at), "its backend has changed");
        assert!(waiting.add("grows", blockers(), waiting.begin_check(&"grows")));
        waiting.wake_fitting("own", 10, usize::MAX);
        assert_eq!(drain(&mut woken), ["grows"]);
    }

    #[test]
    fn an_object_that_is_checked_again_leaves_nothing_behind() {
        let (waiting, _woken) = WaitSet::<&str>::new();
        let epoch = waiting.begin_check(&"claim");
        for bytes in [1, 2] {
            let blockers = Blockers {
                source: Some("source"),
                ..capacity("team", &["a", "b"], bytes)
            };
            assert!(waiting.add("claim", blockers, epoch));
        }
        waiting.begin_check(&"claim");
        let state = waiting.state.lock();
        assert!(state.waiting.is_empty() && state.demands.is_empty() && state.by_source.is_empty());
    }
}
