//! The order in which the trash is purged: the namespaces take turns, and so do the entries of a namespace.
//!
//! Entries are the directories in the trash and the tombstones. A turn is limited, so that trees that are large, deep,
//! or refilled by a client that still has them open delay the others only by their own turns. An entry that is not
//! empty after its turn has another one after the others of its namespace. The order is kept from one purge to the
//! next.
//!
//! The trash is listed during the turns, again and again, so that entries of other namespaces have their turns early,
//! however many there are.

use std::collections::{HashMap, HashSet};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::error::{ErrorContext as _, ExportError};
use crate::fair_queue::FairQueue;
use crate::path_reservations::{Holder, Sharing};
use crate::purge::batch::is_over;
use crate::purge::visit::{CHUNK, moved_here, recorded_elsewhere, remedy};
use crate::purge::{Failures, MAX_EMPTIED, REFILLED, Root, Shared, Turn, TurnEnd, TurnLimits, empty};
use crate::readdir::DirectoryReader;
use crate::record::Record;
use crate::records::ReadRecord;
use crate::request::{PurgeLimits, PurgeReport};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{file_holders, layout, parents, paths, records, trash};
use nfs_client::{Entry, FileHandle, FileKind, FileRef, Name, NfsError, RemoveOutcome, Status};

/// Entries whose turns run concurrently. They share the visits ([`super::VISITS`]).
const TURNS: usize = 8;
/// Number of visits in a turn: enough to reach the depth from which directories are moved up. A turn takes a fraction of
/// a second.
const TURN_VISITS: u64 = 128;
/// Approximate number of names to remove in a turn: some tens of compounds.
const TURN_REMOVALS: u64 = 2048;
/// Minimum number of turns from one listing of the trash to the next: what is deleted meanwhile waits for them.
const TURNS_PER_LISTING: u32 = 64;
/// Maximum number of entries of a namespace that wait. The listing finds the others again.
const MAX_WAITING_OF_NAMESPACE: usize = 1024;
/// Maximum number of entries that wait, except for one of each namespace.
const MAX_WAITING: usize = 8192;
/// How often the visits are doubled for an entry whose turns ended without any change: its directories that cannot be
/// removed need more than one turn.
const MAX_DOUBLINGS: u32 = 12;
/// Maximum number of entries to remember as not removable, or as without a change.
const MAX_REMEMBERED: usize = 10_000;

/// Entries that wait for their turn. A purge continues where the previous one stopped.
#[derive(Debug, Default)]
pub(crate) struct PurgeQueue {
    waiting: FairQueue<TrashEntry>,
    /// Listing of the trash, with the handle of the trash. `None` if it is complete.
    listing: Option<(FileHandle, DirectoryReader)>,
    /// Number of turns since the listing began.
    turns: u32,
    /// An entry that needs a turn does not wait for it, so the trash has to be listed again.
    incomplete: bool,
    /// Number of turns in a row without any change.
    idle: HashMap<TrashEntry, u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TrashEntry {
    /// A directory in the trash, by its name.
    Directory(Name),
    /// The tombstone of this volume.
    Tombstone(String),
}

/// A purge in progress.
struct Run<'a> {
    shared: &'a Shared<'a>,
    limits: PurgeLimits,
    queue: PurgeQueue,
    /// Entries that have their turn, with their namespaces.
    running: HashMap<TrashEntry, String>,
    /// Entries with something that cannot be removed. They have no more turns in this purge.
    stuck: HashSet<TrashEntry>,
    removed: u64,
    raised: u64,
    failures: Failures,
}

/// Permanently removes what is in the trash, and the tombstones. An error that stops this is part of the report, because
/// what was removed before counts. Fails if what is left cannot be counted.
pub(crate) async fn purge(
    store: &ExportStore,
    verified: &VerifiedRoot,
    limits: PurgeLimits,
) -> Result<PurgeReport, ExportError> {
    let shared = Shared::new(store, verified, Instant::now().checked_add(limits.time));
    let mut run = Run::new(&shared, limits);
    let (interrupted, error) = match run.take_turns().await {
        Ok(interrupted) => (interrupted, None),
        Err(error) => (true, Some(error)),
    };
    store.state().purge_queue = run.queue;
    Ok(PurgeReport {
        interrupted,
        error,
        left: trash::content(store, verified, limits.shared_trash).await?,
        removed: run.removed,
        raised: run.raised,
        failures: run.failures.reported,
        failed: run.failures.count,
    })
}

impl<'a> Run<'a> {
    /// Continues with the queue of the previous purge. A listing from the beginning follows, so that the report has all
    /// that cannot be removed, and entries whose turns an error cut off have another one.
    fn new(shared: &'a Shared<'a>, limits: PurgeLimits) -> Self {
        let mut queue = std::mem::take(&mut shared.store.state().purge_queue);
        let is_other = |(trash, _): &(FileHandle, DirectoryReader)| *trash != shared.verified.trash.handle;
        if queue.listing.as_ref().is_some_and(is_other) {
            queue = PurgeQueue::default();
        }
        queue.incomplete = true;
        Self {
            shared,
            limits,
            queue,
            running: HashMap::new(),
            stuck: HashSet::new(),
            removed: 0,
            raised: 0,
            failures: Failures::default(),
        }
    }

    /// Gives turns until nothing is left that can be removed. Reports whether a limit was reached before.
    async fn take_turns(&mut self) -> Result<bool, ExportError> {
        let shared = self.shared;
        let mut turns = FuturesUnordered::new();
        loop {
            while turns.len() < TURNS && !self.is_over() {
                let Some(entry) = self.next_entry().await? else {
                    break;
                };
                let limits = self.turn_limits(&entry);
                self.running.insert(entry.clone(), self.namespace(&entry));
                turns.push(take_turn(shared, entry, limits));
            }
            match turns.next().await {
                Some(done) => {
                    let (entry, turn) = done?;
                    self.count(entry, turn);
                }
                None if self.is_over() => return Ok(true),
                None if self.queue.incomplete => self.begin_listing(),
                None => return Ok(false),
            }
        }
    }

    fn is_over(&self) -> bool {
        is_over(self.shared.end) || self.removed >= self.limits.removals
    }

    fn turn_limits(&self, entry: &TrashEntry) -> TurnLimits {
        let idle = self.queue.idle.get(entry);
        TurnLimits {
            visits: TURN_VISITS << idle.copied().unwrap_or_default().min(MAX_DOUBLINGS),
            removals: self
                .limits
                .removals
                .saturating_sub(self.removed)
                .clamp(1, TURN_REMOVALS),
        }
    }

    /// Returns the namespace of an entry; empty if unknown.
    fn namespace(&self, entry: &TrashEntry) -> String {
        match entry {
            TrashEntry::Directory(name) => layout::trashed_namespace(name).to_owned(),
            TrashEntry::Tombstone(volume) => {
                let tombstones = &self.shared.store.state().tombstones;
                tombstones
                    .get(volume)
                    .map_or_else(String::new, |record| record.claim.namespace.clone())
            }
        }
    }

    fn begin_listing(&mut self) {
        self.queue.incomplete = false;
        self.queue.turns = 0;
        for record in trash::tombstones(self.shared.store) {
            self.add(TrashEntry::Tombstone(record.volume), &record.claim.namespace);
        }
        let trash = self.shared.verified.trash.handle.clone();
        let listing = (trash.clone(), DirectoryReader::new(trash));
        self.queue.listing = Some(listing).filter(|_| self.limits.shared_trash);
    }

    /// Returns the next entry. Lists a page of the trash before each turn, and more if no entry waits.
    async fn next_entry(&mut self) -> Result<Option<TrashEntry>, ExportError> {
        if self.queue.listing.is_none() && self.queue.turns >= TURNS_PER_LISTING {
            self.begin_listing();
        }
        loop {
            let is_listed = !self.list_page().await?;
            if let Some(entry) = self.queue.waiting.pop() {
                self.queue.turns = self.queue.turns.saturating_add(1);
                return Ok(Some(entry));
            }
            if is_listed || self.is_over() {
                return Ok(None);
            }
        }
    }

    /// Lists a page of the trash. Returns false at the end.
    async fn list_page(&mut self) -> Result<bool, ExportError> {
        let Some((_, reader)) = &mut self.queue.listing else {
            return Ok(false);
        };
        let page = reader.next_page(&self.shared.store.nfs).await;
        match page.context(|| "listing the trash".into())? {
            Some(page) => self.take_page(page.entries).await.map(|()| true),
            None => {
                self.queue.listing = None;
                Ok(false)
            }
        }
    }

    /// Adds entries to the queue, except for those that a volume, an archive or another cluster has: somebody moved them here, so they
    /// are reported and stay with all that is in them. Directories of volumes are often empty, so this first tries to
    /// remove them without listing them.
    async fn take_page(&mut self, entries: Vec<Entry>) -> Result<(), ExportError> {
        let Shared { store, verified, .. } = *self.shared;
        let elsewhere = recorded_elsewhere(store, verified, &entries).await?;
        let mut others = Vec::with_capacity(entries.len());
        for entry in entries {
            let own = layout::trashed_volume(&entry.name);
            let found = (&verified.trash.handle, &entry);
            let held = file_holders::holder_of_entry(store, verified, &store.nfs, found, own).await?;
            let held = held.map(|(_, holder)| moved_here(&holder));
            let recorded = || entry.fileid.and_then(|id| elsewhere.get(&id).cloned());
            match held.or_else(recorded) {
                Some(why) => {
                    let path = entry.name.to_string();
                    if self.remember_stuck(TrashEntry::Directory(entry.name)) {
                        self.failures.add(&path, why);
                    }
                }
                None => others.push(entry.name),
            }
        }
        for chunk in others.chunks(CHUNK) {
            let mut names = chunk.to_vec();
            names.retain(|name| self.may_add(&TrashEntry::Directory(name.clone()), layout::trashed_namespace(name)));
            if names.is_empty() {
                continue;
            }
            let removed = store
                .for_write(verified)?
                .remove_batch(&verified.trash.handle, &names)
                .await;
            let outcomes = match removed {
                Ok(outcomes) => outcomes,
                // Their turns show which of them is refused, and why.
                Err(error) if error.status().is_some() => Vec::new(),
                Err(error) => return Err(error).context(|| "purging the trash".into()),
            };
            let refused = RemoveOutcome::Refused(Status::NotEmpty);
            for (name, outcome) in names
                .into_iter()
                .zip(outcomes.into_iter().chain(std::iter::repeat(refused)))
            {
                match outcome {
                    RemoveOutcome::Removed => self.removed += 1,
                    RemoveOutcome::Absent => {}
                    RemoveOutcome::Refused(_) => {
                        let namespace = layout::trashed_namespace(&name).to_owned();
                        self.add(TrashEntry::Directory(name), &namespace);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reports whether an entry needs a turn and there is room for it in the queue.
    fn may_add(&mut self, entry: &TrashEntry, namespace: &str) -> bool {
        if self.queue.waiting.contains(entry) || self.running.contains_key(entry) || self.stuck.contains(entry) {
            return false;
        }
        let of_namespace = self.queue.waiting.len_of(namespace);
        let has_room =
            of_namespace == 0 || of_namespace < MAX_WAITING_OF_NAMESPACE && self.queue.waiting.len() < MAX_WAITING;
        self.queue.incomplete |= !has_room;
        has_room
    }

    /// Adds an entry to the end of its namespace's queue, unless it waits already.
    fn add(&mut self, entry: TrashEntry, namespace: &str) {
        if self.may_add(&entry, namespace) {
            self.queue.waiting.push(entry, namespace);
        }
    }

    /// Reports whether the entry was not known as stuck before.
    fn remember_stuck(&mut self, entry: TrashEntry) -> bool {
        self.stuck.len() >= MAX_REMEMBERED || self.stuck.insert(entry)
    }

    /// Processes the result of a turn.
    fn count(&mut self, entry: TrashEntry, turn: Turn) {
        let namespace = self.running.remove(&entry).unwrap_or_default();
        let is_progress = turn.is_progress();
        self.removed += turn.removed;
        self.raised += turn.raised;
        if turn.end == TurnEnd::Unfinished {
            // Without a change, the turn was too short for the entry, or the purge ended.
            if is_progress {
                self.queue.idle.remove(&entry);
            } else if !is_over(self.shared.end) && self.queue.idle.len() < MAX_REMEMBERED {
                *self.queue.idle.entry(entry.clone()).or_default() += 1;
            }
            return self.add(entry, &namespace);
        }
        self.queue.idle.remove(&entry);
        self.failures.extend(turn.failures);
        if turn.end == TurnEnd::Stuck {
            self.remember_stuck(entry);
        }
    }
}

/// Gives an entry its turn.
async fn take_turn(
    shared: &Shared<'_>,
    entry: TrashEntry,
    limits: TurnLimits,
) -> Result<(TrashEntry, Turn), ExportError> {
    let turn = match &entry {
        TrashEntry::Directory(name) => purge_directory(shared, name, limits).await?,
        TrashEntry::Tombstone(volume) => purge_tombstone(shared, volume, limits).await?,
    };
    Ok((entry, turn))
}

/// Purges a directory in the trash.
async fn purge_directory(shared: &Shared<'_>, name: &Name, limits: TurnLimits) -> Result<Turn, ExportError> {
    let Shared { store, verified, .. } = *shared;
    let trash = &verified.trash;
    let node = match store.nfs.lookup(&trash.handle, name).await {
        Ok(Some(node)) => node,
        Ok(None) => return Ok(Turn::new(TurnEnd::Empty)),
        Err(error) => return refused(name, error),
    };
    let own = layout::trashed_volume(name);
    let holder = file_holders::holder_of(store, verified, &node, own, Sharing::Exclusive).await?;
    let path = &name.to_string();
    if let Some(holder) = holder {
        return Ok(Turn::failed(path, moved_here(&holder)));
    }
    if node.attributes.fsid != trash.attributes.fsid {
        let why = "another file system begins here: unmount it on the server";
        return Ok(Turn::failed(path, why.to_owned()));
    }
    if node.attributes.kind != FileKind::Directory {
        let file_id = node.attributes.fileid;
        let removed = store
            .for_write(verified)?
            .remove_file(&trash.handle, name, file_id)
            .await;
        return match removed {
            Ok(()) => Ok(Turn {
                removed: 1,
                ..Turn::new(TurnEnd::Empty)
            }),
            Err(error) => refused(name, error),
        };
    }
    let root = Root {
        node: &node,
        parent: &trash.handle,
        name,
    };
    empty_and_remove(shared, &root, limits).await
}

/// Purges a tombstone and its record.
async fn purge_tombstone(shared: &Shared<'_>, volume: &str, limits: TurnLimits) -> Result<Turn, ExportError> {
    let Shared { store, verified, .. } = *shared;
    let _lock = store.lock_volume(volume).await?;
    let Some(record) = store.state().tombstones.get(volume).cloned() else {
        return Ok(Turn::new(TurnEnd::Empty));
    };
    let (parent, tombstone) = match find_tombstone(store, verified, &record).await {
        Ok(found) => found,
        // The parent was replaced. The tombstone was moved with the original parent.
        Err(error @ ExportError::PathUnusable { .. }) => {
            return Ok(Turn::failed(&record.directory.to_string(), error.to_string()));
        }
        Err(error) => return Err(error),
    };
    let name = layout::tombstone(volume)?;
    let mut turn = Turn::new(TurnEnd::Empty);
    if let Some(node) = tombstone {
        if !verified.is_plain_directory(&node) || !record.matches_node(&node) {
            let why = "something else has the tombstone's name: remove it manually";
            return Ok(Turn::failed(&name.to_string(), why.to_owned()));
        }
        let root = Root {
            node: &node,
            parent: &parent,
            name: &name,
        };
        turn = empty_and_remove(shared, &root, limits).await?;
    }
    if turn.end == TurnEnd::Empty {
        // If the directory was moved back by hand, and the volume was bound again, the record is about it.
        if let ReadRecord::Record(now, _) = records::read(store, verified, volume).await?
            && (&now.state, now.file_id) == (&record.state, record.file_id)
        {
            let own = Holder::Volume(volume.to_owned());
            parents::remove_empty(store, verified, &own, &record.directory).await?;
            records::remove(store, verified, volume).await?;
        }
        store.state().tombstones.remove(volume);
    }
    Ok(turn)
}

/// Returns the directory that contains a tombstone, and the tombstone if it exists.
async fn find_tombstone(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
) -> Result<(FileHandle, Option<FileRef>), ExportError> {
    let nodes = paths::walk(store, verified, &record.directory).await?;
    let has_parent = nodes.len() + 1 >= record.directory.segments().len();
    let parent = paths::parent(verified, &nodes, &record.directory).handle.clone();
    let name = layout::tombstone(&record.volume)?;
    let tombstone = match has_parent {
        true => store.nfs.lookup(&parent, &name).await,
        false => Ok(None),
    };
    let tombstone = tombstone.context(|| format!("purging the tombstone of {}", record.directory))?;
    Ok((parent, tombstone))
}

/// Empties a tree and removes its root, by fileid.
async fn empty_and_remove(shared: &Shared<'_>, root: &Root<'_>, limits: TurnLimits) -> Result<Turn, ExportError> {
    let file_id = root.node.attributes.fileid;
    let mut whole = Turn::new(TurnEnd::Empty);
    for _ in 0..MAX_EMPTIED {
        let turn = empty(shared, root, limits).await?;
        whole.removed += turn.removed;
        whole.raised += turn.raised;
        whole.failures.extend(turn.failures);
        whole.end = turn.end;
        if turn.end != TurnEnd::Empty {
            return Ok(whole);
        }
        let nfs = shared.store.for_write(shared.verified)?;
        match nfs.remove_directory(root.parent, root.name, file_id).await {
            Ok(()) => {
                whole.removed += 1;
                return Ok(whole);
            }
            Err(error) if error.status() == Some(Status::NotFound) => return Ok(whole),
            Err(error) if matches!(error.status(), Some(Status::NotEmpty | Status::Exists)) => {}
            Err(error) => {
                let turn = refused(root.name, error)?;
                whole.failures.extend(turn.failures);
                whole.end = turn.end;
                return Ok(whole);
            }
        }
    }
    whole.failures.add(&root.name.to_string(), REFILLED.to_owned());
    whole.end = TurnEnd::Stuck;
    Ok(whole)
}

/// Returns the result of a turn that the server refused. Any error other than a server reply ends the purge.
fn refused(name: &Name, error: NfsError) -> Result<Turn, ExportError> {
    match error.status() {
        Some(status) => Ok(Turn::failed(&name.to_string(), format!("{error}; {}", remedy(status)))),
        None => Err(error).context(|| "purging the trash".into()),
    }
}
