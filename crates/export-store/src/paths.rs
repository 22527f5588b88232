//! Paths on an export: lookups, reservations, and checks of parent directories (data-safety rule 5).

use futures::future::try_join_all;

use crate::error::{ErrorContext as _, ExportError};
use crate::file_holders::Loss;
use crate::naming::DirectoryPath;
use crate::path_reservations::{Holder, Reservation, Sharing};
use crate::record::Record;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{Conflict, ReservedPath, file_holders, layout, other_clusters};
use nfs_client::{FileKind, FileRef, ListedWalk, NfsError, Status};

/// Returns the paths to reserve for a path relative to the export's root.
pub(crate) fn reserved_paths(store: &ExportStore, export_id: &str, path: &str) -> Vec<ReservedPath> {
    let on_servers = store.config.roots.iter().map(|root| root.below(path));
    std::iter::once(ReservedPath::on_export(export_id, path))
        .chain(on_servers)
        .collect()
}

/// Looks up the nodes of a directory's path, up to the first missing one. Fails with `PathUnusable` if a node on the
/// path is not a directory.
pub(crate) async fn walk(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
) -> Result<Vec<FileRef>, ExportError> {
    let walked = store.nfs.walk(&verified.root.handle, &directory.names()).await;
    walk_result(directory, walked)
}

/// What a walk found inside a directory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LookInside {
    /// The directory is the root of a backend of any cluster.
    pub is_backend_root: bool,
    /// The directory is empty; unset if that is not known.
    pub is_empty: Option<bool>,
}

/// Like [`walk`]. Also looks into the directory.
pub(crate) async fn walk_and_look_inside(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
) -> Result<(Vec<FileRef>, LookInside), ExportError> {
    let mut names = directory.names();
    let depth = names.len();
    names.push(layout::name(layout::RESERVED)?);
    let walked = store.nfs.walk_and_list(&verified.root.handle, &names).await;
    let ListedWalk { mut nodes, entries } = walk_result(directory, walked)?;
    let inside = LookInside {
        is_backend_root: nodes.len() > depth,
        is_empty: entries.and_then(|page| match (page.entries.is_empty(), page.next) {
            (false, _) => Some(false),
            (true, None) => Some(true),
            (true, Some(_)) => None,
        }),
    };
    nodes.truncate(depth);
    Ok((nodes, inside))
}

fn walk_result<T>(directory: &DirectoryPath, walked: Result<T, NfsError>) -> Result<T, ExportError> {
    walked.or_else(|error| {
        let why = match error.status() {
            Some(Status::Symlink) => "leads through a symbolic link",
            Some(Status::NotDirectory) => "leads through something that is not a directory",
            _ => return Err(error).context(|| format!("looking up {directory}")),
        };
        Err(ExportError::PathUnusable {
            path: directory.to_string(),
            why,
        })
    })
}

/// Returns the parent directory among the nodes of a path.
pub(crate) fn parent<'a>(verified: &'a VerifiedRoot, nodes: &'a [FileRef], directory: &DirectoryPath) -> &'a FileRef {
    directory
        .segments()
        .len()
        .checked_sub(2)
        .and_then(|index| nodes.get(index))
        .unwrap_or(&verified.root)
}

/// Returns the directory itself among the nodes of its path, if it exists.
pub(crate) fn leaf<'a>(nodes: &'a [FileRef], directory: &DirectoryPath) -> Option<&'a FileRef> {
    nodes.get(directory.segments().len().checked_sub(1)?)
}

/// Returns a conflict with a path reservation of another holder than `except`, whatever the name of its server is
/// (data-safety rule 16).
pub(crate) async fn conflict(
    store: &ExportStore,
    verified: &VerifiedRoot,
    except: &Holder,
    sharing: Sharing,
    path: &str,
) -> Option<Conflict> {
    let places = reserved_paths(store, &verified.identity.id, path);
    let backend = &store.config.backend;
    let certain = store.reservations.overlap(&places, except, sharing, backend);
    match certain {
        Some(conflict) => Some(conflict),
        None => conflict_on_other_server(store, except, sharing, &places).await,
    }
}

async fn conflict_on_other_server(
    store: &ExportStore,
    except: &Holder,
    sharing: Sharing,
    places: &[ReservedPath],
) -> Option<Conflict> {
    let (reservations, servers) = (&store.reservations, &*store.servers);
    reservations
        .conflict_on_other_server(places, except, sharing, servers)
        .await
}

/// Fails if another holder than `except` has a path, a parent of it, or a path inside it.
pub(crate) async fn refuse_conflict(
    store: &ExportStore,
    verified: &VerifiedRoot,
    except: &Holder,
    sharing: Sharing,
    path: &str,
) -> Result<(), ExportError> {
    conflict(store, verified, except, sharing, path)
        .await
        .map_or(Ok(()), |conflict| Err(overlaps(path, conflict)))
}

fn overlaps(path: &str, conflict: Conflict) -> ExportError {
    ExportError::Overlaps {
        directory: path.to_owned(),
        conflict: Box::new(conflict),
    }
}

/// Reserves a directory's paths for a volume. Fails on a conflict.
pub(crate) async fn reserve(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    directory: &DirectoryPath,
    sharing: Sharing,
) -> Result<Reservation, ExportError> {
    let path = directory.to_string();
    let places = reserved_paths(store, &verified.identity.id, &path);
    let holder = Holder::Volume(volume.to_owned());
    let reserved = store
        .reservations
        .reserve(holder.clone(), places.clone(), sharing, &store.config.backend)
        .map_err(|conflict| overlaps(&path, conflict))?;
    match conflict_on_other_server(store, &holder, sharing, &places).await {
        Some(conflict) => Err(overlaps(&path, conflict)),
        None => Ok(reserved),
    }
}

/// Reports whether a directory is the root of a backend of any cluster.
pub(crate) async fn is_backend_root(store: &ExportStore, node: &FileRef, path: &str) -> Result<bool, ExportError> {
    let name = layout::name(layout::RESERVED)?;
    let found = store.nfs.lookup(&node.handle, &name).await;
    Ok(found.context(|| format!("looking into {path}"))?.is_some())
}

/// Checks that no parent of a directory belongs to a holder or to another cluster (data-safety rule 5).
pub(crate) async fn check_parents_and_clusters(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    nodes: &[FileRef],
    sharing: Sharing,
) -> Result<(), ExportError> {
    check_parents(store, verified, directory, nodes, Loss::Certain).await?;
    let depth = directory.segments().len().saturating_sub(1);
    match nodes.get(..depth.min(nodes.len())).unwrap_or_default() {
        [] => Ok(()),
        parents => other_clusters::refuse(store, verified, directory, parents, sharing, false).await,
    }
}

/// Checks the parents of a directory, without those of other clusters. `loss` is when a holder of a fileid is none.
pub(crate) async fn check_parents(
    store: &ExportStore,
    verified: &VerifiedRoot,
    directory: &DirectoryPath,
    nodes: &[FileRef],
    loss: Loss,
) -> Result<(), ExportError> {
    let depth = directory.segments().len().saturating_sub(1);
    let parents = nodes.get(..depth.min(nodes.len())).unwrap_or_default();
    let path_of = |index: usize| {
        let segments = directory.segments().iter().take(index + 1);
        segments.cloned().collect::<Vec<_>>().join("/")
    };
    for (index, parent) in parents.iter().enumerate() {
        if !verified.is_plain_directory(parent) {
            return Err(ExportError::PathUnusable {
                path: path_of(index),
                why: what_it_is(parent),
            });
        }
        if let Some(holder) =
            file_holders::find_holder(store, verified, parent, (None, Sharing::Exclusive), loss).await?
        {
            return Err(ExportError::FileidInUse {
                directory: path_of(index),
                holder,
            });
        }
    }
    if parents.is_empty() {
        return Ok(());
    }
    let look = parents.iter().enumerate().map(async |(index, parent)| {
        let path = path_of(index);
        if is_backend_root(store, parent, &path).await? {
            return Err(ExportError::NestedBackend { path });
        }
        Ok(())
    });
    try_join_all(look).await.map(drop)
}

/// Reserves a recorded directory that has no volume yet.
pub(crate) fn hold(store: &ExportStore, verified: &VerifiedRoot, record: &Record) {
    let places = reserved_paths(store, &verified.identity.id, &record.directory.to_string());
    let holder = Holder::Volume(record.volume.clone());
    // On a conflict, the other holder keeps the path, and provisioning or rollback reports it.
    let (reservations, backend) = (&store.reservations, &store.config.backend);
    if let Ok(reservation) = reservations.reserve(holder, places, record.sharing(), backend) {
        reservation.keep(record.file_id.map(|id| verified.file_key(id)));
    }
}

pub(crate) fn what_it_is(node: &FileRef) -> &'static str {
    match node.attributes.kind {
        FileKind::Directory => "is where another file system begins",
        FileKind::Symlink => "is a symbolic link, which is not followed",
        FileKind::Regular | FileKind::Other => "is not a directory",
    }
}
