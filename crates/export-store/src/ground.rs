//! The ground that changes stand on: handles that were got after the identity was read on the present connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::error::{ErrorContext as _, ExportError};
use super::layout;
use super::ledger::{Holder, Reservation};
use super::request::Identity;
use super::{Conflict, ExpectedIdentity, ExportStore, FileKey, ReservedPath};
use crate::naming::DirectoryPath;
use nfs_client::{Client, FileKind, FileRef, NfsError, Status};

/// How often an operation is begun again when the connection or the export changed under it. More than that is not
/// bad luck, and the caller's pause helps better.
const ATTEMPTS: u32 = 4;

/// Our own directories on an export whose identity was confirmed.
#[derive(Debug)]
pub(super) struct VerifiedRoot {
    /// The connection, by number, on which the identity was read.
    pub generation: u64,
    pub identity: Identity,
    pub root: FileRef,
    pub reserved: FileRef,
    pub cluster: FileRef,
    pub records: FileRef,
    pub trash: FileRef,
    /// Something says that the handles are no longer good: they are got again before the next change.
    outdated: AtomicBool,
}

impl VerifiedRoot {
    pub(super) fn new(
        generation: u64,
        identity: Identity,
        root: FileRef,
        reserved: FileRef,
        folders: [FileRef; 3],
    ) -> Self {
        let [cluster, records, trash] = folders;
        Self {
            generation,
            identity,
            root,
            reserved,
            cluster,
            records,
            trash,
            outdated: AtomicBool::new(false),
        }
    }

    /// The thing with this fileid, for the ledger.
    pub(super) fn file_key(&self, fileid: u64) -> FileKey {
        (self.identity.id.clone(), fileid)
    }

    /// Whether a node is a directory on the export's own file system.
    pub(super) fn is_plain_directory(&self, node: &FileRef) -> bool {
        node.attributes.kind == FileKind::Directory && node.attributes.fsid == self.root.attributes.fsid
    }

    /// Whether handles or identity are others than before.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        let handles = |ground: &Self| {
            [
                &ground.root,
                &ground.reserved,
                &ground.cluster,
                &ground.records,
                &ground.trash,
            ]
            .map(|node| node.handle.clone())
        };
        self.identity.id != other.identity.id || handles(self) != handles(other)
    }

    pub(super) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire)
    }

    pub(super) fn mark_outdated(&self) {
        self.outdated.store(true, Ordering::Release);
    }
}

/// One lock a volume: operations on the same volume take turns.
#[derive(Default)]
pub(super) struct KeyedMutex(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl KeyedMutex {
    pub(super) async fn of(&self, volume: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(turn) = turns.get(volume).and_then(Weak::upgrade) {
                turn
            } else {
                // Those that nobody waits for go whenever a new one comes: there are never more than are in use.
                turns.retain(|_, turn| turn.strong_count() > 0);
                let turn = Arc::new(tokio::sync::Mutex::new(()));
                turns.insert(volume.to_owned(), Arc::downgrade(&turn));
                turn
            }
        };
        turn.lock_owned().await
    }
}

impl ExportStore {
    /// The ground to stand on. Reads the identity again after a reconnection.
    pub(super) async fn ground(&self) -> Result<Arc<VerifiedRoot>, ExportError> {
        self.must_lead()?;
        if let Some(ground) = self.firm_ground()? {
            return Ok(ground);
        }
        let _turn = self.confirming.lock().await;
        if let Some(ground) = self.firm_ground()? {
            return Ok(ground);
        }
        let former = self.former_ground().ok_or(ExportError::IdentityNotConfirmed)?;
        let expected = ExpectedIdentity {
            export_id: Some(former.identity.id.clone()),
            root_file_id: Some(former.identity.root_file_id),
            ..ExpectedIdentity::default()
        };
        self.confirm(&expected).await
    }

    /// The ground if it is still good; none if it has to be confirmed again; an error if it never was.
    fn firm_ground(&self) -> Result<Option<Arc<VerifiedRoot>>, ExportError> {
        let ground = self.former_ground().ok_or(ExportError::IdentityNotConfirmed)?;
        let firm = ground.generation == self.nfs.generation() && !ground.is_outdated();
        Ok(firm.then_some(ground))
    }

    /// The ground confirmed last, good or not.
    pub(super) fn former_ground(&self) -> Option<Arc<VerifiedRoot>> {
        self.ground.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection, for a change. Refused when there was a reconnection since the identity was read, and when we do
    /// not lead any more.
    pub(super) fn changing(&self, ground: &VerifiedRoot) -> Result<&Client, ExportError> {
        self.must_lead()?;
        if ground.generation == self.nfs.generation() && !ground.is_outdated() {
            Ok(&self.nfs)
        } else {
            Err(ExportError::IdentityNotConfirmed)
        }
    }

    /// Whether an operation that ended so should be begun again at once, on new ground.
    pub(super) fn begin_again<T>(&self, outcome: &Result<T, ExportError>, attempts: &mut u32) -> bool {
        let Err(error) = outcome else { return false };
        if error.status() == Some(Status::Stale)
            && let Some(ground) = self.former_ground()
        {
            ground.mark_outdated();
        }
        let again = matches!(error, ExportError::IdentityNotConfirmed | ExportError::Unsettled { .. })
            || error.status() == Some(Status::Stale);
        *attempts += 1;
        again && *attempts < ATTEMPTS && self.former_ground().is_some()
    }

    /// Adds to an error what only the server, or the connection, can tell.
    pub(super) async fn told<T>(&self, outcome: Result<T, ExportError>) -> Result<T, ExportError> {
        let Err(mut error) = outcome else { return outcome };
        self.tell(&mut error).await;
        Err(error)
    }

    async fn tell(&self, error: &mut ExportError) {
        let error = match error {
            ExportError::LeftBehind { source, .. } => source.as_mut(),
            other => other,
        };
        let ExportError::Nfs {
            source, circumstances, ..
        } = error
        else {
            return;
        };
        match source.as_ref() {
            NfsError::AccessDenied {
                local, reserved_port, ..
            } => {
                circumstances.local = Some(*local);
                circumstances.reserved_port = Some(*reserved_port);
            }
            NfsError::Status {
                status: Status::Access | Status::NotPermitted,
                ..
            } => {
                let negotiated = self.nfs.negotiated();
                circumstances.local = Some(negotiated.local);
                circumstances.squashed = self.is_squashed();
                // A server that lets us in at all did so with this port: only where not even the root could be
                // looked at can the port be the reason.
                circumstances.reserved_port = self.former_ground().is_none().then_some(negotiated.reserved_port);
            }
            NfsError::Status {
                status: Status::NoSpace,
                ..
            } => {
                if let Ok(statistics) = self.nfs.statistics().await {
                    circumstances.out_of_inodes = statistics.inodes > 0 && statistics.inodes_free == 0;
                }
            }
            _ => {}
        }
    }

    /// Whether the server makes somebody else of our credential, as far as our own directory shows.
    pub(super) fn is_squashed(&self) -> bool {
        self.former_ground().is_some_and(|ground| {
            let owner = ground.reserved.attributes.uid;
            owner.is_some_and(|uid| uid != self.keeper.credential.uid)
        })
    }

    /// The places that a path relative to the export's root takes.
    pub(super) fn places_of(&self, export_id: &str, path: &str) -> Vec<ReservedPath> {
        let on_servers = self.keeper.roots.iter().map(|root| root.below(path));
        std::iter::once(ReservedPath::on_export(export_id, path))
            .chain(on_servers)
            .collect()
    }

    /// Walks down a directory's path; shorter than the path where something is missing. What is met on the way and
    /// is no directory ends it with `PathUnusable`.
    pub(super) async fn walk(
        &self,
        ground: &VerifiedRoot,
        directory: &DirectoryPath,
    ) -> Result<Vec<FileRef>, ExportError> {
        match self.nfs.walk(&ground.root.handle, &directory.names()).await {
            Ok(nodes) => Ok(nodes),
            Err(error) => Err(match error.status() {
                Some(Status::Symlink) => ExportError::PathUnusable {
                    path: directory.to_string(),
                    why: "leads through a symbolic link",
                },
                Some(Status::NotDirectory) => ExportError::PathUnusable {
                    path: directory.to_string(),
                    why: "leads through something that is no directory",
                },
                _ => return Err(error).while_(|| format!("looking up {directory}")),
            }),
        }
    }

    /// The node that a directory lies in, and its name there, among the nodes that lead to it.
    pub(super) fn parent_of<'a>(
        &self,
        ground: &'a VerifiedRoot,
        nodes: &'a [FileRef],
        directory: &DirectoryPath,
    ) -> &'a FileRef {
        directory
            .segments()
            .len()
            .checked_sub(2)
            .and_then(|index| nodes.get(index))
            .unwrap_or(&ground.root)
    }

    /// The node that has the directory's whole path, if it is there.
    pub(super) fn leaf_of<'a>(&self, nodes: &'a [FileRef], directory: &DirectoryPath) -> Option<&'a FileRef> {
        nodes.get(directory.segments().len().checked_sub(1)?)
    }

    /// Who else holds the place or the thing.
    pub(super) fn in_the_way(
        &self,
        ground: &VerifiedRoot,
        volume: &str,
        directory: &DirectoryPath,
    ) -> Option<Conflict> {
        let places = self.places_of(&ground.identity.id, &directory.to_string());
        let holder = Holder::Volume(volume.to_owned());
        self.ledger.overlap(&places, &holder, &self.keeper.backend)
    }

    /// Takes a directory's places for a volume, if nobody is in the way.
    pub(super) fn reserve(
        &self,
        ground: &VerifiedRoot,
        volume: &str,
        directory: &DirectoryPath,
    ) -> Result<Reservation, ExportError> {
        let places = self.places_of(&ground.identity.id, &directory.to_string());
        let holder = Holder::Volume(volume.to_owned());
        let reserved = self.ledger.reserve(holder, places, &self.keeper.backend);
        reserved.map_err(|conflict| ExportError::Overlaps {
            directory: directory.to_string(),
            conflict: Box::new(conflict),
        })
    }

    /// Whether a directory holds nothing.
    pub(super) async fn is_empty(&self, node: &FileRef, path: &impl std::fmt::Display) -> Result<bool, ExportError> {
        let mut from = None;
        loop {
            let page = self
                .nfs
                .list(&node.handle, from)
                .await
                .while_(|| format!("listing {path}"))?;
            if !page.entries.is_empty() {
                return Ok(false);
            }
            match page.next {
                Some(next) => from = Some(next),
                None => return Ok(true),
            }
        }
    }

    /// Whether this directory is the root of a backend, perhaps another cluster's.
    pub(super) async fn holds_reserved(&self, node: &FileRef, path: &str) -> Result<bool, ExportError> {
        let name = layout::name(layout::RESERVED)?;
        let found = self.nfs.lookup(&node.handle, &name).await;
        Ok(found.while_(|| format!("looking into {path}"))?.is_some())
    }
}
