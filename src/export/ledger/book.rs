//! The maps behind the ledger.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Conflict, FileKey, Holder, Place, Relation};

/// A holder in one of the ways it can be in the book.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Somebody said that the holder exists.
    Known(Holder),
    /// A reservation that was kept: the directory is there, its volume was not seen yet.
    Kept(Holder),
    /// A reservation in use, by number.
    Reserved(Holder, u64),
}

impl Key {
    fn holder(&self) -> &Holder {
        match self {
            Self::Known(holder) | Self::Kept(holder) | Self::Reserved(holder, _) => holder,
        }
    }
}

#[derive(Debug)]
struct Held {
    places: Vec<Place>,
    file: Option<Arc<FileKey>>,
}

/// Ordered by place, so that what lies above a place is a few point look-ups and what lies below it one range. Keys and
/// files stand in several maps and are shared: they are most of what a volume costs in memory.
#[derive(Debug, Default)]
pub(super) struct Book {
    places: BTreeMap<Place, Vec<Arc<Key>>>,
    files: HashMap<Arc<FileKey>, Vec<Arc<Key>>>,
    held: HashMap<Arc<Key>, Held>,
    serial: u64,
}

impl Book {
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.held.contains_key(key)
    }

    pub(super) fn insert(&mut self, key: Key, places: Vec<Place>, file: Option<FileKey>) {
        self.remove(&key);
        let (key, file) = (Arc::new(key), file.map(Arc::new));
        for place in &places {
            add(self.places.entry(place.clone()).or_default(), &key);
        }
        if let Some(file) = &file {
            add(self.files.entry(Arc::clone(file)).or_default(), &key);
        }
        self.held.insert(key, Held { places, file });
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let Some(held) = self.held.remove(key) else { return };
        for place in &held.places {
            if let Some(keys) = self.places.get_mut(place) {
                keys.retain(|other| **other != *key);
                if keys.is_empty() {
                    self.places.remove(place);
                }
            }
        }
        if let Some(file) = &held.file
            && let Some(keys) = self.files.get_mut(file)
        {
            keys.retain(|other| **other != *key);
            if keys.is_empty() {
                self.files.remove(file);
            }
        }
    }

    pub(super) fn file_of(&self, key: &Key) -> Option<FileKey> {
        self.held.get(key)?.file.as_deref().cloned()
    }

    pub(super) fn holder_of(&self, file: &FileKey, except: Option<&Holder>) -> Option<Holder> {
        self.files
            .get(file)?
            .iter()
            .map(|key| key.holder())
            .find(|holder| Some(*holder) != except)
            .cloned()
    }

    pub(super) fn overlap(&self, places: &[Place], except: &Holder, own_backend: &str) -> Option<Conflict> {
        places
            .iter()
            .find_map(|place| self.overlap_of_one(place, except, own_backend))
    }

    pub(super) fn encloser(&self, places: &[Place]) -> Option<Holder> {
        let here_and_above = places
            .iter()
            .flat_map(|place| place.above().chain(std::iter::once(place.clone())));
        here_and_above
            .filter_map(|place| self.places.get(&place))
            .flatten()
            .map(|key| key.holder())
            .find(|holder| !matches!(holder, Holder::BackendRoot(_)))
            .cloned()
    }

    fn overlap_of_one(&self, place: &Place, except: &Holder, own_backend: &str) -> Option<Conflict> {
        let conflict = |at: &Place, keys: &[Arc<Key>], relation: Relation| {
            keys.iter()
                .map(|key| key.holder())
                .find(|holder| *holder != except && !self.is_own_root(holder, at, relation, own_backend))
                .map(|holder| Conflict {
                    place: place.clone(),
                    holder: holder.clone(),
                    relation,
                })
        };
        let above = place.above().find_map(|ancestor| {
            let keys = self.places.get(&ancestor)?;
            conflict(&ancestor, keys, Relation::Inside)
        });
        above.or_else(|| {
            self.places
                .range(place..)
                .take_while(|(other, _)| other.is_within(place))
                .find_map(|(other, keys)| {
                    let relation = if other == place {
                        Relation::Same
                    } else {
                        Relation::Contains
                    };
                    conflict(other, keys, relation)
                })
        })
    }

    /// Directories are meant to lie inside their backend's root, and so in any other backend's that is the same place.
    fn is_own_root(&self, holder: &Holder, at: &Place, relation: Relation, own_backend: &str) -> bool {
        let Holder::BackendRoot(name) = holder else {
            return false;
        };
        relation == Relation::Inside
            && (name == own_backend
                || self
                    .held
                    .get(&Key::Known(Holder::BackendRoot(own_backend.to_owned())))
                    .is_some_and(|own| own.places.contains(at)))
    }
}

/// Nearly every place and file has one holder: room for more is taken when there are more.
fn add(keys: &mut Vec<Arc<Key>>, key: &Arc<Key>) {
    keys.reserve_exact(1);
    keys.push(Arc::clone(key));
}
