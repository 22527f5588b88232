//! Removes trees by handle, depth first and without recursion, in bounded memory.
//!
//! The trees of the trash take turns ([`queue`]), so that none of them delays the others for long. A turn visits some
//! directories of one tree. A visit removes the files of a directory and returns its subdirectories. When these are
//! done, the directory is visited again, until nothing is left or nothing more can be removed. Directories at great
//! depth are moved to the top of their tree, so that a tree of any depth is removed, and each turn makes progress.

mod batch;
mod place;
mod queue;
mod visit;

use std::collections::{HashMap, HashSet};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::error::ExportError;
use crate::purge::batch::is_over;
use crate::purge::place::{Component, TrashPath};
pub(crate) use crate::purge::queue::{PurgeQueue, purge};
use crate::purge::visit::{Child, Task, Visit, VisitResult};
use crate::request::PurgeFailure;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{Credential, FileHandle, FileRef, Name};

/// Directories visited at a time, in all trees together.
const VISITS: usize = 8;
/// Compounds of REMOVEs in flight: 4 of 75 names keep a server busy; the rest of the connection is for claims.
const REMOVALS: usize = 6;
/// Maximum number of times to empty a directory that does not stay empty.
const MAX_EMPTIED: u32 = 3;
/// Reason to skip such a directory.
const REFILLED: &str = "it does not stay empty: a client writes to it, or the server hides entries";
/// Maximum number of failures to report individually.
const MAX_REPORTED: usize = 10;
/// Maximum length of a path in a report, in characters. Its end is kept.
const MAX_PATH_LEN: usize = 300;

/// Root of a tree to empty. The caller removes the root itself.
pub(super) struct Root<'a> {
    node: &'a FileRef,
    /// The directory that contains the root.
    parent: &'a FileHandle,
    name: &'a Name,
}

/// A directory that is being emptied.
struct Directory {
    parent: Option<u64>,
    name: Name,
    handle: FileHandle,
    fileid: u64,
    depth: usize,
    /// Credential for this directory, if the operator's own was refused.
    actor: Option<Credential>,
    /// Number of subdirectories in progress.
    pending: usize,
    /// Subdirectories that are empty now.
    ready: Vec<(Name, u64)>,
    /// How often each subdirectory was emptied, by fileid.
    emptied: HashMap<u64, u32>,
    /// Fileids of subdirectories that could not be emptied and are skipped.
    given_up: HashSet<u64>,
}

/// What all turns of a purge share.
struct Shared<'a> {
    store: &'a ExportStore,
    verified: &'a VerifiedRoot,
    visits: Semaphore,
    compounds: Semaphore,
    /// When the purge ends, even during an endless listing.
    end: Option<Instant>,
}

impl<'a> Shared<'a> {
    fn new(store: &'a ExportStore, verified: &'a VerifiedRoot, end: Option<Instant>) -> Self {
        Self {
            store,
            verified,
            visits: Semaphore::new(VISITS),
            compounds: Semaphore::new(REMOVALS),
            end,
        }
    }
}

/// What one turn of a tree may do.
#[derive(Debug, Clone, Copy)]
struct TurnLimits {
    /// Number of visits. They are counted instead of measuring time, so that a tree on a slow server makes progress,
    /// too.
    visits: u64,
    /// Approximate number of names to remove.
    removals: u64,
}

/// Names that could not be removed.
#[derive(Debug, Default)]
struct Failures {
    /// The first few of them.
    reported: Vec<PurgeFailure>,
    count: u64,
}

impl Failures {
    fn add(&mut self, path: &str, reason: String) {
        self.count += 1;
        if self.reported.len() < MAX_REPORTED {
            let skip = path.chars().count().saturating_sub(MAX_PATH_LEN);
            self.reported.push(PurgeFailure {
                path: path.chars().skip(skip).collect(),
                reason,
            });
        }
    }

    fn extend(&mut self, other: Self) {
        let room = MAX_REPORTED.saturating_sub(self.reported.len());
        self.count += other.count;
        self.reported.extend(other.reported.into_iter().take(room));
    }
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnEnd {
    /// Nothing is left in the tree.
    Empty,
    /// What is left cannot be removed.
    Stuck,
    /// The limits were reached, and more names can be removed.
    Unfinished,
}

/// Result of a turn.
#[derive(Debug)]
struct Turn {
    removed: u64,
    /// Directories moved to the top of the tree.
    raised: u64,
    failures: Failures,
    end: TurnEnd,
}

impl Turn {
    fn new(end: TurnEnd) -> Self {
        Self {
            removed: 0,
            raised: 0,
            failures: Failures::default(),
            end,
        }
    }

    /// Returns the result of a turn that removes nothing.
    fn failed(path: &str, reason: String) -> Self {
        let mut turn = Self::new(TurnEnd::Stuck);
        turn.failures.add(path, reason);
        turn
    }

    /// Reports whether the turn changed anything, so that the next one gets further.
    fn is_progress(&self) -> bool {
        self.removed + self.raised > 0
    }
}

/// Empties a tree, up to the limits. Does not remove the root itself.
async fn empty(shared: &Shared<'_>, root: &Root<'_>, limits: TurnLimits) -> Result<Turn, ExportError> {
    let mut turn = Turn::new(TurnEnd::Unfinished);
    let mut tree = Tree::new(root);
    let (mut started, mut visits) = (0, FuturesUnordered::new());
    loop {
        while visits.len() < VISITS && started < limits.visits && turn.removed < limits.removals && !is_over(shared.end)
        {
            let Some(task) = tree.next_task(limits.removals - turn.removed) else {
                break;
            };
            started += 1;
            visits.push(visit::visit(shared, task));
        }
        let Some(visit) = visits.next().await else { break };
        let (id, visit) = visit?;
        turn.removed += visit.removed;
        turn.raised += visit.raised;
        for (path, reason) in tree.take(id, visit) {
            turn.failures.add(&path, reason);
        }
    }
    turn.end = tree.end;
    Ok(turn)
}

/// Directories of a tree that is being emptied.
struct Tree {
    directories: HashMap<u64, Directory>,
    /// Handle of the root.
    top: FileHandle,
    /// Directory that contains the root.
    above: FileHandle,
    /// Directories to visit, the newest last: it is visited first, so the order is depth first.
    stack: Vec<u64>,
    next: u64,
    end: TurnEnd,
}

impl Tree {
    fn new(root: &Root<'_>) -> Self {
        let mut tree = Self {
            directories: HashMap::new(),
            top: root.node.handle.clone(),
            above: root.parent.clone(),
            stack: Vec::new(),
            next: 0,
            end: TurnEnd::Unfinished,
        };
        tree.add(Directory {
            parent: None,
            name: root.name.clone(),
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

    fn next_task(&mut self, removals: u64) -> Option<Task> {
        let id = self.stack.pop()?;
        let ancestors = self.path_to(id).map(|directory| directory.fileid).collect();
        let place = self.place(id);
        let directory = self.directories.get_mut(&id)?;
        Some(Task {
            id,
            handle: directory.handle.clone(),
            depth: directory.depth,
            top: self.top.clone(),
            actor: directory.actor,
            ready: std::mem::take(&mut directory.ready),
            given_up: directory.given_up.clone(),
            ancestors,
            place,
            removals,
        })
    }

    /// Returns a directory and its ancestors, upwards.
    fn path_to(&self, id: u64) -> impl Iterator<Item = &Directory> {
        std::iter::successors(self.directories.get(&id), |directory| {
            directory.parent.and_then(|parent| self.directories.get(&parent))
        })
    }

    fn place(&self, id: u64) -> TrashPath {
        let component = |directory: &Directory| {
            let parent = directory.parent.and_then(|parent| self.directories.get(&parent));
            Component {
                parent: parent.map_or(&self.above, |parent| &parent.handle).clone(),
                actor: parent.and_then(|parent| parent.actor),
                name: directory.name.clone(),
                fileid: directory.fileid,
            }
        };
        let mut components: Vec<Component> = self.path_to(id).map(component).collect();
        components.reverse();
        TrashPath::new(components)
    }

    /// Returns the end of a directory's path, with at least as many characters as a report contains.
    fn path(&self, id: u64) -> String {
        let mut room = MAX_PATH_LEN;
        let mut names: Vec<String> = self
            .path_to(id)
            .map(|directory| directory.name.to_string())
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
                    name,
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
        let whole = |name: Option<Name>| name.map_or_else(|| path.clone(), |name| format!("{path}/{name}"));
        failures.into_iter().map(|(name, why)| (whole(name), why)).collect()
    }

    /// Removes a finished directory. Returns a failure to report.
    fn finish(&mut self, id: u64, is_empty: bool) -> Option<(String, String)> {
        let directory = self.directories.remove(&id)?;
        let Some((above, parent)) = directory
            .parent
            .and_then(|above| self.directories.get_mut(&above).map(|parent| (above, parent)))
        else {
            self.end = if is_empty { TurnEnd::Empty } else { TurnEnd::Stuck };
            return None;
        };
        parent.pending = parent.pending.saturating_sub(1);
        if parent.pending == 0 {
            self.stack.push(above);
        }
        let times = parent.emptied.entry(directory.fileid).or_default();
        *times += u32::from(is_empty);
        if is_empty && *times <= MAX_EMPTIED {
            parent.ready.push((directory.name, directory.fileid));
            return None;
        }
        parent.given_up.insert(directory.fileid);
        let failures = is_empty.then(|| (Some(directory.name), REFILLED.to_owned()));
        self.below(above, failures.into_iter().collect()).pop()
    }
}
