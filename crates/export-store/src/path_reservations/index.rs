//! Index of the path reservations.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::path_reservations::{
    Conflict, FileKey, Holder, PathInner, PathRoot, PossibleConflict, Relation, ReservedPath, Sharing,
};

/// Key of an entry: a holder, and how it holds its paths.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// The holder exists.
    Known(Holder),
    /// A reservation that was kept: the directory exists, and its volume was not observed yet.
    Committed(Holder),
    /// A temporary reservation, by number.
    Reserved(Holder, u64),
}

impl Key {
    fn holder(&self) -> &Holder {
        match self {
            Self::Known(holder) | Self::Committed(holder) | Self::Reserved(holder, _) => holder,
        }
    }
}

#[derive(Debug)]
struct Held {
    places: Box<[ReservedPath]>,
    file: Option<File>,
    sharing: Sharing,
}

/// A [`FileKey`] whose export is shared with others.
type File = (Arc<str>, u64);

/// Almost every path and file has one holder.
type Keys = SmallVec<[Arc<Key>; 1]>;

/// Sorted by path, so that finding the paths above a path takes a few point lookups, and those below it one range. Keys
/// are in several maps, and thousands of paths have the same root. These are shared, because they take most of the
/// memory of a volume.
#[derive(Debug, Default)]
pub(super) struct PathIndex {
    places: BTreeMap<ReservedPath, Keys>,
    files: HashMap<File, Keys>,
    held: HashMap<Arc<Key>, Held>,
    /// One entry per server and per export.
    realms: HashSet<Arc<PathRoot>>,
    exports: HashSet<Arc<str>>,
    /// Confirmed identities of exports, by backend.
    confirmed: HashMap<String, String>,
    serial: u64,
}

impl PathIndex {
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.held.contains_key(key)
    }

    /// Returns the holders that exist.
    pub(super) fn known(&self) -> impl Iterator<Item = &Holder> {
        self.held.keys().filter_map(|key| match &**key {
            Key::Known(holder) => Some(holder),
            Key::Committed(_) | Key::Reserved(..) => None,
        })
    }

    pub(super) fn insert(&mut self, key: Key, places: Vec<ReservedPath>, file: Option<FileKey>, sharing: Sharing) {
        self.remove(&key);
        let key = Arc::new(key);
        let places: Box<[ReservedPath]> = places.into_iter().map(|place| self.shared(place)).collect();
        let file = file.map(|(export, file_id)| (self.export(export), file_id));
        for place in &places {
            self.places.entry(place.clone()).or_default().push(Arc::clone(&key));
        }
        if let Some(file) = &file {
            self.files.entry(file.clone()).or_default().push(Arc::clone(&key));
        }
        self.held.insert(key, Held { places, file, sharing });
    }

    /// Returns the path with the shared instance of its root.
    fn shared(&mut self, place: ReservedPath) -> ReservedPath {
        let Some(realm) = self.realms.get(&place.0.realm) else {
            self.realms.insert(Arc::clone(&place.0.realm));
            return place;
        };
        if Arc::ptr_eq(realm, &place.0.realm) {
            return place;
        }
        ReservedPath(Arc::new(PathInner {
            realm: Arc::clone(realm),
            path: place.0.path.clone(),
        }))
    }

    fn export(&mut self, id: String) -> Arc<str> {
        if let Some(known) = self.exports.get(id.as_str()) {
            return Arc::clone(known);
        }
        let id: Arc<str> = id.into();
        self.exports.insert(Arc::clone(&id));
        id
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let Some(held) = self.held.remove(key) else { return };
        if let Holder::BackendRoot(backend) = key.holder() {
            self.confirmed.remove(backend);
        }
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
        let (export, fileid) = self.held.get(key)?.file.as_ref()?;
        Some((export.to_string(), *fileid))
    }

    /// Returns the holders of a file, without those that another one may share it with.
    pub(super) fn holders_of(&self, file: &FileKey, sharing: Sharing) -> Vec<Holder> {
        let export = self.exports.get(file.0.as_str());
        let keys = export.and_then(|export| self.files.get(&(Arc::clone(export), file.1)));
        let keys = keys.into_iter().flatten();
        keys.filter(|key| !self.may_share(key, sharing, Relation::Same))
            .map(|key| key.holder().clone())
            .collect()
    }

    /// Reports whether another holder may have a directory with this relation to that of `key`.
    fn may_share(&self, key: &Key, sharing: Sharing, relation: Relation) -> bool {
        let theirs = self.held.get(key).map(|held| held.sharing);
        theirs.is_some_and(|theirs| sharing.permits(theirs, relation))
    }

    pub(super) fn overlap(
        &self,
        places: &[ReservedPath],
        except: &Holder,
        sharing: Sharing,
        own_backend: &str,
    ) -> Option<Conflict> {
        places
            .iter()
            .find_map(|place| self.overlap_of_one(place, except, sharing, own_backend))
    }

    /// The number of servers is small compared to that of volumes, so each of them is searched for the same path.
    pub(super) fn possible_overlaps(
        &self,
        places: &[ReservedPath],
        except: Option<&Holder>,
        sharing: Sharing,
    ) -> Vec<PossibleConflict> {
        let own_export = places.iter().find_map(ReservedPath::export);
        let mut found = Vec::new();
        for place in places {
            let PathRoot::Server(server) = &*place.0.realm else {
                continue;
            };
            for realm in self.realms.iter().filter(|realm| **realm != place.0.realm) {
                let PathRoot::Server(holder_server) = &**realm else {
                    continue;
                };
                let there = ReservedPath::new(Arc::clone(realm), place.0.path.to_string());
                let conflicts = self.related(&there).filter(|(key, relation)| match key.holder() {
                    holder @ Holder::Volume(_) => {
                        Some(holder) != except
                            && !self.is_on_other_export(key, own_export)
                            && !self.may_share(key, sharing, *relation)
                    }
                    // Below the root of a backend, only its volumes are in the way: its server may be another machine.
                    Holder::BackendRoot(_) => *relation != Relation::Inside,
                    Holder::Archive(_) => false,
                });
                found.extend(conflicts.map(|(key, relation)| PossibleConflict {
                    conflict: Conflict {
                        place: place.clone(),
                        holder: key.holder().clone(),
                        relation,
                        same_server: None,
                    },
                    server: server.clone(),
                    holder_server: holder_server.clone(),
                }));
            }
        }
        found
    }

    /// Returns the holders of paths that contain a path, equal it or lie inside it, and its relation to their paths.
    fn related<'a>(&'a self, place: &'a ReservedPath) -> impl Iterator<Item = (&'a Arc<Key>, Relation)> {
        let above = place.above().filter_map(|ancestor| self.places.get(&ancestor));
        let above = above.flatten().map(|key| (key, Relation::Inside));
        let within = self
            .places
            .range(place.clone()..)
            .take_while(|(other, _)| other.is_within(place))
            .map(move |(other, keys)| {
                (
                    keys,
                    if other == place {
                        Relation::Same
                    } else {
                        Relation::Contains
                    },
                )
            });
        above.chain(within.flat_map(|(keys, relation)| keys.iter().map(move |key| (key, relation))))
    }

    /// Reports whether a holder's directory is on another export than `own`, according to a backend that confirmed it.
    /// False if `own` is not known, or if the directories of one export may be inside the other.
    fn is_on_other_export(&self, key: &Key, own: Option<&str>) -> bool {
        let places = self.held.get(key).map(|held| &held.places);
        let export = places.and_then(|places| places.iter().find_map(ReservedPath::export));
        let (Some(export), Some(own)) = (export, own) else {
            return false;
        };
        export != own && self.confirmed.values().any(|id| id == export) && !self.are_nested(export, own)
    }

    /// Reports whether the path of a backend on one export lies inside that of a backend on the other export, whatever
    /// the names of their servers are.
    fn are_nested(&self, one: &str, other: &str) -> bool {
        let nested = |one: &ReservedPath| {
            self.roots_of(other)
                .any(|other| one.is_path_below(other) || other.is_path_below(one))
        };
        self.roots_of(one).any(nested)
    }

    /// Returns the paths of the backends that confirmed this export.
    fn roots_of(&self, export: &str) -> impl Iterator<Item = &ReservedPath> {
        let backends = self.confirmed.iter().filter(move |(_, id)| *id == export);
        let held = backends.filter_map(|(backend, _)| {
            let root = Key::Known(Holder::BackendRoot(backend.clone()));
            self.held.get(&root)
        });
        held.flat_map(|held| &held.places)
    }

    pub(super) fn confirm_export(&mut self, backend: &str, export_id: &str) {
        self.confirmed.insert(backend.to_owned(), export_id.to_owned());
    }

    /// Reports whether one of `places` is, contains or lies in something of another holder than `own`. Below it, only
    /// backends count, and directories that are being created.
    pub(super) fn is_needed(&self, places: &[ReservedPath], own: &Holder) -> bool {
        let mut related = places.iter().flat_map(|place| self.related(place));
        related.any(|(key, relation)| {
            let (holder, is_root) = (key.holder(), matches!(key.holder(), Holder::BackendRoot(_)));
            holder != own
                && match relation {
                    Relation::Same => true,
                    Relation::Inside => !is_root,
                    Relation::Contains => is_root || matches!(**key, Key::Reserved(..)),
                }
        })
    }

    pub(super) fn enclosing_holder(&self, places: &[ReservedPath]) -> Option<Holder> {
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

    fn overlap_of_one(
        &self,
        place: &ReservedPath,
        except: &Holder,
        sharing: Sharing,
        own_backend: &str,
    ) -> Option<Conflict> {
        let conflict = |at: &ReservedPath, keys: &[Arc<Key>], relation: Relation| {
            keys.iter()
                .filter(|key| !self.may_share(key, sharing, relation))
                .map(|key| key.holder())
                .find(|holder| *holder != except && !self.is_own_root(holder, at, relation, own_backend))
                .map(|holder| Conflict {
                    place: place.clone(),
                    holder: holder.clone(),
                    relation,
                    same_server: None,
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

    /// Reports whether a holder is the root of a directory's own backend, or of another backend with the same path.
    /// Directories may lie below such a root.
    fn is_own_root(&self, holder: &Holder, at: &ReservedPath, relation: Relation, own_backend: &str) -> bool {
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
