//! The file of a manifest: in the staging folder while the backup is made, then in a folder of its own, under the name of
//! the record.

use crate::copy::{CopyError, Staging};
use crate::error::{ErrorContext as _, ExportError};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{folders, layout, own_files};
use nfs_client::{FileKind, FileRef};

/// Creates the file of a manifest in an empty staging folder.
pub(in crate::copy) async fn create(store: &ExportStore, staging: &Staging) -> Result<FileRef, CopyError> {
    let name = layout::name(layout::STAGED_MANIFEST)?;
    let nfs = store.for_write(&staging.verified)?;
    let file = crate::identity::create_fresh_file(nfs, &staging.folder, &name, b"").await?;
    Ok(file)
}

/// Moves the file of a finished manifest to its place, where it replaces what an earlier attempt left. Succeeds if this was
/// done already.
pub(in crate::copy) async fn publish(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (staging, manifest): (&Staging, &FileRef),
    record: &str,
) -> Result<(), ExportError> {
    let folder = folder(store, verified).await?;
    let (staged, name) = (layout::name(layout::STAGED_MANIFEST)?, layout::manifest(record)?);
    let (from, to) = ((&staging.folder.handle, &staged), (&folder.handle, &name));
    let file_id = manifest.attributes.fileid;
    let doing = || format!("moving the manifest of {record} to its place");
    let renamed = store.for_write(verified)?.rename_over(from, file_id, to).await;
    let Err(error) = renamed else { return Ok(()) };
    // The reply to the RENAME may be lost, so check what has the name.
    match store.nfs.lookup(&folder.handle, &name).await.context(doing)? {
        Some(found) if found.attributes.fileid == file_id => Ok(()),
        _ => Err(error).context(doing),
    }
}

/// Returns the file of a manifest, if it exists.
pub(in crate::copy) async fn find(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &str,
) -> Result<Option<FileRef>, ExportError> {
    let doing = || format!("looking up the manifest of {record}");
    let folder = layout::name(layout::MANIFESTS)?;
    let Some(folder) = store
        .nfs
        .lookup(&verified.cluster.handle, &folder)
        .await
        .context(doing)?
    else {
        return Ok(None);
    };
    let name = layout::manifest(record)?;
    let found = store.nfs.lookup(&folder.handle, &name).await.context(doing)?;
    let is_file = |file: &FileRef| {
        file.attributes.kind == FileKind::Regular && file.attributes.fsid == verified.cluster.attributes.fsid
    };
    Ok(found.filter(is_file))
}

/// Removes the manifest of an archive, if there is one. Called before its record is removed.
pub(crate) async fn remove(store: &ExportStore, verified: &VerifiedRoot, record: &str) -> Result<(), ExportError> {
    let Some(file) = find(store, verified, record).await? else {
        return Ok(());
    };
    let doing = || format!("removing the manifest of {record}");
    let folder = folder(store, verified).await?;
    let nfs = store.for_write(verified)?;
    let (name, file_id) = (layout::manifest(record)?, file.attributes.fileid);
    own_files::remove(nfs, &folder.handle, &name, file_id, doing).await
}

async fn folder(store: &ExportStore, verified: &VerifiedRoot) -> Result<FileRef, ExportError> {
    let path = format!("{}/{}/{}", layout::RESERVED, store.config.cluster_id, layout::MANIFESTS);
    folders::ensure_folder(
        store.for_write(verified)?,
        &verified.root,
        &verified.cluster,
        layout::MANIFESTS,
        &path,
        Some(&verified.reserved),
    )
    .await
}
