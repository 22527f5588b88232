//! Reserve of space and of an inode on the export, given up to make room for the record of a deletion or an archival
//! on a full export (data-safety rule 18).

use bytes::Bytes;
use rand::Rng as _;

use crate::error::{ErrorContext as _, ExportError};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, own_files};
use nfs_client::{FileKind, SetAttributes, Status};

/// Size of the reserve, in bytes: enough for the records of many deletions, even with large blocks.
const SIZE: usize = 256 * 1024;
/// Size of one write, in bytes: less than any server's limit.
const CHUNK: usize = 16 * 1024;
/// Minimum free space, in bytes, and number of inodes, to make the reserve: it must not be what fills the export.
const MIN_AVAILABLE: u64 = 16 * SIZE as u64;
const MIN_INODES: u64 = 64;

/// Makes the reserve if there is none and the export has room for it.
pub(crate) async fn refill(store: &ExportStore, verified: &VerifiedRoot) -> Result<(), ExportError> {
    let doing = || "making the reserve for deletions".to_owned();
    let name = layout::name(layout::RESERVE)?;
    let cluster = &verified.cluster.handle;
    let found = store.nfs.lookup(cluster, &name).await.context(doing)?;
    let size = found.as_ref().map_or(0, |found| found.attributes.size);
    if size >= SIZE as u64 {
        return Ok(());
    }
    let statistics = store.nfs.statistics().await.context(doing)?;
    let few_inodes = statistics.inodes > 0 && statistics.inodes_free < MIN_INODES;
    if statistics.available < MIN_AVAILABLE || few_inodes {
        return Ok(());
    }
    // An interrupted one. Another backend of this cluster may be making it, which then fails there and is repeated.
    if found.is_some() {
        give_up(store, verified).await?;
    }
    let mut content = vec![0_u8; CHUNK];
    // Random, so that it takes up its size on a file system that compresses or deduplicates.
    rand::rng().fill_bytes(&mut content);
    let created = store
        .for_write(verified)?
        .create_file(cluster, &name, &content, 0o600)
        .await;
    let file = match created {
        Err(error) if error.status() == Some(Status::Exists) => return Ok(()),
        created => created.context(doing)?,
    };
    let mut offset = CHUNK;
    while offset < SIZE {
        rand::rng().fill_bytes(&mut content);
        let chunk = Bytes::copy_from_slice(&content);
        let written = store
            .for_write(verified)?
            .write(&file.handle, offset as u64, &chunk)
            .await;
        offset += written.context(doing)?.count;
    }
    store.nfs.commit(&file.handle).await.context(doing).map(drop)
}

/// Gives the reserve up. Returns false if there is none.
pub(crate) async fn give_up(store: &ExportStore, verified: &VerifiedRoot) -> Result<bool, ExportError> {
    let doing = || "giving up the reserve for deletions".to_owned();
    let name = layout::name(layout::RESERVE)?;
    let cluster = &verified.cluster.handle;
    let found = store.nfs.lookup(cluster, &name).await.context(doing)?;
    let Some(found) = found.filter(|found| found.attributes.kind == FileKind::Regular) else {
        return Ok(false);
    };
    // A server that keeps the file open would keep its space, too.
    let empty = SetAttributes {
        size: Some(0),
        ..SetAttributes::default()
    };
    let emptied = store.for_write(verified)?.set_attributes(&found.handle, empty).await;
    if let Err(error) = emptied {
        tracing::debug!(
            backend = store.config.backend,
            "the reserve is removed without being emptied: {error}"
        );
    }
    own_files::remove(store.for_write(verified)?, cluster, &name, found.attributes.fileid, doing).await?;
    tracing::info!(
        backend = store.config.backend,
        "gave up the reserve: the export is full"
    );
    Ok(true)
}
