//! Index of the path reservations.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::compact_index::compact_index;
use crate::interner::Interner;
use crate::path_reservations::{
    BETWEEN, Conflict, FileKey, Holder, PathRoot, PossibleConflict, Relation, ReservedPath, Sharing,
};
use crate::sorted_chunks::SortedChunks;
use crate::text_arena::{TextArena, TextSpan};
use crate::uid_map::{VOLUME_PREFIX, parse_uid};

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

    fn hold(&self) -> Hold {
        match self {
            Self::Known(_) => Hold::Known,
            Self::Committed(_) => Hold::Committed,
            Self::Reserved(..) => Hold::Reserved,
        }
    }
}

/// How a holder holds its paths, as in [`Key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Known,
    Committed,
    Reserved,
}

/// What a holder is, as in [`Holder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Volume,
    Archive,
    BackendRoot,
}

/// Name of a holder.
#[derive(Debug, Clone, Copy)]
enum Name {
    /// A name that the operator gave to a volume, by the UID of its claim.
    Volume(Uuid),
    Other(TextSpan),
}

/// Paths of a holder that end alike: nearly always all of them, because the path on the server ends with the path on the
/// export. There is one for each volume in the cluster, so it must be small.
#[derive(Debug)]
struct Entry {
    name: Name,
    /// What the paths end with, without the name of the holder, which is in it at `name_at`.
    path: TextSpan,
    /// What they begin with: number of the [`Location`].
    location: u32,
    /// The fileid if `has_file`, or the number of a temporary reservation, which has no file.
    number: u64,
    /// [`NO_NAME`] if the path does not contain the name.
    name_at: u16,
    has_file: bool,
    kind: Kind,
    hold: Hold,
    sharing: Sharing,
}

/// A path that does not contain the name of its holder, or after too many bytes.
const NO_NAME: u16 = u16::MAX;

/// What the paths of many volumes have in common: one for each address of each backend.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Location {
    /// The beginnings of the paths, each with the number of its root.
    bases: SmallVec<[(u32, Box<str>); 2]>,
    /// Number of the root that the fileid is valid on.
    file_root: Option<u32>,
}

/// Maximum number of beginnings in a location. Holders with more paths have more entries.
const MAX_BASES: usize = 4;

/// A path of an entry: index of the entry, and number of the beginning in its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceId(u32);

impl PlaceId {
    fn new(entry: usize, base: usize) -> Self {
        Self(compact_index(entry * MAX_BASES + base % MAX_BASES))
    }

    fn entry(self) -> usize {
        self.0 as usize / MAX_BASES
    }

    fn base(self) -> usize {
        self.0 as usize % MAX_BASES
    }
}

/// A path in parts, as it is stored.
struct PathParts<'a> {
    base: &'a str,
    before_name: &'a str,
    name: Option<[u8; NAME_LENGTH]>,
    after_name: &'a str,
}

/// Length of the name of a volume with a UID.
const NAME_LENGTH: usize = 40;

impl PathParts<'_> {
    /// Returns the parts in order.
    fn slices(&self) -> [&[u8]; 5] {
        let has_rest = self.name.is_some() || !self.before_name.is_empty();
        let between: &[u8] = if self.base.is_empty() || !has_rest {
            &[]
        } else {
            &[BETWEEN as u8]
        };
        let name = self.name.as_ref().map_or(&[][..], |name| name.as_slice());
        let (before_name, after_name) = (self.before_name.as_bytes(), self.after_name.as_bytes());
        [self.base.as_bytes(), between, before_name, name, after_name]
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.slices().into_iter().flatten().copied()
    }

    /// Compares this path with another one. Insertions and searches spend most of their time here.
    fn compare(&self, mut other: &[u8]) -> Ordering {
        for part in self.slices() {
            let Some((start, rest)) = other.split_at_checked(part.len()) else {
                // The other path ends in this part.
                return part.cmp(other);
            };
            if part != start {
                return part.cmp(start);
            }
            other = rest;
        }
        if other.is_empty() {
            Ordering::Equal
        } else {
            Ordering::Less
        }
    }

    /// Reports whether this path lies below `other`, or is `other`.
    fn is_within(&self, other: &str) -> bool {
        let mut bytes = self.bytes();
        let begins_with_it = other.bytes().all(|byte| bytes.next() == Some(byte));
        begins_with_it && (other.is_empty() || bytes.next().is_none_or(|next| next == BETWEEN as u8))
    }
}

/// Sorted by path, so that finding the paths above a path takes a few lookups, and those below it one range. Names, paths
/// and their beginnings are stored once, and all tables have numbers: they take most of the memory of a volume.
#[derive(Debug, Default)]
pub(super) struct PathIndex {
    entries: Entries,
    /// Indexes of the entries by holder. A holder may have several: see [`Location`] and [`Key`].
    by_holder: HashTable<u32>,
    /// Indexes of the entries with a file, by root and fileid.
    by_file: HashTable<u32>,
    /// The paths of all entries, by root, path and [`PlaceId`].
    by_path: SortedChunks,
    /// Confirmed identities of exports, by backend.
    confirmed: HashMap<String, String>,
    serial: u64,
}

/// The entries, and what they refer to.
#[derive(Debug, Default)]
struct Entries {
    slab: Slab<Entry>,
    texts: TextArena,
    /// One root per server and per export.
    roots: Interner<PathRoot>,
    locations: Interner<Location>,
    hasher: RandomState,
}

impl Entries {
    fn get(&self, index: usize) -> Option<&Entry> {
        self.slab.get(index)
    }

    fn insert(&mut self, entry: Entry) -> usize {
        if self.slab.len() == self.slab.capacity() {
            // Twice as much, as a vector grows by itself, would be unused for half of the volumes.
            self.slab.reserve_exact((self.slab.len() / 8).max(8));
        }
        self.slab.insert(entry)
    }

    fn remove(&mut self, index: usize) {
        let Some(entry) = self.slab.try_remove(index) else {
            return;
        };
        self.texts.remove(entry.path);
        if let Name::Other(name) = entry.name {
            self.texts.remove(name);
        }
        let texts = self.slab.iter_mut().flat_map(|(_, entry)| {
            let name = match &mut entry.name {
                Name::Volume(_) => None,
                Name::Other(name) => Some(name),
            };
            std::iter::once(&mut entry.path).chain(name)
        });
        self.texts.compact(texts);
        if self.slab.is_empty() {
            self.slab.shrink_to_fit();
        }
    }

    /// Returns the paths of an entry.
    fn places(&self, index: usize) -> impl Iterator<Item = PlaceId> + use<> {
        let paths = self.get(index).map_or(0, |entry| self.bases(entry).len());
        (0..paths).map(move |base| PlaceId::new(index, base))
    }

    /// Returns root and text of a path.
    fn path(&self, place: PlaceId) -> (u32, Vec<u8>) {
        let path = self.parts(place).map(|parts| parts.bytes().collect());
        (self.root_of(place).unwrap_or_default(), path.unwrap_or_default())
    }

    /// Returns the beginnings of the paths of an entry.
    fn bases(&self, entry: &Entry) -> &[(u32, Box<str>)] {
        self.locations
            .get(entry.location)
            .map_or(&[], |location| &location.bases)
    }

    fn hash_of_name(&self, kind: Kind, uid: Option<Uuid>, name: &str) -> u64 {
        match uid {
            Some(uid) => self.hasher.hash_one((kind, uid)),
            None => self.hasher.hash_one((kind, name)),
        }
    }

    fn hash_of_holder(&self, entry: &Entry) -> u64 {
        match entry.name {
            Name::Volume(uid) => self.hash_of_name(entry.kind, Some(uid), ""),
            Name::Other(name) => self.hash_of_name(entry.kind, None, self.texts.get(name)),
        }
    }

    /// Returns the hash of an entry's file, if it has one.
    fn hash_of_file(&self, entry: &Entry) -> Option<u64> {
        let root = self
            .locations
            .get(entry.location)?
            .file_root
            .filter(|_| entry.has_file)?;
        Some(self.hasher.hash_one((root, entry.number)))
    }

    fn holder_hash_at(&self, index: u32) -> u64 {
        let entry = self.get(index as usize);
        entry.map(|entry| self.hash_of_holder(entry)).unwrap_or_default()
    }

    fn file_hash_at(&self, index: u32) -> u64 {
        let entry = self.get(index as usize);
        entry.and_then(|entry| self.hash_of_file(entry)).unwrap_or_default()
    }

    fn holder(&self, entry: &Entry) -> Holder {
        let name = match entry.name {
            Name::Volume(uid) => volume_name(uid),
            Name::Other(name) => self.texts.get(name).to_owned(),
        };
        match entry.kind {
            Kind::Volume => Holder::Volume(name),
            Kind::Archive => Holder::Archive(name),
            Kind::BackendRoot => Holder::BackendRoot(name),
        }
    }

    /// Returns a path in its parts.
    fn parts(&self, place: PlaceId) -> Option<PathParts<'_>> {
        let entry = self.get(place.entry())?;
        let (_, base) = self.bases(entry).get(place.base())?;
        let path = self.texts.get(entry.path);
        let name = match entry.name {
            Name::Volume(uid) if entry.name_at != NO_NAME => Some(name_bytes(uid)),
            Name::Volume(_) | Name::Other(_) => None,
        };
        let at = name.map_or(path.len(), |_| usize::from(entry.name_at));
        let (before_name, after_name) = path.split_at_checked(at).unwrap_or((path, ""));
        Some(PathParts {
            base,
            before_name,
            name,
            after_name,
        })
    }

    /// Compares a path with another one, by root, path and number. Without a number, paths that are equal are.
    fn compare(&self, place: PlaceId, root: u32, path: &[u8], number: Option<PlaceId>) -> Ordering {
        #[cfg(test)]
        COMPARISONS.set(comparisons() + 1);
        self.root_of(place)
            .cmp(&Some(root))
            .then_with(|| match self.parts(place) {
                Some(parts) => parts.compare(path),
                None => Ordering::Less,
            })
            .then_with(|| number.map_or(Ordering::Equal, |number| place.cmp(&number)))
    }

    /// Returns the root of a path.
    fn root_of(&self, place: PlaceId) -> Option<u32> {
        let bases = self.bases(self.get(place.entry())?);
        bases.get(place.base()).map(|(root, _)| *root)
    }

    fn is_held_by(&self, entry: &Entry, holder: &Holder) -> bool {
        let (kind, name) = split(holder);
        entry.kind == kind
            && match entry.name {
                Name::Volume(uid) => parse_uid(VOLUME_PREFIX, name) == Some(uid),
                Name::Other(other) => self.texts.get(other) == name,
            }
    }
}

impl PathIndex {
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.entries_of(key).next().is_some()
    }

    /// Calls `visit` with the name of each volume that exists, more than once if it has several paths.
    pub(super) fn for_each_volume(&self, mut visit: impl FnMut(&str)) {
        let known = self.entries.slab.iter().map(|(_, entry)| entry);
        for entry in known.filter(|entry| (entry.hold, entry.kind) == (Hold::Known, Kind::Volume)) {
            match entry.name {
                Name::Volume(uid) => visit(&volume_name(uid)),
                Name::Other(name) => visit(self.entries.texts.get(name)),
            }
        }
    }

    pub(super) fn insert(&mut self, key: Key, places: Vec<ReservedPath>, file: Option<FileKey>, sharing: Sharing) {
        self.remove(&key);
        let (kind, name) = split(key.holder());
        let uid = parse_uid(VOLUME_PREFIX, name);
        let (file_root, mut number) = file.map_or((None, None), |(export, file_id)| {
            (Some(self.entries.roots.insert(PathRoot::Export(export))), Some(file_id))
        });
        let has_file = number.is_some();
        if let Key::Reserved(_, serial) = key {
            number = Some(serial);
        }
        let mut groups = group_by_ending(places);
        if groups.is_empty() {
            groups.push((String::new(), Vec::new()));
        }
        for (index, (ending, bases)) in groups.into_iter().enumerate() {
            let bases = bases
                .into_iter()
                .map(|(root, base)| (self.entries.roots.insert(root), base.into_boxed_str()))
                .collect();
            let location = self.entries.locations.insert(Location { bases, file_root });
            let name_at = uid.and_then(|_| ending.find(name));
            let name_at = name_at.and_then(|at| u16::try_from(at).ok()).unwrap_or(NO_NAME);
            let path = match name_at {
                NO_NAME => self.entries.texts.insert(&ending),
                _ => self.entries.texts.insert(&ending.replacen(name, "", 1)),
            };
            let name = match uid {
                Some(uid) => Name::Volume(uid),
                None => Name::Other(self.entries.texts.insert(name)),
            };
            self.insert_entry(Entry {
                name,
                path,
                location,
                number: number.unwrap_or_default(),
                name_at,
                // The first one is found by the file.
                has_file: has_file && index == 0,
                kind,
                hold: key.hold(),
                sharing,
            });
        }
    }

    fn insert_entry(&mut self, entry: Entry) {
        let Self {
            entries,
            by_holder,
            by_file,
            by_path,
            ..
        } = self;
        let (holder_hash, file_hash) = (entries.hash_of_holder(&entry), entries.hash_of_file(&entry));
        let index = entries.insert(entry);
        for place in entries.places(index) {
            let (root, path) = entries.path(place);
            by_path.insert(place.0, |other| {
                entries.compare(PlaceId(other), root, &path, Some(place))
            });
        }
        let number = compact_index(index);
        by_holder.insert_unique(holder_hash, number, |&index| entries.holder_hash_at(index));
        if let Some(hash) = file_hash {
            by_file.insert_unique(hash, number, |&index| entries.file_hash_at(index));
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let entries: SmallVec<[usize; 2]> = self.entries_of(key).map(|(index, _)| index).collect();
        if entries.is_empty() {
            return;
        }
        if let Holder::BackendRoot(backend) = key.holder() {
            self.confirmed.remove(backend);
        }
        for index in entries {
            self.remove_entry(index);
        }
    }

    fn remove_entry(&mut self, index: usize) {
        let Self {
            entries,
            by_holder,
            by_file,
            by_path,
            ..
        } = self;
        let Some(entry) = entries.get(index) else { return };
        for place in entries.places(index) {
            let (root, path) = entries.path(place);
            by_path.remove(|other| entries.compare(PlaceId(other), root, &path, Some(place)));
        }
        let is_it = |other: &u32| *other as usize == index;
        if let Ok(found) = by_holder.find_entry(entries.hash_of_holder(entry), is_it) {
            found.remove();
        }
        if let Some(Ok(found)) = entries.hash_of_file(entry).map(|hash| by_file.find_entry(hash, is_it)) {
            found.remove();
        }
        entries.remove(index);
        shrink(by_holder, |&index| entries.holder_hash_at(index));
        shrink(by_file, |&index| entries.file_hash_at(index));
    }

    /// Returns the entries of a key, with their indexes.
    fn entries_of(&self, key: &Key) -> impl Iterator<Item = (usize, &Entry)> {
        let (kind, name) = split(key.holder());
        let uid = parse_uid(VOLUME_PREFIX, name);
        let is_it = move |entry: &Entry| {
            let same_name = match (entry.name, uid) {
                (Name::Volume(one), Some(other)) => one == other,
                (Name::Other(one), None) => self.entries.texts.get(one) == name,
                (Name::Volume(_) | Name::Other(_), _) => false,
            };
            let same_number = match key {
                Key::Reserved(_, serial) => entry.number == *serial,
                Key::Known(_) | Key::Committed(_) => true,
            };
            same_name && same_number && (entry.kind, entry.hold) == (kind, key.hold())
        };
        let hash = self.entries.hash_of_name(kind, uid, name);
        let candidates = self.by_holder.iter_hash(hash).map(|&index| index as usize);
        candidates
            .filter_map(|index| Some((index, self.entries.get(index)?)))
            .filter(move |(_, entry)| is_it(entry))
    }

    /// Returns the entries with paths that are `path` or lie below it, in order.
    fn within<'a>(&'a self, root: u32, path: &'a str) -> impl Iterator<Item = (&'a Entry, Relation)> {
        let from = self
            .by_path
            .range_from(move |place| self.entries.compare(PlaceId(place), root, path.as_bytes(), None));
        from.map(PlaceId).map_while(move |place| {
            let entry = self.entries.get(place.entry())?;
            let is_on_root = self.entries.root_of(place) == Some(root);
            let parts = self
                .entries
                .parts(place)
                .filter(|parts| is_on_root && parts.is_within(path))?;
            let relation = match parts.bytes().count() == path.len() {
                true => Relation::Same,
                false => Relation::Contains,
            };
            Some((entry, relation))
        })
    }

    /// Returns the entries with this path.
    fn at<'a>(&'a self, root: u32, path: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.within(root, path)
            .take_while(|(_, relation)| *relation == Relation::Same)
            .map(|(entry, _)| entry)
    }

    pub(super) fn file_of(&self, key: &Key) -> Option<FileKey> {
        let (_, entry) = self.entries_of(key).find(|(_, entry)| entry.has_file)?;
        let root = self.entries.locations.get(entry.location)?.file_root?;
        match self.entries.roots.get(root)? {
            PathRoot::Export(id) => Some((id.clone(), entry.number)),
            PathRoot::Server(_) => None,
        }
    }

    /// Reports whether two holders have paths on servers, and no such path of the first one is a path of `root` or lies
    /// below one.
    pub(super) fn is_outside(&self, key: &Key, root: &Key) -> bool {
        let (own, roots) = (self.places_on_servers(key), self.places_on_servers(root));
        let is_within = |own: &PlaceId, root: &PlaceId| {
            let (number, path) = self.entries.path(*root);
            let is_below = |parts: PathParts<'_>| std::str::from_utf8(&path).is_ok_and(|path| parts.is_within(path));
            self.entries.root_of(*own) == Some(number) && self.entries.parts(*own).is_some_and(is_below)
        };
        let is_inside = |own: &PlaceId| roots.iter().any(|root| is_within(own, root));
        !own.is_empty() && !roots.is_empty() && !own.iter().any(is_inside)
    }

    /// Returns the paths of a key on servers.
    fn places_on_servers(&self, key: &Key) -> SmallVec<[PlaceId; 2]> {
        let is_on_server = |place: &PlaceId| {
            let root = self
                .entries
                .root_of(*place)
                .and_then(|root| self.entries.roots.get(root));
            matches!(root, Some(PathRoot::Server(_)))
        };
        let places = self.entries_of(key).flat_map(|(index, _)| self.entries.places(index));
        places.filter(is_on_server).collect()
    }

    /// Returns the holders of a file, without those that another one may share it with.
    pub(super) fn holders_of(&self, file: &FileKey, sharing: Sharing) -> Vec<Holder> {
        let Some(root) = self.entries.roots.number_of(&PathRoot::Export(file.0.clone())) else {
            return Vec::new();
        };
        let candidates = self.by_file.iter_hash(self.entries.hasher.hash_one((root, file.1)));
        let entries = candidates.filter_map(|&index| self.entries.get(index as usize));
        entries
            .filter(|entry| entry.has_file && entry.number == file.1)
            .filter(|entry| {
                let location = self.entries.locations.get(entry.location);
                location.is_some_and(|location| location.file_root == Some(root))
            })
            .filter(|entry| !sharing.permits(entry.sharing, Relation::Same))
            .map(|entry| self.entries.holder(entry))
            .collect()
    }

    pub(super) fn overlap(
        &self,
        places: &[ReservedPath],
        except: &Holder,
        sharing: Sharing,
        own_backend: &str,
    ) -> Option<Conflict> {
        places.iter().find_map(|place| {
            let root = self.entries.roots.number_of(&place.0.realm)?;
            let mut related = self.related(root, &place.0.path);
            related.find_map(|(entry, at, relation)| {
                let is_conflict = !sharing.permits(entry.sharing, relation)
                    && !self.entries.is_held_by(entry, except)
                    && !self.is_own_root(entry, (root, at), relation, own_backend);
                is_conflict.then(|| Conflict {
                    place: place.clone(),
                    holder: self.entries.holder(entry),
                    relation,
                    same_server: None,
                })
            })
        })
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
            for (root, realm) in self.entries.roots.iter().filter(|(_, realm)| **realm != *place.0.realm) {
                let PathRoot::Server(holder_server) = realm else {
                    continue;
                };
                let conflicts = self
                    .related(root, &place.0.path)
                    .filter(|(entry, _, relation)| match entry.kind {
                        Kind::Volume => {
                            except.is_none_or(|except| !self.entries.is_held_by(entry, except))
                                && !self.is_on_other_export(entry, own_export)
                                && !sharing.permits(entry.sharing, *relation)
                        }
                        // Below the root of a backend, only its volumes are in the way: its server may be another machine.
                        Kind::BackendRoot => *relation != Relation::Inside,
                        Kind::Archive => false,
                    });
                found.extend(conflicts.map(|(entry, _, relation)| PossibleConflict {
                    conflict: Conflict {
                        place: place.clone(),
                        holder: self.entries.holder(entry),
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

    /// Returns the entries with paths that contain a path, equal it or lie inside it: the outermost first, each with the
    /// path that contains it, or the path itself, and the relation of the path to that of the entry.
    fn related<'a>(&'a self, root: u32, path: &'a str) -> impl Iterator<Item = (&'a Entry, &'a str, Relation)> {
        let above = above(path).flat_map(move |ancestor| {
            let entries = self.at(root, ancestor);
            entries.map(move |entry| (entry, ancestor, Relation::Inside))
        });
        let within = self.within(root, path);
        above.chain(within.map(move |(entry, relation)| (entry, path, relation)))
    }

    /// Reports whether a holder's directory is on another export than `own`, according to a backend that confirmed it.
    /// False if `own` is not known, or if the directories of one export may be inside the other.
    fn is_on_other_export(&self, entry: &Entry, own: Option<&str>) -> bool {
        let (Some(export), Some(own)) = (self.export_of(entry), own) else {
            return false;
        };
        export != own && self.confirmed.values().any(|id| id == export) && !self.are_nested(export, own)
    }

    /// Returns the identity of the export that a holder has a path on.
    fn export_of(&self, entry: &Entry) -> Option<&str> {
        let holder = self.entries.holder(entry);
        let key = match entry.hold {
            Hold::Known => Key::Known(holder),
            Hold::Committed => Key::Committed(holder),
            Hold::Reserved => Key::Reserved(holder, entry.number),
        };
        let bases = self.entries_of(&key).flat_map(|(_, entry)| self.entries.bases(entry));
        let mut exports = bases.filter_map(|(root, _)| match self.entries.roots.get(*root)? {
            PathRoot::Export(id) => Some(id.as_str()),
            PathRoot::Server(_) => None,
        });
        exports.next()
    }

    /// Reports whether the path of a backend on one export lies inside that of a backend on the other export, whatever
    /// the names of their servers are.
    fn are_nested(&self, one: &str, other: &str) -> bool {
        let (one, other) = (self.paths_of_roots(one), self.paths_of_roots(other));
        let is_below = |path: &str, other: &str| above(path).any(|ancestor| ancestor == other);
        one.iter()
            .any(|one| other.iter().any(|other| is_below(one, other) || is_below(other, one)))
    }

    /// Returns the paths of the backends that confirmed this export.
    fn paths_of_roots(&self, export: &str) -> Vec<String> {
        let backends = self.confirmed.iter().filter(move |(_, id)| *id == export);
        let mut paths = Vec::new();
        for (backend, _) in backends {
            let root = Key::Known(Holder::BackendRoot(backend.clone()));
            for (index, _) in self.entries_of(&root) {
                let texts = self.entries.places(index).map(|place| self.entries.path(place).1);
                // The parts of a path are texts, so the path is one.
                paths.extend(texts.filter_map(|path| String::from_utf8(path).ok()));
            }
        }
        paths
    }

    pub(super) fn confirm_export(&mut self, backend: &str, export_id: &str) {
        self.confirmed.insert(backend.to_owned(), export_id.to_owned());
    }

    /// Reports whether one of `places` is, contains or lies in something of another holder than `own`. Below it, only
    /// backends count, and directories that are being created.
    pub(super) fn is_needed(&self, places: &[ReservedPath], own: &Holder) -> bool {
        places.iter().any(|place| {
            let Some(root) = self.entries.roots.number_of(&place.0.realm) else {
                return false;
            };
            let mut related = self.related(root, &place.0.path);
            related.any(|(entry, _, relation)| {
                let is_root = entry.kind == Kind::BackendRoot;
                let counts = match relation {
                    Relation::Same => true,
                    Relation::Inside => !is_root,
                    Relation::Contains => is_root || entry.hold == Hold::Reserved,
                };
                counts && !self.entries.is_held_by(entry, own)
            })
        })
    }

    pub(super) fn enclosing_holder(&self, places: &[ReservedPath]) -> Option<Holder> {
        places.iter().find_map(|place| {
            let root = self.entries.roots.number_of(&place.0.realm)?;
            let path: &str = &place.0.path;
            let mut here_and_above = above(path).chain([path]);
            let entry = here_and_above.find_map(|path| {
                let mut entries = self.at(root, path);
                entries.find(|entry| entry.kind != Kind::BackendRoot)
            })?;
            Some(self.entries.holder(entry))
        })
    }

    /// Reports whether an entry is the root of a directory's own backend, or of another backend with the same path.
    /// Directories may lie below such a root.
    fn is_own_root(&self, entry: &Entry, at: (u32, &str), relation: Relation, own_backend: &str) -> bool {
        let own = Holder::BackendRoot(own_backend.to_owned());
        entry.kind == Kind::BackendRoot
            && relation == Relation::Inside
            && self
                .at(at.0, at.1)
                .any(|other| other.hold == Hold::Known && self.entries.is_held_by(other, &own))
    }
}

/// Releases the memory of a table that was much larger.
fn shrink(table: &mut HashTable<u32>, hash: impl Fn(&u32) -> u64) {
    if table.len() < table.capacity() / 4 {
        table.shrink_to(table.len() * 2, hash);
    }
}

#[cfg(test)]
thread_local! {
    static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns the number of paths that this thread has compared.
#[cfg(test)]
pub(super) fn comparisons() -> usize {
    COMPARISONS.get()
}

/// Returns kind and name of a holder.
fn split(holder: &Holder) -> (Kind, &str) {
    match holder {
        Holder::Volume(name) => (Kind::Volume, name),
        Holder::Archive(name) => (Kind::Archive, name),
        Holder::BackendRoot(name) => (Kind::BackendRoot, name),
    }
}

fn name_bytes(uid: Uuid) -> [u8; NAME_LENGTH] {
    let mut bytes = [0; NAME_LENGTH];
    let (prefix, rest) = bytes.split_at_mut(VOLUME_PREFIX.len());
    prefix.copy_from_slice(VOLUME_PREFIX.as_bytes());
    uid.hyphenated().encode_lower(rest);
    bytes
}

fn volume_name(uid: Uuid) -> String {
    format!("{VOLUME_PREFIX}{}", uid.hyphenated())
}

/// Returns the paths that contain a path, the root first, without the path itself.
fn above(path: &str) -> impl Iterator<Item = &str> {
    let root = (!path.is_empty()).then_some("");
    let between = path.match_indices(BETWEEN).filter_map(|(at, _)| path.get(..at));
    root.into_iter().chain(between)
}

/// Paths that end alike: the ending, and for each path its root and what precedes the ending.
type PathGroup = (String, Vec<(PathRoot, String)>);

/// Returns the paths in groups: those that end with the shortest one, and each of the others alone.
fn group_by_ending(places: Vec<ReservedPath>) -> Vec<PathGroup> {
    let shortest = places.iter().map(|place| &*place.0.path).min_by_key(|path| path.len());
    let shortest = shortest.unwrap_or_default().to_owned();
    let mut groups: Vec<PathGroup> = Vec::new();
    for place in places {
        let (root, path): (PathRoot, &str) = ((*place.0.realm).clone(), &place.0.path);
        let base = path.strip_suffix(shortest.as_str());
        let base = base.and_then(|base| match base.is_empty() || shortest.is_empty() {
            true => Some(base),
            false => base.strip_suffix(BETWEEN).filter(|base| !base.is_empty()),
        });
        let (ending, base) = base.map_or((path, ""), |base| (&*shortest, base));
        let same = groups
            .iter_mut()
            .find(|(other, bases)| other == ending && bases.len() < MAX_BASES);
        match same {
            Some((_, bases)) => bases.push((root, base.to_owned())),
            None => groups.push((ending.to_owned(), vec![(root, base.to_owned())])),
        }
    }
    groups
}
