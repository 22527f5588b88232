//! The order in which the trash is purged: rounds, in which each entry has one turn.
//!
//! Entries are the directories in the trash and the tombstones. A turn is limited, so that trees that are large, deep,
//! or refilled by a client that still has them open delay the others only by their own turns. The order is kept from
//! one purge to the next.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use crate::error::{ErrorContext as _, ExportError};
use crate::purge::batch::is_over;
use crate::purge::visit::{CHUNK, moved_here, remedy};
use crate::purge::{Failures, MAX_EMPTIED, REFILLED, Root, Shared, Turn, TurnEnd, TurnLimits, empty};
use crate::readdir::DirectoryReader;
use crate::record::Record;
use crate::request::{PurgeLimits, PurgeReport};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{file_holders, layout, paths, records, trash};
use nfs_client::{Entry, FileHandle, FileKind, FileRef, Name, NfsError, RemoveOutcome, Status};

/// Entries whose turns run concurrently. They share the visits ([`super::VISITS`]).
const TURNS: usize = 8;
/// Number of visits in a turn: enough to reach the depth from which directories are moved up. A round takes seconds even
/// if a hundred entries use up their turns.
const TURN_VISITS: u64 = 128;
/// Approximate number of names to remove in a turn: some tens of compounds.
const TURN_REMOVALS: u64 = 2048;
/// How often the visits are doubled for an entry whose turns ended without any change: its directories that cannot be
/// removed need more than one turn.
const MAX_DOUBLINGS: u32 = 12;
/// Maximum number of entries to remember as not removable, or as without a change.
const MAX_REMEMBERED: usize = 10_000;

/// Entries that wait for their turn. A purge continues where the previous one stopped.
#[derive(Debug, Default)]
pub(crate) struct PurgeQueue {
    waiting: VecDeque<Waiting>,
    /// Listing of the trash in this round, with the handle of the trash. `None` if the round has no more entries.
    listing: Option<(FileHandle, DirectoryReader)>,
    /// A turn in this round was unfinished, so another round follows.
    unfinished: bool,
    /// Number of turns in a row without any change, by fileid.
    idle: HashMap<u64, u32>,
}

#[derive(Debug)]
struct Waiting {
    entry: TrashEntry,
    file_id: Option<u64>,
}

#[derive(Debug)]
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
    /// Fileids of entries with something that cannot be removed. They have no more turns in this purge.
    stuck: HashSet<u64>,
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
    let (interrupted, error) = match run.rounds().await {
        Ok(interrupted) => (interrupted, None),
        Err(error) => (true, Some(error)),
    };
    // After an error, the entries whose turns were cut off have one in the next round.
    run.queue.unfinished |= error.is_some();
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
    /// Continues the round of the previous purge, or begins one.
    fn new(shared: &'a Shared<'a>, limits: PurgeLimits) -> Self {
        let mut run = Self {
            shared,
            limits,
            queue: std::mem::take(&mut shared.store.state().purge_queue),
            stuck: HashSet::new(),
            removed: 0,
            raised: 0,
            failures: Failures::default(),
        };
        let is_other = |(trash, _): &(FileHandle, DirectoryReader)| *trash != shared.verified.trash.handle;
        if run.queue.listing.as_ref().is_some_and(is_other) {
            run.queue = PurgeQueue::default();
        }
        if run.queue.listing.is_none() && run.queue.waiting.is_empty() {
            run.begin_round();
        } else {
            // A complete round follows, so that the report has all that cannot be removed.
            run.queue.unfinished = true;
        }
        run
    }

    fn begin_round(&mut self) {
        let trash = self.shared.verified.trash.handle.clone();
        let tombstones = trash::tombstones(self.shared.store).into_iter().map(|record| Waiting {
            file_id: record.file_id,
            entry: TrashEntry::Tombstone(record.volume),
        });
        self.queue.waiting.extend(tombstones);
        let listing = (trash.clone(), DirectoryReader::new(trash));
        self.queue.listing = Some(listing).filter(|_| self.limits.shared_trash);
        self.queue.unfinished = false;
    }

    /// Gives turns until nothing is left that can be removed. Reports whether a limit was reached before.
    async fn rounds(&mut self) -> Result<bool, ExportError> {
        let shared = self.shared;
        let mut turns = FuturesUnordered::new();
        loop {
            while turns.len() < TURNS && !self.is_over() {
                let Some(waiting) = self.next_waiting().await? else {
                    break;
                };
                let limits = self.turn_limits(&waiting);
                turns.push(take_turn(shared, waiting, limits));
            }
            match turns.next().await {
                Some(done) => {
                    let (waiting, turn) = done?;
                    self.count(waiting, turn);
                }
                None if self.is_over() => return Ok(true),
                None if self.queue.unfinished => self.begin_round(),
                None => return Ok(false),
            }
        }
    }

    fn is_over(&self) -> bool {
        is_over(self.shared.end) || self.removed >= self.limits.removals
    }

    fn turn_limits(&self, waiting: &Waiting) -> TurnLimits {
        let idle = waiting.file_id.and_then(|id| self.queue.idle.get(&id));
        TurnLimits {
            visits: TURN_VISITS << idle.copied().unwrap_or_default().min(MAX_DOUBLINGS),
            removals: self
                .limits
                .removals
                .saturating_sub(self.removed)
                .clamp(1, TURN_REMOVALS),
        }
    }

    /// Returns the next entry of the round, or `None` at its end.
    async fn next_waiting(&mut self) -> Result<Option<Waiting>, ExportError> {
        loop {
            while let Some(waiting) = self.queue.waiting.pop_front() {
                if !waiting.file_id.is_some_and(|id| self.stuck.contains(&id)) {
                    return Ok(Some(waiting));
                }
            }
            let Some((_, reader)) = &mut self.queue.listing else {
                return Ok(None);
            };
            let page = reader.next_page(&self.shared.store.nfs).await;
            match page.context(|| "listing the trash".into())? {
                Some(page) => self.take_page(page.entries).await?,
                None => self.queue.listing = None,
            }
        }
    }

    /// Adds entries to the queue, except for those that a volume or an archive has: somebody moved them here, so they
    /// are reported and stay with all that is in them. Directories of volumes are often empty, so this first tries to
    /// remove them without listing them.
    async fn take_page(&mut self, entries: Vec<Entry>) -> Result<(), ExportError> {
        let Shared { store, verified, .. } = *self.shared;
        let mut others = Vec::with_capacity(entries.len());
        for entry in entries {
            let own = layout::trashed_volume(&entry.name);
            let found = (&verified.trash.handle, &entry);
            match file_holders::holder_of_entry(store, verified, &store.nfs, found, own).await? {
                Some((id, holder)) if self.remember_stuck(id) => {
                    self.failures.add(&entry.name.to_string(), moved_here(&holder));
                }
                Some(_) => {}
                None => others.push(entry),
            }
        }
        for chunk in others.chunks(CHUNK) {
            let names: Vec<Name> = chunk.iter().map(|entry| entry.name.clone()).collect();
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
            for (entry, outcome) in chunk.iter().zip(outcomes.into_iter().chain(std::iter::repeat(refused))) {
                match outcome {
                    RemoveOutcome::Removed => self.removed += 1,
                    RemoveOutcome::Absent => {}
                    RemoveOutcome::Refused(_) => self.queue.waiting.push_back(Waiting {
                        entry: TrashEntry::Directory(entry.name.clone()),
                        file_id: entry.fileid,
                    }),
                }
            }
        }
        Ok(())
    }

    /// Reports whether the entry was not known as stuck before.
    fn remember_stuck(&mut self, file_id: u64) -> bool {
        self.stuck.len() >= MAX_REMEMBERED || self.stuck.insert(file_id)
    }

    /// Processes the result of a turn.
    fn count(&mut self, waiting: Waiting, turn: Turn) {
        let is_progress = turn.is_progress();
        self.removed += turn.removed;
        self.raised += turn.raised;
        let is_late = is_over(self.shared.end);
        let Some(id) = waiting.file_id else {
            self.queue.unfinished |= turn.end == TurnEnd::Unfinished;
            return self.failures.extend(turn.failures);
        };
        match turn.end {
            // The turn was too short because the purge ended.
            TurnEnd::Unfinished if is_late && !is_progress => self.queue.waiting.push_front(waiting),
            TurnEnd::Unfinished if !is_progress && self.queue.idle.len() < MAX_REMEMBERED => {
                *self.queue.idle.entry(id).or_default() += 1;
            }
            TurnEnd::Unfinished => drop(self.queue.idle.remove(&id)),
            TurnEnd::Stuck | TurnEnd::Empty => {
                self.queue.idle.remove(&id);
                self.failures.extend(turn.failures);
            }
        }
        if turn.end == TurnEnd::Stuck {
            self.remember_stuck(id);
        }
        self.queue.unfinished |= turn.end == TurnEnd::Unfinished;
    }
}

/// Gives an entry its turn.
async fn take_turn(shared: &Shared<'_>, waiting: Waiting, limits: TurnLimits) -> Result<(Waiting, Turn), ExportError> {
    let turn = match &waiting.entry {
        TrashEntry::Directory(name) => purge_directory(shared, name, limits).await?,
        TrashEntry::Tombstone(volume) => purge_tombstone(shared, volume, limits).await?,
    };
    Ok((waiting, turn))
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
    let holder = file_holders::holder_of(store, verified, &node, own).await?;
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
        records::remove(store, verified, volume).await?;
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
