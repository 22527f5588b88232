//! Holders of a directory by its fileid (data-safety rules 5 and 22).
//!
//! Servers reuse the fileid of a directory that was removed. If somebody removed it behind the operator's back, its
//! record and its volume still name the fileid, and must not stand in the way of the next directory with it.

use crate::error::{ErrorContext as _, ExportError};
use crate::path_reservations::{Holder, Sharing};
use crate::record::{Record, State};
use crate::records::{self, ReadRecord};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, paths};
use nfs_client::{Client, Entry, FileHandle, FileKind, FileRef, Name};

/// When a holder does not have the directory with its fileid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The directory is certainly another one.
    Certain,
    /// As above, or an administrator confirms that fileids and handles changed, and the holder has another directory.
    Confirmed,
}

/// Returns a holder of a directory, according to its fileid. Leaves out the volume `own` with its archive, those that it
/// may share the directory with, and holders that certainly lost the directory.
pub(crate) async fn holder_of(
    store: &ExportStore,
    verified: &VerifiedRoot,
    node: &FileRef,
    own: Option<&str>,
    sharing: Sharing,
) -> Result<Option<Holder>, ExportError> {
    find_holder(store, verified, node, (own, sharing), Loss::Certain).await
}

/// Like [`holder_of`], with the loss that counts.
pub(crate) async fn find_holder(
    store: &ExportStore,
    verified: &VerifiedRoot,
    node: &FileRef,
    (own, sharing): (Option<&str>, Sharing),
    loss: Loss,
) -> Result<Option<Holder>, ExportError> {
    for holder in recorded_holders(store, verified, node.attributes.fileid, own, sharing) {
        if !has_lost(store, verified, &holder, node, (own, loss)).await? {
            return Ok(Some(holder));
        }
    }
    Ok(None)
}

/// Returns the fileid and a holder of the entry of a listing, if it may be a directory that has one. The entry is only
/// looked up if its fileid has a holder.
pub(crate) async fn holder_of_entry(
    store: &ExportStore,
    verified: &VerifiedRoot,
    nfs: &Client,
    (folder, entry): (&FileHandle, &Entry),
    own: Option<&str>,
) -> Result<Option<(u64, Holder)>, ExportError> {
    let may_be_directory = matches!(entry.kind, None | Some(FileKind::Directory));
    let (Some(file_id), name) = (entry.fileid.filter(|_| may_be_directory), &entry.name) else {
        return Ok(None);
    };
    let Some(holder) = recorded_holders(store, verified, file_id, own, Sharing::Exclusive).pop() else {
        return Ok(None);
    };
    let holder = match nfs.lookup(folder, name).await {
        Ok(Some(node)) if node.attributes.fileid == file_id => {
            holder_of(store, verified, &node, own, Sharing::Exclusive).await?
        }
        // In doubt, it is the holder's.
        Ok(_) => Some(holder),
        Err(error) if error.status().is_some() => Some(holder),
        Err(error) => return Err(error).context(|| format!("looking up {name}")),
    };
    Ok(holder.map(|holder| (file_id, holder)))
}

/// Returns the holders of a fileid without the volume `own` and its archive, whether they still have it or not.
fn recorded_holders(
    store: &ExportStore,
    verified: &VerifiedRoot,
    file_id: u64,
    own: Option<&str>,
    sharing: Sharing,
) -> Vec<Holder> {
    let file = verified.file_key(file_id);
    let mut holders = store.reservations.holders_against(&file, sharing);
    holders.retain(|holder| match holder {
        Holder::Volume(name) | Holder::Archive(name) => own != Some(name),
        Holder::BackendRoot(_) => true,
    });
    holders
}

async fn has_lost(
    store: &ExportStore,
    verified: &VerifiedRoot,
    holder: &Holder,
    node: &FileRef,
    (own, loss): (Option<&str>, Loss),
) -> Result<bool, ExportError> {
    let (Holder::Volume(volume) | Holder::Archive(volume)) = holder else {
        return Ok(false);
    };
    let Some(record) = read_signed(store, verified, volume).await? else {
        return Ok(false);
    };
    let is_own = was_created_for(store, verified, own, node).await?;
    if (is_own || loss == Loss::Confirmed) && has_another(store, verified, &record, node).await? {
        return Ok(true);
    }
    let has_own_handle = is_own || (!is_outdated(verified, &record) && has_unique_handles(store).await?);
    Ok(has_own_handle && differs(store, verified, &record, node).await?)
}

/// Reports whether what a record names is another directory than this one. If there is nothing, somebody may have renamed
/// the recorded directory, and this may be it.
async fn has_another(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    node: &FileRef,
) -> Result<bool, ExportError> {
    // A handle proves that as long as the server does not change its handles.
    if !is_outdated(verified, record) && record.handle.as_ref().is_some_and(|handle| handle.is_of(node)) {
        return Ok(false);
    }
    let found = match &record.state {
        State::Live => at_its_path(store, verified, record).await?,
        State::Archived(archive) => named(store, (&verified.root, &layout::name(&archive.target)?)).await?,
        _ => None,
    };
    let other = found.filter(|found| verified.is_plain_directory(found));
    Ok(other.is_some_and(|other| other.attributes.fileid != node.attributes.fileid))
}

/// Reports whether a directory was created or accepted for a volume, since the server last changed its handles: its record
/// knows the handle. Different handles may name one directory, but equal ones never name two (RFC 1813 section 3.3,
/// `nfs_fh3`).
async fn was_created_for(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: Option<&str>,
    node: &FileRef,
) -> Result<bool, ExportError> {
    let Some(volume) = volume else { return Ok(false) };
    let record = read_signed(store, verified, volume).await?;
    let created = record.filter(|record| !record.adopted && record.restores.is_none());
    let handle = created.and_then(|record| record.handle);
    Ok(handle.is_some_and(|handle| handle.is_of(node) && !handle.is_outdated(verified)))
}

async fn read_signed(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<Option<Record>, ExportError> {
    match records::read(store, verified, volume).await {
        Ok(ReadRecord::Record(record, SignatureStatus::Signed)) => Ok(Some(*record)),
        Ok(_) | Err(ExportError::NameUnusable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports whether a directory is certainly the holder's: its path leads there, or its record knows the handle.
pub(crate) async fn certainly_has(
    store: &ExportStore,
    verified: &VerifiedRoot,
    holder: &Holder,
    node: &FileRef,
) -> Result<bool, ExportError> {
    if !store
        .reservations
        .holders_of(&verified.file_key(node.attributes.fileid))
        .contains(holder)
    {
        return Ok(true);
    }
    let (Holder::Volume(volume) | Holder::Archive(volume)) = holder else {
        return Ok(true);
    };
    let record = read_signed(store, verified, volume).await?;
    Ok(record.is_some_and(|record| record.handle.is_none_or(|handle| handle.is_of(node))))
}

/// Reports whether a directory with the fileid in a record is certainly another one than the recorded, because
/// [`differs`] says so and the server gives each directory one handle.
pub(crate) async fn is_other(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    node: &FileRef,
) -> Result<bool, ExportError> {
    Ok(!is_outdated(verified, record)
        && differs(store, verified, record, node).await?
        && has_unique_handles(store).await?)
}

/// Reports whether the server may have changed its handles since a record was written, which then prove nothing.
fn is_outdated(verified: &VerifiedRoot, record: &Record) -> bool {
    let handle = record.handle.as_ref();
    handle.is_none_or(|handle| handle.is_outdated(verified))
}

/// Reports whether a directory with the fileid in a record looks like another one than the recorded: no change is in
/// progress, the recorded path does not lead to the fileid, and the handle differs.
async fn differs(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    node: &FileRef,
) -> Result<bool, ExportError> {
    if record.handle.as_ref().is_none_or(|handle| handle.is_of(node)) {
        return Ok(false);
    }
    let is_at = match &record.state {
        // An empty directory is removed where it is.
        State::Live | State::RemovingEmpty => is_at_its_path(store, verified, record, node).await?,
        State::Archived(archive) => is_named(store, node, (&verified.root, &layout::name(&archive.target)?)).await?,
        // The record remains while the volume does, and the trash is purged.
        State::Deleting { since } => {
            let trashed = layout::trashed(&record.claim, &record.volume, *since)?;
            is_at_its_path(store, verified, record, node).await?
                || is_named(store, node, (&verified.trash, &trashed)).await?
        }
        _ => return Ok(false),
    };
    Ok(!is_at)
}

async fn has_unique_handles(store: &ExportStore) -> Result<bool, ExportError> {
    let unique = store.nfs.has_unique_handles().await;
    unique.context(|| "reading the attributes of the export's root".into())
}

async fn is_at_its_path(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    node: &FileRef,
) -> Result<bool, ExportError> {
    let found = at_its_path(store, verified, record).await?;
    Ok(has_fileid_of(node, found.as_ref()))
}

/// Returns what the recorded path leads to.
async fn at_its_path(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
) -> Result<Option<FileRef>, ExportError> {
    match paths::walk(store, verified, &record.directory).await {
        Ok(nodes) => Ok(paths::leaf(&nodes, &record.directory).cloned()),
        Err(ExportError::PathUnusable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn is_named(store: &ExportStore, node: &FileRef, place: (&FileRef, &Name)) -> Result<bool, ExportError> {
    Ok(has_fileid_of(node, named(store, place).await?.as_ref()))
}

/// Returns what has a name in a folder.
async fn named(store: &ExportStore, (folder, name): (&FileRef, &Name)) -> Result<Option<FileRef>, ExportError> {
    let found = store.nfs.lookup(&folder.handle, name).await;
    found.context(|| format!("looking up {name}"))
}

fn has_fileid_of(node: &FileRef, found: Option<&FileRef>) -> bool {
    found.is_some_and(|found| found.attributes.fileid == node.attributes.fileid)
}
