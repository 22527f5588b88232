//! Records on the export: created exclusively, replaced atomically, removed by fileid.

use crate::error::{ErrorContext as _, ExportError};
use crate::own_files::{self, OwnFile};
use crate::path_reservations::Holder;
use crate::record::{MAX_RECORD_LEN, Record, RecordError};
use crate::signature::{SignatureStatus, Signer};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, limits, reserve, unsigned_records};
use nfs_client::{FileHandle, MkdirResult, NewDirectory, NewFile, Status, Unchanged};

/// Mode of the file with a record.
const MODE: u32 = 0o600;

/// Result of reading a volume's record.
#[derive(Debug)]
pub enum ReadRecord {
    /// Nothing.
    Nothing,
    /// The record, and the result of checking its signature. Nothing may be created from an unsigned record unless an
    /// object confirms it.
    Record(Box<Record>, SignatureStatus),
    /// A file that is not a valid record.
    Unreadable(RecordError),
}

/// Result of creating a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Created {
    Yes,
    /// There is one already.
    Exists,
}

pub(crate) async fn read(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<ReadRecord, ExportError> {
    read_in(store, verified, &verified.records.handle, volume).await
}

/// Reads a record. A file whose writer stopped before it had written the record is removed and counts as nothing: the
/// record comes before what it is about. Only for the one operation that may write this record now.
pub(crate) async fn read_or_remove_truncated(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<ReadRecord, ExportError> {
    match read(store, verified, volume).await? {
        ReadRecord::Unreadable(RecordError::Truncated) => {
            remove(store, verified, volume).await?;
            Ok(ReadRecord::Nothing)
        }
        found => Ok(found),
    }
}

/// Reads a record of any cluster. The signature of another cluster is never valid here.
pub(crate) async fn read_in(
    store: &ExportStore,
    verified: &VerifiedRoot,
    records: &FileHandle,
    volume: &str,
) -> Result<ReadRecord, ExportError> {
    let name = layout::record(volume)?;
    let doing = || format!("reading the record of volume {volume}");
    Ok(
        match own_files::read(&store.nfs, records, &name, MAX_RECORD_LEN, doing).await? {
            OwnFile::Nothing => ReadRecord::Nothing,
            OwnFile::File(file) => match Record::parse(volume, &file.content) {
                Ok(record) => {
                    let trust = signer(store, verified).verify(volume, &file.content);
                    ReadRecord::Record(Box::new(record), trust)
                }
                Err(error) => ReadRecord::Unreadable(error),
            },
            OwnFile::Unusable(why) => ReadRecord::Unreadable(RecordError::Damaged(why)),
        },
    )
}

pub(crate) async fn create(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
) -> Result<Created, ExportError> {
    let (name, content) = (layout::record(&record.volume)?, encode(store, verified, record)?);
    let nfs = store.for_write(verified)?;
    changing(store, verified, &record.volume);
    match nfs.create_file(&verified.records.handle, &name, &content, MODE).await {
        Ok(_) => {
            written(store, verified, record);
            Ok(Created::Yes)
        }
        Err(error) if error.status() == Some(Status::Exists) => Ok(Created::Exists),
        Err(error) => Err(error).context(|| format!("writing the record of volume {}", record.volume)),
    }
}

/// Creates a record and the directory that it announces, in this order, and the directory only if no other cluster has
/// anything on the export in between. Returns `None` with the record if the directory is still to be created, after another
/// look at the other clusters.
pub(super) async fn create_with_directory(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
    none_while: &Unchanged,
    directory: &NewDirectory<'_>,
) -> Result<(Created, Option<MkdirResult>), ExportError> {
    let (name, content) = (layout::record(&record.volume)?, encode(store, verified, record)?);
    let file = NewFile {
        at: (&verified.records.handle, &name),
        content: &content,
        mode: MODE,
    };
    let nfs = store.for_write(verified)?;
    changing(store, verified, &record.volume);
    let unchanged = std::slice::from_ref(none_while);
    match nfs.create_file_and_directory(&file, unchanged, directory).await {
        Ok(made) => {
            written(store, verified, record);
            Ok((Created::Yes, made))
        }
        Err(error) if error.status() == Some(Status::Exists) => Ok((Created::Exists, None)),
        Err(error) => {
            let doing = || {
                format!(
                    "recording and creating {} for volume {}",
                    record.directory, record.volume
                )
            };
            Err(error).context(doing)
        }
    }
}

pub(crate) async fn replace(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<(), ExportError> {
    replace_with(store, verified, record).await.map(drop)
}

/// Replaces a record. Returns the fileid of its file.
async fn replace_with(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<u64, ExportError> {
    let (name, draft) = (layout::record(&record.volume)?, layout::draft(&record.volume)?);
    let content = encode(store, verified, record)?;
    changing(store, verified, &record.volume);
    let file = store
        .for_write(verified)?
        .replace_file(&verified.records.handle, &name, &draft, &content, MODE)
        .await
        .context(|| format!("writing the record of volume {}", record.volume))?;
    written(store, verified, record);
    Ok(file.attributes.fileid)
}

/// Forgets the content of a record that is about to change: an error may leave the former one or the new one.
fn changing(store: &ExportStore, verified: &VerifiedRoot, volume: &str) {
    store.state().finished.remove(volume);
    store.reservations.recent_archives.remove(&verified.identity.id, volume);
    store.reservations.record_index.remove(&verified.identity.id, volume);
}

fn written(store: &ExportStore, verified: &VerifiedRoot, record: &Record) {
    store.reservations.record_index.insert(&verified.identity.id, record);
    store.reservations.groups.record(&verified.identity.id, record);
    unsigned_records::untrack(store, &record.volume);
}

/// Like [`replace`], for a deletion or an archival, which must not wait for space. On a full export, uses the spare file,
/// or gives up the reserve (data-safety rule 18). Returns the fileid of the record's file, if it is known.
pub(crate) async fn replace_to_free_space(
    store: &ExportStore,
    verified: &VerifiedRoot,
    record: &Record,
) -> Result<Option<u64>, ExportError> {
    match replace_with(store, verified, record).await {
        Err(error) if error.is_full() => {
            let (name, content) = (layout::record(&record.volume)?, encode(store, verified, record)?);
            if reserve::replace_record(store, verified, &name, &content).await? {
                written(store, verified, record);
                return Ok(None);
            }
            match reserve::give_up(store, verified).await? {
                true => replace_with(store, verified, record).await.map(Some),
                false => Err(error),
            }
        }
        written => written.map(Some),
    }
}

/// Forgets a record that is gone. Another backend on the export may have reserved its paths when it read the record.
fn removed_record(store: &ExportStore, verified: &VerifiedRoot, volume: &str) {
    unsigned_records::untrack(store, volume);
    store.reservations.groups.remove_record(&verified.identity.id, volume);
    store.reservations.release_kept(&Holder::Volume(volume.to_owned()));
}

/// Removes the order of a volume whose record is gone. If that fails, or the process ends before it, the next comparison of
/// orders with records does it.
async fn remove_order(store: &ExportStore, verified: &VerifiedRoot, volume: &str) {
    if !store.orders_limits() {
        return;
    }
    if let Err(error) = limits::remove(store, verified, volume).await {
        tracing::debug!(volume, "its quota order is left for later: {error}");
    }
}

/// Removes a volume's record, if it exists.
pub(crate) async fn remove(store: &ExportStore, verified: &VerifiedRoot, volume: &str) -> Result<(), ExportError> {
    let doing = || format!("removing the record of volume {volume}");
    let name = layout::record(volume)?;
    let found = store.nfs.lookup(&verified.records.handle, &name).await;
    let Some(node) = found.context(doing)? else {
        changing(store, verified, volume);
        store.confirm_answers(verified).await?;
        removed_record(store, verified, volume);
        return Ok(());
    };
    match remove_file(store, verified, volume, node.attributes.fileid).await? {
        true => Ok(()),
        // An earlier call that was still in flight replaced it.
        false => Err(ExportError::ConcurrentlyModified { doing: doing() }),
    }
}

/// Removes a volume's record if its file has this fileid, or if it does not exist. Returns false if it has another one.
pub(crate) async fn remove_file(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    file_id: u64,
) -> Result<bool, ExportError> {
    let name = layout::record(volume)?;
    let nfs = store.for_write(verified)?;
    changing(store, verified, volume);
    match nfs.remove_file(&verified.records.handle, &name, file_id).await {
        Err(error) if error.status() == Some(Status::NotSame) => return Ok(false),
        Err(error) if error.status() == Some(Status::NotFound) => {}
        removed => removed.context(|| format!("removing the record of volume {volume}"))?,
    }
    removed_record(store, verified, volume);
    remove_order(store, verified, volume).await;
    Ok(true)
}

fn encode(store: &ExportStore, verified: &VerifiedRoot, record: &Record) -> Result<Vec<u8>, ExportError> {
    let bytes = record.to_bytes().map_err(|why| ExportError::RecordDamaged {
        volume: record.volume.clone(),
        why,
    })?;
    Ok(signer(store, verified).seal(&record.volume, &bytes))
}

pub(crate) fn signer<'a>(store: &'a ExportStore, verified: &'a VerifiedRoot) -> Signer<'a> {
    let config = &store.config;
    config.records_key.signer(&config.cluster_id, &verified.identity.id)
}
