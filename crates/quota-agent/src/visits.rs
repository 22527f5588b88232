//! Which trees are being visited, wait for a visit, or were visited in vain.

use std::collections::BTreeMap;

use crate::plan::Key;
use crate::tree::TreeVisit;

/// Where the visit of a tree starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// At the root: the directory just got its project, or something was moved.
    New,
    /// At the place in the report, if it can be used.
    Recorded,
}

/// Number of trees that are visited at the same time. Each one has an open directory.
const MAX_RUNNING: usize = 32;

/// The visits of an export.
#[derive(Default)]
pub(crate) struct Visits {
    running: BTreeMap<Key, TreeVisit>,
    waiting: BTreeMap<Key, Waiting>,
    /// What the visit of a tree could not assign. It is tried again with the next verification.
    refused: BTreeMap<Key, String>,
    /// Number of the next tree that waits.
    next: u64,
}

struct Waiting {
    project: u32,
    start: Start,
    /// The smallest is next: a tree whose visit begins again and again delays no other one.
    number: u64,
}

impl Visits {
    /// Reports whether no tree is visited or waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Reports whether another tree can be visited now.
    pub fn has_room(&self) -> bool {
        self.running.len() < MAX_RUNNING
    }

    /// Reports whether a tree is visited or waits.
    pub fn contains(&self, key: &Key) -> bool {
        self.running.contains_key(key) || self.waiting.contains_key(key)
    }

    /// Returns what could not be assigned.
    pub fn refusal(&self, key: &Key) -> Option<&String> {
        self.refused.get(key)
    }

    /// Records what could not be assigned.
    pub fn refuse(&mut self, key: Key, why: String) {
        self.refused.insert(key, why);
    }

    /// Tries again what could not be assigned.
    pub fn forget_refusals(&mut self) {
        self.refused.clear();
    }

    /// Forgets a tree.
    pub fn forget(&mut self, key: &Key) {
        self.running.remove(key);
        self.waiting.remove(key);
        self.refused.remove(key);
    }

    /// Lets a tree wait for a visit.
    pub fn wait(&mut self, key: Key, project: u32, start: Start) {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(key, Waiting { project, start, number });
    }

    /// Takes the tree that waits longest, if it can be visited now.
    pub fn take_waiting(&mut self) -> Option<(Key, u32, Start)> {
        let waiting = self.waiting.iter().filter(|_| self.running.len() < MAX_RUNNING);
        let (key, _) = waiting.min_by_key(|(_, waiting)| waiting.number)?;
        let key = key.clone();
        let waiting = self.waiting.remove(&key)?;
        Some((key, waiting.project, waiting.start))
    }

    /// Returns the trees that are visited.
    pub fn running(&self) -> impl Iterator<Item = (&Key, &TreeVisit)> {
        self.running.iter()
    }

    /// Takes a visit, to continue it.
    pub fn take(&mut self, key: &Key) -> Option<TreeVisit> {
        self.running.remove(key)
    }

    /// Puts a visit back.
    pub fn put(&mut self, key: Key, visit: TreeVisit) {
        self.running.insert(key, visit);
    }
}
