//! The tree of the malicious server: objects in memory that need not be consistent.

use std::collections::{BTreeMap, HashMap};

use super::wire::Writer;

pub const FILE: u32 = 1;
pub const DIRECTORY: u32 = 2;
/// The status of an object on another server.
pub const MOVED: u32 = 10_019;

/// The attribute with the location of an absent file system, `fs_locations`.
const LOCATIONS: u32 = 24;
/// The attribute with the error of an entry, `rdattr_error`.
const ERROR: u32 = 11;
/// The attributes of an absent file system: error, fsid, locations and mounted_on_fileid (RFC 8881 section 11.3.1).
const OF_THE_ABSENT: [u32; 4] = [ERROR, 8, LOCATIONS, 55];

/// How a directory is listed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Listing {
    #[default]
    Honest,
    /// Endless new names, each with a new cookie.
    Endless,
    /// The same cookies repeatedly.
    Circular,
    /// A client adds files before each page.
    Refilled,
}

#[derive(Clone)]
pub struct Object {
    pub kind: u32,
    pub mode: u32,
    pub owner: (String, String),
    pub content: Vec<u8>,
    pub children: BTreeMap<Vec<u8>, u64>,
    /// Its change attribute.
    pub changes: u64,
    pub fsid: u64,
    pub links: u32,
    pub listing: Listing,
    /// Every operation on it fails with this status.
    pub refuses: Option<u32>,
    /// It is a referral: a file system on another server.
    pub absent: bool,
    /// Its type in GETATTR, if that differs from a listing.
    pub turns_into: Option<u32>,
    /// A READ from this offset on is never answered.
    pub silent_from: Option<usize>,
}

pub struct Tree {
    pub objects: HashMap<u64, Object>,
    pub next: u64,
    /// Removed names with their directories.
    pub removed: Vec<(u64, Vec<u8>)>,
    pub arrived: usize,
    /// Number of requests for the location of an absent file system.
    pub asked_where: usize,
    /// Number of listings that cannot be continued: the server no longer knows the cookie.
    pub forgotten_cookies: u32,
    /// The next operation with this number fails with this status, once.
    pub fails_once: Option<(u32, u32)>,
    /// Longer replies are refused.
    pub longest_reply: usize,
    /// What another client does as soon as a page of this directory is listed, once.
    pub on_listing: Option<(u64, Change)>,
    /// Names that differ only in ASCII case are the same.
    pub ignores_case: bool,
}

type Change = Box<dyn FnOnce(&mut Tree) + Send>;

impl Tree {
    pub const ROOT: u64 = 1;

    pub fn new() -> Self {
        let mut tree = Self {
            objects: HashMap::new(),
            next: 1,
            removed: Vec::new(),
            arrived: 0,
            asked_where: 0,
            forgotten_cookies: 0,
            fails_once: None,
            longest_reply: usize::MAX,
            on_listing: None,
            ignores_case: false,
        };
        tree.make(DIRECTORY);
        tree
    }

    pub fn make(&mut self, kind: u32) -> u64 {
        let id = self.next;
        self.next += 1;
        let object = Object {
            kind,
            mode: if kind == DIRECTORY { 0o755 } else { 0o644 },
            owner: ("0".into(), "0".into()),
            content: Vec::new(),
            children: BTreeMap::new(),
            changes: 0,
            fsid: 7,
            links: 1,
            listing: Listing::Honest,
            refuses: None,
            absent: false,
            turns_into: None,
            silent_from: None,
        };
        self.objects.insert(id, object);
        id
    }

    pub fn at(&mut self, id: u64) -> &mut Object {
        self.objects.get_mut(&id).unwrap()
    }

    /// Adds any object under any name.
    pub fn graft(&mut self, directory: u64, name: &[u8], id: u64) -> u64 {
        let directory = self.at(directory);
        directory.children.insert(name.to_vec(), id);
        directory.changes += 1;
        id
    }

    pub fn add(&mut self, directory: u64, name: &[u8], kind: u32) -> u64 {
        let id = self.make(kind);
        self.graft(directory, name, id)
    }

    pub fn find(&self, path: &str) -> Option<u64> {
        path.split('/').try_fold(Self::ROOT, |id, name| {
            self.objects.get(&id)?.children.get(name.as_bytes()).copied()
        })
    }

    /// Counts requests for the location of an absent file system, and refuses attributes that it does not have.
    pub fn ask(&mut self, id: u64, wanted: &[u32]) -> Result<(), u32> {
        self.asked_where += usize::from(wanted.contains(&LOCATIONS));
        let has = |attribute: &u32| OF_THE_ABSENT.contains(attribute);
        match self.at(id).absent && !wanted.iter().all(has) {
            true => Err(MOVED),
            false => Ok(()),
        }
    }

    /// The same for a listing: the error is in the entry if the client requests it; otherwise the listing fails.
    pub fn ask_listed(&mut self, directory: u64, wanted: &[u32]) -> Result<(), u32> {
        self.asked_where += usize::from(wanted.contains(&LOCATIONS));
        let absent = self.objects[&directory]
            .children
            .values()
            .any(|id| self.objects[id].absent);
        match absent && !wanted.contains(&ERROR) {
            true => Err(MOVED),
            false => Ok(()),
        }
    }

    /// Adds files to a directory if a client keeps adding some.
    pub fn refill(&mut self, directory: u64) {
        if self.at(directory).listing == Listing::Refilled {
            for _ in 0..50 {
                let name = format!("new {:09}", self.next);
                self.add(directory, name.as_bytes(), FILE);
            }
        }
    }

    /// Moves an object to this directory and name.
    pub fn relocate(&mut self, moved: u64, directory: u64, name: &[u8]) {
        for object in self.objects.values_mut() {
            let before = object.children.len();
            object.children.retain(|_, id| *id != moved);
            object.changes += u64::from(object.children.len() != before);
        }
        self.graft(directory, name, moved);
    }

    /// Returns the name under which the directory has this one.
    pub fn stored(&self, directory: u64, name: &[u8]) -> Option<Vec<u8>> {
        let same = |stored: &&Vec<u8>| match self.ignores_case {
            true => stored.eq_ignore_ascii_case(name),
            false => stored.as_slice() == name,
        };
        self.objects.get(&directory)?.children.keys().find(same).cloned()
    }

    /// Returns `fattr4` with the supported attributes of the request.
    pub fn attributes(&self, id: u64, wanted: &[u32], listed: bool) -> Vec<u8> {
        let object = &self.objects[&id];
        let kind = object.turns_into.filter(|_| !listed).unwrap_or(object.kind);
        let (mut had, mut values) = (Vec::new(), Writer::default());
        let there = |attribute: &&u32| !object.absent || OF_THE_ABSENT.contains(attribute);
        for attribute in wanted.iter().filter(there) {
            match attribute {
                &ERROR if object.absent => values.u32(MOVED),
                1 => values.u32(kind),
                3 => values.u64(object.changes),
                4 => values.u64(object.content.len() as u64),
                8 => values.u64(object.fsid).u64(0),
                10 => values.u32(90),
                20 | 55 => values.u64(id),
                22 | 42 => values.u64(1 << 30),
                23 | 44 => values.u64(1 << 40),
                30 | 31 => values.u64(1 << 16),
                33 => values.u32(object.mode),
                35 => values.u32(object.links),
                36 => values.opaque(object.owner.0.as_bytes()),
                37 => values.opaque(object.owner.1.as_bytes()),
                47 | 53 => values.u64(0).u32(0),
                _ => continue,
            };
            had.push(*attribute);
        }
        let mut fattr = Writer::default();
        fattr.bitmap(&had).opaque(&values.0);
        fattr.0
    }

    /// Returns the result of READDIR from this cookie.
    pub fn list(&self, id: u64, cookie: u64, wanted: &[u32]) -> Vec<u8> {
        let directory = &self.objects[&id];
        let mut page = Writer::default();
        page.u64(0);
        let mut entry = |cookie: u64, name: &[u8], id: u64| {
            page.u32(1).u64(cookie).opaque(name);
            let fattr = self.attributes(id, wanted, true);
            page.raw(&fattr);
        };
        match directory.listing {
            Listing::Honest | Listing::Refilled => {
                let children = directory.children.iter().zip(3_u64..);
                for ((name, id), place) in children.filter(|(_, place)| *place > cookie).take(100) {
                    entry(place, name, *id);
                }
                let more = directory.children.len() as u64 + 2 > cookie + 100;
                page.u32(0).u32(u32::from(!more));
            }
            Listing::Endless => {
                for place in cookie.max(3) + 1..cookie.max(3) + 51 {
                    entry(place, format!("endless {place}").as_bytes(), id);
                }
                page.u32(0).u32(0);
            }
            Listing::Circular => {
                for place in 3..53 {
                    entry(place, format!("circular {place}").as_bytes(), id);
                }
                page.u32(0).u32(0);
            }
        }
        page.0
    }
}
