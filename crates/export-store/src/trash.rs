//! The trash and its content, including tombstones (data-safety rule 6). [`crate::purge`] empties it.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{ErrorContext as _, ExportError};
use crate::layout;
use crate::readdir::DirectoryReader;
use crate::record::{Record, State};
use crate::request::{ClaimRef, TrashContent};
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{FileRef, Name, Status};

/// Maximum number of names to try in the trash. Names end with a time in seconds.
const TRASH_NAMES: i64 = 8;
/// Maximum number of trash entries to count.
const MAX_COUNTED: u64 = 1_000_000;
/// Maximum duration of counting them.
const COUNTING: Duration = Duration::from_secs(60);

/// Renames a directory of the operator with this fileid into the trash.
pub(crate) async fn move_to_trash(
    store: &ExportStore,
    verified: &VerifiedRoot,
    (claim, volume): (&ClaimRef, &str),
    (folder, name): (&FileRef, &Name),
    file_id: u64,
) -> Result<(), ExportError> {
    let now = store.unix_time();
    let mut last = None;
    for since in now..now.saturating_add(TRASH_NAMES) {
        let target = layout::trashed(claim, volume, since)?;
        let renamed = store
            .for_write(verified)?
            .rename((&folder.handle, name), file_id, (&verified.trash.handle, &target))
            .await;
        match renamed {
            Ok(()) => return Ok(()),
            Err(error) if error.status() == Some(Status::NotFound) => return Ok(()),
            Err(error) if error.status() == Some(Status::Exists) => last = Some(error),
            Err(error) => {
                last = Some(error);
                break;
            }
        }
    }
    last.map_or(Ok(()), Err)
        .context(|| format!("moving {name} into the trash"))
}

/// Remembers a tombstone, so that it is purged.
pub(crate) fn track_tombstone(store: &ExportStore, record: &Record) {
    store.state().tombstones.insert(record.volume.clone(), record.clone());
}

/// Counts the tombstones of the backend and, if requested, the entries of the folder that all backends on the export
/// share.
pub(crate) async fn content(
    store: &ExportStore,
    verified: &VerifiedRoot,
    shared_trash: bool,
) -> Result<TrashContent, ExportError> {
    let shared = match shared_trash {
        true => shared_content(store, verified).await?,
        false => EntryTimes::default(),
    };
    Ok(shared.with_tombstones(store))
}

/// Counts the entries of the folder.
async fn shared_content(store: &ExportStore, verified: &VerifiedRoot) -> Result<EntryTimes, ExportError> {
    let mut content = EntryTimes::default();
    let began = Instant::now();
    let mut reader = DirectoryReader::new(verified.trash.handle.clone());
    while let Some(page) = reader
        .next_page(&store.nfs)
        .await
        .context(|| "listing the trash".into())?
    {
        if page.is_first {
            content = EntryTimes::default();
        }
        for entry in &page.entries {
            content.add(layout::trashed_since(&entry.name));
        }
        // The count is informational: stop on an endless listing.
        if content.entries >= MAX_COUNTED || began.elapsed() >= COUNTING {
            break;
        }
    }
    Ok(content)
}

/// Number of deleted directories, and the time of the oldest deletion.
#[derive(Default)]
struct EntryTimes {
    entries: u64,
    oldest: Option<i64>,
}

impl EntryTimes {
    fn add(&mut self, deleted: Option<i64>) {
        self.entries += 1;
        self.oldest = self.oldest.into_iter().chain(deleted).min();
    }

    /// Adds the tombstones of the backend.
    fn with_tombstones(mut self, store: &ExportStore) -> TrashContent {
        for record in tombstones(store) {
            self.add(match record.state {
                State::Tombstone { since } => Some(since),
                _ => None,
            });
        }
        let oldest = self.oldest;
        TrashContent {
            entries: self.entries,
            oldest: oldest.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok()),
        }
    }
}

pub(crate) fn tombstones(store: &ExportStore) -> Vec<Record> {
    store.state().tombstones.values().cloned().collect()
}
