//! Removes trees by handle, depth first and without recursion, in bounded memory.
//!
//! A visit removes the files of a directory and returns its subdirectories. When these are done, the directory is
//! visited again, until nothing is left or nothing more can be removed.

mod batch;
mod place;
mod visit;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::Semaphore;

use crate::error::ExportError;
use crate::purge::place::{Component, Place};
use crate::purge::visit::{Child, Task, Visit, VisitResult};
use crate::request::{PurgeFailure, PurgeReport};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{Credential, FileHandle, FileRef, Name};

/// Directories visited at a time.
const VISITS: usize = 8;
/// Compounds of REMOVEs in flight: 4 of 75 names keep a server busy; the rest of the connection is for claims.
const REMOVALS: usize = 6;
/// Maximum number of times to empty a directory that does not stay empty.
const MAX_EMPTIED: u32 = 3;
/// Maximum number of failures to report individually.
const MAX_REPORTED: usize = 10;
/// Maximum length of a path in a report, in characters. Its end is kept.
const MAX_PATH_LEN: usize = 300;

/// Root of a purge.
pub(super) struct Root<'a> {
    node: &'a FileRef,
    /// The directory that contains the root, and the name of the root in it.
    entry: Option<(&'a FileHandle, &'a Name)>,
}

impl<'a> Root<'a> {
    /// The trash: its content is removed, the directory itself is kept.
    pub(super) fn kept(node: &'a FileRef) -> Self {
        Self { node, entry: None }
    }

    /// A tombstone: its content is removed, and the caller removes the directory itself.
    pub(super) fn named(node: &'a FileRef, parent: &'a FileHandle, name: &'a Name) -> Self {
        Self {
            node,
            entry: Some((parent, name)),
        }
    }
}

/// A directory that is being emptied.
struct Directory {
    parent: Option<u64>,
    name: Option<Name>,
    handle: FileHandle,
    fileid: u64,
    depth: usize,
    /// Credential for this directory, if the operator's own was refused.
    actor: Option<Credential>,
    /// Number of subdirectories in progress.
    pending: usize,
    /// Subdirectories that are empty now.
    ready: Vec<(Name, u64)>,
    /// How often each subdirectory was emptied, by file ID.
    emptied: HashMap<u64, u32>,
    /// File IDs of subdirectories that could not be emptied and are skipped.
    given_up: HashSet<u64>,
}

/// A purge in progress.
pub(super) struct Purge<'a> {
    store: &'a ExportStore,
    verified: &'a VerifiedRoot,
    most: u64,
    end: Option<Instant>,
    removed: u64,
    failures: Vec<PurgeFailure>,
    failed: u64,
    interrupted: bool,
}

impl<'a> Purge<'a> {
    pub(super) fn new(store: &'a ExportStore, verified: &'a VerifiedRoot, most: u64, end: Option<Instant>) -> Self {
        Self {
            store,
            verified,
            most,
            end,
            removed: 0,
            failures: Vec::new(),
            failed: 0,
            interrupted: false,
        }
    }

    /// Reports whether the limits are reached.
    pub(super) fn is_over(&mut self) -> bool {
        let late = self.end.is_some_and(|end| Instant::now() >= end);
        if late || self.removed >= self.most {
            self.interrupted = true;
        }
        self.interrupted
    }

    pub(super) fn report(self) -> PurgeReport {
        PurgeReport {
            removed: self.removed,
            interrupted: self.interrupted,
            failures: self.failures,
            failed: self.failed,
            ..PurgeReport::default()
        }
    }

    pub(super) fn count_one(&mut self) {
        self.removed += 1;
    }

    pub(super) fn fail(&mut self, path: &str, reason: String) {
        self.failed += 1;
        if self.failures.len() < MAX_REPORTED {
            let skip = path.chars().count().saturating_sub(MAX_PATH_LEN);
            self.failures.push(PurgeFailure {
                path: path.chars().skip(skip).collect(),
                reason,
            });
        }
    }

    /// Empties a tree. Returns true if nothing is left in it.
    pub(super) async fn tree(&mut self, root: Root<'_>) -> Result<bool, ExportError> {
        let compounds = &Semaphore::new(REMOVALS);
        let mut tree = Tree::new(&root);
        let mut visits = FuturesUnordered::new();
        // Copied for the futures, which must not borrow the counters.
        let (store, verified) = (self.store, self.verified);
        loop {
            while visits.len() < VISITS && !self.is_over() {
                let Some(task) = tree.next_task(self.end) else { break };
                visits.push(visit::visit(store, verified, compounds, task));
            }
            let Some(visit) = visits.next().await else { break };
            let (id, visit) = visit?;
            self.removed += visit.removed;
            for (path, reason) in tree.take(id, visit) {
                self.fail(&path, reason);
            }
        }
        Ok(tree.is_empty)
    }
}

/// Directories of a tree that is being emptied.
struct Tree {
    directories: HashMap<u64, Directory>,
    /// Directory that contains the root, unless the root is the trash.
    above: Option<FileHandle>,
    /// Directories to visit, the newest last: it is visited first, so the order is depth first.
    stack: Vec<u64>,
    next: u64,
    is_empty: bool,
}

impl Tree {
    fn new(root: &Root<'_>) -> Self {
        let mut tree = Self {
            directories: HashMap::new(),
            above: root.entry.map(|(parent, _)| parent.clone()),
            stack: Vec::new(),
            next: 0,
            is_empty: false,
        };
        tree.add(Directory {
            parent: None,
            name: root.entry.map(|(_, name)| name.clone()),
            handle: root.node.handle.clone(),
            fileid: root.node.attributes.fileid,
            depth: 0,
            actor: None,
            pending: 0,
            ready: Vec::new(),
            emptied: HashMap::new(),
            given_up: HashSet::new(),
        });
        tree
    }

    fn add(&mut self, directory: Directory) {
        self.next += 1;
        self.directories.insert(self.next, directory);
        self.stack.push(self.next);
    }

    fn next_task(&mut self, end: Option<Instant>) -> Option<Task> {
        let id = self.stack.pop()?;
        let ancestors = self.path_to(id).map(|directory| directory.fileid).collect();
        let place = self.place(id);
        let directory = self.directories.get_mut(&id)?;
        Some(Task {
            id,
            handle: directory.handle.clone(),
            depth: directory.depth,
            is_trash: directory.name.is_none(),
            actor: directory.actor,
            ready: std::mem::take(&mut directory.ready),
            given_up: directory.given_up.clone(),
            ancestors,
            place,
            end,
        })
    }

    /// Returns a directory and its ancestors, upwards.
    fn path_to(&self, id: u64) -> impl Iterator<Item = &Directory> {
        std::iter::successors(self.directories.get(&id), |directory| {
            directory.parent.and_then(|parent| self.directories.get(&parent))
        })
    }

    fn place(&self, id: u64) -> Place {
        let component = |directory: &Directory| {
            let parent = directory.parent.and_then(|parent| self.directories.get(&parent));
            Some(Component {
                parent: parent.map(|parent| &parent.handle).or(self.above.as_ref())?.clone(),
                actor: parent.and_then(|parent| parent.actor),
                name: directory.name.clone()?,
                fileid: directory.fileid,
            })
        };
        let mut components: Vec<Component> = self.path_to(id).filter_map(component).collect();
        components.reverse();
        Place::new(components)
    }

    /// Returns the end of a directory's path, with at least as many characters as a report contains.
    fn path(&self, id: u64) -> String {
        let mut room = MAX_PATH_LEN;
        let mut names: Vec<String> = self
            .path_to(id)
            .filter_map(|directory| directory.name.as_ref().map(ToString::to_string))
            .take_while(|name| {
                let is_needed = room > 0;
                room = room.saturating_sub(name.chars().count() + 1);
                is_needed
            })
            .collect();
        names.reverse();
        names.join("/")
    }

    /// Processes the result of a visit. Returns the failures to report.
    fn take(&mut self, id: u64, visit: Visit) -> Vec<(String, String)> {
        let Some(directory) = self.directories.get_mut(&id) else {
            return Vec::new();
        };
        directory.actor = visit.actor;
        let depth = directory.depth + 1;
        directory.pending = visit.children.len();
        let mut failures = Vec::new();
        for (fileid, name, why) in visit.given_up {
            if directory.given_up.insert(fileid) {
                failures.push((name, why));
            }
        }
        let mut failures = self.below(id, failures);
        if !visit.children.is_empty() {
            for Child { name, node } in visit.children {
                self.add(Directory {
                    parent: Some(id),
                    name: Some(name),
                    fileid: node.attributes.fileid,
                    handle: node.handle,
                    depth,
                    actor: None,
                    pending: 0,
                    ready: Vec::new(),
                    emptied: HashMap::new(),
                    given_up: HashSet::new(),
                });
            }
            return failures;
        }
        match visit.end {
            VisitResult::More => self.stack.push(id),
            VisitResult::Empty => failures.extend(self.finish(id, true)),
            VisitResult::Stuck => {
                failures.extend(self.below(id, visit.failures));
                failures.extend(self.finish(id, false));
            }
        }
        failures
    }

    /// Prepends a directory's path to names in it. No name means the directory itself.
    fn below(&self, id: u64, failures: Vec<(Option<Name>, String)>) -> Vec<(String, String)> {
        if failures.is_empty() {
            return Vec::new();
        }
        let path = self.path(id);
        let whole = |name: Option<Name>| match (name, path.is_empty()) {
            (None, _) => path.clone(),
            (Some(name), true) => name.to_string(),
            (Some(name), false) => format!("{path}/{name}"),
        };
        failures.into_iter().map(|(name, why)| (whole(name), why)).collect()
    }

    /// Removes a finished directory. Returns a failure to report.
    fn finish(&mut self, id: u64, is_empty: bool) -> Option<(String, String)> {
        let directory = self.directories.remove(&id)?;
        let Some((above, parent)) = directory
            .parent
            .and_then(|above| self.directories.get_mut(&above).map(|parent| (above, parent)))
        else {
            self.is_empty = is_empty;
            return None;
        };
        parent.pending = parent.pending.saturating_sub(1);
        if parent.pending == 0 {
            self.stack.push(above);
        }
        let times = parent.emptied.entry(directory.fileid).or_default();
        *times += u32::from(is_empty);
        if is_empty && *times <= MAX_EMPTIED {
            parent.ready.extend(directory.name.map(|name| (name, directory.fileid)));
            return None;
        }
        parent.given_up.insert(directory.fileid);
        let why = "it does not stay empty: a client writes to it, or the server hides entries";
        let failures = is_empty.then(|| (directory.name, why.to_owned()));
        self.below(above, failures.into_iter().collect()).pop()
    }
}
