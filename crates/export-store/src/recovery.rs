//! Recovery after a start: completes or reports what an earlier process left unfinished.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::copy;
use crate::error::{ErrorContext as _, ExportError};
use crate::reclaim;
use crate::record::{Record, State};
use crate::records::ReadRecord;
use crate::request::{OpenRecord, RecoveryReport, StuckRecord};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{archives, layout, parents, paths, readdir, records, trash, unsigned_records};
use nfs_client::{Entry, FileKind, Name};

/// Number of concurrent reads of records.
const READS: usize = 16;
/// Maximum number of records in a listing: an endless listing must not exhaust the memory.
const MAX_RECORDS: usize = 1_000_000;
/// Maximum number of invalid files that are named.
const MAX_DAMAGED: usize = 1000;

/// Result of recovering one record.
enum Kind {
    Open(OpenRecord),
    Stuck(StuckRecord),
    Elsewhere(OpenRecord),
    Damaged(String, String),
    /// Nothing to report.
    Settled,
}

pub(crate) async fn recover(
    store: &ExportStore,
    verified: &VerifiedRoot,
    has_volume: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<RecoveryReport, ExportError> {
    remove_probe_leftovers(store, verified).await?;
    let mut without_record = store.reservations.groups.snapshot(&verified.identity.id);
    let volume_exists = |name: &Name| std::str::from_utf8(name.as_bytes()).is_ok_and(has_volume);
    // Most volumes exist: their names take no memory.
    let select = |entry: Entry| {
        if let Ok(volume) = std::str::from_utf8(entry.name.as_bytes()) {
            without_record.remove(volume);
        }
        let is_needed = layout::is_draft(&entry.name) || !volume_exists(&entry.name);
        is_needed.then(|| entry.name.detached())
    };
    let folder = &verified.records.handle;
    let names = readdir::select_names(store, folder, "the records", MAX_RECORDS, select).await?;
    let (drafts, names): (Vec<Name>, Vec<Name>) = names.into_iter().partition(layout::is_draft);
    for draft in &drafts {
        // Another backend on the export may be replacing the record.
        let _lock = match layout::drafted_volume(draft) {
            Some(volume) => Some(store.lock_volume(volume).await?),
            None => None,
        };
        remove_leftovers(store, verified, &verified.records, std::slice::from_ref(draft)).await?;
    }
    store.reservations.groups.sweep(&verified.identity.id, &without_record);
    unsigned_records::retain_listed(store, &names);
    // Those that were created since the listing have one now.
    let without = names.into_iter().filter(|name| !volume_exists(name));
    let kinds = stream::iter(without.map(|name| recover_one(store, verified, name)));
    let mut kinds = kinds.buffer_unordered(READS);
    let mut settled = RecoveryReport::default();
    while let Some(kind) = kinds.try_next().await? {
        match kind {
            Kind::Open(record) => settled.open.push(record),
            Kind::Stuck(record) => settled.stuck.push(record),
            Kind::Elsewhere(record) => settled.elsewhere.push(record),
            Kind::Damaged(name, why) if settled.damaged.len() < MAX_DAMAGED => settled.damaged.push((name, why)),
            Kind::Damaged(..) => settled.further_damaged += 1,
            Kind::Settled => {}
        }
    }
    parents::remove_all_empty(store, verified).await?;
    unsigned_records::refresh_other_clusters(store, verified).await;
    Ok(settled)
}

async fn recover_one(store: &ExportStore, verified: &VerifiedRoot, name: Name) -> Result<Kind, ExportError> {
    let Ok(volume) = std::str::from_utf8(name.as_bytes()) else {
        return Ok(Kind::Damaged(name.to_string(), "no volume has this name".into()));
    };
    // Waits for an operation on the volume to end.
    let _lock = store.lock_volume(volume).await?;
    let (record, trust) = match records::read(store, verified, volume).await {
        Ok(ReadRecord::Record(record, trust)) => (*record, trust),
        Ok(ReadRecord::Nothing) => return Ok(Kind::Settled),
        Ok(ReadRecord::Unreadable(why)) => return Ok(Kind::Damaged(volume.to_owned(), why.to_string())),
        Err(ExportError::NameUnusable { .. }) => {
            return Ok(Kind::Damaged(name.to_string(), "no volume has this name".into()));
        }
        Err(error) => return Err(error),
    };
    store.reservations.groups.record(&verified.identity.id, &record);
    let signed = trust == SignatureStatus::Signed;
    if !signed {
        unsigned_records::track(store, &record, trust);
    }
    let is_lost = signed && record.is_in_use();
    // Backends on the same export share the folder of records. Each recovers its own ones. The records of a backend
    // that no longer exists are left for the orphan scan to report.
    if record.backend != store.config.backend {
        keep_reserved(store, verified, &record, signed);
        return Ok(match is_lost {
            true => Kind::Elsewhere(open_record(record, is_lost)),
            false => Kind::Settled,
        });
    }
    match &record.state {
        State::Creating | State::Live => {
            paths::hold(store, verified, &record);
            Ok(Kind::Open(open_record(record, is_lost)))
        }
        State::Archived(_) | State::Purging { .. } | State::Restoring { .. } => {
            archives::track(store, verified, &record);
            Ok(Kind::Settled)
        }
        State::Copying(_) => {
            if !signed || !copy::complete(store, verified, &record).await? {
                copy::track(store, verified, &record, signed);
            }
            Ok(Kind::Settled)
        }
        State::Tombstone { .. } if signed => {
            trash::track_tombstone(store, &record);
            Ok(Kind::Settled)
        }
        State::Archiving(_) if signed && reclaim::complete_archive(store, verified, &record).await? => {
            Ok(Kind::Settled)
        }
        State::RemovingEmpty | State::Deleting { .. }
            if reclaim::remove_finished_record(store, verified, &record).await? =>
        {
            Ok(Kind::Settled)
        }
        State::Archiving(_) | State::RemovingEmpty | State::Deleting { .. } | State::Tombstone { .. } => {
            paths::hold(store, verified, &record);
            Ok(Kind::Stuck(StuckRecord {
                volume: record.volume,
                directory: record.directory,
            }))
        }
    }
}

fn open_record(record: Record, is_lost: bool) -> OpenRecord {
    OpenRecord {
        cluster: record.metadata.map(|metadata| metadata.cluster),
        is_creating: record.state == State::Creating,
        is_adopted: record.adopted,
        restores: record.restores.is_some(),
        is_lost,
        volume: record.volume,
        backend: record.backend,
        claim: record.claim,
    }
}

/// Remembers the archives of released volumes, which [`recover`] leaves to their reclaim. It may never come: the volume
/// can be retained, or removed by hand.
pub(crate) async fn track_archives(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volumes: &[String],
) -> Result<(), ExportError> {
    let volumes = stream::iter(volumes).map(Ok);
    let tracked = volumes.try_for_each_concurrent(READS, |volume| async move {
        let _lock = store.lock_volume(volume).await?;
        if let ReadRecord::Record(record, _) = records::read(store, verified, volume).await? {
            store.reservations.groups.record(&verified.identity.id, &record);
            archives::track(store, verified, &record);
        }
        Ok(())
    });
    tracked.await
}

/// Reserves the paths of another backend's record. Does nothing else.
fn keep_reserved(store: &ExportStore, verified: &VerifiedRoot, record: &Record, signed: bool) {
    match &record.state {
        State::Archived(_) | State::Purging { .. } | State::Restoring { .. } => {
            archives::track(store, verified, record);
        }
        State::Copying(_) => copy::track(store, verified, record, signed),
        State::Creating
        | State::Live
        | State::Archiving(_)
        | State::RemovingEmpty
        | State::Deleting { .. }
        | State::Tombstone { .. } => paths::hold(store, verified, record),
    }
}

/// Removes files left by an interrupted probe or creation of an identity.
async fn remove_probe_leftovers(store: &ExportStore, verified: &VerifiedRoot) -> Result<(), ExportError> {
    let path = "the cluster's folder";
    let names = readdir::list_names(store, &verified.cluster.handle, path, MAX_RECORDS).await?;
    let leftovers: Vec<Name> = names.into_iter().filter(layout::is_leftover).collect();
    remove_leftovers(store, verified, &verified.cluster, &leftovers).await
}

async fn remove_leftovers(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &nfs_client::FileRef,
    names: &[Name],
) -> Result<(), ExportError> {
    for name in names {
        let doing = || format!("removing {name}, left by an interrupted process");
        let Some(node) = store.nfs.lookup(&folder.handle, name).await.context(doing)? else {
            continue;
        };
        if node.attributes.kind != FileKind::Regular {
            continue;
        }
        // It is not an error if another process removes or replaces the file at the same time.
        let removed = store
            .for_write(verified)?
            .remove_file(&folder.handle, name, node.attributes.fileid)
            .await;
        if let Err(error) = removed
            && error.status().is_none()
        {
            return Err(error).context(doing);
        }
    }
    Ok(())
}
