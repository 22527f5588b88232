//! The operator's own folders: created if missing, and checked whenever they are looked up (data-safety rule 1).

use crate::error::{ErrorContext as _, ExportError};
use crate::layout;
use crate::store::ExportStore;
use nfs_client::{Client, FileKind, FileRef, SetAttributes, Status};

/// Maximum number of attempts while another process creates the same folder.
const ATTEMPTS: u32 = 4;

/// Checks a folder of the operator (data-safety rule 1): any client may have replaced it.
pub(super) fn check_folder(
    node: &FileRef,
    root: &FileRef,
    owner: Option<&FileRef>,
    path: &str,
) -> Result<(), ExportError> {
    let found = &node.attributes;
    let unsafe_because = |why: String| ExportError::ReservedDirectoryUnsafe {
        path: path.to_owned(),
        why,
    };
    if found.kind != FileKind::Directory {
        return Err(unsafe_because("it is not a directory".into()));
    }
    if found.fsid != root.attributes.fsid {
        return Err(unsafe_because("another file system is mounted there".into()));
    }
    if found.mode & 0o077 != 0 {
        return Err(unsafe_because(format!(
            "other users can enter it (mode {:04o})",
            found.mode
        )));
    }
    owner.map_or(Ok(()), |owner| check_folder_owner(node, owner, path))
}

/// Checks that a file of the operator has the expected owner and is not accessible to others.
pub(super) fn check_folder_owner(node: &FileRef, owner: &FileRef, path: &str) -> Result<(), ExportError> {
    let (found, wanted) = (&node.attributes, &owner.attributes);
    let same = match (found.uid, wanted.uid) {
        (Some(found), Some(wanted)) => found == wanted,
        _ => found.owner == wanted.owner,
    };
    let why = if !same {
        format!(
            "it belongs to {}, and {} to {}",
            found.owner,
            layout::RESERVED,
            wanted.owner
        )
    } else if found.mode & 0o077 != 0 {
        format!("other users can access it (mode {:04o})", found.mode)
    } else {
        return Ok(());
    };
    Err(ExportError::ReservedDirectoryUnsafe {
        path: path.to_owned(),
        why,
    })
}

/// Returns the cluster's folder, which may have been `found` already, its records and its trash. Creates them if missing.
/// Records that were removed are made again only once an administrator `accepted` that. `export_id` is the identity of the
/// export, if it has one.
pub(crate) async fn ensure_folders(
    store: &ExportStore,
    nfs: &Client,
    (root, reserved): (&FileRef, &FileRef),
    export_id: Option<&str>,
    found: Option<FileRef>,
    accepted: bool,
) -> Result<[FileRef; 3], ExportError> {
    let id = &store.config.cluster_id;
    layout::cluster(id)?;
    let path = format!("{}/{id}", layout::RESERVED);
    let cluster = match found {
        Some(cluster) => {
            check_folder(&cluster, root, Some(reserved), &path)?;
            cluster
        }
        None => ensure_folder(nfs, root, reserved, id, &path, Some(reserved)).await?,
    };
    let records = format!("{path}/{}", layout::RECORDS);
    let trash = format!("{path}/{}", layout::TRASH);
    // The trash is made after the records, so what has a trash had records. It is looked up first: another process may be
    // making both.
    let found_trash = find_folder(nfs, root, &cluster, layout::TRASH, &trash, Some(reserved)).await?;
    let records = if found_trash.is_some() && !accepted {
        let found = find_folder(nfs, root, &cluster, layout::RECORDS, &records, Some(reserved)).await?;
        found.ok_or_else(|| ExportError::FolderMissing {
            path: records,
            export_id: export_id.map(str::to_owned),
        })?
    } else {
        ensure_folder(nfs, root, &cluster, layout::RECORDS, &records, Some(reserved)).await?
    };
    let trash = match found_trash {
        Some(found) => found,
        None => ensure_folder(nfs, root, &cluster, layout::TRASH, &trash, Some(reserved)).await?,
    };
    Ok([cluster, records, trash])
}

/// Looks a folder up and checks it.
async fn find_folder(
    nfs: &Client,
    root: &FileRef,
    parent: &FileRef,
    name: &str,
    path: &str,
    owner: Option<&FileRef>,
) -> Result<Option<FileRef>, ExportError> {
    let found = nfs.lookup(&parent.handle, &layout::name(name)?).await;
    let found = found.context(|| format!("looking up {path}"))?;
    if let Some(node) = &found {
        check_folder(node, root, owner, path)?;
    }
    Ok(found)
}

pub(crate) async fn ensure_folder(
    nfs: &Client,
    root: &FileRef,
    parent: &FileRef,
    name: &str,
    path: &str,
    owner: Option<&FileRef>,
) -> Result<FileRef, ExportError> {
    for _ in 0..ATTEMPTS {
        if let Some(node) = find_folder(nfs, root, parent, name, path, owner).await? {
            return Ok(node);
        }
        let attributes = SetAttributes {
            mode: Some(0o700),
            ..SetAttributes::default()
        };
        match nfs
            .make_directory(&parent.handle, &layout::name(name)?, attributes)
            .await
        {
            Ok(made) => {
                check_folder(&made.node, root, owner, path)?;
                return Ok(made.node);
            }
            // Another process created it first.
            Err(error) if error.status() == Some(Status::Exists) => {}
            Err(error) => return Err(error).context(|| format!("creating {path}")),
        }
    }
    Err(ExportError::ConcurrentlyModified {
        doing: format!("creating {path}"),
    })
}
