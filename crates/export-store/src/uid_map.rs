//! Maps whose keys are UIDs, or names of volumes with a UID in them. There is an entry for each volume of the cluster, so
//! a UID takes 16 bytes, and the table that finds it has numbers of entries.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use uuid::Uuid;

use crate::compact_index::compact_index;

/// Prefix of the names of the volumes that the operator provisions. The UID of the claim follows.
pub const VOLUME_PREFIX: &str = "pvc-";

/// Length of a UID as text.
const UID_LENGTH: usize = 36;

/// Returns the UID in a text that is `prefix` and a UID in lower case. No other text has this UID.
pub(crate) fn parse_uid(prefix: &str, text: &str) -> Option<Uuid> {
    let uid = text.strip_prefix(prefix).filter(|uid| uid.len() == UID_LENGTH)?;
    let parsed = Uuid::try_parse(uid).ok()?;
    (*parsed.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *uid).then_some(parsed)
}

/// A map by UID or by name of a volume. Keys without a UID are allowed, and take more memory.
#[derive(Clone)]
pub struct UidMap<V> {
    /// What all keys with a UID begin with.
    prefix: &'static str,
    entries: Vec<(Uuid, V)>,
    /// Indexes of the entries, by UID.
    by_uid: HashTable<u32>,
    others: HashMap<Box<str>, V>,
    hasher: RandomState,
}

impl<V> Default for UidMap<V> {
    /// Returns an empty map by UID.
    fn default() -> Self {
        Self::with_prefix("")
    }
}

impl<V: fmt::Debug> fmt::Debug for UidMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.entries.iter().map(|(uid, value)| (uid, value)))
            .entries(&self.others)
            .finish()
    }
}

impl<V> UidMap<V> {
    /// Returns an empty map by name of volumes.
    pub fn by_volume() -> Self {
        Self::with_prefix(VOLUME_PREFIX)
    }

    fn with_prefix(prefix: &'static str) -> Self {
        Self {
            prefix,
            entries: Vec::new(),
            by_uid: HashTable::new(),
            others: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len() + self.others.len()
    }

    /// Reports whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&V> {
        let Some(uid) = parse_uid(self.prefix, key) else {
            return self.others.get(key);
        };
        self.entries.get(self.index_of(uid)?).map(|(_, value)| value)
    }

    /// Returns the value of a key, to change it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        let Some(uid) = parse_uid(self.prefix, key) else {
            return self.others.get_mut(key);
        };
        let index = self.index_of(uid)?;
        self.entries.get_mut(index).map(|(_, value)| value)
    }

    /// Reports whether a key has a value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key, and returns the former one.
    pub fn insert(&mut self, key: &str, value: V) -> Option<V> {
        let Some(uid) = parse_uid(self.prefix, key) else {
            return self.others.insert(key.into(), value);
        };
        if let Some(index) = self.index_of(uid) {
            let entry = self.entries.get_mut(index);
            return entry.map(|(_, former)| std::mem::replace(former, value));
        }
        let index = compact_index(self.entries.len());
        if self.entries.len() == self.entries.capacity() {
            // Twice as much, as a vector grows by itself, would be unused for half of the volumes.
            self.entries.reserve_exact((self.entries.len() / 8).max(8));
        }
        self.entries.push((uid, value));
        let Self {
            entries,
            by_uid,
            hasher,
            ..
        } = self;
        let hash = hasher.hash_one(uid);
        by_uid.insert_unique(hash, index, |&index| {
            hasher.hash_one(entries.get(index as usize).map(|(uid, _)| *uid).unwrap_or_default())
        });
        None
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<V> {
        let Some(uid) = parse_uid(self.prefix, key) else {
            return self.others.remove(key);
        };
        let Self {
            entries,
            by_uid,
            hasher,
            ..
        } = self;
        let is_it = |&index: &u32| entries.get(index as usize).is_some_and(|(other, _)| *other == uid);
        let (index, _) = by_uid.find_entry(hasher.hash_one(uid), is_it).ok()?.remove();
        let last = entries.len().saturating_sub(1);
        let (_, value) = entries.swap_remove(index as usize);
        // The last entry has this index now.
        if let Some((moved, _)) = entries.get(index as usize) {
            let moved = by_uid.find_mut(hasher.hash_one(moved), |&other| other as usize == last);
            if let Some(moved) = moved {
                *moved = index;
            }
        }
        if entries.len() < entries.capacity() / 4 {
            entries.shrink_to(entries.len() * 2);
            by_uid.shrink_to(entries.len() * 2, |&index| {
                hasher.hash_one(entries.get(index as usize).map(|(uid, _)| *uid).unwrap_or_default())
            });
        }
        Some(value)
    }

    /// Returns the values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value).chain(self.others.values())
    }

    /// Calls `visit` with each key whose value `select` accepts, and the value, in no particular order. The keys are not
    /// stored as text.
    pub fn for_each_where<'a>(&'a self, select: impl Fn(&V) -> bool, mut visit: impl FnMut(&str, &'a V)) {
        let mut key = self.prefix.to_owned();
        for (uid, value) in self.entries.iter().filter(|(_, value)| select(value)) {
            key.truncate(self.prefix.len());
            key.push_str(uid.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
            visit(&key, value);
        }
        for (key, value) in self.others.iter().filter(|(_, value)| select(value)) {
            visit(key, value);
        }
    }

    /// Returns the keys whose values `select` accepts, in no particular order.
    pub fn keys_where(&self, select: impl Fn(&V) -> bool) -> Vec<String> {
        let mut keys = Vec::new();
        self.for_each_where(select, |key, _| keys.push(key.to_owned()));
        keys
    }

    fn index_of(&self, uid: Uuid) -> Option<usize> {
        let is_it = |&index: &u32| self.entries.get(index as usize).is_some_and(|(other, _)| *other == uid);
        let index = self.by_uid.find(self.hasher.hash_one(uid), is_it)?;
        Some(*index as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn content(map: &UidMap<u32>) -> BTreeMap<String, u32> {
        let mut all = BTreeMap::new();
        map.for_each_where(
            |_| true,
            |key, value| assert_eq!(all.insert(key.to_owned(), *value), None, "{key}"),
        );
        all
    }

    #[test]
    fn only_the_usual_spelling_of_a_uid_is_one() {
        let uid = "0190a6f0-0000-4abc-8000-00000000000a";
        for other in [
            uid.to_uppercase(),
            uid.replace('-', ""),
            format!("{{{uid}}}"),
            format!("urn:uuid:{uid}"),
            format!("{uid} "),
            format!("pvc-{uid}"),
            String::new(),
        ] {
            assert_eq!(parse_uid("", &other), None, "{other}");
        }
        assert!(parse_uid("", uid).is_some() && parse_uid("pvc-", &format!("pvc-{uid}")).is_some());
        assert_eq!(parse_uid("pvc-", uid), None);
    }

    proptest! {
        #[test]
        fn a_map_has_what_was_inserted_and_not_removed(
            operations in prop::collection::vec((0..60_u32, any::<bool>(), 0..3_u8), 0..400),
        ) {
            let (mut map, mut model) = (UidMap::by_volume(), BTreeMap::new());
            for (number, inserts, form) in operations {
                let key = match form {
                    0 => format!("pvc-00000000-0000-4000-8000-{number:012}"),
                    1 => format!("PVC-00000000-0000-4000-8000-{number:012}"),
                    _ => format!("static-{number}"),
                };
                if inserts {
                    prop_assert_eq!(map.insert(&key, number), model.insert(key, number));
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                }
            }
            prop_assert_eq!(map.len(), model.len());
            for (key, value) in &model {
                prop_assert_eq!(map.get(key), Some(value));
                prop_assert_eq!(map.get_mut(key).copied(), Some(*value));
            }
            prop_assert_eq!(content(&map), model);
        }
    }
}
