//! Snapshots that a server exposes below the root of an export.
//!
//! A snapshot shows the whole export as it was: a path in it may have belonged to another tenant at that moment. Its
//! directory is therefore read only if the record of the volume *in the same snapshot*, signed by this cluster, names it,
//! and if it has the fileid of that record.

mod created;

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;

use crate::error::{ErrorContext as _, ExportError};
use crate::naming::snapshot_name;
use crate::readdir::select_names;
use crate::record::{Record, State};
use crate::records::{self, ReadRecord};
use crate::request::VolumeDirectory;
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{identity, layout, own_files};
use nfs_client::{FileKind, FileRef, Name, NfsError, Status, Time};

pub(crate) use created::{CreatedSnapshot, maintain};

/// Where ZFS exposes snapshots, at the root of a dataset. It mounts each one that is entered.
const ZFS: &str = ".zfs/snapshot";
/// Where servers expose snapshots of a directory: ZFS, most appliances, and CephFS. They need not be listed.
const DIRECTORIES: [&str; 3] = [ZFS, ".snapshot", ".snap"];
/// Why no snapshot can be read or created without any of them, and the remedy.
const NOT_EXPOSED: &str =
    "the server exposes no snapshots at the path of the backend; let it expose .zfs/snapshot, .snapshot or .snap there";
/// Maximum number of snapshots among which the newest is searched: each costs two calls, and some servers mount it then.
const MAX_SNAPSHOTS: usize = 2048;
/// Number of lookups of a snapshot that the server mounts. The second one finds it mounted, unless it was unmounted again.
const MOUNT_ATTEMPTS: usize = 4;
/// Number of snapshots that are looked at concurrently.
const CONCURRENCY: usize = 8;

/// The snapshot to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotSelector {
    /// The one with this name.
    Named(String),
    /// The newest one.
    Newest {
        /// It must not be older than this.
        max_age: Option<Duration>,
    },
}

/// A directory of a volume in a snapshot, and what proves that it is the volume's.
pub(crate) struct SnapshotDirectory {
    pub(crate) name: Name,
    pub(crate) root: FileRef,
    /// The record in the snapshot.
    pub(crate) record: Record,
    /// A time before the snapshot, by the server's clock, in seconds since 1970: the last renewal of the beacon in it.
    pub(crate) taken_after: Option<i64>,
}

fn unavailable(why: impl Into<String>) -> ExportError {
    ExportError::SnapshotUnavailable { why: why.into() }
}

/// Returns the directory with the snapshots, as a path below the export's root.
pub(crate) async fn find_directory(store: &ExportStore, root: &FileRef) -> Result<Option<&'static str>, ExportError> {
    Ok(open_directory(store, root).await?.map(|(path, _)| path))
}

async fn open_directory(store: &ExportStore, root: &FileRef) -> Result<Option<(&'static str, FileRef)>, ExportError> {
    for path in DIRECTORIES {
        let names = path.split('/').map(layout::name).collect::<Result<Vec<_>, _>>()?;
        if let Some(found) = walk(store, root, &names).await?
            && found.attributes.kind == FileKind::Directory
        {
            return Ok(Some((path, found)));
        }
    }
    Ok(None)
}

/// Returns the node at the end of a path; `None` if there is none, or the server refuses the way to it.
async fn walk(store: &ExportStore, from: &FileRef, names: &[Name]) -> Result<Option<FileRef>, ExportError> {
    match store.nfs.walk(&from.handle, names).await {
        Ok(mut nodes) => Ok(nodes.pop().filter(|_| nodes.len() + 1 == names.len())),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(error).context(|| "looking for snapshots".to_owned()),
    }
}

/// Returns the root of a snapshot; `None` if there is none.
///
/// Until it is mounted, ZFS has a handle of its own for it, in which nothing is found. Using that handle mounts the snapshot,
/// and the server calls it stale: a node looks the name up again then, and finds the snapshot.
async fn enter(
    store: &ExportStore,
    (path, directory): (&str, &FileRef),
    name: &Name,
) -> Result<Option<FileRef>, ExportError> {
    let mut last = None;
    for _ in 0..MOUNT_ATTEMPTS {
        let found = walk(store, directory, std::slice::from_ref(name)).await?;
        let (Some(snapshot), true) = (&found, path == ZFS) else {
            return Ok(found);
        };
        match store.nfs.full_attributes(&snapshot.handle).await {
            Ok(_) => return Ok(found),
            Err(error) if error.status() == Some(Status::Stale) => last = Some(error),
            Err(error) => return Err(error).context(|| format!("entering snapshot {name}")),
        }
    }
    match last {
        Some(error) => Err(error).context(|| format!("entering snapshot {name}, which the server mounts")),
        None => Ok(None),
    }
}

/// Reports whether a lookup failed because there is nothing to enter.
fn is_absence(error: &NfsError) -> bool {
    matches!(
        error.status(),
        Some(
            Status::NotFound
                | Status::NotDirectory
                | Status::Symlink
                | Status::Access
                | Status::NotPermitted
                | Status::BadName
                | Status::Invalid
        )
    )
}

/// Opens the directory of a volume in a snapshot. `live` is the volume's record outside.
///
/// # Errors
/// `SnapshotUnavailable` if there is no such snapshot, or it does not prove that the directory is the volume's.
pub(crate) async fn open(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (expected, live): (&VolumeDirectory, &Record),
    selector: &SnapshotSelector,
) -> Result<SnapshotDirectory, ExportError> {
    let Some((path, directory)) = open_directory(store, &verified.root).await? else {
        return Err(unavailable(NOT_EXPOSED));
    };
    let name = match selector {
        SnapshotSelector::Named(name) => {
            snapshot_name(name).ok_or_else(|| unavailable(format!("{name:?} is not a valid name of a snapshot")))?
        }
        SnapshotSelector::Newest { max_age } => {
            let (name, taken_after) = newest(store, &directory, path).await?;
            check_age(store, verified, (&name, taken_after), *max_age).await?;
            name
        }
    };
    let Some(snapshot) = enter(store, (path, &directory), &name).await? else {
        return Err(unavailable(format!("{path} has no snapshot {name}")));
    };
    let record = proof(store, verified, (&snapshot, &name), (expected, live)).await?;
    let names = record.directory.names();
    let root = walk(store, &snapshot, &names).await?.filter(|root| {
        let (is, of_snapshot) = (&root.attributes, &snapshot.attributes);
        is.kind == FileKind::Directory && is.fsid == of_snapshot.fsid && record.file_id == Some(is.fileid)
    });
    let Some(root) = root else {
        return Err(unavailable(format!(
            "{} in snapshot {name} is not the directory in the record of volume {} there",
            record.directory, expected.volume
        )));
    };
    let taken_after = last_renewal(store, &snapshot).await?.map(|renewal| renewal.at.seconds);
    Ok(SnapshotDirectory {
        name,
        root,
        record,
        taken_after,
    })
}

/// Returns the node of a volume's directory in a snapshot, if it is still there.
pub(crate) async fn find_again(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (name, record): (&Name, &Record),
) -> Result<Option<FileRef>, ExportError> {
    let Some((path, directory)) = open_directory(store, &verified.root).await? else {
        return Ok(None);
    };
    match enter(store, (path, &directory), name).await? {
        Some(snapshot) => walk(store, &snapshot, &record.directory.names()).await,
        None => Ok(None),
    }
}

/// Returns the record of the volume in a snapshot, if it proves whose the directory was.
async fn proof(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (snapshot, name): (&FileRef, &Name),
    (expected, live): (&VolumeDirectory, &Record),
) -> Result<Record, ExportError> {
    let volume = &expected.volume;
    let refused = |why: &str| unavailable(format!("snapshot {name} {why} volume {volume}"));
    let mut folder = own_folder(store)?;
    folder.push(layout::name(layout::RECORDS)?);
    let Some(records) = walk(store, snapshot, &folder).await? else {
        return Err(refused("has no folder with the record of"));
    };
    let record = match records::read_in(store, verified, &records.handle, volume).await? {
        ReadRecord::Record(record, SignatureStatus::Signed) => record,
        ReadRecord::Record(..) => return Err(refused("has a record that this cluster did not sign, of")),
        ReadRecord::Nothing => return Err(refused("has no record of")),
        ReadRecord::Unreadable(_) => return Err(refused("has an unreadable record of")),
    };
    let owner = (&record.claim.uid, &record.claim.namespace_uid);
    if owner != (&expected.claim.uid, &live.claim.namespace_uid) || record.directory != live.directory {
        return Err(refused("has a record of another claim or directory for"));
    }
    if record.state != State::Live {
        return Err(refused("was taken while a step was unfinished, of"));
    }
    Ok(*record)
}

fn own_folder(store: &ExportStore) -> Result<Vec<Name>, ExportError> {
    Ok(vec![
        layout::name(layout::RESERVED)?,
        layout::cluster(&store.config.cluster_id)?,
    ])
}

/// Returns the newest snapshot, by the last renewal of the beacon in it, and the time of that. Snapshots without one are
/// older than the operator's work on the export, or of another directory.
async fn newest(store: &ExportStore, directory: &FileRef, path: &str) -> Result<(Name, Time), ExportError> {
    let usable = |entry: nfs_client::Entry| std::str::from_utf8(entry.name.as_bytes()).ok().and_then(snapshot_name);
    let names = match select_names(store, &directory.handle, path, MAX_SNAPSHOTS, usable).await {
        Err(ExportError::Nfs { source, .. }) if matches!(*source, NfsError::Limit { .. }) => {
            return Err(unavailable(format!("{path} has more than {MAX_SNAPSHOTS} snapshots")));
        }
        names => names?,
    };
    let count = names.len();
    let mut looks = stream::iter(names)
        .map(async |name| {
            let snapshot = enter(store, (path, directory), &name).await?;
            let renewal = match snapshot {
                Some(snapshot) => last_renewal(store, &snapshot).await?,
                None => None,
            };
            Ok::<_, ExportError>(renewal.map(|renewal| (renewal, name)))
        })
        .buffer_unordered(CONCURRENCY);
    let mut newest: Option<(Renewal, Name)> = None;
    while let Some(look) = looks.next().await {
        let Some(found) = look? else { continue };
        let order = |(renewal, name): &(Renewal, Name)| (*renewal, name.as_bytes().to_vec());
        if newest.as_ref().is_none_or(|newest| order(newest) < order(&found)) {
            newest = Some(found);
        }
    }
    let none = || {
        unavailable(format!(
            "none of the {count} snapshots in {path} shows the work of this operator"
        ))
    };
    newest.map(|(renewal, name)| (name, renewal.at)).ok_or_else(none)
}

/// State of the beacon in a snapshot, which orders snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Renewal {
    at: Time,
    change: u64,
}

/// Returns the last renewal of the beacon before a snapshot.
async fn last_renewal(store: &ExportStore, snapshot: &FileRef) -> Result<Option<Renewal>, ExportError> {
    let mut path = own_folder(store)?;
    path.push(layout::name(layout::BEACON)?);
    let Some(beacon) = walk(store, snapshot, &path).await? else {
        return Ok(None);
    };
    let details = store.nfs.full_attributes(&beacon.handle).await;
    let details = details.context(|| "reading the time of a snapshot".to_owned())?;
    Ok(Some(Renewal {
        at: details.times.modified,
        change: details.change,
    }))
}

/// Checks the age of a snapshot by the server's clock.
async fn check_age(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (name, taken_after): (&Name, Time),
    max_age: Option<Duration>,
) -> Result<(), ExportError> {
    let Some(max_age) = max_age else { return Ok(()) };
    let Some(now) = server_time(store, verified).await? else {
        return Err(unavailable(
            "the server reports no time, so that the age of its snapshots is unknown",
        ));
    };
    let age = now.saturating_sub(taken_after.seconds);
    if age <= i64::try_from(max_age.as_secs()).unwrap_or(i64::MAX) {
        return Ok(());
    }
    Err(unavailable(format!(
        "the newest snapshot, {name}, may be {age} s old, and the maximum is {} s",
        max_age.as_secs()
    )))
}

/// Returns the time by the server's clock, in seconds since 1970, if the server reports it. It is the only clock that is
/// compared with the server's time stamps, and is read from a new file.
pub(crate) async fn server_time(store: &ExportStore, verified: &VerifiedRoot) -> Result<Option<i64>, ExportError> {
    let name = layout::clock(&store.config.backend_uid)?;
    let nfs = store.for_write(verified)?;
    let file = identity::create_fresh_file(nfs, &verified.cluster, &name, b"clock\n").await?;
    let details = nfs.full_attributes(&file.handle).await;
    // Another copy from this backend may have removed it first.
    let doing = || "removing the file that shows the server's clock".to_owned();
    own_files::remove(nfs, &verified.cluster.handle, &name, file.attributes.fileid, doing).await?;
    Ok(details
        .ok()
        .and_then(|details| details.ctime)
        .map(|ctime| ctime.seconds))
}
