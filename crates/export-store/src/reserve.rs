//! Space and inodes on the export for the record of a deletion or an archival on a full export (data-safety rule 18).
//!
//! A spare file is overwritten in place and renamed over the record, and the record's former file becomes the spare: this
//! needs no space, however often. The reserve is given up if that is not possible.

use bytes::Bytes;
use rand::Rng as _;

use crate::error::{ErrorContext as _, ExportError};
use crate::record::MAX_RECORD_LEN;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, own_files};
use nfs_client::{FileKind, FileRef, Name, SetAttributes, Status};
use tokio::sync::OwnedMutexGuard;

/// Size of the reserve, in bytes: enough for the records of many deletions, even with large blocks.
const SIZE: usize = 256 * 1024;
/// Size of one write, in bytes: less than any server's limit.
const CHUNK: usize = 16 * 1024;
/// Minimum free space, in bytes, and number of inodes, to make the reserve: it must not be what fills the export.
const MIN_AVAILABLE: u64 = 16 * SIZE as u64;
const MIN_INODES: u64 = 64;
/// Maximum number of times the spare file is written. Linux changes the write verifier of all exports when it restarts, and
/// when a write to any of their file systems fails: others that fill theirs can cause that.
const MAX_WRITES: usize = 5;

/// Makes the spare file and the reserve if there are none and the export has room for them. Call it with each probe.
pub(crate) async fn refill(store: &ExportStore, verified: &VerifiedRoot) -> Result<(), ExportError> {
    if !store.reserve.is_due() {
        return Ok(());
    }
    let _lock = lock_spare(store, verified).await;
    let has_spare = find_spare(store, verified).await?.is_some();
    let doing = || "making the reserve for deletions".to_owned();
    let name = layout::name(layout::RESERVE)?;
    let cluster = &verified.cluster.handle;
    let found = store.nfs.lookup(cluster, &name).await.context(doing)?;
    let has_reserve = found.as_ref().is_some_and(|found| found.attributes.size >= SIZE as u64);
    if has_spare && has_reserve {
        store.reserve.set_passed();
        return Ok(());
    }
    let statistics = store.nfs.statistics().await.context(doing)?;
    let few_inodes = statistics.inodes > 0 && statistics.inodes_free < MIN_INODES;
    if statistics.available < MIN_AVAILABLE || few_inodes {
        return Ok(());
    }
    if !has_spare {
        match make_spare(store, verified).await {
            // A quota: what is there of the reserve may be needed.
            Err(error) if error.is_full() => return Ok(()),
            made => made?,
        }
    }
    if has_reserve {
        return Ok(());
    }
    // An interrupted one.
    if found.is_some() {
        remove_reserve(store, verified).await?;
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
    let committed = store.for_write(verified)?.commit(&file.handle).await;
    committed.context(doing).map(drop)
}

/// Gives the reserve up. Returns false if there is none.
pub(crate) async fn give_up(store: &ExportStore, verified: &VerifiedRoot) -> Result<bool, ExportError> {
    let _lock = lock_spare(store, verified).await;
    store.reserve.set_due();
    remove_reserve(store, verified).await
}

async fn remove_reserve(store: &ExportStore, verified: &VerifiedRoot) -> Result<bool, ExportError> {
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
    remove(store, verified, &name, &found, doing).await?;
    tracing::info!(
        backend = store.config.backend,
        "gave up the reserve: the export is full"
    );
    Ok(true)
}

/// Removes a file from the cluster folder, unless another process replaced it.
async fn remove(
    store: &ExportStore,
    verified: &VerifiedRoot,
    name: &Name,
    found: &FileRef,
    doing: impl FnOnce() -> String,
) -> Result<(), ExportError> {
    let nfs = store.for_write(verified)?;
    own_files::remove(nfs, &verified.cluster.handle, name, found.attributes.fileid, doing).await
}

/// Several backends of this cluster share the spare file and the reserve.
async fn lock_spare(store: &ExportStore, verified: &VerifiedRoot) -> OwnedMutexGuard<()> {
    store.lock(&verified.identity.id, layout::SPARE).await
}

/// Returns the spare file. Removes what an interrupted replacement left, which may be a link to a record.
async fn find_spare(store: &ExportStore, verified: &VerifiedRoot) -> Result<Option<FileRef>, ExportError> {
    let doing = || "looking for the spare file for records".to_owned();
    let cluster = &verified.cluster.handle;
    for name in [layout::NEXT_SPARE, layout::SPARE] {
        let name = layout::name(name)?;
        let Some(found) = store.nfs.lookup(cluster, &name).await.context(doing)? else {
            continue;
        };
        let attributes = &found.attributes;
        let usable = attributes.kind == FileKind::Regular && attributes.links == 1 && attributes.size > 0;
        if usable && name.as_bytes() == layout::SPARE.as_bytes() {
            return Ok(Some(found));
        }
        remove(store, verified, &name, &found, doing).await?;
    }
    Ok(None)
}

async fn make_spare(store: &ExportStore, verified: &VerifiedRoot) -> Result<(), ExportError> {
    let mut content = vec![0_u8; MAX_RECORD_LEN];
    rand::rng().fill_bytes(&mut content);
    let name = layout::name(layout::SPARE)?;
    let made = store
        .for_write(verified)?
        .create_file(&verified.cluster.handle, &name, &content, 0o600)
        .await;
    made.context(|| "making the spare file for records".to_owned())
        .map(drop)
}

/// Replaces a record with the spare file. Returns false if that is not possible, and the record is unchanged.
pub(crate) async fn replace_record(
    store: &ExportStore,
    verified: &VerifiedRoot,
    name: &Name,
    content: &[u8],
) -> Result<bool, ExportError> {
    let doing = || format!("replacing the record {name} with the spare file");
    let _lock = lock_spare(store, verified).await;
    // The replacement may be interrupted.
    store.reserve.set_due();
    let Some(spare) = find_spare(store, verified).await? else {
        return Ok(false);
    };
    match overwrite(store, verified, &spare, content).await {
        // It is shorter than the record.
        Err(error) if error.is_full() => return Ok(false),
        overwritten => overwritten?,
    }
    let (cluster, records) = (&verified.cluster.handle, &verified.records.handle);
    let (spare_name, next) = (layout::name(layout::SPARE)?, layout::name(layout::NEXT_SPARE)?);
    let Some(former) = store.nfs.lookup(records, name).await.context(doing)? else {
        return Ok(false);
    };
    // Not every server has hard links.
    let linked = store.for_write(verified)?.link(&former.handle, cluster, &next).await;
    let (from, to) = ((cluster, &spare_name), (records, name));
    let renamed = store
        .for_write(verified)?
        .rename_over(from, spare.attributes.fileid, to);
    renamed.await.context(doing)?;
    // The record is written. The rest is repeated by a later probe.
    let kept = match linked {
        Ok(()) => {
            let nfs = store.for_write(verified)?;
            let kept = nfs.rename((cluster, &next), former.attributes.fileid, (cluster, &spare_name));
            kept.await.context(doing)
        }
        Err(_) => make_spare(store, verified).await,
    };
    if let Err(error) = kept {
        tracing::debug!(
            backend = store.config.backend,
            "there is no spare file for records now: {error}"
        );
    }
    Ok(true)
}

/// Overwrites a file. Repeats what the server may have lost (RFC 8881 section 18.3).
async fn overwrite(
    store: &ExportStore,
    verified: &VerifiedRoot,
    file: &FileRef,
    content: &[u8],
) -> Result<(), ExportError> {
    for _ in 0..MAX_WRITES {
        if write_and_commit(store, verified, file, content).await? {
            return Ok(());
        }
    }
    Err(ExportError::ConcurrentlyModified {
        doing: "writing the spare file for records".to_owned(),
    })
}

/// Returns false if the server may have lost what was written before it was committed.
async fn write_and_commit(
    store: &ExportStore,
    verified: &VerifiedRoot,
    file: &FileRef,
    content: &[u8],
) -> Result<bool, ExportError> {
    let doing = || "writing the spare file for records".to_owned();
    let (mut offset, mut verifiers) = (0, Vec::new());
    while let Some(rest) = content.get(offset..).filter(|rest| !rest.is_empty()) {
        let rest = Bytes::copy_from_slice(rest);
        let nfs = store.for_write(verified)?;
        let written = nfs.write(&file.handle, offset as u64, &rest).await.context(doing)?;
        offset += written.count;
        verifiers.extend((!written.stable).then_some(written.verifier));
    }
    let size = SetAttributes {
        size: Some(content.len() as u64),
        ..SetAttributes::default()
    };
    let nfs = store.for_write(verified)?;
    nfs.set_attributes(&file.handle, size).await.context(doing)?;
    let committed = nfs.commit(&file.handle).await.context(doing)?;
    Ok(verifiers.iter().all(|verifier| *verifier == committed))
}
