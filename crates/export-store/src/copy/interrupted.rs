//! What an interrupted attempt at a backup left: its copy of the tree, and the manifest up to its last checkpoint.
//!
//! The next attempt uses it as a base ([`crate::copy::manifest`]). Until that attempt has a checkpoint that saves more, a
//! further one uses it, too. It is in a folder within the staging folder, so that whatever moves the staging folder into
//! the trash moves everything.

use crate::copy::to_archive::ArchiveRequest;
use crate::copy::{manifest, publish, staging};
use crate::error::{ErrorContext as _, ExportError};
use crate::record::{Checkpoint, Record};
use crate::request::ClaimRef;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, trash};
use nfs_client::{FileKind, FileRef, Name, Status};

/// What a staging folder contains of an attempt. The tree is the last one: it shows that everything was moved.
const PARTS: [&str; 3] = [layout::STAGED_LINKS, layout::STAGED_MANIFEST, layout::STAGED_TREE];

/// A staging folder with the tree of a checkpoint.
pub(super) struct FoundCopy {
    pub checkpoint: Checkpoint,
    folder: FileRef,
    /// A later attempt used the tree as a base, and has no checkpoint that saves more.
    is_set_aside: bool,
}

/// The part of a backup that an interrupted attempt completed.
pub(super) struct InterruptedCopy {
    pub checkpoint: Checkpoint,
    pub tree: FileRef,
    /// Anybody may have written the file: the checkpoint has the digest of its root chunk.
    pub manifest: FileRef,
}

/// Returns the staging folder of an attempt that was interrupted after a checkpoint. The record is signed, and is that of
/// the requester.
pub(super) async fn find(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &ArchiveRequest,
    record: &Record,
) -> Result<Option<FoundCopy>, ExportError> {
    let copy = record.state.archive_info().and_then(|archive| archive.copy.as_ref());
    let Some(checkpoint) = copy.and_then(|copy| copy.checkpoint.clone()) else {
        return Ok(None);
    };
    if !request.is_of_same_volume(record) {
        return Ok(None);
    }
    let Some((_, folder)) = publish::find_staged(store, verified, &request.name).await? else {
        return Ok(None);
    };
    let has_tree = async |folder: &FileRef| {
        let tree = find_directory(store, verified, folder, layout::STAGED_TREE).await?;
        Ok::<_, ExportError>(tree.is_some_and(|tree| tree.attributes.fileid == checkpoint.tree))
    };
    let former = find_directory(store, verified, &folder, layout::STAGED_FORMER).await?;
    let is_set_aside = match &former {
        Some(former) => has_tree(former).await?,
        None => false,
    };
    if !is_set_aside && !has_tree(&folder).await? {
        return Ok(None);
    }
    Ok(Some(FoundCopy {
        checkpoint,
        folder,
        is_set_aside,
    }))
}

/// Makes room for the next attempt in the staging folder, which is returned: sets aside the tree of the checkpoint, and
/// moves what else is there into the trash. Whenever it is interrupted, the next attempt finds the tree of the checkpoint.
pub(super) async fn set_aside(
    store: &ExportStore,
    verified: &VerifiedRoot,
    of: (&ClaimRef, &str),
    found: FoundCopy,
) -> Result<(FileRef, Option<InterruptedCopy>), ExportError> {
    let folder = found.folder;
    if found.is_set_aside {
        move_parts(store, verified, of.1, (&folder, layout::STAGED_DISCARDED)).await?;
        discard(store, verified, of, (&folder, layout::STAGED_DISCARDED)).await?;
    } else {
        // Without a tree, it is the folder into which this tree was being moved.
        if let Some(former) = find_directory(store, verified, &folder, layout::STAGED_FORMER).await?
            && find_directory(store, verified, &former, layout::STAGED_TREE)
                .await?
                .is_some()
        {
            discard(store, verified, of, (&folder, layout::STAGED_FORMER)).await?;
        }
        move_parts(store, verified, of.1, (&folder, layout::STAGED_FORMER)).await?;
    }
    let interrupted = open(store, verified, (of.1, &folder), found.checkpoint).await?;
    Ok((folder, interrupted))
}

/// Opens what was set aside, with the handles that it has now.
async fn open(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (volume, folder): (&str, &FileRef),
    checkpoint: Checkpoint,
) -> Result<Option<InterruptedCopy>, ExportError> {
    let Some(former) = find_directory(store, verified, folder, layout::STAGED_FORMER).await? else {
        return Ok(None);
    };
    let tree = find_directory(store, verified, &former, layout::STAGED_TREE).await?;
    let tree = tree.filter(|tree| tree.attributes.fileid == checkpoint.tree);
    let manifest = match find_part(store, &former, layout::STAGED_MANIFEST).await? {
        Some((_, manifest)) => Some(manifest).filter(|file| file.attributes.kind == FileKind::Regular),
        // The attempt was interrupted between the last two steps of its publication.
        None => manifest::find(store, verified, volume).await?,
    };
    Ok(tree.zip(manifest).map(|(tree, manifest)| InterruptedCopy {
        checkpoint,
        tree,
        manifest,
    }))
}

/// Moves all that an attempt left into a folder beside it.
async fn move_parts(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    (folder, target): (&FileRef, &str),
) -> Result<(), ExportError> {
    let doing = || format!("setting aside the interrupted copy of volume {volume}");
    let mut into = find_directory(store, verified, folder, target).await?;
    for part in PARTS {
        let Some((name, found)) = find_part(store, folder, part).await? else {
            continue;
        };
        let into = match &into {
            Some(into) => into,
            None => {
                let made = staging::create_folder(store, verified, folder, layout::name(target)?, volume).await;
                into.insert(made?)
            }
        };
        let (from, to) = ((&folder.handle, &name), (&into.handle, &name));
        let file_id = found.attributes.fileid;
        match store.for_write(verified)?.rename(from, file_id, to).await {
            // An earlier call was executed without a reply.
            Err(error) if error.status() == Some(Status::NotFound) => {}
            renamed => renamed.context(doing)?,
        }
    }
    Ok(())
}

/// Moves a folder within the staging folder into the trash, if it exists.
async fn discard(
    store: &ExportStore,
    verified: &VerifiedRoot,
    of: (&ClaimRef, &str),
    (folder, name): (&FileRef, &str),
) -> Result<(), ExportError> {
    match find_part(store, folder, name).await? {
        Some((name, found)) => {
            trash::move_to_trash(store, verified, of, (folder, &name), found.attributes.fileid).await
        }
        None => Ok(()),
    }
}

async fn find_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    name: &str,
) -> Result<Option<FileRef>, ExportError> {
    let found = find_part(store, folder, name).await?;
    Ok(found
        .map(|(_, node)| node)
        .filter(|node| verified.is_plain_directory(node)))
}

async fn find_part(store: &ExportStore, folder: &FileRef, name: &str) -> Result<Option<(Name, FileRef)>, ExportError> {
    let name = layout::name(name)?;
    let found = store.nfs.lookup(&folder.handle, &name).await;
    let found = found.context(|| format!("looking up {name} of an interrupted copy"))?;
    Ok(found.map(|node| (name, node)))
}
