//! The stored objects and their history.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use export_store::WallClock;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::apply::Ownership;
use super::kinds::Kind;

/// Number of changes that are kept for watches that resume.
const HISTORY: usize = 20_000;
/// By how much a restore raises the revision.
const RESTORE_BUMP: u64 = 1_000_000;

/// The key of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Name of the kind in paths.
    pub plural: &'static str,
    /// Namespace; empty for objects without one.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was created.
    Added,
    /// It was changed.
    Modified,
    /// It was removed.
    Deleted,
}

/// A change of an object.
#[derive(Debug, Clone)]
pub struct Change {
    /// The resource version that the change created.
    pub revision: u64,
    /// What happened.
    pub kind: ChangeKind,
    /// The object.
    pub key: Key,
    /// The object after the change; the last state of a removed object.
    pub object: Arc<Value>,
    /// Who made the request.
    pub by: String,
}

/// An object, and who owns its fields.
#[derive(Debug, Clone)]
pub struct Stored {
    pub object: Arc<Value>,
    pub ownership: Ownership,
}

/// All objects at some time.
#[derive(Debug, Clone)]
pub struct Snapshot(BTreeMap<Key, Stored>);

impl Snapshot {
    /// Returns the objects of a kind.
    pub fn all(&self, plural: &str) -> Vec<Arc<Value>> {
        let of_kind = self.0.iter().filter(|(key, _)| key.plural == plural);
        of_kind.map(|(_, stored)| Arc::clone(&stored.object)).collect()
    }
}

/// The stored objects and their history.
#[derive(Debug)]
pub struct Store {
    objects: BTreeMap<Key, Stored>,
    history: VecDeque<Change>,
    revision: u64,
    /// Changes up to this revision are not known any more.
    compacted: u64,
    /// The rest of lists that were read in part, by token: the revision and the objects.
    pub continued: BTreeMap<String, (u64, Vec<Arc<Value>>)>,
    /// The revision of the newest change of each kind, in the order of these changes: whoever asks for some kinds, mostly
    /// finds one of them among the last.
    newest: Vec<(&'static str, u64)>,
    /// The revision of the newest change of each kind that is not known any more.
    forgotten: BTreeMap<&'static str, u64>,
    /// The revision of the last restore.
    restored: u64,
    random: StdRng,
    clock: Arc<dyn WallClock>,
    /// Notifies the watches of each kind. The others stay asleep: most changes are renewals of Leases.
    changed: BTreeMap<&'static str, watch::Sender<()>>,
}

impl Store {
    /// Creates an empty store.
    pub fn new(seed: u64, clock: Arc<dyn WallClock>) -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            revision: 1,
            compacted: 0,
            continued: BTreeMap::new(),
            newest: Vec::new(),
            forgotten: BTreeMap::new(),
            restored: 1,
            random: StdRng::seed_from_u64(seed),
            clock,
            changed: BTreeMap::new(),
        }
    }

    /// Returns the current resource version.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the revision of the newest change of one of these kinds.
    pub fn revision_of(&self, plurals: &[&str]) -> u64 {
        let mut newest = self.newest.iter().rev();
        let newest = newest.find(|(plural, _)| plurals.contains(plural));
        newest.map_or(self.restored, |(_, revision)| self.restored.max(*revision))
    }

    /// Returns the last revision with a change of a kind that is not known any more.
    pub fn forgotten(&self, kind: &Kind) -> u64 {
        self.forgotten
            .get(kind.plural)
            .map_or(self.restored, |forgotten| self.restored.max(*forgotten))
    }

    /// Returns the last revision whose changes are not known any more.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Returns a receiver that is notified of each change of a kind.
    pub fn subscribe(&mut self, kind: &Kind) -> watch::Receiver<()> {
        self.changed.entry(kind.plural).or_default().subscribe()
    }

    /// Returns the current time as the API shows it.
    pub fn time(&self) -> Value {
        let now = self.clock.now();
        json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    /// Returns the time of the clock.
    pub fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    /// Returns a new UID.
    pub fn uid(&mut self) -> String {
        let [a, b, c, d]: [u32; 4] = self.random.random();
        format!(
            "{a:08x}-{:04x}-4{:03x}-a{:03x}-{:04x}{d:08x}",
            b >> 16,
            b & 0xfff,
            c >> 20,
            c & 0xffff
        )
    }

    /// Returns an object.
    pub fn get(&self, key: &Key) -> Option<&Stored> {
        self.objects.get(key)
    }

    /// Returns the objects of a kind, in the order of lists.
    pub fn list(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Value>> {
        let first = Key {
            plural: kind.plural,
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        let of_kind = self
            .objects
            .range(first..)
            .take_while(|(key, _)| key.plural == kind.plural && (namespace.is_empty() || key.namespace == namespace));
        of_kind.map(|(_, stored)| Arc::clone(&stored.object)).collect()
    }

    /// Stores an object under a new resource version, and returns it.
    pub fn put(&mut self, key: Key, mut object: Value, ownership: Ownership, by: &str) -> Arc<Value> {
        self.revision += 1;
        set_revision(&mut object, self.revision);
        let object = Arc::new(object);
        let stored = Stored {
            object: Arc::clone(&object),
            ownership,
        };
        let kind = match self.objects.insert(key.clone(), stored) {
            None => ChangeKind::Added,
            Some(_) => ChangeKind::Modified,
        };
        self.record(kind, key, &object, by);
        object
    }

    /// Removes an object, and returns its last state.
    pub fn remove(&mut self, key: &Key, by: &str) -> Option<Arc<Value>> {
        let stored = self.objects.remove(key)?;
        self.revision += 1;
        let mut object = (*stored.object).clone();
        set_revision(&mut object, self.revision);
        let object = Arc::new(object);
        self.record(ChangeKind::Deleted, key.clone(), &object, by);
        Some(object)
    }

    fn record(&mut self, kind: ChangeKind, key: Key, object: &Arc<Value>, by: &str) {
        self.newest.retain(|(plural, _)| *plural != key.plural);
        self.newest.push((key.plural, self.revision));
        if let Some(changed) = self.changed.get(key.plural) {
            changed.send_replace(());
        }
        self.history.push_back(Change {
            revision: self.revision,
            kind,
            key,
            object: Arc::clone(object),
            by: by.to_owned(),
        });
        while self.history.len() > HISTORY
            && let Some(change) = self.history.pop_front()
        {
            self.compacted = change.revision;
            self.forgotten.insert(change.key.plural, change.revision);
        }
    }

    /// Returns the changes after a revision.
    pub fn changes_after(&self, revision: u64) -> impl Iterator<Item = &Change> {
        let begin = self.history.partition_point(|change| change.revision <= revision);
        self.history.range(begin..)
    }

    /// Returns a copy of all objects.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.objects.clone())
    }

    /// Replaces all objects by those of a snapshot, as a restore of etcd does that raises the revision and forgets the history
    /// (`etcdutl snapshot restore --bump-revision --mark-compacted`): caches that are newer than the snapshot are read again.
    pub fn restore(&mut self, snapshot: &Snapshot) {
        self.objects.clone_from(&snapshot.0);
        self.revision += RESTORE_BUMP;
        self.restored = self.revision;
        self.compact();
        for changed in self.changed.values() {
            changed.send_replace(());
        }
    }

    /// Forgets all changes: watches cannot resume, and lists cannot be continued.
    pub fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.revision;
        self.forgotten = self.newest.iter().copied().collect();
        self.continued.clear();
    }
}

fn set_revision(object: &mut Value, revision: u64) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), json!(revision.to_string()));
    }
}
