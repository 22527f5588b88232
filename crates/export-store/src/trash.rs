//! What is in the trash, and purging all of it: the folder's entries and the tombstones (design 6.6).

use std::time::{Duration, Instant};

use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::purge::{Purge, Root};
use super::record::{Record, State};
use super::request::{PurgeLimits, PurgeReport, TrashContent};
use super::{ExportStore, PoisonError, layout};
use nfs_client::Status;

/// Entries of the trash that are counted; volumes that are deleted at a time are fewer by far.
const MOST_COUNTED: usize = 1_000_000;
/// Time that is given to counting them.
const COUNTING: Duration = Duration::from_secs(60);

impl ExportStore {
    pub(super) async fn trash_on(&self, ground: &VerifiedRoot) -> Result<TrashContent, ExportError> {
        let mut entries = 0_u64;
        let mut oldest = None;
        let mut count = |since: Option<i64>| {
            entries += 1;
            oldest = match (oldest, since) {
                (Some(oldest), Some(since)) if oldest < since => Some(oldest),
                (oldest, since) => since.or(oldest),
            };
        };
        let mut from = None;
        let began = Instant::now();
        let mut listed = 0;
        loop {
            let page = self.nfs.list(&ground.trash.handle, from).await;
            let page = page.while_(|| "listing the trash".into())?;
            for entry in &page.entries {
                count(layout::trashed_since(&entry.name));
            }
            listed += page.entries.len();
            match page.next {
                // What is counted is for people: a listing that never ends must not keep us.
                Some(next) if listed < MOST_COUNTED && began.elapsed() < COUNTING => from = Some(next),
                _ => break,
            }
        }
        for record in self.known_tombstones() {
            count(match record.state {
                State::Tombstone { since } => Some(since),
                _ => None,
            });
        }
        Ok(TrashContent {
            entries,
            oldest: oldest.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok()),
        })
    }

    pub(super) async fn purge_on(
        &self,
        ground: &VerifiedRoot,
        limits: PurgeLimits,
    ) -> Result<PurgeReport, ExportError> {
        let end = Instant::now().checked_add(limits.time);
        let mut purge = Purge::new(self, ground, limits.removals, end);
        purge.tree(Root::kept(&ground.trash)).await?;
        for record in self.known_tombstones() {
            if purge.is_over() {
                break;
            }
            self.purge_tombstone(ground, &record, &mut purge).await?;
        }
        let mut report = purge.report();
        report.left = self.trash_on(ground).await?;
        Ok(report)
    }

    fn known_tombstones(&self) -> Vec<Record> {
        let tombstones = self.tombstones.lock().unwrap_or_else(PoisonError::into_inner);
        tombstones.values().cloned().collect()
    }

    async fn purge_tombstone(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        purge: &mut Purge<'_>,
    ) -> Result<(), ExportError> {
        let _turn = self.turns.of(&record.volume).await;
        let doing = || format!("purging the tombstone of {}", record.directory);
        let nodes = match self.walk(ground, &record.directory).await {
            Ok(nodes) => nodes,
            // Its parent is something else now; the tombstone went wherever the parent went.
            Err(error @ ExportError::PathUnusable { .. }) => {
                purge.fail(&record.directory.to_string(), error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let has_parent = nodes.len() + 1 >= record.directory.segments().len();
        let parent = self.parent_of(ground, &nodes, &record.directory);
        let name = layout::tombstone(&record.volume)?;
        let tombstone = match has_parent {
            true => self.nfs.lookup(&parent.handle, &name).await.while_(doing)?,
            false => None,
        };
        if let Some(tombstone) = tombstone {
            let file_id = tombstone.attributes.fileid;
            if !ground.is_plain_directory(&tombstone) || !record.is_about(&tombstone) {
                purge.fail(
                    &name.to_string(),
                    "something else has the tombstone's name: remove it by hand".into(),
                );
                return Ok(());
            }
            if !purge.tree(Root::named(&tombstone, &name)).await? {
                return Ok(());
            }
            let removed = self
                .changing(ground)?
                .remove_directory(&parent.handle, &name, file_id)
                .await;
            match removed {
                Ok(()) => purge.count_one(),
                Err(error) if error.status() == Some(Status::NotFound) => {}
                Err(error) if error.status().is_some() => {
                    purge.fail(&name.to_string(), error.to_string());
                    return Ok(());
                }
                Err(error) => return Err(error).while_(doing),
            }
        }
        self.remove_record(ground, &record.volume).await?;
        let mut tombstones = self.tombstones.lock().unwrap_or_else(PoisonError::into_inner);
        tombstones.remove(&record.volume);
        Ok(())
    }
}
