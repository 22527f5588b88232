//! One visit to a directory that is being emptied.

use std::collections::{HashMap, HashSet};

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::error::{ErrorContext as _, ExportError};
use crate::path_reservations::{Holder, Sharing};
use crate::purge::Shared;
use crate::purge::batch::{batch, is_over};
use crate::purge::place::TrashPath;
use crate::readdir::DirectoryReader;
use crate::store::ExportStore;
use crate::tree_walk::{self, Obstacle};
use crate::verified_root::VerifiedRoot;
use crate::{file_holders, layout, other_clusters};
use nfs_client::{
    Client, Credential, Entry, FileHandle, FileKind, FileRef, Name, NfsError, RemoveOutcome, SetAttributes, Status,
};

/// Number of names to remove in one call: servers support between 50 and 100 operations in a compound.
pub(super) const CHUNK: usize = 64;
/// Number of concurrent lookups of subdirectories.
const LOOKUPS: usize = 8;
/// Group to act with as the owner of a directory whose group is root.
const NOBODY_GID: u32 = 65_534;

/// A visit to make.
pub(super) struct Task {
    pub id: u64,
    pub handle: FileHandle,
    pub depth: usize,
    /// Root of the tree, to which directories at great depth are moved.
    pub top: FileHandle,
    pub actor: Option<Credential>,
    /// Subdirectories that are empty now.
    pub ready: Vec<(Name, u64)>,
    /// Fileids of subdirectories to skip.
    pub given_up: HashSet<u64>,
    /// Fileids from this directory up to the root of the purge.
    pub ancestors: Vec<u64>,
    /// Where the directory was found. Nothing is removed from it elsewhere.
    pub place: TrashPath,
    /// Approximate number of names to remove.
    pub removals: u64,
}

/// A subdirectory to visit.
pub(super) struct Child {
    pub name: Name,
    pub node: FileRef,
}

/// How a visit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VisitResult {
    /// Nothing appears to be left.
    Empty,
    /// Something was removed, and something may be left.
    More,
    /// Nothing was removed: what is left stays.
    Stuck,
}

/// Result of a visit.
pub(super) struct Visit {
    pub removed: u64,
    /// Subdirectories moved to the top of the tree.
    pub raised: u64,
    pub children: Vec<Child>,
    pub end: VisitResult,
    pub actor: Option<Credential>,
    /// Subdirectories to skip from now on, and the reasons.
    pub given_up: Vec<(u64, Option<Name>, String)>,
    /// Names that could not be removed, and the reasons. Without a name: the directory itself could not be read.
    pub failures: Vec<(Option<Name>, String)>,
}

/// Depth at which directories are moved to the top of the tree. Beyond it, each visit would take more memory and more
/// calls, because it checks the whole path.
const MAX_VISITED_DEPTH: usize = 64;
/// Maximum number of subdirectories to move to the top in one visit.
const RAISED: usize = 64;
/// Maximum number of subdirectories to visit at great depth, if they cannot be moved.
const DEEP_BREADTH: usize = 2;

/// Returns the maximum number of subdirectories to visit or to move: many near the root, few at depth.
fn breadth(depth: usize) -> usize {
    match depth {
        0..8 => 256,
        8..MAX_VISITED_DEPTH => 16,
        _ => RAISED,
    }
}

pub(super) fn moved_here(holder: &Holder) -> String {
    format!("it has the fileid of {holder} and was moved here: move it back to its path")
}

/// Returns the reasons to leave listed directories that other clusters recorded, by fileid.
pub(super) async fn recorded_elsewhere(
    store: &ExportStore,
    verified: &VerifiedRoot,
    entries: &[Entry],
) -> Result<HashMap<u64, String>, ExportError> {
    let may_be_directory = |entry: &&Entry| matches!(entry.kind, None | Some(FileKind::Directory));
    let listed = entries.iter().filter(may_be_directory);
    let file_ids = listed.filter_map(|entry| entry.fileid).collect();
    let recorded = other_clusters::recorded_among(store, verified, &file_ids).await?;
    let reason = |cluster: String| {
        format!(
            "it has the fileid of a directory that the cluster with id {cluster} recorded: move it back to its path. If \
             that cluster no longer exists, remove its folder from {}",
            layout::RESERVED
        )
    };
    Ok(recorded
        .into_iter()
        .map(|(id, cluster)| (id, reason(cluster)))
        .collect())
}

/// Returns what to do about a refusal of the server.
pub(super) fn remedy(status: Status) -> &'static str {
    match status {
        Status::Access | Status::NotPermitted => {
            "it may be immutable, or owned by a user that the operator cannot act as: remove it on the server"
        }
        Status::InUse => "a client still has it open; retrying",
        Status::ReadOnly => "make the export writable",
        Status::Stale => "it was removed or replaced; retrying",
        Status::Delayed => "the server is busy; retrying",
        _ => "remove it on the server",
    }
}

pub(super) async fn visit(shared: &Shared<'_>, task: Task) -> Result<(u64, Visit), ExportError> {
    // The semaphore is never closed.
    let _permit = shared.visits.acquire().await;
    let (id, store) = (task.id, shared.store);
    let own = store.for_write(shared.verified)?;
    let mut visitor = Visitor {
        nfs: task
            .actor
            .map_or_else(|| own.clone(), |actor| own.with_credential(actor)),
        store,
        verified: shared.verified,
        shared,
        actor: task.actor,
        denied: false,
        moved: false,
        visit: Visit {
            removed: 0,
            raised: 0,
            children: Vec::new(),
            end: VisitResult::Stuck,
            actor: task.actor,
            given_up: Vec::new(),
            failures: Vec::new(),
        },
        task,
    };
    visitor.remove_ready().await?;
    visitor.pass().await?;
    if visitor.denied && visitor.visit.children.is_empty() && visitor.become_owner().await? {
        visitor.pass().await?;
    }
    if visitor.task.depth + 1 >= MAX_VISITED_DEPTH {
        visitor.raise().await?;
    }
    if visitor.moved {
        visitor.stop();
    }
    visitor.visit.actor = visitor.actor;
    Ok((id, visitor.visit))
}

struct Visitor<'a> {
    store: &'a ExportStore,
    verified: &'a VerifiedRoot,
    shared: &'a Shared<'a>,
    nfs: Client,
    actor: Option<Credential>,
    /// An operation was refused for lack of permission.
    denied: bool,
    /// The directory is no longer where it was found.
    moved: bool,
    task: Task,
    visit: Visit,
}

impl Visitor<'_> {
    /// Checks the place of the directory. Everything in a directory that was moved is kept.
    async fn is_in_place(&mut self) -> Result<bool, ExportError> {
        match self.task.place.is_current(&self.store.nfs).await {
            Ok(is_current) => self.moved |= !is_current,
            Err(error) => {
                self.refused(None, error)?;
                return Ok(false);
            }
        }
        Ok(!self.moved)
    }

    /// Leaves the directory and what is in it.
    fn stop(&mut self) {
        let reason = "it was moved during the purge, and what is left in it is kept";
        self.visit.children.clear();
        self.visit.failures = vec![(None, reason.to_owned())];
        self.visit.end = VisitResult::Stuck;
    }

    /// Removes the subdirectories that became empty. A refused one is skipped from now on.
    async fn remove_ready(&mut self) -> Result<(), ExportError> {
        let mut ready: Vec<Name> = self.task.ready.iter().map(|(name, _)| name.clone()).collect();
        self.remove(&ready, &mut Vec::new()).await?;
        if self.denied && self.become_owner().await? {
            let refused: HashSet<Name> = self.visit.failures.drain(..).filter_map(|(name, _)| name).collect();
            ready.retain(|name| refused.contains(name));
            self.denied = false;
            self.remove(&ready, &mut Vec::new()).await?;
        }
        for (name, why) in std::mem::take(&mut self.visit.failures) {
            let fileid = self.task.ready.iter().find(|(ready, _)| Some(ready) == name.as_ref());
            if let Some((_, fileid)) = fileid {
                self.task.given_up.insert(*fileid);
                self.visit.given_up.push((*fileid, name, why));
            }
        }
        Ok(())
    }

    /// Lists and removes until the end of the listing, or until there are enough subdirectories. The next entries are
    /// listed while the previous ones are removed.
    async fn pass(&mut self) -> Result<(), ExportError> {
        let mut left = false;
        let (nfs, end) = (self.nfs.clone(), self.shared.end);
        let mut reader = DirectoryReader::new(self.task.handle.clone());
        let mut listed = batch(&nfs, &mut reader, end).await;
        loop {
            if listed.is_first {
                // All entries are listed again.
                left = false;
                self.visit.children.clear();
                self.visit.failures.clear();
            }
            if let Some(error) = listed.failure {
                self.unlisted(error)?;
                left = true;
            }
            let ahead = async {
                match reader.is_done() {
                    false => Some(batch(&nfs, &mut reader, end).await),
                    true => None,
                }
            };
            let (following, some_left) = futures::join!(ahead, self.take(listed.entries));
            left |= some_left?;
            let enough = self.moved
                || self.visit.children.len() >= breadth(self.task.depth)
                || self.visit.removed >= self.task.removals
                || is_over(end);
            match following {
                Some(following) if !enough => listed = following,
                following => {
                    left |= following.is_some();
                    break;
                }
            }
        }
        self.visit.end = match (left, self.visit.removed) {
            (false, _) => VisitResult::Empty,
            (true, 0) => VisitResult::Stuck,
            (true, _) => VisitResult::More,
        };
        Ok(())
    }

    /// Handles a failed listing. An invalid reply concerns only this directory, and the purge continues with the
    /// others.
    fn unlisted(&mut self, error: NfsError) -> Result<(), ExportError> {
        if !matches!(error, NfsError::Protocol { .. }) {
            return self.refused(None, error);
        }
        let reason = format!("{error}; check the server's file system");
        self.visit.failures.push((None, reason));
        Ok(())
    }

    /// Removes the listed entries. Returns true if any are left.
    async fn take(&mut self, entries: Vec<Entry>) -> Result<bool, ExportError> {
        let listed = entries.len();
        let entries = self.leave_held(entries).await?;
        let some_held = entries.len() < listed;
        let is_directory = |entry: &Entry| entry.kind == Some(FileKind::Directory);
        let (directories, files): (Vec<Entry>, Vec<Entry>) = entries.into_iter().partition(is_directory);
        let names: Vec<Name> = files.iter().map(|entry| entry.name.clone()).collect();
        // An entry without a kind may be a directory.
        let mut subdirectories = Vec::new();
        self.remove(&names, &mut subdirectories).await?;
        let names = directories.iter().map(|entry| entry.name.clone());
        subdirectories.extend(names);
        let known: Vec<Entry> = directories.into_iter().chain(files).collect();
        let left = some_held || !subdirectories.is_empty() || !self.visit.failures.is_empty();
        self.look_up(&subdirectories, &known).await?;
        Ok(left)
    }

    /// Leaves out the directories that a volume, an archive or another cluster has. Somebody moved them here, so they are
    /// reported and stay with all that is in them.
    async fn leave_held(&mut self, entries: Vec<Entry>) -> Result<Vec<Entry>, ExportError> {
        let mut elsewhere = recorded_elsewhere(self.store, self.verified, &entries).await?;
        let mut others = Vec::with_capacity(entries.len());
        for entry in entries {
            let found = (&self.task.handle, &entry);
            let held = file_holders::holder_of_entry(self.store, self.verified, &self.nfs, found, None).await?;
            let held = held.map(|(id, holder)| (id, moved_here(&holder)));
            let recorded = || entry.fileid.and_then(|id| elsewhere.remove_entry(&id));
            match held.or_else(recorded) {
                Some((id, why)) => self.visit.given_up.push((id, Some(entry.name), why)),
                None => others.push(entry),
            }
        }
        Ok(others)
    }

    /// Removes names. Adds those that are nonempty directories to `subdirectories`.
    async fn remove(&mut self, names: &[Name], subdirectories: &mut Vec<Name>) -> Result<(), ExportError> {
        if names.is_empty() {
            return Ok(());
        }
        self.store.for_write(self.verified)?;
        let (nfs, handle, compounds) = (&self.nfs, &self.task.handle, &self.shared.compounds);
        let (own, place) = (&self.store.nfs, &self.task.place);
        let chunks: Vec<Vec<Name>> = names.chunks(CHUNK).map(<[Name]>::to_vec).collect();
        let removals = stream::iter(chunks).map(async |chunk| {
            let _permit = compounds.acquire().await;
            // The directory can be moved between this check and the compound: at most one chunk is removed elsewhere.
            if !place.is_current(own).await? {
                return Ok(None);
            }
            let outcomes = nfs.remove_batch(handle, &chunk).await?;
            Ok::<_, NfsError>(Some((chunk, outcomes)))
        });
        let outcomes: Result<Vec<_>, NfsError> = removals.buffer_unordered(CHUNK).try_collect().await;
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => return self.refused(None, error),
        };
        self.moved |= outcomes.iter().any(Option::is_none);
        for (name, outcome) in outcomes
            .into_iter()
            .flatten()
            .flat_map(|(chunk, outcomes)| chunk.into_iter().zip(outcomes))
        {
            match outcome {
                RemoveOutcome::Removed => self.visit.removed += 1,
                // Another client removed it, or the server lists names that do not exist. That is no progress.
                RemoveOutcome::Absent => {}
                RemoveOutcome::Refused(Status::NotEmpty | Status::Exists | Status::IsDirectory) => {
                    subdirectories.push(name);
                }
                RemoveOutcome::Refused(status) => {
                    let error = NfsError::Status {
                        action: "removing",
                        status,
                    };
                    self.refused(Some(name), error)?;
                }
            }
        }
        Ok(())
    }

    /// Looks up the subdirectories to visit: still the listed ones, on the trash's file system, and without loops.
    async fn look_up(&mut self, names: &[Name], listed: &[Entry]) -> Result<(), ExportError> {
        let room = breadth(self.task.depth).saturating_sub(self.visit.children.len());
        let fileid_of = |name: &Name| {
            let entry = listed.iter().find(|entry| entry.name == *name);
            entry.and_then(|entry| entry.fileid)
        };
        let wanted: Vec<(Name, Option<u64>)> = names
            .iter()
            .map(|name| (name.clone(), fileid_of(name)))
            .filter(|(_, fileid)| fileid.is_none_or(|fileid| !self.task.given_up.contains(&fileid)))
            .take(room)
            .collect();
        let (nfs, handle) = (&self.nfs, &self.task.handle);
        let found: Vec<_> = stream::iter(wanted)
            .map(async |(name, fileid)| {
                let node = nfs.lookup(handle, &name).await;
                (name, fileid, node)
            })
            .buffered(LOOKUPS)
            .collect()
            .await;
        for (name, fileid, node) in found {
            match node {
                Ok(Some(node)) => self.classify(name, fileid, node).await?,
                Ok(None) => {}
                Err(error) => self.refused(Some(name), error)?,
            }
        }
        Ok(())
    }

    async fn classify(&mut self, name: Name, listed: Option<u64>, node: FileRef) -> Result<(), ExportError> {
        let found = &node.attributes;
        let fileid = found.fileid;
        let fsid = self.verified.trash.attributes.fsid;
        let why = match tree_walk::obstacle(found, fsid, &self.task.ancestors) {
            Some(Obstacle::OtherFileSystem) => "another file system begins here: unmount it on the server",
            Some(Obstacle::Loop) => "the directories form a loop: check the server's file system",
            Some(Obstacle::TooDeep) => "it is nested too deeply: remove it on the server",
            Some(Obstacle::NotDirectory) => "it changed during the purge; retrying",
            None if listed.is_some_and(|listed| listed != fileid) => "it changed during the purge; retrying",
            None => {
                if let Some(holder) =
                    file_holders::holder_of(self.store, self.verified, &node, None, Sharing::Exclusive).await?
                {
                    self.visit.given_up.push((fileid, Some(name), moved_here(&holder)));
                } else if !self.task.given_up.contains(&fileid) {
                    self.visit.children.push(Child { name, node });
                }
                return Ok(());
            }
        };
        // Use the fileid of the listing, because the next listing returns it, too. The root of a mounted file system
        // has another one.
        let file_id = listed.unwrap_or(fileid);
        self.visit.given_up.push((file_id, Some(name), why.to_owned()));
        Ok(())
    }

    /// Moves the subdirectories to the top of the tree, where they are visited later. Within the tree, the entry of the
    /// trash keeps its name and its turns, and no quota of a project on the server refuses the move. A subdirectory that
    /// cannot be moved is visited at its depth.
    async fn raise(&mut self) -> Result<(), ExportError> {
        for child in std::mem::take(&mut self.visit.children) {
            if !self.moved && self.raise_one(&child).await? {
                self.visit.raised += 1;
            } else if self.visit.children.len() < DEEP_BREADTH {
                self.visit.children.push(child);
            }
        }
        if self.visit.raised > 0 {
            self.visit.end = VisitResult::More;
        }
        Ok(())
    }

    /// Moves a subdirectory, by its fileid. Reports whether it was moved.
    async fn raise_one(&mut self, child: &Child) -> Result<bool, ExportError> {
        if !self.is_in_place().await? {
            return Ok(false);
        }
        let fileid = child.node.attributes.fileid;
        let raised = layout::raised()?;
        let handle = self.task.handle.clone();
        let (from, to) = ((&handle, &child.name), (&self.task.top.clone(), &raised));
        loop {
            self.store.for_write(self.verified)?;
            match self.nfs.rename(from, fileid, to).await {
                Ok(()) => break,
                Err(error) if matches!(error.status(), Some(Status::Access | Status::NotPermitted)) => {
                    if !self.become_owner().await? {
                        return Ok(false);
                    }
                }
                Err(error) if error.status().is_some() => return Ok(false),
                Err(error) => return Err(error).context(|| "moving a directory within the trash".into()),
            }
        }
        if self.is_in_place().await? {
            return Ok(true);
        }
        // The directory was moved out of the trash between the check and the move, so it gets its content back.
        let returned = self.nfs.rename(to, fileid, from).await;
        returned
            .map(|()| false)
            .context(|| format!("moving {raised} back from the trash"))
    }

    /// Records what the server refused, and continues. Any error other than a server reply ends the purge.
    fn refused(&mut self, name: Option<Name>, error: NfsError) -> Result<(), ExportError> {
        let Some(status) = error.status() else {
            return Err(error).context(|| "purging the trash".into());
        };
        self.denied |= matches!(status, Status::Access | Status::NotPermitted);
        let remedy = remedy(status);
        self.visit.failures.push((name, format!("{error}; {remedy}")));
        Ok(())
    }

    /// Switches to the credential of the directory's owner if the operator's own credential is refused (data-safety
    /// rule 6): never root, and only once. If the mode denies the owner anything, sets it to 0700, which the owner
    /// could do themselves.
    async fn become_owner(&mut self) -> Result<bool, ExportError> {
        if self.actor.is_some() || !self.is_in_place().await? {
            return Ok(false);
        }
        let attributes = match self.store.nfs.attributes(&self.task.handle).await {
            Ok(attributes) => attributes,
            Err(error) if error.status().is_some() => return Ok(false),
            Err(error) => return Err(error).context(|| "looking for a directory's owner".into()),
        };
        let owner = match (attributes.kind, attributes.uid, attributes.gid) {
            (FileKind::Directory, Some(uid), gid) if uid != 0 => Credential {
                uid,
                gid: gid.filter(|gid| *gid != 0).unwrap_or(NOBODY_GID),
                supplementary: None,
            },
            _ => return Ok(false),
        };
        let nfs = self.store.for_write(self.verified)?.with_credential(owner);
        if attributes.mode & 0o700 != 0o700 {
            let mode = SetAttributes {
                mode: Some(0o700),
                ..SetAttributes::default()
            };
            match nfs.set_attributes(&self.task.handle, mode).await {
                Ok(_) => {}
                Err(error) if error.status().is_some() => return Ok(false),
                Err(error) => return Err(error).context(|| "changing the mode of a directory as its owner".into()),
            }
        }
        self.actor = Some(owner);
        self.nfs = nfs;
        Ok(true)
    }
}
